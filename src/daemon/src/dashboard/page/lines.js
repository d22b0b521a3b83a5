// Small lines of what was: memory and CPU of the last minutes, drawn as SVG.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 120;
const HEIGHT = 28;
// Seconds that a line shows; values that it is made of, at most; seconds without one after which it begins anew: nobody knows
// what was in between.
const LASTS = 120;
const KEPT = 64;
const GAP = 20;

// The last values of something, in order, each with its second.
export class History {
  constructor() {
    this.values = [];
  }

  push(value) {
    const now = performance.now() / 1000;
    if (now - this.values.at(-1)?.at > GAP) this.values = [];
    this.values.push({ at: now, value });
    while (this.values.length > KEPT || now - this.values[0].at > LASTS) this.values.shift();
  }
}

// A line; `most` is the top of the scale, or nothing for the highest value.
export function line(label) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "line");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const area = document.createElementNS(SVG, "polygon");
  const path = document.createElementNS(SVG, "polyline");
  path.setAttribute("points", "");
  svg.append(area, path);
  const draw = (history, most, text) => {
    const { values } = history;
    const top = Math.max(most ?? 0, ...values.map(({ value }) => value), 1e-9);
    const now = values.at(-1)?.at;
    const x = (at) => (WIDTH * (1 - (now - at) / LASTS)).toFixed(1);
    const points = values.map(({ at, value }) => `${x(at)},${(HEIGHT - 1 - (HEIGHT - 2) * (value / top)).toFixed(1)}`);
    path.setAttribute("points", points.join(" "));
    area.setAttribute("points", values.length ? `${x(values[0].at)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` : "");
    if (text) svg.setAttribute("aria-label", `${label}: ${text}`);
  };
  return { node: svg, draw };
}
