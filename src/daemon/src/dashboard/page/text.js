// Text for people. Whatever a sandbox wrote is shown as it is: characters that would not be seen, or that would change how the
// text around them is read, are named instead.

// Controls, marks of writing direction, zero-width characters, separators, tags: what is invisible or moves other text.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;
const HIDDEN_IN_NAMES = new RegExp(`[\\t\\n]|${HIDDEN.source}`, "gu");
const runsOf = (pattern) => new RegExp(`(?:${pattern.source})+`, "gu");
const RUNS = runsOf(HIDDEN);
const RUNS_IN_NAMES = runsOf(HIDDEN_IN_NAMES);
// More of the same character than this in a row are counted.
const REPEATED = 8;
// After so many marks in a text the rest are named without being marked: a picture that somebody has `cat` show has
// tens of thousands, and each is an element of the page.
const MARKS_MOST = 2000;
export const marksBudget = () => ({ left: MARKS_MOST });

function named(character) {
  const code = character.codePointAt(0);
  // As terminals name them: every font has these.
  if (code < 0x20 || code === 0x7f) return `^${String.fromCharCode(code ^ 0x40)}`;
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

// Several of them.
function namedAll(characters) {
  const same = new RegExp(`(.)\\1{${REPEATED},}|.`, "gsu");
  return characters.replace(same, (run, first) => (first ? `${named(first)}×${run.length / first.length}` : named(run)));
}

// A name or a message in one line, for attributes and options: nothing in it is invisible.
export function plain(text) {
  return String(text).replace(HIDDEN_IN_NAMES, (character) => {
    const name = named(character);
    return name.length === 2 ? name : `<${name}>`;
  });
}

// Append text to a node; what is hidden in it becomes a mark. Names have no lines, output has.
// `budget` is shared by texts that come one after another.
export function write(node, text, { lines = false, budget = marksBudget() } = {}) {
  const source = lines ? text.replaceAll("\r\n", "\n") : String(text);
  let from = 0;
  let rest = "";
  for (const { 0: hidden, index } of source.matchAll(lines ? RUNS : RUNS_IN_NAMES)) {
    const before = source.slice(from, index);
    const told = namedAll(hidden);
    from = index + hidden.length;
    budget.left -= 1;
    if (budget.left < 0) {
      rest += before + told;
      continue;
    }
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = told;
    node.append(before, mark);
  }
  rest += source.slice(from);
  if (rest) node.append(rest);
  return node;
}

// A name from inside a sandbox, kept apart from the text around it.
export function name(text) {
  const node = document.createElement("bdi");
  node.className = "name";
  return write(node, text);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let value = count;
  let unit = 0;
  // What would be written as 1024 is 1.0 of the next.
  while (value >= 1023.5 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

// A ceiling as an operator writes it (`512m`), as a person reads it.
export function ceiling(text) {
  const [, number, unit] = /^([0-9.]+)([kmg])b?$/i.exec(text) ?? [];
  return unit ? `${number} ${{ k: "KiB", m: "MiB", g: "GiB" }[unit.toLowerCase()]}` : plain(text);
}

// Seconds as a person says them: the two largest units.
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

// The largest unit alone, for a table.
export const roughly = (seconds) => /^– ?|^\d+ [a-z]+/.exec(span(seconds))[0];

export function took(milliseconds) {
  if (milliseconds < 1) return "< 1 ms";
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DATE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function clock(unixSeconds) {
  return CLOCK.format(new Date(unixSeconds * 1000));
}

// A time as short as it is clear: without the day if that is today.
export function moment(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  return at.toDateString() === new Date().toDateString() ? CLOCK.format(at) : DAY.format(at);
}

export function date(value) {
  const at = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return Number.isNaN(at.getTime()) ? "–" : DATE.format(at);
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}
