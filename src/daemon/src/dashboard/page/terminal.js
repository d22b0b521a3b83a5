// Commands in a session, each a process of its own, with its output as it comes.

import { ask, run, runId, session } from "./api.js";
import { able, announce, button, el, note, setText, usable } from "./dom.js";
import { bytes, marksBudget, plain, span, took, write } from "./text.js";

// What of a command's output stays on the page, in characters and lines; how many commands do.
const OUTPUT_KEPT = 200_000;
const LINES_KEPT = 5000;
// How often what has come is shown, in milliseconds: a browser that lays out each piece falls behind a fast command.
const SHOWN_EVERY = 80;
const COMMANDS_KEPT = 50;
const HISTORY_KEPT = 200;
// Lines of what is being written that are seen at once.
const ROWS_MOST = 8;

export function terminalPanel(panel, { id, info }) {
  const log = el("div", { class: "terminal", role: "region", "aria-label": "Commands and their output", tabIndex: 0 });
  const input = el("textarea", {
    id: "command",
    rows: 1,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: false,
    "aria-describedby": "command-note",
    class: "mono grow",
  });
  const submit = el("button", { type: "submit", class: "primary" }, "Run");
  const form = el("form", { class: "row" }, el("label", { for: "command" }, "Command"), input, submit);
  const hint = el(
    "p",
    { class: "note", id: "command-note" },
    "Every command is a process of its own, started by sh in the work directory: a cd or a variable ends with it, so join what belongs together with &&, or write several lines (Shift and Enter). Nothing reads from the keyboard. Arrow up and down bring earlier commands back.",
  );
  panel.append(log, form, hint);

  const history = [];
  let place = 0;
  let draft = "";
  const running = new Set();

  const set = (text) => {
    input.value = text;
    fit();
  };
  const fit = () => (input.rows = Math.min(ROWS_MOST, input.value.split("\n").length));
  input.addEventListener("input", fit);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
      return;
    }
    // In a text of several lines the arrows first go through these.
    const { value, selectionStart, selectionEnd } = input;
    const [before, after] = [value.slice(0, selectionStart), value.slice(selectionEnd)];
    if ((event.key === "ArrowUp" ? before : after).includes("\n")) return;
    const to = { ArrowUp: place - 1, ArrowDown: place + 1 }[event.key];
    if (to === undefined || to < 0 || to > history.length) return;
    event.preventDefault();
    if (place === history.length) draft = input.value;
    place = to;
    set(place === history.length ? draft : history[place]);
    input.setSelectionRange(input.value.length, input.value.length);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const line = input.value;
    if (!line.trim() || !usable(submit)) return;
    if (history.at(-1) !== line) history.push(line);
    if (history.length > HISTORY_KEPT) history.shift();
    place = history.length;
    draft = "";
    set("");
    start(line);
  });

  async function start(line) {
    const run_id = runId();
    const abort = new AbortController();
    const stop = () => ask("POST", session(id, `/runs/${run_id}/stop`)).catch((error) => note(plain(error.message), { failed: true }));
    const follow = () => (log.scrollTop = log.scrollHeight);
    // Whoever has scrolled back to read is left there.
    const atEnd = () => log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
    const block = makeBlock(line, { stop, atEnd, follow, leave: () => input.focus() });
    log.append(block.node);
    while (log.children.length > COMMANDS_KEPT && !log.firstElementChild.dataset.running) log.firstElementChild.remove();
    follow();
    running.add(abort);
    const begun = performance.now();
    try {
      const exit = await run(id, ["sh", "-c", line], { run_id, output: block.output, signal: abort.signal });
      block.end(ended(exit), exit.exit_code === 0, performance.now() - begun);
    } catch (error) {
      if (error.name !== "AbortError") block.end(plain(error.message), false, performance.now() - begun);
    } finally {
      block.over();
      running.delete(abort);
    }
  }

  return {
    update() {
      // What was being written stays, and with it the focus.
      input.readOnly = !info();
      able(input, Boolean(info()));
      able(submit, Boolean(info()));
    },
    show() {
      if (!panel.contains(document.activeElement) && document.activeElement?.getAttribute("role") !== "tab") input.focus({ preventScroll: true });
    },
    busy: () => running.size > 0,
    // Whoever reads the output goes away, so the commands are stopped.
    close() {
      for (const abort of running) abort.abort();
      log.replaceChildren();
    },
  };
}

function ended(exit) {
  if (exit.timed_out) return "stopped at its deadline";
  if (exit.output_limited) return `stopped: its output passed ${bytes(exit.output_limit)}`;
  const how = exit.exit_code === null ? "stopped" : `exit ${exit.exit_code}`;
  return exit.limit ? `${how}: ${exit.limit}` : how;
}

// One command: its line, how it is, a button that stops it, what it wrote.
function makeBlock(line, { stop, atEnd, follow, leave }) {
  const how = el("span", { class: "how" }, "running");
  const begun = performance.now();
  const clock = setInterval(() => setText(how, `running, ${span((performance.now() - begun) / 1000)}`), 1000);
  let asked = false;
  const stopper = button("Stop", () => {
    asked = true;
    able(stopper, false);
    stop();
  }, { class: "quiet", "aria-label": `Stop ${plain(line).slice(0, 60)}` });
  const output = el("pre");
  const cut = el("p", { class: "note", hidden: true }, "The beginning of its output is not shown any more.");
  const command = write(el("code"), line);
  const node = el("div", { class: "command" }, el("div", { class: "row" }, el("span", { class: "prompt", "aria-hidden": "true" }, "$"), command, el("span", { class: "grow" }), how, stopper), cut, output);
  node.dataset.running = "yes";
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  const shown = [];
  const budget = marksBudget();
  const total = { size: 0, lines: 0 };
  let waiting = [];
  let timer = null;

  const over = () => total.size > OUTPUT_KEPT || total.lines > LINES_KEPT;
  function take(stream, text) {
    if (!text) return;
    const end = lastLines(text.slice(-OUTPUT_KEPT), LINES_KEPT);
    if (end.length < text.length) cut.hidden = false;
    const piece = { stream, text: end, size: end.length, lines: end.split("\n").length - 1, node: null };
    total.size += piece.size;
    total.lines += piece.lines;
    waiting.push(piece);
    shown.push(piece);
    while (over() && shown.length > 1) {
      const first = shown.shift();
      total.size -= first.size;
      total.lines -= first.lines;
      first.node?.remove();
      first.text = null;
      cut.hidden = false;
    }
    timer ??= setTimeout(show, SHOWN_EVERY);
  }
  function show() {
    clearTimeout(timer);
    timer = null;
    const followed = atEnd();
    for (const piece of waiting) {
      if (piece.text === null) continue;
      piece.node = write(el("span", { class: piece.stream }), piece.text, { lines: true, budget });
      piece.text = null;
      output.append(piece.node);
    }
    waiting = [];
    if (followed) follow();
  }

  return {
    node,
    output: (stream, bytes) => take(stream, decoders[stream].decode(bytes, { stream: true })),
    over: () => clearInterval(clock),
    end(text, ok, milliseconds) {
      clearInterval(clock);
      for (const [stream, decoder] of Object.entries(decoders)) take(stream, decoder.decode());
      const words = asked && !text.startsWith("stopped") ? `stopped, ${text}` : text;
      delete node.dataset.running;
      const hadFocus = stopper === document.activeElement;
      stopper.remove();
      if (hadFocus) leave();
      setText(how, `${words}, ${took(milliseconds)}`);
      how.classList.add(ok ? "good" : "bad");
      show();
      announce(`Command ended: ${words}`);
    },
  };
}

// The end of a text, at most so many lines.
function lastLines(text, most) {
  let at = text.length - 1;
  for (let lines = 0; lines < most; lines += 1) {
    // Before the first character there is nothing to look for, and `lastIndexOf` would look at it.
    if (at <= 0) return text;
    at = text.lastIndexOf("\n", at - 1);
  }
  return text.slice(at + 1);
}
