// What was done in a session, by whomever: the operations log, which never holds what was written or read.

import { get } from "./api.js";
import { able, button, el, keyed, repeated, setText } from "./dom.js";
import { date, moment, name, plain, took } from "./text.js";

const PAGE = 50;
const EVERY = 2000;
const OPS = ["run", "read", "write", "stat", "ls", "realpath", "mkdir", "remove", "stop"];

export function activityPanel(panel, { id }) {
  const filter = { op: "", failed: "", q: "", skip: 0 };
  let asking = null;
  const looks = repeated(look, EVERY);
  const body = el("tbody");
  const shown = el("p", { class: "note", id: "activity-shown" });
  const failed = el("p", { class: "error", role: "alert" });
  const field = (key, label, options) => {
    const select = el("select", { id: `activity-${key}`, onchange: () => change(key, select.value) }, ...options.map(([value, text]) => el("option", { value }, text)));
    return el("div", { class: "field" }, el("label", { for: select.id }, label), select);
  };
  const text = el("input", { id: "activity-q", type: "search", maxLength: 200, autocomplete: "off", spellcheck: false, oninput: () => change("q", text.value) });
  const newer = button("Newer", () => change("skip", Math.max(0, filter.skip - PAGE)));
  const older = button("Older", () => change("skip", filter.skip + PAGE));
  const heads = ["Time", "Operation", "What", "Outcome", "Took", "Agent"];
  panel.append(
    el("p", { class: "note" }, "Every operation on this session, an agent's included, newest first. What was addressed and how it went is recorded; contents and output never are."),
    el(
      "div",
      { class: "filters", role: "search", "aria-label": "Operations" },
      el("div", { class: "field grow" }, el("label", { for: "activity-q" }, "Find"), text),
      field("op", "Operation", [["", "every operation"], ...OPS.map((op) => [op, op])]),
      field("failed", "Outcome", [["", "every outcome"], ["true", "failed"], ["false", "did not fail"]]),
    ),
    failed,
    el(
      "div",
      { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of operations" },
      el(
        "table",
        { "aria-describedby": "activity-shown" },
        el("caption", { class: "unseen" }, "Operations of this session"),
        el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col", class: head === "Agent" ? "wide" : null }, head)))),
        body,
      ),
    ),
    el("div", { class: "row" }, shown, el("span", { class: "grow" }), newer, older),
  );

  function change(key, value) {
    if (key !== "skip") filter.skip = 0;
    filter[key] = value;
    looks.now();
  }

  async function look() {
    asking?.abort();
    const mine = (asking = new AbortController());
    const query = new URLSearchParams({ session: id, limit: PAGE, skip: filter.skip });
    for (const key of ["op", "failed", "q"]) if (filter[key]) query.set(key, filter[key]);
    try {
      const page = await get(`operations?${query}`, { signal: mine.signal });
      setText(failed, "");
      keyed(body, page.operations, { key: (row) => row.id, make: makeRow });
      const last = page.skip + page.operations.length;
      const all = !filter.op && !filter.failed && !filter.q;
      setText(shown, page.total === 0 ? (all ? "Nothing was done here yet." : "No operation matches.") : `${page.skip + 1} to ${last} of ${page.total}`);
      newer.hidden = older.hidden = page.total <= PAGE;
      able(newer, page.skip > 0);
      able(older, last < page.total);
    } catch (error) {
      if (error.name !== "AbortError") setText(failed, plain(error.message));
    }
  }

  const stop = () => {
    looks.stop();
    asking?.abort();
  };
  return { update: (seen) => seen && looks.goOn(), show: looks.start, hide: stop, close: stop };
}

function makeRow(operation) {
  const time = el("time", { dateTime: new Date(operation.at * 1000).toISOString(), title: date(operation.at) }, moment(operation.at));
  const outcome = el("span", { class: operation.ok ? "good" : "bad" }, plain(operation.detail || (operation.ok ? "done" : "failed")));
  const node = el(
    "tr",
    {},
    el("td", {}, time),
    el("td", {}, plain(operation.op)),
    el("td", { class: "target" }, name(operation.target)),
    el("td", {}, outcome),
    el("td", { class: "number" }, took(operation.duration_ms)),
    el("td", { class: "wide" }, operation.agent ? name(operation.agent) : "–"),
  );
  return { node };
}
