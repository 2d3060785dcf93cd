// Charts of the step time over the settings that are numbers.
import {element} from "../../widgets/base/js/dom.js";
import {sweepLines} from "./grid.js";

const SERIES = ["#2f6db5", "#d1701f", "#2a9d6f", "#a3479b", "#7a6a2f", "#c23b4b"];
const BOX = {width: 360, height: 170, left: 40, right: 14, top: 12, bottom: 26};

/**
 * A chart for each axis of numbers, a line in it for each mode of loss scaling.
 * @param {import("./grid.js").Index} index
 * @param {import("./grid.js").Cell} shown the run that the page shows
 */
export function sweepCharts(index, shown) {
  const {axes} = index;
  const modes = axes.findIndex((axis) => !axis.number && axis.name === "loss_scaling");
  const split = modes >= 0 ? modes : axes.findIndex((axis) => !axis.number);
  return axes.flatMap((axis, k) => {
    if (!axis.number) return [];
    const caption = element("figcaption", {}, `step time (ms) by ${axis.label}; band: what a rerun may take`);
    const parts = [caption, chart(axis, sweepLines(index, k, split, shown.at), shown, k)];
    if (split >= 0) parts.push(key(axes[split].values));
    return [element("figure", {}, ...parts)];
  });
}

/** @param {string} tag @param {Record<string, any>} attributes @param {string} [text] */
function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** @param {import("./grid.js").Axis} axis @param {number[][][]} lines
 * @param {import("./grid.js").Cell} shown @param {number} k number of the axis */
function chart(axis, lines, shown, k) {
  const {width, height, left, right, top, bottom} = BOX;
  const longest = Math.max(...lines.flat().map(([, ms]) => ms), 0.001);
  const most = Math.max(...lines.flat().map(([, , , high]) => Math.min(high, 2 * longest)), longest * 1.08);
  const count = axis.values.length;
  const x = (/** @type {number} */ v) => left + (width - left - right) * (count > 1 ? v / (count - 1) : 0.5);
  const y = (/** @type {number} */ ms) => height - bottom - (height - top - bottom) * (ms / most);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `step time by ${axis.label}`});
  for (const part of [0, 0.5, 1]) {
    const ms = longest * part;
    root.append(svg("line", {class: "axis", x1: left, x2: width - right, y1: y(ms), y2: y(ms)}),
      svg("text", {x: left - 6, y: y(ms) + 4, "text-anchor": "end"}, String(Number(ms.toPrecision(2)))));
  }
  axis.values.forEach((text, n) => root.append(
    svg("text", {x: x(n), y: height - 8, "text-anchor": "middle"}, text)));
  lines.forEach((line, n) => {
    const color = SERIES[n % SERIES.length];
    const edge = [...line.map(([v, , , high]) => [v, high]), ...line.map(([v, , low]) => [v, low]).reverse()];
    const points = edge.map(([v, ms]) => `${x(v)},${Math.max(y(ms), 0)}`).join(" ");
    if (line.length === 1) {
      root.append(svg("line", {class: "whisker", stroke: color, x1: x(line[0][0]),
        x2: x(line[0][0]), y1: Math.max(y(line[0][3]), 0), y2: y(line[0][2])}));
    } else root.append(svg("polygon", {class: "band", points, fill: color}));
    root.append(svg("polyline", {points: line.map(([v, ms]) => `${x(v)},${y(ms)}`).join(" "),
      fill: "none", stroke: color, "stroke-width": 2}));
    for (const [v, ms] of line) root.append(svg("circle", {cx: x(v), cy: y(ms), r: 2.5, fill: color}));
  });
  if (shown.step) {
    root.append(svg("circle", {class: "now", cx: x(shown.at[k]), cy: y(shown.step), r: 7, fill: "none",
      stroke: "currentColor", "stroke-width": 2}));
  }
  return root;
}

/** @param {string[]} names */
function key(names) {
  return element("div", {class: "key"}, ...names.map((name, n) => {
    const swatch = element("i");
    swatch.style.background = SERIES[n % SERIES.length];
    return element("span", {}, swatch, name);
  }));
}
