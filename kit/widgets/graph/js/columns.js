// The picture of a scene as columns of bokeh's sources: frames, boxes, bars, edges, marks, links.
import {tint} from "../../base/js/colors.js";
import {formatBytes, plural} from "../../base/js/format.js";
import {boxColumns} from "./boxes.js";
import {across, polyline} from "./place.js";
import {SAME} from "./scene.js";

export const BAR = 4; // pixels: the height of a bar
const ARROW = 7;
const MOST_LINKS = 400;
const MOST_CROSSING = 250; // lines between phases: the largest are drawn
const CLEAR = "#ffffff00", MARKED = "#ffd54a55";

/**
 * What a picture is made from. `marked`, `hits`, `onPath`: how many of the ops that are selected,
 * found, on the path are in each visible box.
 * @typedef {object} Picture
 * @property {import("./scene.js").Scene} scene
 * @property {import("./place.js").Placed} placed
 * @property {number[]} drawn rows of the boxes that are drawn
 * @property {string} colorBy
 * @property {{time: number, bytes: number}} most of one box
 * @property {Set<number>} chosen
 * @property {Set<number>} path
 * @property {Map<number, number>} marked
 * @property {Map<number, number>} hits
 * @property {Map<number, number>} onPath
 * @property {number} cursor the box that the keyboard is at, or -1
 * @property {(row: number) => Record<string, string>} hover
 */

/** @param {Picture} picture @returns {Record<string, Record<string, any[]>>} */
export function columnsOf(picture) {
  const {scene, placed} = picture, edges = edgeColumns(picture);
  return {
    frames: frameColumns(picture), edges, arrows: arrowColumns(edges), boxes: boxColumns(picture),
    bars: barColumns(picture), marks: markColumns(picture), stops: stopColumns(picture), links: linkColumns(picture),
    message: scene.message ? {x: [0.5], y: [0.5], text: [scene.message]} : {x: [], y: [], text: []},
    view: {width: [placed.width], height: [placed.height], left: [0], top: [0]},
  };
}

/** The largest numbers of the closed boxes. @param {import("./scene.js").Scene} scene
 * @param {import("./place.js").Placed} placed @param {number[]} drawn */
export function mostOf({rows}, {frames}, drawn) {
  const found = {time: 0, bytes: 0};
  for (const i of drawn) {
    if (frames.has(i)) continue;
    found.time = Math.max(found.time, rows.time[i]);
    found.bytes = Math.max(found.bytes, rows.bytes[i]);
  }
  return found;
}

/** How many rows of a set are in each box around them.
 * @param {import("./scene.js").Scene} scene @param {import("./place.js").Placed} placed
 * @param {Iterable<number>} set @returns {Map<number, number>} */
export function countsOf({rows}, {owner}, set) {
  const found = new Map();
  for (const i of set) {
    for (let r = owner[i]; r >= 0; r = rows.parent[r]) found.set(r, (found.get(r) ?? 0) + 1);
  }
  return found;
}

/** @param {Record<string, any[]>} out @param {Record<string, any>} row */
function add(out, row) {
  for (const [name, value] of Object.entries(row)) out[name].push(value);
}

/** @param {Picture} picture @param {number} i @returns {number[]} */
function rectOf({placed}, i) {
  return /** @type {number[]} */ (placed.rects.get(i));
}

/** @param {Picture} picture @returns {Record<string, any[]>} */
function frameColumns(picture) {
  const {scene, placed, drawn} = picture;
  const out = {x: [], y: [], w: [], h: [], color: [], line: []};
  for (const i of drawn) {
    const [x, y, w, h] = rectOf(picture, i), phase = scene.phaseColor(i);
    if (placed.frames.has(i)) {
      const depth = Math.min(scene.around(i).length, 3);
      add(out, {x, y, w, h, color: tint(phase, 0.95 - 0.05 * depth), line: tint(phase, 0.7 - 0.1 * depth)});
    } else if (scene.rows.kind[i] === SAME) { // several groups that are alike: a stack of boxes
      const [color, line] = [tint(phase, 0.85), tint(phase, 0.35)];
      for (const d of [6, 3]) add(out, {x: x + d, y: y + d, w, h, color, line});
    }
  }
  return out;
}

/** @param {Picture} picture @returns {Record<string, any[]>} */
function barColumns(picture) {
  const {scene, placed, drawn, most} = picture;
  const out = {left: [], right: [], top: [], bottom: []};
  for (const i of drawn) {
    const time = scene.rows.time[i];
    if (!(time > 0) || !(most.time > 0) || placed.frames.has(i)) continue;
    const [x, y, w, h] = rectOf(picture, i), left = x - w / 2 + 5, bottom = y + h / 2 - 2;
    add(out, {left, right: left + (w - 10) * (time / most.time), top: bottom - BAR, bottom});
  }
  return out;
}

/** @param {Picture} picture @returns {Record<string, any[]>} */
function edgeColumns({placed, drawn}) {
  const out = {xs: [], ys: [], width: [], alpha: [], name: []}, seen = new Set(drawn);
  const edges = placed.edges.filter((edge) => seen.has(edge.from) && seen.has(edge.to));
  const crossing = edges.filter((edge) => edge.isCrossing).sort((a, b) => b.size - a.size);
  const hidden = new Set(crossing.slice(MOST_CROSSING)), isMany = edges.length > 600;
  for (const edge of edges) {
    if (hidden.has(edge)) continue;
    const steps = edge.isCrossing ? (isMany ? 12 : 24) : isMany ? 3 : 8;
    const [xs, ys] = polyline(edge.points, steps);
    const width = 1 + Math.min(Math.max(Math.log10(Math.max(edge.size, 1)) - 3, 0) * 0.35, 1.75);
    add(out, {xs, ys, width, alpha: edge.isCrossing ? 0.4 : 0.9,
      name: `${plural(edge.values, "value")}, ${formatBytes(edge.size)}`});
  }
  return out;
}

/** A triangle at the end of each line. @param {Record<string, any[]>} edges
 * @returns {Record<string, any[]>} */
function arrowColumns(edges) {
  const out = {xs: [], ys: [], alpha: []};
  edges.xs.forEach((xs, n) => {
    const ys = edges.ys[n], x = xs[xs.length - 1], y = ys[ys.length - 1];
    let k = xs.length - 2;
    while (k > 0 && Math.hypot(x - xs[k], y - ys[k]) <= 1) k -= 1;
    const length = Math.hypot(x - xs[k], y - ys[k]) || 1;
    const [dx, dy] = [(x - xs[k]) / length, (y - ys[k]) / length];
    const [bx, by, side] = [x - dx * ARROW, y - dy * ARROW, ARROW * 0.45];
    add(out, {xs: [x, bx - dy * side, bx + dy * side], ys: [y, by + dx * side, by - dx * side],
      alpha: edges.alpha[n]});
  });
  return out;
}

/** Rings around boxes. @param {Picture} picture @returns {Record<string, any[]>} */
function markColumns(picture) {
  const {scene: {theme}, placed, drawn, marked, hits, onPath, cursor} = picture;
  const out = {x: [], y: [], w: [], h: [], line: [], fill: []};
  const ring = (/** @type {number} */ i, /** @type {number} */ grow, /** @type {string} */ line, fill = CLEAR) => {
    const [x, y, w, h] = rectOf(picture, i);
    add(out, {x, y, w: w + grow, h: h + grow, line, fill});
  };
  for (const i of drawn) {
    if (placed.frames.has(i)) continue;
    if (onPath.has(i)) ring(i, 5, theme.path);
    if (hits.has(i)) ring(i, 5, theme.hit);
    if (marked.has(i)) ring(i, 8, theme.ink, MARKED);
  }
  if (drawn.includes(cursor)) ring(cursor, 12, theme.focus);
  return out;
}

/** A tab on each box after which the program stops. @param {Picture} picture
 * @returns {Record<string, any[]>} */
function stopColumns(picture) {
  const {scene, placed, drawn} = picture, out = {x: [], y: [], w: [], h: [], text: [], color: []};
  for (const i of drawn) {
    const many = placed.frames.has(i) ? 0 : scene.stopsIn(i);
    if (!many) continue;
    const [x, y, w, h] = rectOf(picture, i), text = many > 1 ? `${many} stops` : "stop";
    const width = 12 + 6 * text.length;
    add(out, {x: x + w / 2 - width / 2 + 6, y: y - h / 2, w: width, h: 14, text, color: scene.theme.stop});
  }
  return out;
}

/** Lines from real producers to real users of what is selected, and along a path.
 * @param {Picture} picture @returns {Record<string, any[]>} */
function linkColumns(picture) {
  const {scene: {sources, targets, theme}, placed: {owner}, chosen, path} = picture;
  const out = {xs: [], ys: [], line: []};
  if (!chosen.size || (chosen.size > 200 && !path.size)) return out;
  const found = new Map();
  const inPath = (/** @type {number} */ i) => path.has(i) || chosen.has(i);
  for (let e = 0; e < sources.length && found.size < MOST_LINKS; e += 1) {
    const [s, t] = [sources[e], targets[e]];
    const isWanted = path.size ? inPath(s) && inPath(t) : chosen.has(s) || chosen.has(t);
    if (isWanted && owner[s] !== owner[t]) found.set(`${owner[s]} ${owner[t]}`, [owner[s], owner[t]]);
  }
  for (const [a, b] of found.values()) {
    const [xs, ys] = polyline(between(rectOf(picture, a), rectOf(picture, b)), 16);
    add(out, {xs, ys, line: theme.path});
  }
  return out;
}

/** A curve from a box to another one beside or below it. @param {number[]} p @param {number[]} q */
function between(p, q) {
  if (Math.abs(p[0] - q[0]) > (p[2] + q[2]) / 2) return across(p, q);
  const down = q[1] >= p[1] ? 1 : -1, y0 = p[1] + (down * p[3]) / 2, y1 = q[1] - (down * q[3]) / 2;
  return [p[0], y0, p[0], (y0 + y1) / 2, q[0], (y0 + y1) / 2, q[0], y1];
}
