// What sessions left behind: the workspaces that are on the disk, whether or not they have a session now. Looking wakes nobody.

import { ask, get } from "./api.js";
import { confirm } from "./dialogs.js";
import { able, announce, button, during, el, keyed, repeated, setAttribute, setText } from "./dom.js";
import { bytes, count, date, plain, span } from "./text.js";

const EVERY = 5000;
const PAGE = 25;
// What a person calls the states, and what they mean.
const STATES = {
  open: { label: "open", hint: "Its session has a sandbox." },
  asleep: { label: "asleep", hint: "Its session sleeps; its next command wakes it." },
  closed: { label: "closed", hint: "It has no session. Opening one of this name finds these files again." },
};

export function keptView(section, context) {
  const { state } = context;
  const looks = repeated(look, EVERY);
  let skip = 0;
  let asking = null;
  const body = el("tbody");
  const failed = el("p", { class: "error", role: "alert" });
  const shown = el("p", { class: "note", id: "kept-shown" });
  const newer = button("Newer", () => turn(-PAGE));
  const older = button("Older", () => turn(PAGE));
  const heads = [["Session"], ["State"], ["Runtime", "wide"], ["Files", "roomy"], ["On disk"], ["Last opened", "wide"], ["Who can see it", "wide"], ["Actions"]];
  const table = el(
    "table",
    { class: "kept", "aria-describedby": "kept-shown" },
    el("caption", { class: "unseen" }, "Kept workspaces"),
    el("thead", {}, el("tr", {}, ...heads.map(([head, wide]) => el("th", { scope: "col", class: wide ?? null }, head)))),
    body,
  );
  const region = el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of kept workspaces" }, table);
  const empty = el(
    "div",
    { class: "empty", hidden: true },
    el("p", {}, "Nothing is kept."),
    el("p", { class: "note" }, "Files of a session stay when it is closed, until they are purged or their time is over."),
  );
  const lives = el("p", { class: "note" });
  const title = el("h2", { id: "kept-title", tabIndex: -1 }, "Kept workspaces");
  section.append(
    el(
      "section",
      { class: "card", "aria-labelledby": "kept-title" },
      el("div", { class: "head" }, title, shown),
      lives,
      failed,
      region,
      empty,
      el("div", { class: "row" }, el("span", { class: "grow" }), newer, older),
    ),
  );

  function turn(by) {
    skip = Math.max(0, skip + by);
    looks.now();
  }

  async function look() {
    asking?.abort();
    const mine = (asking = new AbortController());
    try {
      const page = await get(`workspaces?${new URLSearchParams({ skip, limit: PAGE })}`, { signal: mine.signal });
      // The last of a page may have been purged.
      if (page.workspaces.length === 0 && page.total > 0 && skip > 0) {
        skip = Math.max(0, Math.floor((page.total - 1) / PAGE) * PAGE);
        return await look();
      }
      show(page);
      setText(failed, "");
    } catch (error) {
      if (error.name !== "AbortError") setText(failed, plain(error.message));
    }
    return undefined;
  }

  function show({ workspaces, total, skip: before, disk_bytes: onDisk }) {
    keyed(body, workspaces, {
      key: ({ session_id: id, created_at: made }) => `${id} ${made}`,
      make: (row) => makeRow(row, { ...context, look: () => looks.now() }),
      update: (row, workspace) => row.update(workspace),
      leave: (row, hadFocus) => {
        if (hadFocus) title.focus();
      },
    });
    const last = before + workspaces.length;
    const part = total > workspaces.length ? `${before + 1} to ${last} of ${count(total, "workspace")}` : count(total, "workspace");
    setText(shown, total === 0 ? "" : `${part}, last opened first; ${bytes(onDisk)} on disk`);
    empty.hidden = total > 0;
    region.hidden = total === 0;
    newer.hidden = older.hidden = total <= PAGE;
    able(newer, before > 0);
    able(older, last < total);
    const ttl = state.policy?.workspace_ttl;
    setText(lives, ttl ? `Files that nobody opens for ${span(ttl)} are deleted.` : "Files stay until somebody purges them.");
  }

  const stop = () => {
    looks.stop();
    asking?.abort();
  };
  return {
    show: looks.start,
    update: looks.goOn,
    hide: stop,
    leave() {
      stop();
      skip = 0;
      keyed(body, [], { key: () => "" });
    },
  };
}

// Delete a kept workspace after a question: by itself if its session is closed, with its session otherwise.
async function purge(id, closed, self, context) {
  const text = closed
    ? "Its files are deleted, all of them. Nothing brings them back."
    : "Its session is open: it is closed, its processes end, and its files are deleted, all of them. Nothing brings them back.";
  if (!(await confirm({ title: `Purge the workspace of ${plain(id)}?`, text, yes: "Purge it" }))) return;
  await during(self, async () => {
    await ask("DELETE", closed ? `workspaces/${encodeURIComponent(id)}` : `sessions/${encodeURIComponent(id)}?purge=true`);
    announce(`The workspace of ${plain(id)} is deleted`);
  });
  context.look();
  context.refresh();
}

function makeRow(workspace, context) {
  const id = workspace.session_id;
  const badge = el("span", { class: "badge" });
  const files = el("td", { class: "number roomy" });
  const size = el("span");
  const quota = el("span", { class: "roomy" });
  const opened = el("time");
  const link = el("a", { class: "button", href: `#/session/${encodeURIComponent(id)}/files`, "aria-label": `Files of ${id}` }, "Files");
  const away = button("Purge", (event) => purge(id, row.closed, event.currentTarget, context), { class: "danger", "aria-label": `Purge the workspace of ${id}` });
  const node = el(
    "tr",
    {},
    el("th", { scope: "row" }, el("bdi", { class: "name" }, plain(id))),
    el("td", {}, badge),
    el("td", { class: "wide" }, el("bdi", {}, plain(workspace.runtime))),
    files,
    el("td", { class: "number" }, size, quota),
    el("td", { class: "wide number" }, opened),
    el("td", { class: "wide" }, el("bdi", {}, plain(workspace.access))),
    el("td", { class: "actions" }, link, away),
  );
  const row = { node, closed: false };
  row.update = (now) => {
    const { label, hint } = STATES[now.state] ?? { label: plain(now.state), hint: "" };
    row.closed = now.state === "closed";
    setText(badge, label);
    setAttribute(badge, "data-state", now.state);
    setAttribute(badge, "title", hint);
    setText(files, now.files === null ? "–" : `${now.files}${now.truncated ? "+" : ""}`);
    setAttribute(files, "title", now.error ? plain(now.error) : null);
    setText(size, bytes(now.disk_bytes ?? now.bytes));
    setText(quota, now.disk_bytes !== null && now.disk_quota_bytes ? ` of ${bytes(now.disk_quota_bytes)}` : "");
    setText(opened, date(now.last_opened));
    setAttribute(opened, "datetime", new Date(now.last_opened * 1000).toISOString());
  };
  return row;
}
