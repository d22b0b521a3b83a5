// What is in a file, as far as it can be shown: text, the text of a PDF, a picture.

import { look, workspace } from "./api.js";
import { able, button, during, el, setText } from "./dom.js";
import { bytes, date, name, plain, write } from "./text.js";
import { fetchFile, save } from "./transfer.js";

const LINES = 1000;
const PICTURES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" };
const MORE = /\n\n\[\.\.\. \d+ more lines?\. Use offset=(\d+) to read more\.\]$/;

export const pictureOf = (fileName) => PICTURES[fileName.split(".").at(-1).toLowerCase()];

// `limits()` gives { most, workDir, open }: the largest file of one request, where the workspace is, whether commands can be run.
export function makePreview(id, limits) {
  const content = el("div", { class: "content" });
  const node = el("section", { class: "preview", "aria-label": "Preview", tabIndex: -1 }, el("p", { class: "note" }, "Choose a file to look at it."));
  let asking = null;
  let url = null;

  function clear() {
    asking?.abort();
    asking = new AbortController();
    if (url) URL.revokeObjectURL(url);
    url = null;
    content.replaceChildren();
    return asking.signal;
  }

  async function download(entry, self) {
    const { most, workDir } = limits();
    const progress = (got) => setText(self, `Downloading ${bytes(got)} of ${bytes(entry.size)}`);
    const file = { path: entry.path, absolute: `${workDir}/${entry.path}`, size: entry.size };
    await during(self, async () => save(await fetchFile(id, file, most, { progress }), entry.name));
    setText(self, "Download");
  }

  async function picture(entry, kind, signal) {
    const blob = await fetchFile(id, { ...entry, absolute: "" }, Infinity, { signal, kind });
    url = URL.createObjectURL(blob);
    const image = el("img", { src: url, alt: `Picture ${plain(entry.name)}` });
    image.addEventListener("error", () => image.replaceWith(el("p", { class: "error" }, "The browser cannot show this as a picture.")));
    content.append(image);
  }

  async function text(entry, offset, signal) {
    const { content: lines } = await look(workspace(id, "read"), { path: entry.path, offset, limit: LINES }, { signal });
    const more = lines.match(MORE);
    const pre = content.querySelector("pre") ?? el("pre", { tabIndex: 0, "aria-label": `Text of ${plain(entry.name)}` });
    if (!pre.isConnected) content.append(pre);
    write(pre, more ? `${lines.slice(0, more.index)}\n` : lines, { lines: true });
    if (more) {
      const next = button("Show more lines", async () => {
        next.remove();
        pre.focus({ preventScroll: true });
        await text(entry, Number(more[1]), signal).catch(failed);
      });
      content.append(next);
    }
  }

  function failed(error) {
    if (error.name === "AbortError") return;
    const words = error.status === 400 ? `No preview: ${plain(error.message)}` : plain(error.message);
    content.append(el("p", { class: error.status === 400 ? "note" : "error", role: "status" }, words));
  }

  return {
    node,
    async show(entry) {
      const signal = clear();
      const { most, open } = limits();
      const facts = el("p", { class: "note" }, `${bytes(entry.size)}, written ${date(entry.modified_at)}`);
      const pdf = /\.pdf$/i.test(entry.name);
      const title = el("h3", {}, name(entry.path));
      const get = button("Download", (event) => download(entry, event.currentTarget), { "aria-label": `Download ${plain(entry.name)}` });
      able(get, open || entry.size <= most);
      node.replaceChildren(el("div", { class: "row" }, title, el("span", { class: "grow" }), get), facts, content);
      node.scrollTop = 0;
      const how = open ? "A download has a command in the sandbox read it, which wakes the session." : "To download it, open a session of this name: a command in its sandbox reads it.";
      content.setAttribute("aria-busy", "true");
      try {
        if (entry.size > most) content.append(el("p", { class: "note" }, `No preview: over ${bytes(most)}. ${how}`));
        else if (entry.size === 0) content.append(el("p", { class: "note" }, "Nothing is in this file."));
        else if (pictureOf(entry.name)) await picture(entry, pictureOf(entry.name), signal);
        else {
          if (pdf) content.append(el("p", { class: "note" }, "The text of the PDF:"));
          await text(entry, 0, signal);
        }
      } catch (error) {
        failed(error);
      } finally {
        if (!signal.aborted) content.removeAttribute("aria-busy");
      }
    },
    close: clear,
  };
}
