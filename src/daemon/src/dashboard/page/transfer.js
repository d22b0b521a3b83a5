// Files in and out of a session. What fits into one request is written and read off the host, and wakes nobody. What does not
// goes in pieces, which a command in the sandbox puts together: that wakes the session.

import { fromBase64, look, post, run, runId, session, upload, workspace } from "./api.js";
import { button, el, setAttribute, setText } from "./dom.js";
import { bytes, plain } from "./text.js";

export const UPLOAD_MOST = 50 * 1024 * 1024;
// What one command may write to its output is bounded by the service at 10 MiB.
const READ_AT_ONCE = 8 * 1024 * 1024;
// A name of a file in the sandbox may have any byte but these.
const NO_NAME = /[/\u0000]/;

// $1 is the directory of the pieces, $2 the file. Whoever reads the file finds the old one or the whole new one.
const JOIN = 'cat -- "$1"/* > "$1.whole" && mv -f -- "$1.whole" "$2" && rm -rf -- "$1"';

async function command(id, argv, signal) {
  let said = "";
  const decoder = new TextDecoder();
  const output = (_, piece) => (said = (said + decoder.decode(piece)).slice(-500));
  const exit = await run(id, argv, { signal, output });
  if (exit.exit_code !== 0) throw new Error(said.trim() || `a command in the sandbox ended with ${exit.exit_code}`);
}

// Write a file into `directory` (absolute, inside the sandbox). `most` is what one request may carry.
export async function put(id, directory, file, most, { progress, signal }) {
  if (NO_NAME.test(file.name) || file.name === "." || file.name === "..") throw new Error("a file of that name cannot be made");
  if (file.size > UPLOAD_MOST) throw new Error(`it has ${bytes(file.size)}; here at most ${bytes(UPLOAD_MOST)} are sent: sandboxctl cp copies larger ones`);
  const target = `${directory}/${file.name}`;
  const write = (path) => session(id, `/files/write?${new URLSearchParams({ path })}`);
  if (file.size <= most) return upload(write(target), file, { progress, signal });
  const pieces = `${directory}/.upload-${runId()}`;
  try {
    let at = 0;
    for (let number = 0; at < file.size; number += 1) {
      const piece = file.slice(at, at + most);
      const before = at;
      const path = `${pieces}/${String(number).padStart(6, "0")}`;
      await upload(write(path), piece, { progress: (loaded) => progress(before + loaded), signal });
      at += piece.size;
    }
    await command(id, ["sh", "-c", JOIN, "sh", pieces, target], signal);
  } catch (error) {
    for (const path of [pieces, `${pieces}.whole`]) await post(session(id, "/files/remove"), { path }).catch(() => {});
    throw error;
  }
  return undefined;
}

// The bytes of a file of the workspace, as a Blob. `path` is relative to the workspace, `absolute` as the sandbox sees it.
export async function fetchFile(id, { path, absolute, size }, most, { progress = () => {}, signal, kind = "application/octet-stream" } = {}) {
  if (size <= most) {
    const { content_b64 } = await look(workspace(id, "read_bytes"), { path }, { signal });
    return new Blob([fromBase64(content_b64)], { type: kind });
  }
  const pieces = [];
  let got = 0;
  for (let number = 0; got < size; number += 1) {
    const before = got;
    const argv = ["dd", `if=${absolute}`, `bs=${READ_AT_ONCE}`, `skip=${number}`, "count=1", "iflag=fullblock", "status=none"];
    const output = (stream, piece) => {
      if (stream !== "stdout") return;
      pieces.push(piece);
      got += piece.length;
      progress(got);
    };
    const exit = await run(id, argv, { signal, output });
    if (exit.exit_code !== 0) throw new Error(`dd in the sandbox ended with ${exit.exit_code}`);
    if (got === before) break;
  }
  return new Blob(pieces, { type: kind });
}

// Hand a Blob to the browser as a file of that name.
export function save(blob, fileName) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: plain(fileName).replace(/[<>:"/\\|?*]/g, "_") || "file" });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

// A line that says how far a transfer is, with a way to stop it.
export function transferRow(label, size, cancel) {
  const fill = el("span", { class: "fill" });
  const bar = el("div", { role: "progressbar", class: "gauge", "aria-label": plain(label), "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": "0" }, fill);
  const text = el("span", { class: "note" }, `waits, ${bytes(size)}`);
  const stop = button("Cancel", cancel, { class: "quiet", "aria-label": `Cancel ${plain(label)}` });
  const node = el("li", { class: "transfer" }, el("bdi", {}, plain(label)), bar, text, stop);
  const set = (done) => {
    const part = size ? Math.min(100, (100 * done) / size) : 100;
    setAttribute(bar, "aria-valuenow", String(Math.round(part)));
    fill.style.width = `${part}%`;
    setText(text, `${bytes(done)} of ${bytes(size)}`);
  };
  const end = (words, failed) => {
    stop.remove();
    setText(text, words);
    text.classList.add(failed ? "bad" : "good");
    node.classList.add("ended");
  };
  return { node, set, end };
}
