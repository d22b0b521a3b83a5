// The files of a session, off the host: nothing here wakes one that sleeps, but for files that are too large for one request.

import { get, look as ask, workspace } from "./api.js";
import { confirm } from "./dialogs.js";
import { announce, button, el, gauge, keyed, note, repeated, setAttribute, setText } from "./dom.js";
import { makePreview, pictureOf } from "./preview.js";
import { bytes, count, name, plain } from "./text.js";
import { put, transferRow, UPLOAD_MOST } from "./transfer.js";

const EVERY = 5000;
// How often the disk is asked about, which walks the workspace.
const WEIGHED_EVERY = 30_000;
const ENTRIES = 2000;
const THUMBNAILS = 24;
// Directories that are looked at again and again while they are open.
const WATCHED = 12;
// Transfers that are listed, those that are over included.
const TRANSFERS_KEPT = 8;
const MOST_BY_DEFAULT = 8 * 1024 * 1024;

export function filesPanel(panel, { id, context, info }) {
  const limits = () => ({ most: context.state.policy?.max_read_bytes ?? MOST_BY_DEFAULT, workDir: context.state.policy?.work_dir ?? "/workspace", open: Boolean(info()) });
  const preview = makePreview(id, limits);
  const directories = new Map();
  let target = "";
  let weighed = -Infinity;
  const looks = repeated(look, EVERY);
  const lookNow = () => {
    weighed = -Infinity;
    return looks.now();
  };

  const quotaText = el("span", { class: "note" });
  const quota = gauge("Disk in use");
  const where = el("span", { class: "note" });
  const failed = el("p", { class: "error", role: "alert" });
  const transfers = el("ul", { class: "transfers", "aria-label": "Transfers" });
  const picker = el("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to upload", onchange: () => (send(picker.files), (picker.value = "")) });
  const root = makeDirectory("");
  const tree = el("div", { class: "tree", role: "group", "aria-label": "Files of the workspace" }, root.list);
  const split = el("div", { class: "split" }, tree, preview.node);
  const drop = el("div", { class: "drop" }, where, button("Upload files", () => picker.click()), picker);
  panel.append(
    el("div", { class: "row" }, el("div", { class: "quota" }, quotaText, quota.node), el("span", { class: "grow" }), button("Look again", lookNow)),
    drop,
    transfers,
    failed,
    split,
  );

  // The whole panel takes what is dropped.
  panel.addEventListener("dragover", (event) => {
    if (!info() || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    drop.classList.add("over");
  });
  panel.addEventListener("dragleave", () => drop.classList.remove("over"));
  panel.addEventListener("drop", (event) => {
    if (!info()) return;
    event.preventDefault();
    drop.classList.remove("over");
    const directories = [...event.dataTransfer.items].filter((item) => item.webkitGetAsEntry?.()?.isDirectory).map((item) => item.getAsFile()?.name);
    send([...event.dataTransfer.files].filter(({ name: called }) => !directories.includes(called)));
    if (directories.length) note(`Directories are not uploaded here: ${directories.map(plain).join(", ")}. sandboxctl cp copies them.`, { failed: true });
  });

  function makeDirectory(path) {
    const list = el("ul", { class: "entries" });
    const more = el("p", { class: "note", hidden: true });
    const directory = { path, list, more, pictures: new Map(), open: path === "" };
    directories.set(path, directory);
    return directory;
  }

  function makeEntry(entry) {
    const size = el("span", { class: "note" });
    const thumbnail = el("img", { class: "thumbnail", alt: "", hidden: true });
    const row = { entry, size, thumbnail };
    if (entry.is_dir) {
      const self = button("", () => toggle(row, self), { class: "entry folder", "aria-expanded": "false" });
      self.append(name(entry.name));
      row.node = el("li", {}, self);
      row.button = self;
    } else {
      const self = button("", () => choose(row, self), { class: "entry file" });
      self.append(thumbnail, name(entry.name), entry.attached ? el("span", { class: "badge" }, "attached") : "", size);
      row.node = el("li", {}, self);
      row.button = self;
    }
    return row;
  }

  function choose(row, self) {
    for (const other of tree.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    setAttribute(self, "aria-current", "true");
    aim(row.entry.path.split("/").slice(0, -1).join("/"));
    preview.show(row.entry);
  }

  // A directory that is closed or gone is not looked at any more, and neither is what was open in it.
  function forget(path) {
    for (const each of [...directories.keys()]) if (each === path || each.startsWith(`${path}/`)) directories.delete(each);
  }

  async function toggle(row, self) {
    const { path } = row.entry;
    const directory = directories.get(path) ?? makeDirectory(path);
    directory.open = !directory.open;
    setAttribute(self, "aria-expanded", String(directory.open));
    if (!directory.open) {
      directory.list.remove();
      directory.more.remove();
      forget(path);
      return aim(path.split("/").slice(0, -1).join("/"));
    }
    row.node.append(directory.list, directory.more);
    aim(path);
    return list(directory);
  }

  function aim(path) {
    target = path;
    where.replaceChildren("Files that are dropped here go to ", name(path ? `${limits().workDir}/${path}` : limits().workDir), `, up to ${bytes(UPLOAD_MOST)} each.`);
  }

  async function list(directory) {
    try {
      const request = { path: directory.path || ".", max_depth: 1, max_entries: ENTRIES, thumbnails: 0 };
      let answer = await ask(workspace(id, "files"), request);
      const fresh = ({ path, modified_at, name: called }) => pictureOf(called) && directory.pictures.get(path)?.modified_at !== modified_at;
      if (answer.entries.some(fresh)) {
        answer = await ask(workspace(id, "files"), { ...request, thumbnails: THUMBNAILS });
        for (const { path, modified_at, thumbnail } of answer.entries) directory.pictures.set(path, { modified_at, thumbnail });
      }
      setText(failed, "");
      split.hidden = false;
      show(directory, answer);
    } catch (error) {
      if (directory.path !== "" && error.status === 404) return;
      setText(failed, plain(error.message));
      // There is nothing to look at, and never was or is not any more.
      if (error.status === 404) split.hidden = true;
    }
  }

  function show(directory, { entries, truncated }) {
    const order = (a, b) => b.is_dir - a.is_dir || (a.name < b.name ? -1 : 1);
    keyed(directory.list, entries.sort(order), {
      key: (entry) => `${entry.is_dir}${entry.name}`,
      make: makeEntry,
      update: (row, entry) => {
        row.entry = entry;
        setText(row.size, entry.is_dir ? "" : bytes(entry.size));
        const picture = directory.pictures.get(entry.path)?.thumbnail;
        row.thumbnail.hidden = !picture;
        if (picture && row.thumbnail.src !== picture) row.thumbnail.src = picture;
      },
      leave: (row) => forget(row.entry.path),
    });
    const all = entries.length;
    directory.more.hidden = all > 0 && !(truncated && all >= ENTRIES);
    setText(directory.more, all === 0 ? "Nothing is in here." : `These are the first ${all}; there are more.`);
    if (directory.path === "" && !directory.more.isConnected) tree.append(directory.more);
  }

  async function weigh() {
    if (performance.now() - weighed < WEIGHED_EVERY) return;
    weighed = performance.now();
    try {
      const { workspaces } = await get(`workspaces?${new URLSearchParams({ session: id, limit: 1 })}`);
      const [own] = workspaces;
      const used = own?.disk_bytes ?? null;
      const most = own?.disk_quota_bytes ?? null;
      const files = own?.disk_inodes === undefined || own.disk_inodes === null ? "" : `, ${count(own.disk_inodes, "file")} and directories`;
      setText(quotaText, used === null ? (own ? "What it uses of the disk is not known" : "") : `${bytes(used)}${most ? ` of ${bytes(most)} on disk` : " on disk, without a quota"}${files}`);
      quota.node.hidden = used === null || !most;
      if (most) quota.set(used ?? 0, most, `${bytes(used)} of ${bytes(most)}`);
    } catch (error) {
      setText(quotaText, plain(error.message));
    }
  }

  async function look() {
    const open = [...directories.values()].filter(({ open }) => open);
    await Promise.all([weigh(), ...open.slice(0, WATCHED).map(list)]);
  }

  // Send files into the directory that is open; those that would replace others after a question.
  async function send(files) {
    // The list of a file input is emptied with it.
    const wanted = [...files];
    const directory = target ? `${limits().workDir}/${target}` : limits().workDir;
    const there = directories.get(target)?.list.keyedRows;
    const replaced = wanted.map((file) => file.name).filter((called) => there?.has(`false${called}`));
    if (replaced.length && !(await confirm({ title: `Replace ${count(replaced.length, "file")}?`, text: `In ${plain(directory)} there is already: ${replaced.map(plain).join(", ")}.`, yes: "Replace" }))) return;
    const ended = () => transfers.querySelectorAll(".ended");
    while (ended().length > 0 && transfers.children.length + wanted.length > TRANSFERS_KEPT) ended()[0].remove();
    const rows = wanted.map((file) => {
      const abort = new AbortController();
      const row = transferRow(file.name, file.size, () => (abort.abort(), row.begun || row.end("cancelled", true)));
      transfers.append(row.node);
      return { file, abort, row };
    });
    for (const { file, abort, row } of rows) {
      if (abort.signal.aborted) continue;
      row.begun = true;
      try {
        await put(id, directory, file, limits().most, { progress: row.set, signal: abort.signal });
        row.set(file.size);
        row.end(`${bytes(file.size)}, uploaded`);
        announce(`${plain(file.name)} is uploaded`);
        setTimeout(() => row.node.remove(), 10_000);
      } catch (error) {
        row.end(error.name === "AbortError" ? "cancelled" : plain(error.message), true);
        announce(`${plain(file.name)} is not uploaded`);
      }
      await lookNow();
    }
  }

  aim("");
  return {
    update(seen) {
      // What is closed takes no files.
      drop.hidden = !info();
      if (seen) looks.goOn();
    },
    show() {
      aim(target);
      looks.start();
    },
    hide: looks.stop,
    close() {
      looks.stop();
      preview.close();
    },
  };
}
