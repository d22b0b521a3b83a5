// What may be opened, and what is in force. Looked at, not changed: whoever runs the host decides that where it is started.

import { get, text as getText } from "./api.js";
import { button, el, keyed, repeated, setAttribute, setText } from "./dom.js";
import { bytes, ceiling, date, plain, span, write } from "./text.js";

const EVERY = 3000;
const LOG_KEPT = 60_000;

export function runtimesView(section, context) {
  const { state } = context;
  const looks = repeated(look, EVERY);
  const cards = el("div", { class: "cards" });
  const failed = el("p", { class: "error", role: "alert" });
  const policyBody = el("tbody");
  section.append(
    failed,
    el(
      "section",
      { class: "card", "aria-labelledby": "runtimes-title" },
      el("h2", { id: "runtimes-title" }, "Runtimes allowed"),
      el("p", { class: "note" }, "A client names one of these. Image, ceilings and network belong to the name, so that no client runs an image of its own choice or lifts a ceiling."),
      cards,
    ),
    el(
      "section",
      { class: "card", "aria-labelledby": "set-title" },
      el("h2", { id: "set-title" }, "Where these values are set"),
      el(
        "p",
        {},
        "In ",
        el("code", {}, "/etc/sandboxd/sandboxd.toml"),
        " or the environment (",
        el("code", {}, "SANDBOXD_MEM_LIMIT"),
        " and so on), service-wide; for one runtime in its entry of the catalogue or of ",
        el("code", {}, "SANDBOXD_RUNTIMES"),
        ". A service-wide value is a default, not a maximum: a runtime may name more. What bounds the host is the number of sandboxes times the largest ceiling.",
      ),
      el(
        "p",
        {},
        "There is no form here. A value that was changed in a browser would be gone after the next start, and nobody could say why; and which images run, as whom and with what network is for whoever runs the host, not for whoever holds the token. Ceilings and lifetimes alone can be changed while the service runs, with ",
        el("code", {}, "sandboxctl policy set"),
        " or a file of overrides: they apply to the next sandbox.",
      ),
    ),
    el(
      "section",
      { class: "card", "aria-labelledby": "policy-title" },
      el("h2", { id: "policy-title" }, "Policy in force"),
      el(
        "div",
        { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of the policy" },
        el("table", {}, el("caption", { class: "unseen" }, "Policy in force"), el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Setting"), el("th", { scope: "col" }, "Value"))), policyBody),
      ),
    ),
  );

  const has = (route) => state.index?.endpoints.includes(route) ?? false;
  const routes = () => state.index?.endpoints.join() ?? "";
  // With which routes the cards are made.
  let made = "";

  async function look() {
    try {
      const [policy, images, known] = await Promise.all([get("policy"), get("images"), has("/runtimes") ? get("runtimes") : { runtimes: [] }]);
      state.policy = policy;
      setText(failed, "");
      const told = new Map(known.runtimes.map((runtime) => [runtime.alias, runtime]));
      const items = policy.runtimes.map((runtime) => ({
        runtime,
        chosen: runtime.alias === policy.default_runtime,
        image: images.find(({ runtimes }) => runtimes.includes(runtime.alias)),
        told: told.get(runtime.alias),
      }));
      if (made !== routes()) keyed(cards, [], { key: () => "" });
      made = routes();
      keyed(cards, items, { key: ({ runtime }) => runtime.alias, make: ({ runtime }) => makeCard(runtime.alias, has), update: (card, item) => card.update(item) });
      showPolicy(policyBody, policy);
    } catch (error) {
      setText(failed, plain(error.message));
    }
  }

  return {
    show: looks.start,
    update: looks.goOn,
    // Now it is known which routes there are.
    policy() {
      if (!section.hidden && made !== routes()) looks.now();
    },
    hide: looks.stop,
    leave() {
      looks.stop();
      for (const each of [cards, policyBody]) keyed(each, [], { key: () => "" });
    },
  };
}

function however(image, told) {
  const state = told?.state ?? image?.state ?? "absent";
  const words = { ready: image?.size ? `ready, ${bytes(image.size)} on disk` : "ready", building: "building", failed: "failed", absent: "not here yet; made when it is first needed" };
  const progress = told?.progress;
  const step = progress ? `, step ${progress.number} of ${progress.steps} (${plain(progress.step)}) for ${span(Date.now() / 1000 - progress.since)}` : "";
  const pull = told?.pull?.bytes ? `, ${bytes(told.pull.bytes_received)} of ${bytes(told.pull.bytes)} pulled` : "";
  return { state, text: `${words[state] ?? plain(state)}${step}${pull}` };
}

function makeCard(alias, has) {
  const title = el("h3", {}, el("bdi", {}, plain(alias)));
  const standard = el("span", { class: "badge" }, "default");
  const badge = el("span", { class: "badge" });
  const description = el("p");
  const facts = el("dl", { class: "facts" });
  const error = el("p", { class: "error" });
  const values = new Map();
  const fact = (label, text) => {
    if (!values.has(label)) {
      const value = el("dd");
      values.set(label, value);
      facts.append(el("dt", {}, label), value);
    }
    setText(values.get(label), text);
  };
  const details = el("div", { class: "details" });
  const node = el("article", { class: "card inner" }, el("div", { class: "row" }, title, standard, el("span", { class: "grow" }), badge), description, facts, error, details);
  const briefing = has("/runtimes/{alias}/briefing") ? unfold("Briefing as a model reads it", alias, "briefing", false, async () => {
    const { briefing } = await get(`runtimes/${encodeURIComponent(alias)}/briefing`);
    return briefing ?? "None: no catalogue says what is in this runtime.";
  }) : null;
  const log = has("/runtimes/{alias}/log") ? unfold("Log of its build", alias, "log", true, async () => {
    const text = await getText(`runtimes/${encodeURIComponent(alias)}/log`);
    return text.length > LOG_KEPT ? `(the last of ${text.length} characters)\n${text.slice(-LOG_KEPT)}` : text;
  }) : null;
  for (const part of [briefing, log]) if (part) details.append(part.node);
  let was = null;
  return {
    node,
    update({ runtime, chosen, image, told }) {
      const { state, text } = however(image, told);
      standard.hidden = !chosen;
      setText(badge, state === "absent" ? "not here yet" : state);
      setAttribute(badge, "data-state", state);
      setText(description, runtime.description ? plain(runtime.description) : "No description.");
      fact("Image", plain(runtime.image));
      fact("On this host", text);
      if (image?.created_at) fact("Made", date(image.created_at));
      fact("Memory", runtime.mem_limit ? ceiling(runtime.mem_limit) : "no ceiling");
      fact("CPUs", runtime.cpus === null ? "no ceiling" : `${runtime.cpus}`);
      fact("Processes", runtime.pids_limit === null ? "no ceiling" : `${runtime.pids_limit}`);
      fact("Network", runtime.network_mode === "none" ? "none" : `${runtime.network_mode}, as far as the operator's list goes`);
      fact("OCI runtime", runtime.oci_runtime ?? "built in");
      if (told?.packages?.length) fact("Packages", told.packages.map(plain).join(", "));
      setText(error, plain(told?.error ?? image?.error ?? ""));
      if (log) {
        log.node.hidden = !runtime.builds;
        // Once more when it has ended, for the last of it.
        if (state === "building" || was === "building") log.again();
      }
      was = state;
    },
  };
}

// A part of a card that is asked for when it is unfolded; `fill` gives its text. One that `follows` is looked at from its end.
function unfold(label, alias, id, follows, fill) {
  const pre = el("pre", { id: `${id}-${alias}`, tabIndex: 0, "aria-label": `${label}: ${plain(alias)}`, hidden: true });
  let known = "";
  // What was there stays: whoever marks or reads it keeps his place, and whoever is at its end is taken along.
  const show = (text) => {
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 20;
    const more = known && text.startsWith(known);
    if (text === known) return;
    if (!more) pre.replaceChildren();
    write(pre, more ? text.slice(known.length) : text, { lines: true });
    known = text;
    if (atEnd && follows) pre.scrollTop = pre.scrollHeight;
  };
  const load = async () => {
    if (!known) pre.setAttribute("aria-busy", "true");
    show(await fill().catch((error) => error.message));
    pre.removeAttribute("aria-busy");
  };
  const toggle = button(label, () => {
    pre.hidden = !pre.hidden;
    setAttribute(toggle, "aria-expanded", String(!pre.hidden));
    if (!pre.hidden) load();
  }, { "aria-expanded": "false", "aria-controls": pre.id, class: "quiet" });
  return { node: el("div", {}, toggle, pre), again: () => !pre.hidden && load() };
}

// What a setting's number is of.
const SECONDS = new Set(["container_ttl", "evict_idle_after", "execute_timeout", "idle_timeout", "workspace_ttl"]);
const BYTES = new Set(["max_read_bytes"]);

// A number as it is written in the settings, and what that is.
function withUnit(setting, value) {
  if (SECONDS.has(setting)) return value < 60 ? `${value} s` : `${value} s, which is ${span(value)}`;
  return BYTES.has(setting) ? `${value} bytes, which is ${bytes(value)}` : plain(value);
}

function showPolicy(body, policy) {
  const rows = Object.entries(policy).filter(([setting]) => setting !== "runtimes").sort(([a], [b]) => (a < b ? -1 : 1));
  const words = (setting, value) => (value === null ? "none" : Array.isArray(value) ? value.map(plain).join(", ") || "none" : withUnit(setting, value));
  keyed(body, rows, {
    key: ([setting]) => setting,
    make: ([setting]) => {
      const value = el("td", { class: "mono" });
      return { node: el("tr", {}, el("th", { scope: "row" }, el("code", {}, setting)), value), value };
    },
    update: (row, [setting, value]) => setText(row.value, words(setting, value)),
  });
}
