// The view of all sessions: how much is in use, and each of them with what can be done to it.

import { ask, post, session as at } from "./api.js";
import { confirm, create } from "./dialogs.js";
import { announce, button, during, el, gauge, usable, keyed, note, setAttribute, setText } from "./dom.js";
import { line } from "./lines.js";
import { bytes, count, percent, plain, roughly } from "./text.js";

const TENANTS_SHOWN = 4;

// What a session's tier is called, and whether it holds a sandbox.
export function stateOf(info) {
  if (info.state === "running" && !info.alive) return "ended";
  if (info.tier === "frozen") return "frozen";
  if (info.state === "hibernated") return "hibernated";
  return "running";
}
const STATES = ["running", "frozen", "hibernated", "ended"];

const COLUMNS = [
  { id: "id", label: "Session", value: (info) => info.session_id },
  { id: "runtime", label: "Runtime", value: (info) => info.runtime, wide: true },
  { id: "tenant", label: "Tenant", value: (info) => info.tenant ?? "", wide: true },
  { id: "state", label: "State", value: (info) => STATES.indexOf(stateOf(info)) },
  { id: "idle", label: "Idle", value: (info) => info.idle_seconds, number: true },
  { id: "memory", label: "Memory", value: (info) => info.usage?.memory_bytes ?? -1, number: true, wide: true },
  { id: "cpu", label: "CPU", value: (info) => info.usage?.cpu_percent ?? -1, number: true, wide: true },
  { id: "pids", label: "PIDs", value: (info) => info.usage?.pids ?? -1, number: true, wide: true },
];

export function sessionsView(section, context) {
  const { state } = context;
  const chosen = { text: "", state: "", runtime: "", tenant: "", sort: null, down: false };
  let was = "";

  const tiles = makeTiles();
  const filters = makeFilters(chosen, () => render());
  const head = el("tr", {}, ...COLUMNS.map((column) => heading(column, chosen, () => render())), el("th", { scope: "col" }, "Actions"));
  const body = el("tbody");
  body.addEventListener("click", ({ target }) => {
    const self = target.closest("button[data-do]");
    if (self && usable(self)) ACTIONS[self.dataset.do](self.closest("tr").row, self, context);
  });
  const shown = el("p", { class: "note", id: "sessions-shown" });
  const empty = el(
    "div",
    { class: "empty", hidden: true },
    el("p", {}, "No session is open."),
    el("p", { class: "note" }, "Open one here, or let an agent open its own through the API."),
    el("p", {}, el("a", { href: "#/kept" }, "Files of closed sessions")),
  );
  const noMatch = el("div", { class: "empty", hidden: true }, el("p", {}, "No session matches."), button("Show all of them", () => filters.clear()));
  const table = el("table", { class: "sessions", "aria-describedby": "sessions-shown" }, el("caption", { class: "unseen" }, "Open sessions"), el("thead", {}, head), body);
  const unenforced = el("p", { class: "banner warm", hidden: true });
  section.append(
    unenforced,
    tiles.node,
    el(
      "div",
      { class: "card" },
      el(
        "div",
        { class: "head" },
        el("h2", {}, "Open sessions"),
        shown,
        el("span", { class: "grow" }),
        button("Open a session", () => open(), { class: "primary", id: "open-session" }),
      ),
      filters.node,
      el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of sessions" }, table),
      noMatch,
      empty,
    ),
  );

  async function open() {
    if (!state.policy) await context.learn();
    if (!state.policy) return note("The policy of the service is not known yet", { failed: true });
    return create(state.policy, (session) => {
      note(`Session ${plain(session.session_id)} is open`);
      context.refresh();
    });
  }

  function visible() {
    const text = chosen.text.toLowerCase();
    const list = [...state.sessions.values()].filter(
      ({ info }) =>
        (!text || `${info.session_id} ${info.runtime} ${info.tenant ?? ""}`.toLowerCase().includes(text)) &&
        (!chosen.state || stateOf(info) === chosen.state) &&
        (!chosen.runtime || info.runtime === chosen.runtime) &&
        (!chosen.tenant || info.tenant === chosen.tenant),
    );
    const column = COLUMNS.find(({ id }) => id === chosen.sort);
    if (!column) return list;
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const sign = chosen.down ? -1 : 1;
    // Whoever is about to press a button of a row has it stay where it is; newcomers come last.
    const held = (body.matches(":hover") || body.querySelector(":focus-visible")) && was === `${chosen.sort} ${chosen.down}` ? new Map([...body.children].map(({ row }, at) => [row.id, at])) : new Map();
    was = `${chosen.sort} ${chosen.down}`;
    const place = ({ info }) => held.get(info.session_id) ?? Infinity;
    return list.sort((a, b) => order(place(a), place(b)) || sign * order(column.value(a.info), column.value(b.info)) || order(a.info.session_id, b.info.session_id));
  }

  function render() {
    const list = visible();
    keyed(body, list, {
      key: ({ info }) => info.session_id,
      make: (entry) => makeRow(entry.info),
      update: (row, entry) => row.update(entry),
      leave: ({ id }, hadFocus) => {
        if (!state.sessions.has(id)) announce(`Session ${plain(id)} is closed`);
        if (hadFocus) document.getElementById("open-session").focus();
      },
    });
    const all = state.sessions.size;
    setText(shown, list.length === all ? count(all, "session") : `${list.length} of ${count(all, "session")} shown`);
    empty.hidden = all > 0;
    noMatch.hidden = all === 0 || list.length > 0;
    table.parentNode.hidden = list.length === 0;
    filters.node.hidden = shown.hidden = all === 0;
  }

  return {
    update() {
      if (section.hidden) return;
      tiles.update(state);
      filters.update(state);
      render();
    },
    policy() {
      tiles.update(state);
      const limits = state.policy.unenforced_limits ?? [];
      unenforced.hidden = limits.length === 0;
      setText(unenforced, `This host does not enforce limits on ${limits.join(", ")}: a sandbox can take all there is. For development only.`);
    },
    show() {
      if (state.list) this.update();
    },
    leave() {
      keyed(body, [], { key: () => "" });
    },
  };
}

function heading(column, chosen, changed) {
  const cell = el("th", { scope: "col", class: [column.wide && "wide", column.number && "number"].filter(Boolean).join(" ") || null });
  const sort = button(column.label, () => {
    chosen.down = chosen.sort === column.id ? !chosen.down : Boolean(column.number);
    chosen.sort = column.id;
    for (const other of cell.parentNode.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", chosen.down ? "descending" : "ascending");
    announce(`Sorted by ${column.label}, ${chosen.down ? "descending" : "ascending"}`);
    changed();
  });
  sort.className = "sort";
  cell.append(sort);
  return cell;
}

function makeFilters(chosen, changed) {
  const choice = (id, label, every) => {
    const select = el("select", { id, onchange: () => ((chosen[id.slice(7)] = select.value), changed()) }, el("option", { value: "" }, every));
    return { select, node: el("div", { class: "field" }, el("label", { for: id }, label), select), known: "" };
  };
  const text = el("input", { id: "filter-text", type: "search", autocomplete: "off", spellcheck: false, oninput: () => ((chosen.text = text.value), changed()) });
  const by = { state: choice("filter-state", "State", "every state"), runtime: choice("filter-runtime", "Runtime", "every runtime"), tenant: choice("filter-tenant", "Tenant", "every tenant") };
  const node = el(
    "div",
    { class: "filters", role: "search", "aria-label": "Sessions" },
    el("div", { class: "field grow" }, el("label", { for: "filter-text" }, "Find"), text),
    ...Object.values(by).map(({ node }) => node),
  );
  const offer = (filter, values, key) => {
    const joined = values.join("\n");
    if (filter.known === joined) return;
    filter.known = joined;
    const options = values.map((value) => el("option", { value }, plain(value)));
    filter.select.replaceChildren(filter.select.firstElementChild, ...options);
    filter.select.value = values.includes(chosen[key]) ? chosen[key] : "";
    chosen[key] = filter.select.value;
  };
  return {
    node,
    clear() {
      Object.assign(chosen, { text: "", state: "", runtime: "", tenant: "" });
      for (const { select } of Object.values(by)) select.value = "";
      text.value = "";
      text.focus();
      changed();
    },
    update({ sessions }) {
      const infos = [...sessions.values()].map(({ info }) => info);
      offer(by.state, STATES, "state");
      offer(by.runtime, [...new Set(infos.map(({ runtime }) => runtime))].sort(), "runtime");
      offer(by.tenant, [...new Set(infos.map(({ tenant }) => tenant).filter(Boolean))].sort(), "tenant");
    },
  };
}

function makeTiles() {
  const tile = (label, ...more) => {
    const value = el("p", { class: "figure" }, "–");
    const under = el("p", { class: "note" });
    const node = el("div", { class: "tile" }, el("h2", {}, label), value, under, ...more);
    return { node, value, under };
  };
  const full = gauge("Sandboxes in use");
  const memoryLine = line("Memory in use, last two minutes");
  const cpuLine = line("CPU in use, last two minutes");
  const sessions = tile("Sessions", full.node);
  const memory = tile("Memory in use", memoryLine.node);
  const processes = tile("Processes", cpuLine.node);
  const runtimes = tile("Runtimes allowed");
  const shares = el("ul", { class: "shares" });
  const tenants = el("div", { class: "tile" }, el("h2", {}, "Tenants"), shares);
  const node = el("div", { class: "tiles" }, sessions.node, memory.node, processes.node, runtimes.node, tenants);

  function updateTenants(list, limit) {
    const held = new Map();
    for (const { tenant } of list) if (tenant) held.set(tenant, (held.get(tenant) ?? 0) + 1);
    const ranked = [...held].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    const rest = ranked.length - TENANTS_SHOWN;
    const rows = ranked.slice(0, TENANTS_SHOWN).map(([tenant, number]) => ({ tenant, number }));
    if (rest > 0) rows.push({ tenant: null, number: rest });
    if (rows.length === 0) rows.push({ tenant: null, number: 0 });
    keyed(shares, rows, {
      key: ({ tenant }) => tenant ?? "\n",
      make: ({ tenant }) => {
        const text = el("span");
        const bar = tenant ? gauge(`Sessions of tenant ${plain(tenant)}`) : null;
        return { node: el("li", {}, text, bar?.node), text, bar };
      },
      update: (row, { tenant, number }) => {
        if (!tenant) return setText(row.text, number ? `and ${count(number, "other")}` : "No session names one.");
        setText(row.text, `${plain(tenant)}: ${number}${limit ? `\u00a0of\u00a0${limit}` : ""}`);
        return row.bar.set(number, limit ?? list.length, limit ? `${number} of ${limit}` : `${number} of all ${list.length}`);
      },
    });
  }

  return {
    node,
    update({ list, policy, total, now }) {
      if (!list) return;
      const awake = list.sessions.filter(({ state, alive }) => state === "running" && alive).length;
      setText(sessions.value, list.limit ? `${awake} of ${list.limit}` : `${awake}`);
      const open = `${count(list.sessions.length, "session")} open, asleep or not`;
      setText(sessions.under, `sandboxes in use; ${open}${list.open_limit ? `, of ${list.open_limit} at most` : ""}`);
      full.set(awake, list.limit, list.limit ? `${awake} of ${list.limit}` : `${awake}, without a ceiling`);
      setText(memory.value, bytes(now.memory));
      setText(memory.under, now.memory === null && awake ? "not measured here: this host has no memory controller for sandboxes" : "across live sandboxes");
      memoryLine.node.toggleAttribute("hidden", now.memory === null);
      memoryLine.draw(total.memory, null, bytes(now.memory));
      const pids = list.sessions.reduce((sum, { usage }) => sum + (usage?.pids ?? 0), 0);
      setText(processes.value, `${pids}`);
      setText(processes.under, `summed across sandboxes, using ${percent(now.cpu ?? 0)} of a CPU`);
      cpuLine.draw(total.cpu, 100, percent(now.cpu));
      if (policy) {
        setText(runtimes.value, `${policy.runtimes.length}`);
        setText(runtimes.under, `${policy.runtimes.map(({ alias }) => plain(alias)).join(", ")}; a request names one of these and nothing else`);
      }
      updateTenants(list.sessions, list.tenant_limit);
    },
  };
}

// One row as all of them begin: a copy of it is much sooner there than one that is put together.
let blank = null;
function blankRow() {
  const cell = (column, ...content) => el("td", { class: [column.wide && "wide", column.number && "number"].filter(Boolean).join(" ") || null }, ...content);
  const [, runtime, tenant, state, idle, memory, cpu, pids] = COLUMNS;
  const action = (what, label, more) => button(label, undefined, { "data-do": what, ...more });
  blank ??= el(
    "tr",
    {},
    el("th", { scope: "row" }, el("bdi", { class: "name" })),
    cell(runtime, el("bdi")),
    cell(tenant, el("bdi")),
    cell(state, el("span", { class: "badge" })),
    cell(idle),
    cell(memory, el("span")),
    cell(cpu, el("span")),
    cell(pids),
    el("td", { class: "actions" }, el("a", { class: "button" }, "Open"), action("turn", ""), action("sleep", "Hibernate", { hidden: true }), action("terminate", "Terminate"), action("purge", "Purge", { class: "danger" })),
  );
  return blank.cloneNode(true);
}

// What the buttons of a row do.
const ACTIONS = {
  turn: (row, self, context) => turnOver(row.id, stateOf(row.info) !== "running", self, context),
  sleep: (row, self, context) => turnOver(row.id, false, self, context),
  terminate: (row, self, context) => end(row.id, false, self, context),
  purge: (row, self, context) => end(row.id, true, self, context),
};

function makeRow(info) {
  const id = info.session_id;
  const node = blankRow();
  const [head, runtime, tenant, state, idle, memory, cpu, pids, actions] = node.children;
  const [badge, memoryText, cpuText] = [state, memory, cpu].map(({ firstChild }) => firstChild);
  const [open, turn, sleep, terminate, purge] = actions.children;
  head.firstChild.textContent = plain(id);
  open.href = `#/session/${encodeURIComponent(id)}/terminal`;
  open.setAttribute("aria-label", `Open workspace of ${id}`);
  sleep.setAttribute("aria-label", `Hibernate ${id}`);
  terminate.setAttribute("aria-label", `Terminate ${id}`);
  purge.setAttribute("aria-label", `Purge ${id}`);
  // Most sessions of a long table sleep, and need none of this.
  let drawn = null;
  const drawing = () => {
    if (!drawn) {
      drawn = { bar: gauge(`Memory of ${id}`), memory: line(`Memory of ${id}`), cpu: line(`CPU of ${id}`) };
      memory.append(drawn.bar.node, drawn.memory.node);
      cpu.append(drawn.cpu.node);
    }
    return drawn;
  };
  const row = { node, id, info };
  node.row = row;
  row.update = ({ info, memory: memoryHistory, cpu: cpuHistory }) => {
    row.info = info;
    const now = stateOf(info);
    // Another session may have been opened under its name.
    setText(runtime.firstChild, plain(info.runtime));
    setText(tenant.firstChild, info.tenant ? plain(info.tenant) : "–");
    setText(badge, now);
    setAttribute(badge, "data-state", now);
    setText(idle, roughly(info.idle_seconds));
    const label = now === "running" ? "Hibernate" : "Wake";
    setText(turn, label);
    setAttribute(turn, "aria-label", `${label} ${id}`);
    sleep.hidden = now !== "frozen";
    const used = info.usage;
    setText(memoryText, used && used.memory_bytes === null ? "not measured" : used ? `${bytes(used.memory_bytes)}${used.memory_limit_bytes ? ` of ${bytes(used.memory_limit_bytes)}` : ""}` : "–");
    if (used || drawn) {
      const { bar, memory: memoryLine, cpu: cpuLine } = drawing();
      bar.node.hidden = !used?.memory_limit_bytes;
      memoryLine.node.toggleAttribute("hidden", !used || used.memory_bytes === null);
      cpuLine.node.toggleAttribute("hidden", !used);
      bar.set(used?.memory_bytes ?? 0, used?.memory_limit_bytes, memoryText.textContent);
      memoryLine.draw(memoryHistory, used?.memory_limit_bytes, bytes(used?.memory_bytes));
      cpuLine.draw(cpuHistory, 100, percent(used?.cpu_percent));
    }
    setText(cpuText, percent(used?.cpu_percent));
    setText(pids, used?.pids === null || used?.pids === undefined ? "–" : `${used.pids}`);
  };
  return row;
}

// Close a session, after a question; with its files if `purge`.
export async function end(id, purge, self, context) {
  const question = purge
    ? {
        title: `Purge ${plain(id)}?`,
        text: `Its processes end, and its workspace is deleted with everything in it. Nothing brings that back.`,
        yes: "Purge it",
      }
    : {
        title: `Terminate ${plain(id)}?`,
        text: `Its processes end and its token stops working. Its files stay: a session that is opened under this name finds them.`,
        yes: "Terminate it",
      };
  if (!(await confirm(question))) return;
  await during(self, () => ask("DELETE", at(id, `?purge=${purge}`)));
  context.refresh();
}

// Wake a session or put it to sleep, then look again.
export async function turnOver(id, wake, self, context) {
  await during(self, () => post(at(id, wake ? "/wake" : "/hibernate")));
  context.refresh();
}
