// Which lanes are shown, and where: lanes without what is asked for are left out, the others move up, and
// those that stand first are above all groups.
import {gapsOf} from "./idle.js";

const OFF = -1e7; // a place that is never on the canvas
const HEADING = 17, GAP = 5, IDLE = 19; // pixels, as in lanes.py; a row of idle causes

/**
 * What is asked for. `hidden`: kinds as the legend names them. `text`: words that a lane's name has.
 * `off`: names of lanes that are left out; `top`: names of those that stand first, in this order.
 * @typedef {{hidden: Set<string>, text: string, showsIdle: boolean, off: Set<string>, top: string[]}} Filter
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
  return {hidden: new Set(), text: "", showsIdle: false, off: new Set(), top: []};
}

/** A lane's name with its group: "device/0 kernels". @param {import("./table.js").Table} table
 * @param {number} lane @returns {string} */
export function nameOf({lanes}, lane) {
  return `${lanes.group[lane]} ${lanes.label[lane]}`.trim();
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
export function arrange(table, filter, under = () => 0) {
  const {hidden} = filter, isHidden = hiddenKeys(table, hidden);
  const isShown = shownLanes(table, isHidden, filter);
  const at = placed(table, isShown, filter);
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
    rows: {...rows, top, height, whole}, lanes: {...lanes, top: moved(lanes.top), bottom: moved(lanes.bottom),
      label: at.labels},
    headings: {...table.headings, top: Array.from(table.headings.top, (y, i) => Number(y) + at.headings[i])},
    bottom: table.bottom + at.bottoms[at.bottoms.length - 1]};
}

/** Which lanes have a kind that is shown, a name with each word of the text, and were not left out.
 * @param {import("./table.js").Table} table @param {Uint8Array} isHidden flags of keys
 * @param {Filter} filter @returns {boolean[]} */
function shownLanes(table, isHidden, {text, off}) {
  const has = new Set();
  isHidden.forEach((is, k) => { if (!is) has.add(table.keys.lane[k]); });
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return Array.from(table.lanes.label, (_, lane) => {
    const name = nameOf(table, lane);
    return has.has(lane) && !off.has(name) && words.every((word) => name.toLowerCase().includes(word));
  });
}

/** @param {Record<string, any>} columns @param {number} i @returns {number} the part that row `i` is of */
function partOf(columns, i) {
  return columns.part ? columns.part[i] : 0;
}

/** By how many pixels each thing moves, and what the lanes are called where they stand.
 * @param {import("./table.js").Table} table @param {boolean[]} isShown lanes @param {Filter} filter */
function placed(table, isShown, {showsIdle, top}) {
  const {lanes, headings, gaps, parts} = table;
  const idleGroups = new Set(showsIdle ? Array.from(gaps.start, (_, i) => `${partOf(gaps, i)} ${gaps.device[i]}`) : []);
  const found = {lanes: isShown.map(() => OFF), headings: Array.from(headings.text, () => OFF),
    labels: Array.from(lanes.label, String), idle: /** @type {IdleRow[]} */ ([]),
    tops: /** @type {number[]} */ ([]), bottoms: /** @type {number[]} */ ([])};
  let by = 0, y = 0;
  const put = (/** @type {number} */ lane) => {
    found.lanes[lane] = y - lanes.top[lane];
    y += lanes.bottom[lane] - lanes.top[lane] + GAP;
  };
  for (let part = 0; part < parts.label.length; part++) {
    found.tops.push(by);
    const groups = groupsOf(table, part);
    const mine = groups.flatMap((group) => group.lanes), last = mine[mine.length - 1];
    if (last !== undefined) y = lanes.top[mine[0]] - (groups[0].heading < 0 ? 0 : HEADING) + by;
    const first = top.flatMap((name) => mine.filter((lane) => isShown[lane] && nameOf(table, lane) === name));
    for (const lane of first) {
      put(lane);
      found.labels[lane] = nameOf(table, lane);
    }
    for (const group of groups) {
      const rest = group.lanes.filter((lane) => isShown[lane] && !first.includes(lane));
      const hasIdle = idleGroups.has(`${part} ${group.name}`) && group.lanes.some((lane) => isShown[lane]);
      if ((rest.length || hasIdle) && group.heading >= 0) {
        y += HEADING;
        found.headings[group.heading] = y - lanes.top[group.lanes[0]];
      }
      rest.forEach(put);
      if (!hasIdle) continue;
      found.idle.push({part, group: group.name, top: y, gaps: gapsOf(table, part, group.name)});
      y += IDLE + GAP;
    }
    if (last !== undefined) by = y - (lanes.bottom[last] + GAP);
    found.bottoms.push(by);
  }
  return found;
}

/** Groups of lanes of a part, from the top; `heading` is -1 where none stands over them.
 * @param {import("./table.js").Table} table @param {number} part
 * @returns {{name: string, heading: number, lanes: number[]}[]} */
function groupsOf({lanes, headings}, part) {
  const mine = Array.from(lanes.label, (_, i) => i).filter((i) => partOf(lanes, i) === part)
    .sort((a, b) => lanes.top[a] - lanes.top[b]);
  /** @type {{name: string, heading: number, lanes: number[]}[]} */
  const found = [];
  for (const lane of mine) {
    const name = lanes.group[lane];
    if (found[found.length - 1]?.name !== name) {
      const heading = Array.from(headings.text).findIndex((text, i) => partOf(headings, i) === part && text === name);
      found.push({name, heading, lanes: []});
    }
    found[found.length - 1].lanes.push(lane);
  }
  return found;
}
