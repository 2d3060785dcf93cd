// The boxes of a picture: their colours, texts and hover cards.
import {inkOn, tint} from "../../base/js/colors.js";
import {formatBytes, formatCount, formatNs, plural} from "../../base/js/format.js";
import {shade} from "./legend.js";
import {LABEL_PX} from "./place.js";
import {CHANGES, GROUP, OP, PHASE, SAME} from "./scene.js";

/** @typedef {import("./scene.js").Scene} Scene */
/** @typedef {import("./columns.js").Picture} Picture */

const NAMES = ["x", "y", "w", "h", "label", "sublabel", "label_x", "label_y", "sublabel_x", "sublabel_y", "align",
  "color", "line", "ink", "key", "kind", "name", "what", "time", "place", "makes", "row"];
const SUBLABEL_PX = 6.3; // of a letter
const CLEAR = "#ffffff00";

/** @param {Picture} picture @returns {Record<string, any[]>} */
export function boxColumns(picture) {
  const {scene, placed, drawn} = picture;
  const out = /** @type {Record<string, any[]>} */ (Object.fromEntries(NAMES.map((name) => [name, []])));
  for (const i of drawn) {
    const rect = /** @type {number[]} */ (placed.rects.get(i));
    const isFrame = placed.frames.has(i), isOp = scene.isOp(i);
    const [color, line] = isFrame ? [CLEAR, CLEAR] : colorsOf(picture, i);
    const label = signOf(scene, i, isFrame) + scene.text("label", i);
    const sublabel = sublabelOf(picture, i, label, rect[2]);
    const row = /** @type {Record<string, any>} */ ({label, sublabel, color, line,
      ink: isFrame ? inkOn("#ffffff") : inkOn(color), key: isOp ? `%${scene.rows.node[i]}` : scene.key(i),
      row: i, kind: kindOf(scene, i, isFrame), ...picture.hover(i),
      ...(isFrame ? headingPlace(rect, label) : boxPlace(rect))});
    for (const name of NAMES) out[name].push(row[name]);
  }
  return out;
}

/** @param {Scene} scene @param {number} i @param {boolean} isFrame */
function signOf(scene, i, isFrame) {
  if (scene.isOp(i)) return "";
  if (!isFrame) return "▸ ";
  return scene.rows.kind[i] === PHASE ? "" : "▾ ";
}

/** @param {Scene} scene @param {number} i @param {boolean} isFrame */
function kindOf({rows}, i, isFrame) {
  const kind = rows.kind[i];
  if (kind === PHASE) return "phase";
  if (isFrame) return "open";
  if (kind === OP) return "op";
  return kind === SAME || kind === GROUP ? "group" : "ops";
}

/** @param {number[]} rect */
function boxPlace([x, y, w, h]) {
  return {x, y, w, h, align: "center", label_x: x, label_y: y - 8.5, sublabel_x: x, sublabel_y: y + 8};
}

/** Of an open group only the heading is a box. @param {number[]} rect @param {string} label */
function headingPlace([x, y, w, h], label) {
  const left = x - w / 2 + 6, width = LABEL_PX * [...label].length + 12, top = y - h / 2 + 15;
  return {x: left + width / 2, y: top, w: width, h: 22, align: "left", label_x: left + 6, label_y: top,
    sublabel_x: left + width + 4, sublabel_y: top};
}

/** The second line of a box: what is selected or found in it, what has changed, or what it is.
 * @param {Picture} picture @param {number} i @param {string} label @param {number} width */
function sublabelOf({scene, placed, colorBy, marked, hits, onPath}, i, label, width) {
  const isFrame = placed.frames.has(i), isOp = scene.isOp(i), total = scene.rows.ops[i];
  const fitting = (/** @type {string[]} */ ...texts) =>
    texts.find((text) => SUBLABEL_PX * text.length < width - 6) ?? texts[texts.length - 1];
  const of = (/** @type {number} */ n, /** @type {string} */ word) => {
    const part = `${formatCount(n)} of ${formatCount(total)}`;
    return isOp ? word : fitting(`${part} ${word}`, part);
  };
  let sub = isFrame ? plural(total, "op") : scene.text("sub", i);
  const told = !isFrame && colorBy === "change" ? Object.entries(scene.changesIn(i)) : [];
  if (told.length) {
    const count = told.reduce((sum, [, n]) => sum + n, 0);
    const all = told.map(([name, n]) => `${n} ${name}`).join(", ");
    sub = isOp ? told[0][0] : fitting(all, `${count} differ`);
  }
  if (marked.has(i)) sub = of(marked.get(i) ?? 0, "selected");
  else if (onPath.has(i) && !isOp) sub = of(onPath.get(i) ?? 0, "on the path");
  else if (hits.has(i) && !isOp) sub = `${formatCount(hits.get(i) ?? 0)} found`;
  const isTooLong = LABEL_PX * ([...label].length + 3) + SUBLABEL_PX * sub.length > width;
  return isFrame && isTooLong ? "" : sub;
}

/** The fill and the line of a box. @param {Picture} picture @param {number} i @returns {string[]} */
function colorsOf({scene, colorBy, most}, i) {
  const {rows, theme} = scene, isOp = scene.isOp(i);
  if (colorBy === "segment") {
    if (rows.high[i] < 0) return ["#ffffff", theme.faint];
    if (rows.low[i] !== rows.high[i]) return ["#dfe4ea", theme.faint];
    const color = theme.segments[rows.low[i] % theme.segments.length];
    return [tint(color, 0.35), color];
  }
  if (colorBy === "time" || colorBy === "memory") {
    const [value, top] = colorBy === "time" ? [rows.time[i], most.time] : [rows.bytes[i], most.bytes];
    return [shade(theme.ramps[colorBy], top > 0 ? value / top : 0), theme.ramps[colorBy]];
  }
  if (colorBy === "dtype") {
    const color = theme.dtypes[scene.text("dtype", i)] || theme.faint;
    return [tint(color, 0.35), color];
  }
  if (colorBy === "change") {
    const kinds = Object.keys(scene.changesIn(i));
    if (!kinds.length) return ["#ffffff", theme.faint];
    const color = theme.changes[kinds.length === 1 ? kinds[0] : "changed"];
    return [tint(color, isOp ? 0.3 : 0.55), color];
  }
  const phase = scene.phaseColor(i);
  return [isOp ? "#ffffff" : tint(phase, 0.72), phase];
}

/** The texts of a hover card. @param {Scene} scene @param {number} i */
export function hoverOf(scene, i) {
  const {rows, strings} = scene, isOp = scene.isOp(i);
  const {what, makes, sites} = isOp ? hoverOfOp(scene, i) : hoverOfGroup(scene, i);
  const [low, high] = [rows.low[i], rows.high[i]];
  const cut = high < 0 ? "" : low === high ? `segment ${low}` : `segments ${low} to ${high}`;
  const site = sites.size === 1 ? strings[[...sites][0]]
    : sites.size ? `${formatCount(sites.size)} lines of code` : "";
  return {name: scene.text("label", i), what, makes,
    time: rows.time[i] > 0 ? `${formatNs(rows.time[i])} a step` : "not known",
    place: [isOp ? scene.text("scope", i) : "", site, cut, stopOf(scene, i)].filter(Boolean).join("\n") || "-"};
}

/** @param {Scene} scene @param {number} i */
function stopOf(scene, i) {
  if (scene.isOp(i)) return scene.text("stop", i);
  const many = scene.stopsIn(i);
  return many ? `the program stops ${many > 1 ? `${many} times ` : ""}in here` : "";
}

/** @param {Scene} scene @param {number} i */
function hoverOfOp(scene, i) {
  const {rows} = scene, op = scene.text("op", i), change = rows.change[i];
  const line = `%${rows.node[i]} = ${op}`;
  return {what: change ? `${CHANGES[change]}: ${rows.node[i] < 0 ? op : line}` : line,
    makes: `${scene.text("sub", i)} (${formatBytes(rows.bytes[i])})`,
    sites: new Set(rows.site[i] ? [rows.site[i]] : [])};
}

/** @param {Scene} scene @param {number} row */
function hoverOfGroup(scene, row) {
  const {rows, strings} = scene, sites = new Set();
  /** @type {Map<string, number>} */
  const ops = new Map();
  for (const i of scene.opsIn(row)) {
    if (rows.site[i]) sites.add(rows.site[i]);
    const name = strings[rows.label[i]].split(": ").pop() ?? "";
    ops.set(name, (ops.get(name) ?? 0) + 1);
  }
  const common = [...ops].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([name, n]) => `${n} ${name}`);
  return {what: `${plural(rows.ops[row], "op")}: ${common.join(", ")}${ops.size > 5 ? ", …" : ""}`,
    makes: `${formatBytes(rows.bytes[row])} in all`, sites};
}
