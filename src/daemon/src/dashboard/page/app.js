// The page as a whole: who looks at it, which view is shown, and the one loop that asks for the sessions.

import * as api from "./api.js";
import { announce, setAttribute, setText, tabBar, usable } from "./dom.js";
import { keptView } from "./kept.js";
import { History } from "./lines.js";
import { runtimesView } from "./runtimes.js";
import { sessionsView } from "./sessions.js";
import { clock, plain } from "./text.js";
import { workspaceView } from "./workspace.js";

// Milliseconds: between two looks, after one that failed, until an answer is said to be late, until it is not waited for any more.
const EVERY = 2000;
const AGAIN = 5000;
const LATE = 6000;
const GIVEN_UP = 60_000;
// How often it is asked what is in force, and whether this page is the service's still.
const LEARNT_EVERY = 30_000;

// What every view sees. Sessions by id, each with the history of what it used.
const state = { sessions: new Map(), list: null, at: 0, policy: null, index: null, now: {}, total: { memory: new History(), cpu: new History() } };
const byId = (id) => document.getElementById(id);
let signedIn = false;
let timer = null;
let asking = null;
let learnt = -Infinity;
let edition = null;

const context = {
  state,
  refresh: () => look(),
  learn: () => learn(),
  go: (place) => (location.hash = place),
};

const views = {
  sessions: sessionsView(byId("view-sessions"), context),
  workspace: workspaceView(byId("view-workspace"), context),
  kept: keptView(byId("view-kept"), context),
  runtimes: runtimesView(byId("view-runtimes"), context),
};

const main = tabBar(
  "Views",
  [
    { id: "sessions", label: "Sessions", panel: byId("view-sessions") },
    { id: "workspace", label: "Workspace", panel: byId("view-workspace") },
    { id: "kept", label: "Kept workspaces", panel: byId("view-kept") },
    { id: "runtimes", label: "Runtimes and policy", panel: byId("view-runtimes") },
  ],
  (id) => context.go((id === "workspace" && views.workspace.place()) || `#/${id}`),
);
byId("nav").append(main.bar);

// A part of an address, as somebody may have typed it.
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// The part of the address after # is where one is: #/sessions, #/session/ID/files, #/kept, #/runtimes.
function route() {
  if (!signedIn) return;
  const [view, part, place] = location.hash.replace(/^#\//, "").split("/");
  const shown = view === "session" ? "workspace" : Object.hasOwn(views, view) ? view : "sessions";
  const id = part && shown === "workspace" ? decoded(part) : null;
  if (byId(`view-${shown}`).hidden) window.scrollTo(0, 0);
  main.select(shown);
  for (const [name, each] of Object.entries(views)) if (name !== shown) each.hide?.();
  views[shown].show?.(id, place);
  document.title = `${id ? plain(id) : main.buttons.get(shown).textContent} · sandboxd`;
  // What had the focus may be out of sight now. To ask for that takes a layout, of which one is enough.
  requestAnimationFrame(() => {
    const focused = document.activeElement;
    if (signedIn && (!focused || focused === document.body || !focused.checkVisibility())) byId("main").focus({ preventScroll: true });
  });
}

function take(list) {
  const seen = new Set();
  // Not every host measures them.
  let memory = null;
  let cpu = null;
  for (const info of list.sessions) {
    seen.add(info.session_id);
    const known = state.sessions.get(info.session_id);
    const kept = known?.info.created_at === info.created_at ? known : { memory: new History(), cpu: new History() };
    kept.info = info;
    if (info.usage) {
      kept.memory.push(info.usage.memory_bytes ?? 0);
      kept.cpu.push(info.usage.cpu_percent ?? 0);
      if (info.usage.memory_bytes !== null) memory = (memory ?? 0) + info.usage.memory_bytes;
      if (info.usage.cpu_percent !== null) cpu = (cpu ?? 0) + info.usage.cpu_percent;
    }
    state.sessions.set(info.session_id, kept);
  }
  for (const id of state.sessions.keys()) if (!seen.has(id)) state.sessions.delete(id);
  state.total.memory.push(memory ?? 0);
  state.total.cpu.push(cpu ?? 0);
  state.now = { memory, cpu };
  state.list = list;
  state.at = Date.now() / 1000;
}

// Ask for the sessions and show them; then again, as long as somebody looks. Returns what went wrong, if this look was the last.
async function look() {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  const late = setTimeout(() => asking === mine && connection("The service has not answered for a while"), LATE);
  try {
    const { list, peer } = await api.sessions(mine.signal, GIVEN_UP);
    if (mine !== asking) return null;
    take(list);
    // What is entered is shown at once.
    if (!signedIn) enter(peer);
    else for (const view of Object.values(views)) view.update?.();
    api.mark("sessions-shown");
    connection("");
    if (performance.now() - learnt > LEARNT_EVERY) learn();
    again(EVERY);
    return null;
  } catch (error) {
    // Another look has taken its place, or nobody is to see it any more.
    if (mine !== asking) return null;
    if (error.status === 401) {
      if (!signedIn && byId("sign-in").hidden) leave("");
      return error;
    }
    connection(error.status ? `The service answers: ${plain(error.message)}` : "The service cannot be reached; trying again");
    // What it answers when it is there again may be another thing.
    learnt = -Infinity;
    again(AGAIN);
    return error;
  } finally {
    clearTimeout(late);
  }
}

function again(after) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, after);
}

// Say what is the matter with the service, and how old what is shown is.
function connection(trouble) {
  const ended = /[.!?]$/.test(trouble) ? "" : ".";
  setText(byId("connection"), trouble && `${trouble}${ended}${state.list ? ` What is shown is of ${clock(state.at)}.` : ""}`);
}

function enter(peer) {
  signedIn = true;
  setText(byId("identity"), peer ? `No token needed: ${plain(peer)}` : "");
  byId("waiting").hidden = byId("sign-in").hidden = true;
  byId("sign-out").hidden = Boolean(peer);
  byId("nav").hidden = false;
  route();
  // The sessions do not wait for what the other views need.
  learn();
}

async function learn() {
  learnt = performance.now();
  try {
    const [policy, index, now] = await Promise.all([api.get("policy"), api.get("./"), api.edition()]);
    if (!signedIn) return;
    Object.assign(state, { policy, index });
    edition ??= now;
    byId("outdated").hidden = edition === now;
  } catch {
    // The loop over the sessions says what is the matter; this is asked again with one of its next looks.
    learnt = -Infinity;
    return;
  }
  for (const view of Object.values(views)) view.policy?.();
}

// Ask for a token: none is known, or the one that was is not the service's any more.
function leave(message) {
  const had = signedIn;
  signedIn = false;
  clearTimeout(timer);
  asking?.abort();
  asking = null;
  api.setToken(null);
  state.sessions.clear();
  Object.assign(state, { list: null, policy: null, index: null, total: { memory: new History(), cpu: new History() } });
  learnt = -Infinity;
  for (const view of Object.values(views)) view.leave?.();
  for (const name of Object.keys(views)) byId(`view-${name}`).hidden = true;
  // Neither a question nor a message of somebody else's.
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  byId("notes").replaceChildren();
  byId("nav").hidden = byId("sign-out").hidden = byId("waiting").hidden = true;
  byId("sign-in").hidden = false;
  setText(byId("identity"), "");
  connection("");
  document.title = "sandboxd";
  setText(byId("sign-in-error"), message);
  byId("token").value = "";
  byId("token").focus();
  if (had) announce("Signed out");
}

api.whenUnauthorized(() => {
  if (signedIn) leave("The service does not take this token any more.");
});

byId("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = byId("token");
  const submit = byId("sign-in-submit");
  if (!usable(submit)) return;
  // What was copied with it is no part of it.
  const token = field.value.trim();
  // A header holds one line of Latin characters; anything else is no token.
  if (!/^[\x21-\x7e]+$/.test(token)) {
    field.focus();
    return setText(byId("sign-in-error"), "That is not a token: it has spaces or characters that none has.");
  }
  api.setToken(token);
  setText(byId("sign-in-error"), "");
  setAttribute(submit, "aria-busy", "true");
  const error = await look();
  setAttribute(submit, "aria-busy", null);
  if (error?.status === 401) return leave("The service does not take this token. It wants its own, not a session's.");
  if (error) leave(plain(error.message));
  // Who was not heard may say it again.
  field.value = error ? token : "";
  return undefined;
});

byId("sign-out").addEventListener("click", () => leave(""));
byId("load-again").addEventListener("click", () => location.reload());
byId("skip").addEventListener("click", () => byId("main").focus());
window.addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : signedIn && look()));
// A file that is dropped beside its place would be opened by the browser, in place of this page.
for (const kind of ["dragover", "drop"]) {
  window.addEventListener(kind, (event) => {
    if (event.defaultPrevented || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    event.dataTransfer.dropEffect = "none";
  });
}

look();
