// Which lanes are shown, and where: lanes without what is asked for are left out, the others move up.
import {gapsOf} from "./idle.js";

const OFF = -1e7; // a place that is never on the canvas
const HEADING = 17, GAP = 5, IDLE = 19; // pixels, as in lanes.py; a row of idle causes

/**
 * What is asked for. `hidden`: kinds as the legend names them. `text`: words that a lane's name has.
 * @typedef {{hidden: Set<string>, text: string, showsIdle: boolean}} Filter
 *
 * A row that says why one device was idle. @typedef {{part: number, group: string, top: number,
 *   gaps: import("./idle.js").Gaps}} IdleRow
 */

/** Is a lane or row that stands there on the canvas, or beyond its edge? @param {number} top */
export function isPlaced(top) {
  return top > OFF / 2;
}

/** @returns {Filter} */
export function everything() {
  return {hidden: new Set(), text: "", showsIdle: false};
}

/** The kind of a key as the legend names it. @param {import("./table.js").Table} table @param {number} k */
export function legendKind({keys, colors}, k) {
  if (keys.kind[k] !== "record") return keys.kind[k];
  return colors.kind.includes(keys.name[k]) ? keys.name[k] : "forward";
}

/** @param {import("./table.js").Table} table @param {Set<string>} hidden kinds @returns {Uint8Array} a flag a key */
export function hiddenKeys(table, hidden) {
  return Uint8Array.from(table.keys.kind, (_, k) => Number(hidden.has(legendKind(table, k))));
}

/**
 * The same table with its lanes placed anew; what is left out lies outside of the canvas.
 * @param {import("./table.js").Table} table as it was read
 * @param {Filter} filter
 * @param {(row: number) => number} [under] pixels that a row leaves free for the run before
 * @returns {import("./table.js").Table}
 */
export function arrange(table, {hidden, text, showsIdle}, under = () => 0) {
  const isHidden = hiddenKeys(table, hidden);
  const isShown = shownLanes(table, isHidden, text);
  const at = placed(table, isShown, showsIdle);
  const {rows, lanes} = table, whole = Array.from(rows.height, Number);
  const top = Array.from(rows.top, (y, row) => y + at.lanes[rows.lane[row]]);
  const height = whole.map((high, row) => high - under(row));
  const moved = (/** @type {import("./table.js").Column} */ column) =>
    Array.from(column, (y, lane) => Number(y) + at.lanes[lane]);
  const parts = {...table.parts};
  for (const name of ["top", "steps_top", "syncs_top"]) {
    if (parts[name]) parts[name] = Array.from(parts[name], (y, part) => Number(y) + at.tops[part]);
  }
  if (parts.bottom) parts.bottom = Array.from(parts.bottom, (y, part) => Number(y) + at.bottoms[part]);
  return {...table, hidden: hidden.size ? isHidden : table.hidden, idle: at.idle, parts,
    leftOut: isShown.filter((x) => !x).length, hidesWaits: hidden.has("wait"),
    rows: {...rows, top, height, whole}, lanes: {...lanes, top: moved(lanes.top), bottom: moved(lanes.bottom)},
    headings: {...table.headings, top: Array.from(table.headings.top, (y, i) => Number(y) + at.headings[i])},
    bottom: table.bottom + at.bottoms[at.bottoms.length - 1]};
}

/** Which lanes have a kind that is shown, and a name with each word of the text.
 * @param {import("./table.js").Table} table @param {Uint8Array} isHidden flags of keys
 * @param {string} text @returns {boolean[]} */
function shownLanes({keys, lanes}, isHidden, text) {
  const has = new Set();
  isHidden.forEach((is, k) => { if (!is) has.add(keys.lane[k]); });
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return Array.from(lanes.label, (label, lane) => {
    const name = `${lanes.group[lane]} ${label}`.toLowerCase();
    return has.has(lane) && words.every((word) => name.includes(word));
  });
}

/** By how many pixels each thing moves. @param {import("./table.js").Table} table
 * @param {boolean[]} isShown lanes @param {boolean} showsIdle */
function placed(table, isShown, showsIdle) {
  const {lanes, headings, gaps, parts} = table;
  const own = (/** @type {any} */ columns, /** @type {number} */ i) => (columns.part ? columns.part[i] : 0);
  const of = (/** @type {number} */ i) => `${own(lanes, i)} ${lanes.group[i]}`;
  const shownGroups = new Set(isShown.flatMap((is, i) => (is ? [of(i)] : [])));
  const idleGroups = new Set(showsIdle ? Array.from(gaps.start, (_, i) => `${own(gaps, i)} ${gaps.device[i]}`) : []);
  const found = {lanes: isShown.map(() => OFF), headings: Array.from(headings.text, () => OFF),
    idle: /** @type {IdleRow[]} */ ([]), tops: /** @type {number[]} */ ([]), bottoms: /** @type {number[]} */ ([])};
  let by = 0;
  for (let part = 0; part < parts.label.length; part++) {
    found.tops.push(by);
    const mine = isShown.map((_, i) => i).filter((i) => own(lanes, i) === part)
      .sort((a, b) => lanes.top[a] - lanes.top[b]);
    mine.forEach((lane, n) => {
      const group = of(lane), isFirst = n === 0 || of(mine[n - 1]) !== group;
      const heading = Array.from(headings.text).findIndex((text, i) =>
        isFirst && own(headings, i) === part && text === lanes.group[lane]);
      if (heading >= 0 && shownGroups.has(group)) found.headings[heading] = by;
      else if (heading >= 0) by -= HEADING;
      if (isShown[lane]) found.lanes[lane] = by;
      else by -= lanes.bottom[lane] - lanes.top[lane] + GAP;
      const isLast = n + 1 === mine.length || of(mine[n + 1]) !== group;
      if (isLast && shownGroups.has(group) && idleGroups.has(group)) {
        const name = lanes.group[lane];
        found.idle.push({part, group: name, top: lanes.bottom[lane] + GAP + by, gaps: gapsOf(table, part, name)});
        by += IDLE + GAP;
      }
    });
    found.bottoms.push(by);
  }
  return found;
}
