// A picture as a file: SVG for a document, DOT for graphviz's own tools.
import {wrapped} from "../../base/js/wrap.js";
import {BAR, columnsOf} from "./columns.js";
import {keysOf} from "./legend.js";
import {childrenOf} from "./place.js";

const GREY = "#9aa5b1", INK = "#1f2933", MUTED = "#66727f", TIME = "#587080";
const LEAST = 360, LINE = 17, LETTER = 6.8; // pixels: of what is said above and below, and of its letters
const LINES = [["label", 12.5, "bold", 1], ["sublabel", 10.5, "normal", 0.72]];

const round = (/** @type {number} */ v) => String(Math.round(v * 10) / 10);
const safe = (/** @type {any} */ text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const path = (/** @type {number[]} */ xs, /** @type {number[]} */ ys) =>
  `M${xs.map((x, n) => `${round(x)} ${round(ys[n])}`).join("L")}`;

/** @param {import("./columns.js").Picture} picture @returns {string} */
export function svgOf(picture) {
  const {edges, arrows, frames, boxes, bars, marks, stops, links} = columnsOf(picture);
  /** @type {string[]} */
  const out = [];
  frames.x.forEach((_, n) => out.push(rect(frames, n, frames.color[n], frames.line[n], 1, 10)));
  edges.xs.forEach((xs, n) => out.push(`<path d="${path(xs, edges.ys[n])}" fill="none" stroke="${GREY}" `
    + `stroke-width="${round(edges.width[n])}" opacity="${edges.alpha[n]}"/>`));
  arrows.xs.forEach((xs, n) => out.push(
    `<path d="${path(xs, arrows.ys[n])}Z" fill="${GREY}" opacity="${arrows.alpha[n]}"/>`));
  boxes.x.forEach((_, n) => out.push(...boxOf(boxes, n)));
  bars.left.forEach((left, n) => out.push(`<rect x="${round(left)}" y="${round(bars.top[n])}" `
    + `width="${round(bars.right[n] - left)}" height="${BAR}" fill="${TIME}"/>`));
  marks.x.forEach((_, n) => out.push(rect(marks, n, "none", marks.line[n], 2.4, 9)));
  stops.x.forEach((x, n) => out.push(rect(stops, n, stops.color[n], stops.color[n], 1, 4),
    `<text x="${round(x)}" y="${round(stops.y[n])}" font-size="10" font-weight="bold" fill="#10151c" `
    + `text-anchor="middle" dominant-baseline="central">${safe(stops.text[n])}</text>`));
  links.xs.forEach((xs, n) => out.push(
    `<path d="${path(xs, links.ys[n])}" fill="none" stroke="${links.line[n]}" stroke-width="2"/>`));
  const {placed: {width, height}, scene} = picture, room = Math.max(width, LEAST);
  const head = headOf(scene, room), key = keyOf(picture, room, height + 24, bars.left.length > 0);
  const top = -12 - head.length * LINE, foot = key.rows * LINE + 12;
  const [w, h] = [round(room + 24), round(height + 12 - top + foot)];
  out.push(...head.map(([text, look], n) => say(text, 0, top + (n + 0.7) * LINE, look)), ...key.out);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 ${top} ${w} ${h}" width="${w}" `
    + `height="${h}" font-family="Inter, Helvetica, Arial, sans-serif"><rect x="-12" y="${top}" width="100%" `
    + `height="100%" fill="#ffffff"/>${out.join("\n")}</svg>\n`;
}

/** @param {string} text @param {number} x @param {number} y of its middle @param {string} look */
function say(text, x, y, look) {
  return `<text x="${round(x)}" y="${round(y)}" ${look} dominant-baseline="central">${safe(text)}</text>`;
}

/** Lines above the graph: its title, and what the page says under that. @param {import("./scene.js").Scene} scene
 * @param {number} room @returns {string[][]} of a text and its look */
function headOf({title, note}, room) {
  const wide = (/** @type {string} */ text) => text.length * LETTER;
  return [...wrapped(title, room, wide).map((text) => [text, `font-size="13" font-weight="bold" fill="${INK}"`]),
    ...wrapped(note, room, wide).map((text) => [text, `font-size="11" fill="${MUTED}"`])];
}

/** What the colours mean, in as many rows as that takes. @param {import("./columns.js").Picture} picture
 * @param {number} room @param {number} top @param {boolean} hasBars */
function keyOf(picture, room, top, hasBars) {
  const look = `font-size="12" fill="${INK}"`, /** @type {string[]} */ out = [];
  const keys = [...keysOf(picture), ...(hasBars ? [{color: TIME, text: "bar: device time"}] : [])];
  let x = 0, row = 0;
  keys.forEach(({color, text, stops}, n) => {
    const zero = stops ? 12 : 0, swatch = stops ? 60 : color ? 11 : 0, gap = swatch && 5;
    const wide = zero + swatch + gap + text.length * LETTER;
    if (x > 0 && x + wide > room) [x, row] = [0, row + 1];
    const y = top + row * LINE;
    if (stops) {
      const places = stops.map(([at, shade]) => `<stop offset="${at}" stop-color="${shade}"/>`).join("");
      out.push(`<defs><linearGradient id="key${n}">${places}</linearGradient></defs>`, say("0", x, y, look));
    }
    if (color) {
      out.push(`<rect x="${round(x + zero)}" y="${round(y - 5.5)}" width="${swatch}" height="11" `
        + `fill="${stops ? `url(#key${n})` : color}" stroke="${GREY}" stroke-width="0.5"/>`);
    }
    out.push(say(text, x + zero + swatch + gap, y, look));
    x += wide + 14;
  });
  return {rows: row + 1, out};
}

/** @param {Record<string, any[]>} columns @param {number} n @param {string} fill @param {string} line
 * @param {number} width @param {number} corner */
function rect({x, y, w, h}, n, fill, line, width, corner) {
  return `<rect x="${round(x[n] - w[n] / 2)}" y="${round(y[n] - h[n] / 2)}" width="${round(w[n])}" `
    + `height="${round(h[n])}" rx="${corner}" fill="${fill}" stroke="${line}" stroke-width="${width}"/>`;
}

/** @param {Record<string, any[]>} boxes @param {number} n @returns {string[]} */
function boxOf(boxes, n) {
  const out = [`<g><title>${safe(`${boxes.name[n]}\n${boxes.what[n]}\n${boxes.place[n]}`)}</title>`];
  const isFilled = boxes.color[n].length === 7; // the heading of an open group is not
  if (isFilled) out.push(rect(boxes, n, boxes.color[n], boxes.line[n], 1.3, 7));
  const anchor = boxes.align[n] === "left" ? "start" : "middle";
  for (const [name, size, weight, alpha] of LINES) {
    out.push(`<text x="${round(boxes[`${name}_x`][n])}" y="${round(boxes[`${name}_y`][n])}" font-size="${size}" `
      + `font-weight="${weight}" fill="${boxes.ink[n]}" opacity="${alpha}" text-anchor="${anchor}" `
      + `dominant-baseline="central">${safe(boxes[name][n])}</text>`);
  }
  return [...out, "</g>"];
}

/**
 * The visible boxes as DOT text, open groups as clusters.
 * @param {import("./scene.js").Scene} scene
 * @param {import("./place.js").Placed} placed
 */
export function dotOf(scene, {rects, frames, edges}) {
  const quote = (/** @type {any} */ text) => `"${String(text).replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
  const lines = ["digraph step {", "  compound=true; node [shape=box];"];
  const write = (/** @type {number} */ row, /** @type {string} */ indent) => {
    if (!frames.has(row)) {
      lines.push(`${indent}n${row} [label=${quote(`${scene.text("label", row)} ${scene.text("sub", row)}`)}];`);
      return;
    }
    lines.push(`${indent}subgraph cluster_${row} {`, `${indent}  label=${quote(scene.text("label", row))};`);
    for (const child of childrenOf(scene.rows, row)) write(child, `${indent}  `);
    lines.push(`${indent}}`);
  };
  for (let row = 0; row < scene.count; row = scene.rows.end[row]) write(row, "  ");
  const inner = (/** @type {number} */ row) => { // an edge of a frame is drawn from a box in it
    let at = row;
    while (frames.has(at)) at += 1;
    return at;
  };
  for (const {from, to, values} of edges) {
    if (!rects.has(from) || !rects.has(to)) continue;
    const given = [frames.has(from) ? `ltail=cluster_${from}` : "", frames.has(to) ? `lhead=cluster_${to}` : "",
      values > 1 ? `label="${values}"` : ""].filter(Boolean).join(" ");
    lines.push(`  n${inner(from)} -> n${inner(to)}${given ? ` [${given}]` : ""};`);
  }
  return `${lines.join("\n")}\n}\n`;
}
