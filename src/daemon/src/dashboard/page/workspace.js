// The view of one session: its terminal, files, activity and facts, each behind a tab.

import { activityPanel } from "./activity.js";
import { able, announce, button, el, setAttribute, setText, tabBar } from "./dom.js";
import { filesPanel } from "./files.js";
import { infoPanel } from "./info.js";
import { end, stateOf, turnOver } from "./sessions.js";
import { terminalPanel } from "./terminal.js";
import { plain } from "./text.js";

const PARTS = ["terminal", "files", "activity", "info"];
// Sessions whose terminals are kept while one looks at others.
const DESKS = 8;

export function workspaceView(section, context) {
  const { state } = context;
  const desks = new Map();
  let current = null;
  const nothing = el(
    "div",
    { class: "card empty" },
    el("h2", {}, "No session is selected"),
    el("p", {}, "Choose one in the table of sessions to get its terminal, files, activity and facts."),
    el("a", { class: "button", href: "#/sessions" }, "Go to the sessions"),
  );
  section.append(nothing);

  function desk(id) {
    let found = desks.get(id);
    if (!found) {
      found = makeDesk(id, context);
      desks.set(id, found);
      for (const [other, { busy, close }] of desks) {
        if (desks.size <= DESKS || other === id || busy()) continue;
        close();
        desks.delete(other);
      }
    }
    return found;
  }

  return {
    place: () => (current ? `#/session/${encodeURIComponent(current.id)}/${current.part}` : null),
    show(id, part) {
      const next = id === null ? null : desk(id);
      if (next !== current) current?.hide();
      current = next;
      const node = current ? current.node : nothing;
      // What is put in anew loses the focus.
      if (section.firstElementChild !== node) section.replaceChildren(node);
      current?.show(PARTS.includes(part) ? part : "terminal");
    },
    hide() {
      current?.hide();
    },
    update() {
      for (const each of desks.values()) each.update(each === current && !section.hidden);
    },
    policy() {
      current?.policy();
    },
    leave() {
      for (const { close } of desks.values()) close();
      desks.clear();
      current = null;
      section.replaceChildren(nothing);
    },
  };
}

function makeDesk(id, context) {
  const { state } = context;
  const info = () => state.sessions.get(id)?.info ?? null;
  const badge = el("span", { class: "badge" });
  const gone = el("p", { class: "banner warm", role: "status", hidden: true });
  const turn = button("", (event) => turnOver(id, stateOf(info()) !== "running", event.currentTarget, context));
  const sleep = button("Hibernate", (event) => turnOver(id, false, event.currentTarget, context), { hidden: true });
  const terminate = button("Terminate", (event) => end(id, false, event.currentTarget, context));
  const purge = button("Purge", (event) => end(id, true, event.currentTarget, context), { class: "danger" });
  const panels = Object.fromEntries(PARTS.map((part) => [part, el("div", { id: `panel-${part}`, class: "panel" })]));
  const about = { id, context, info };
  const parts = {
    terminal: terminalPanel(panels.terminal, about),
    files: filesPanel(panels.files, about),
    activity: activityPanel(panels.activity, about),
    info: infoPanel(panels.info, about),
  };
  const labels = { terminal: "Terminal", files: "Files", activity: "Activity", info: "Info" };
  const tabs = tabBar(
    `Workspace of ${plain(id)}`,
    PARTS.map((part) => ({ id: part, label: labels[part], panel: panels[part] })),
    (part) => context.go(`#/session/${encodeURIComponent(id)}/${part}`),
  );
  const node = el(
    "div",
    { class: "card" },
    el(
      "div",
      { class: "row" },
      el("h2", {}, "Session ", el("bdi", { class: "name" }, plain(id))),
      badge,
      el("span", { class: "grow" }),
      turn,
      sleep,
      terminate,
      purge,
    ),
    gone,
    tabs.bar,
    ...Object.values(panels),
  );
  const desk = { id, node, part: "terminal", was: null };

  desk.update = (seen) => {
    const now = info();
    const called = now ? stateOf(now) : "closed";
    if (state.list && desk.was !== called) {
      // Whoever looks at it is told when it ends under him.
      if (desk.was && seen) announce(`Session ${plain(id)} is ${called} now`);
      desk.was = called;
    }
    setText(badge, called);
    setAttribute(badge, "data-state", called);
    const label = called === "running" ? "Hibernate" : "Wake";
    setText(turn, label);
    sleep.hidden = called !== "frozen";
    for (const each of [turn, sleep, terminate, purge]) able(each, Boolean(now));
    gone.hidden = Boolean(now) || !state.list;
    setText(gone, gone.hidden ? "" : "This session is not open: it was closed, or it never was. Its files, if they were kept, can be looked at; commands cannot be run.");
    if (seen) for (const part of Object.values(parts)) part.update?.(part === parts[desk.part]);
  };
  desk.show = (part) => {
    if (part !== desk.part) parts[desk.part].hide?.();
    desk.part = part;
    tabs.select(part);
    desk.update(true);
    parts[part].show?.();
  };
  desk.hide = () => parts[desk.part].hide?.();
  desk.policy = () => parts.info.update?.(true);
  desk.busy = () => parts.terminal.busy();
  desk.close = () => {
    for (const part of Object.values(parts)) part.close?.();
  };
  return desk;
}
