// Making and changing the page. Text is put in as text; there is no way here to make HTML of it.

import { plain } from "./text.js";

// An element: properties that begin with "on" are listeners, "class" and names with a dash are attributes.
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class" || key === "role" || key === "for" || key.includes("-")) node.setAttribute(key, value === true ? "" : value);
    else node[key] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// A button. One that is `able(…, false)` or at work does nothing, and keeps the focus that a disabled one would lose.
export function button(label, onclick, properties = {}) {
  const self = el("button", { type: "button", ...properties }, label);
  if (onclick) self.addEventListener("click", (event) => usable(self) && onclick(event));
  return self;
}

export const usable = (node) => node.getAttribute("aria-disabled") !== "true" && node.getAttribute("aria-busy") !== "true";

export function able(node, yes) {
  setAttribute(node, "aria-disabled", yes ? null : "true");
}

// Do what a button is for, which is at work meanwhile.
export async function during(self, what) {
  setAttribute(self, "aria-busy", "true");
  try {
    await what();
  } catch (error) {
    note(plain(error.message), { failed: true });
  } finally {
    setAttribute(self, "aria-busy", null);
  }
}

// Change a text only if it is another one: what stands still does not flicker and keeps a selection.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, attribute, value) {
  if (value === null) node.removeAttribute(attribute);
  else if (node.getAttribute(attribute) !== value) node.setAttribute(attribute, value);
}

// Bring the children of `parent` in line with `items`: each is made once and kept as long as its key is there.
export function keyed(parent, items, { key, make, update, leave }) {
  const kept = (parent.keyedRows ??= new Map());
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const wanted = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    wanted.add(id);
    let row = kept.get(id);
    if (!row) {
      row = make(item);
      kept.set(id, row);
    }
    update?.(row, item);
    if (row.node === at) at = at.nextElementSibling;
    else parent.insertBefore(row.node, at);
  }
  for (const [id, row] of kept) {
    if (wanted.has(id)) continue;
    const hadFocus = row.node.contains(document.activeElement);
    row.node.remove();
    kept.delete(id);
    leave?.(row, hadFocus);
  }
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
}

// Say something to whoever does not see the page. What comes at once is said at once: a later word would silence an earlier one.
const ANNOUNCED_MOST = 5;
const unsaid = [];
export function announce(text) {
  const node = document.getElementById("announcer");
  node.textContent = "";
  if (unsaid.push(text) > 1) return;
  setTimeout(() => (node.textContent = unsaid.splice(0).slice(-ANNOUNCED_MOST).join(". ")), 50);
}

const NOTE_STAYS = 8000;

// A message at the edge of the page. Failures stay until they are put away.
export function note(text, { failed = false } = {}) {
  const notes = document.getElementById("notes");
  const node = el("div", { class: failed ? "note-card failed" : "note-card" }, el("p", {}, text));
  const away = () => node.remove();
  node.append(button("Dismiss", away, { class: "quiet" }));
  notes.append(node);
  while (notes.children.length > 4) notes.firstElementChild.remove();
  if (!failed) setTimeout(away, NOTE_STAYS);
  announce(text);
}

// Do something again and again, as long as it is wanted and somebody looks at the page.
export function repeated(what, every) {
  let wanted = false;
  let timer = null;
  let turn = 0;
  let busy = false;
  async function round() {
    clearTimeout(timer);
    timer = null;
    const mine = (turn += 1);
    busy = true;
    await what();
    if (mine !== turn) return;
    busy = false;
    if (wanted && !document.hidden) timer = setTimeout(round, every);
  }
  return {
    now: round,
    start() {
      wanted = true;
      round();
    },
    // To be called now and then: goes on after the page was out of sight.
    goOn() {
      if (wanted && timer === null && !busy && !document.hidden) round();
    },
    stop() {
      wanted = false;
      clearTimeout(timer);
      timer = null;
    },
  };
}

// Tabs as a screen reader expects them: one in the tab order, arrows between them, the panel named by its tab.
// `tabs` is a list of { id, label, panel }; returns { bar, select }.
export function tabBar(label, tabs, chosen) {
  const bar = el("div", { role: "tablist", "aria-label": label, class: "tabs" });
  const buttons = new Map();
  const pick = (id) => {
    chosen(id);
    buttons.get(id).focus();
  };
  for (const { id, label: text, panel } of tabs) {
    const tab = button(text, () => chosen(id), {
      id: `tab-${id}`,
      role: "tab",
      "aria-controls": panel.id,
      "aria-selected": "false",
      tabIndex: -1,
    });
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    buttons.set(id, tab);
    bar.append(tab);
  }
  bar.addEventListener("keydown", (event) => {
    const here = tabs.findIndex(({ id }) => buttons.get(id) === document.activeElement);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined || here < 0) return;
    event.preventDefault();
    pick(tabs[(to + tabs.length) % tabs.length].id);
  });
  const select = (selected) => {
    for (const { id, panel } of tabs) {
      const tab = buttons.get(id);
      tab.setAttribute("aria-selected", String(id === selected));
      tab.tabIndex = id === selected ? 0 : -1;
      panel.hidden = id !== selected;
    }
    // On a narrow screen the tabs are one line that moves sideways.
    const tab = buttons.get(selected);
    requestAnimationFrame(() => (bar.scrollLeft = tab.offsetLeft - (bar.clientWidth - tab.offsetWidth) / 2));
  };
  return { bar, select, buttons };
}

// A bar that says how much of something is taken.
export function gauge(label) {
  const fill = el("span", { class: "fill" });
  const node = el("div", { role: "meter", class: "gauge", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  const set = (used, most, text) => {
    const part = most ? Math.min(100, (100 * used) / most) : 0;
    setAttribute(node, "aria-valuenow", String(Math.round(part)));
    setAttribute(node, "aria-valuetext", text);
    setAttribute(node, "data-level", part >= 90 ? "high" : part >= 70 ? "warm" : "low");
    fill.style.width = `${part.toFixed(1)}%`;
  };
  set(0, 1, "");
  return { node, set };
}
