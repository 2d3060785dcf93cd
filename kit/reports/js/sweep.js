// Charts of the step time over the settings that are numbers.
import {element} from "../../widgets/base/js/dom.js";
import {formatNs} from "../../widgets/base/js/format.js";
import {ticksOf} from "../../widgets/timeline/js/paint/axis.js";
import {sweepLines} from "./grid.js";

const SERIES = ["#2f6db5", "#d1701f", "#2a9d6f", "#a3479b", "#7a6a2f", "#c23b4b"];
const BOX = {height: 170, gap: 11, right: 14, top: 12, bottom: 26};
const LETTER = 6.6; // of a text at an axis
const NARROW = 360;
// Of one chart alone, of each of two: the page that they fill, and how wide they are there. On a
// narrower page their letters would be too small.
export const WIDE = [{page: "(min-width: 800px)", width: 800}, {page: "(min-width: 1100px)", width: 560}];

/**
 * The axes of numbers along which runs beside the shown one were measured, each with its lines: one for
 * each value of `split`, the modes of loss scaling or another axis of words; -1 for none.
 * @param {import("./grid.js").Index} index
 * @param {import("./grid.js").Cell} shown the run that the page shows
 */
export function sweptAxes(index, shown) {
  const {axes} = index;
  const modes = axes.findIndex((axis) => !axis.number && axis.name === "loss_scaling");
  const split = modes >= 0 ? modes : axes.findIndex((axis) => !axis.number);
  return axes.map((axis, k) => ({axis, k, split, lines: axis.number ? sweepLines(index, k, split, shown.at) : []}))
    .filter(({lines}) => lines.some((line) => line.length > 1)); // a dot alone shows no course
}

/**
 * A chart for each of these axes.
 * @param {import("./grid.js").Index} index
 * @param {import("./grid.js").Cell} shown the run that the page shows
 */
export function sweepCharts(index, shown) {
  const {axes} = index, swept = sweptAxes(index, shown);
  const wide = WIDE[swept.length - 1], width = wide && matchMedia(wide.page).matches ? wide.width : NARROW;
  return swept.map(({axis, k, split, lines}) => {
    const caption = element("figcaption", {}, `step time by ${axis.label}; band: what a rerun may take`);
    const most = topOf(lines);
    const parts = [caption, chart(axis, lines, shown, {k, width, most})];
    if (split >= 0) parts.push(key(axes[split].values, lines, shown.at[k]));
    const known = lines.flat().every(({low, high, doubt}) => doubt || low < high);
    if (lines.flat().some((point) => point.high > most)) {
      parts.push(note("\u25b2 a rerun may take longer than the chart shows; point at it for its end."));
    }
    if (!known) parts.push(note("\u25cb too few steps, or too unequal ones, to know what a rerun may take."));
    const why = reasons(axes, k, split, lines);
    if (why.length) {
      parts.push(element("details", {class: "key"},
        element("summary", {}, "\u00d7 a disturbed run: it may have taken longer than its settings do. Why?"),
        ...why.map((text) => element("div", {}, text))));
    }
    return element("figure", {}, ...parts);
  });
}

/** Why runs of a chart are not to be believed: a sentence for each.
 * @param {import("./grid.js").Axis[]} axes @param {number} along @param {number} split -1 for none
 * @param {import("./grid.js").Point[][]} lines @returns {string[]} */
export function reasons(axes, along, split, lines) {
  const name = (/** @type {number} */ k, /** @type {number} */ at) => `${axes[k].label} ${axes[k].values[at]}`;
  return lines.flatMap((line, n) => line.filter(({doubt}) => doubt).map(({place, doubt}) =>
    `${[name(along, place), ...(split < 0 ? [] : [name(split, n)])].join("; ")}: ${doubt}`));
}

/** Neighbours of a line that both have a known spread: between others no band is drawn, as one that
 * tapers to a ring would say that a rerun takes just as long.
 * @param {import("./grid.js").Point[]} line @returns {import("./grid.js").Point[][]} */
export function spreads(line) {
  return line.slice(1).map((point, i) => [line[i], point]).filter((pair) => pair.every(({low, high}) => low < high));
}

/** How high a chart is: a spread that is very wide would leave no room for the course.
 * @param {import("./grid.js").Point[][]} lines @returns {number} milliseconds */
function topOf(lines) {
  const all = lines.flat(), longest = Math.max(...all.map(({ms}) => ms), 0.001);
  return Math.max(...all.map(({high}) => Math.min(high, 2 * longest)), longest * 1.08);
}

/** Round numbers from 0 to the top of a chart: what stands at a line is where it is.
 * @param {number} most milliseconds @returns {number[]} */
export function ticksIn(most) {
  return ticksOf(0, most * 1e6, 4).ticks.map((ns) => ns / 1e6);
}

/** What stands at those lines, in one unit, and the pixels that it takes.
 * @param {number} most milliseconds @returns {{texts: string[], left: number}} */
export function textsIn(most) {
  const {ticks, write} = ticksOf(0, most * 1e6, 4);
  const texts = ticks.map(write);
  return {texts, left: BOX.gap + Math.ceil(Math.max(...texts.map((text) => text.length)) * LETTER)};
}

/** Places whose texts stand apart under an axis; the last one always does.
 * @param {string[]} texts @param {(place: number) => number} x pixels of their middles
 * @returns {number[]} */
export function apart(texts, x) {
  const found = [];
  let free = Infinity;
  for (let n = texts.length - 1; n >= 0; n--) {
    const half = texts[n].length * LETTER / 2;
    if (x(n) + half > free) continue;
    found.unshift(n);
    free = x(n) - half - LETTER;
  }
  return found;
}

/** How a line is drawn: in colours in turn, each time with other dashes, so that no two are alike.
 * @param {number} n @returns {Record<string, string>} */
export function lookOf(n) {
  const round = Math.floor(n / SERIES.length), stroke = SERIES[n % SERIES.length];
  return round ? {stroke, "stroke-dasharray": `7 3${" 2 3".repeat(round - 1)}`} : {stroke};
}

/** @param {string} tag @param {Record<string, any>} attributes @param {string} [text] */
function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** @param {string} text */
function note(text) {
  return element("div", {class: "key"}, text);
}

/** @param {import("./grid.js").Axis} axis @param {import("./grid.js").Point[][]} lines
 * @param {import("./grid.js").Cell} shown
 * @param {{k: number, width: number, most: number}} size k: number of the axis; most: milliseconds at the top */
function chart(axis, lines, shown, {k, width, most}) {
  const {height, gap, right, top, bottom} = BOX;
  const {texts, left} = textsIn(most);
  const count = axis.values.length;
  const x = (/** @type {number} */ v) => left + (width - left - right) * (count > 1 ? v / (count - 1) : 0.5);
  const y = (/** @type {number} */ ms) => Math.max(height - bottom - (height - top - bottom) * (ms / most), 0);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `step time by ${axis.label}`});
  ticksIn(most).forEach((ms, n) => {
    root.append(svg("line", {class: "axis", x1: left, x2: width - right, y1: y(ms), y2: y(ms)}),
      svg("text", {x: left - gap, y: y(ms) + 4, "text-anchor": "end"}, texts[n]));
  });
  for (const n of apart(axis.values, x)) {
    root.append(svg("text", {x: x(n), y: height - 8, "text-anchor": "middle"}, axis.values[n]));
  }
  lines.forEach((line, n) => {
    const look = lookOf(n), color = look.stroke;
    const bands = spreads(line);
    for (const {place, low, high} of line.filter((point) => point.low < point.high && !bands.flat().includes(point))) {
      root.append(svg("line", {class: "whisker", ...look, x1: x(place), x2: x(place), y1: y(high), y2: y(low)}));
    }
    for (const [a, b] of bands) {
      const edge = [[a.place, a.high], [b.place, b.high], [b.place, b.low], [a.place, a.low]];
      root.append(svg("polygon", {class: "band", points: edge.map(([v, ms]) => `${x(v)},${y(ms)}`).join(" "), fill: color}));
    }
    root.append(svg("polyline", {points: line.map(({place, ms}) => `${x(place)},${y(ms)}`).join(" "),
      fill: "none", ...look, "stroke-width": 2}));
    for (const point of line) root.append(mark(x(point.place), y(point.ms), color, point));
    for (const {place, high} of line.filter((point) => point.high > most)) {
      const beyond = svg("g", {class: "beyond"});
      beyond.append(svg("title", {}, `a rerun may take up to ${formatNs(high * 1e6)}`),
        svg("path", {d: `M${x(place) - 6},8L${x(place)},0L${x(place) + 6},8z`, fill: color}));
      root.append(beyond);
    }
  });
  if (shown.step) {
    root.append(svg("circle", {class: "now", cx: x(shown.at[k]), cy: y(shown.step), r: 7, fill: "none",
      stroke: "currentColor", "stroke-width": 2}));
  }
  return root;
}

/** A dot, a ring where no spread is known, or the cross of a run that was disturbed, which says why.
 * @param {number} x @param {number} y @param {string} color @param {import("./grid.js").Point} point */
function mark(x, y, color, {low, high, doubt}) {
  if (!doubt && low < high) return svg("circle", {cx: x, cy: y, r: 2.5, fill: color});
  if (!doubt) return svg("circle", {class: "unsure", cx: x, cy: y, r: 3.5, stroke: color, "stroke-width": 1.5});
  const cross = svg("g", {class: "disturbed"});
  const d = `M${x - 4},${y - 4}L${x + 4},${y + 4}M${x - 4},${y + 4}L${x + 4},${y - 4}`;
  cross.append(svg("title", {}, `disturbed: ${doubt}`), svg("circle", {cx: x, cy: y, r: 8, fill: "transparent"}),
    svg("path", {d, fill: "none", stroke: color, "stroke-width": 2}));
  return cross;
}

/** The lines by name, each with its time at the place that the page shows.
 * @param {string[]} names @param {import("./grid.js").Point[][]} lines @param {number} place */
function key(names, lines, place) {
  return element("div", {class: "key"}, ...names.map((name, n) => {
    const swatch = svg("svg", {class: "swatch", viewBox: "0 0 28 4", "aria-hidden": "true"});
    swatch.append(svg("line", {...lookOf(n), x1: 0, x2: 28, y1: 2, y2: 2, "stroke-width": 3}));
    const here = (lines[n] ?? []).find((point) => point.place === place);
    const time = here ? element("b", {}, ` ${formatNs(here.ms * 1e6)}`) : "";
    return element("span", {}, swatch, element("bdi", {}, name), time);
  }));
}
