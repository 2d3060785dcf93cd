// A picture as a file: SVG for a document, DOT for graphviz's own tools.
import {BAR, columnsOf} from "./columns.js";
import {childrenOf} from "./place.js";

const GREY = "#9aa5b1";
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
    + `width="${round(bars.right[n] - left)}" height="${BAR}" fill="#587080"/>`));
  marks.x.forEach((_, n) => out.push(rect(marks, n, "none", marks.line[n], 2.4, 9)));
  stops.x.forEach((x, n) => out.push(rect(stops, n, stops.color[n], stops.color[n], 1, 4),
    `<text x="${round(x)}" y="${round(stops.y[n])}" font-size="10" font-weight="bold" fill="#10151c" `
    + `text-anchor="middle" dominant-baseline="central">${safe(stops.text[n])}</text>`));
  links.xs.forEach((xs, n) => out.push(
    `<path d="${path(xs, links.ys[n])}" fill="none" stroke="${links.line[n]}" stroke-width="2"/>`));
  const {width, height} = picture.placed, [w, h] = [round(width + 24), round(height + 24)];
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 ${w} ${h}" width="${w}" `
    + `height="${h}" font-family="Inter, Helvetica, Arial, sans-serif"><rect x="-12" y="-12" width="100%" `
    + `height="100%" fill="#ffffff"/>${out.join("\n")}</svg>\n`;
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
