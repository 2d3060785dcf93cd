// The columns of a timeline as the page reads them, with absolute times in nanoseconds.

export const BLOCK = 16; // spans that are counted at once where they share one pixel

/**
 * A column: an array of JavaScript or of numbers.
 * @typedef {any} Column
 *
 * The columns of `timeline_payload` in Python, by table: `keys`, `rows`, `lanes`, `headings`,
 * `steps`, `syncs`, `gaps`, `pins`, `parts`, `graph`, `colors`. The spans of row r are `first[r]` to
 * `first[r + 1] - 1`, in the order of their starts; `key[i]` is what a span shares with its like.
 * @typedef {object} Table
 * @property {number} n how many spans there are
 * @property {number[]} first
 * @property {Float64Array} start
 * @property {Float64Array} stop
 * @property {Float64Array} reach the latest end up to here in the row, so that it is in order
 * @property {Uint32Array} longest the longest span of each block
 * @property {Float64Array} before the time of all spans before each block
 * @property {Column} key
 * @property {Column | null} count how many spans were joined to this one
 * @property {(i: number) => number} segmentOf
 * @property {Record<string, Column>} keys
 * @property {Record<string, Column>} rows
 * @property {Record<string, Column>} lanes
 * @property {Record<string, Column>} headings
 * @property {Record<string, Column>} steps
 * @property {Record<string, Column>} syncs
 * @property {Record<string, Column>} gaps
 * @property {Record<string, Column>} pins
 * @property {Record<string, Column>} path
 * @property {Record<string, Column>} parts
 * @property {Record<string, Column>} graph
 * @property {Record<string, Column>} colors
 * @property {string} title
 * @property {string} note
 * @property {string} summary
 * @property {string} message
 * @property {number} end
 * @property {number} axis how far the axis reaches that several runs share; 0: as far as the spans
 * @property {number} bottom height of all lanes, in pixels
 * @property {Uint8Array} hidden flags of keys whose spans are left out, empty if there are none; see arrange.js
 * @property {import("./arrange.js").IdleRow[]} idle rows that say why a device was idle
 * @property {boolean} hidesWaits
 * @property {number} leftOut how many lanes are not shown
 * @property {Int32Array} [launches] see launches.js; worked out at first use
 */

/**
 * @param {Record<string, Column[]>} data a source of bokeh with one row: "spans.delta" -> [column]
 * @returns {Table}
 */
export function readTimeline(data) {
  const get = (/** @type {string} */ name) => data[name][0];
  const table = (/** @type {string} */ name) => Object.fromEntries(Object.keys(data)
    .filter((key) => key.startsWith(`${name}.`)).map((key) => [key.slice(name.length + 1), get(key)]));
  const key = get("spans.key"), n = key.length;
  const rows = table("rows"), keys = table("keys");
  const first = Array.from(rows.first, Number);
  first.push(n);
  const {start, stop} = absoluteTimes(first, get("spans.delta"), get("spans.length"));
  const count = get("spans.count"), segment = get("spans.segment");
  const segmentOf = (/** @type {number} */ i) => (segment.length ? segment[i] - 1 : keys.segment[key[i]]);
  return {n, first, start, stop, reach: reachOf(first, stop, rows.crowded), ...blocksOf(start, stop), key,
    segmentOf, count: count.length ? count : null, keys, rows,
    lanes: table("lanes"), headings: table("headings"), steps: table("steps"),
    syncs: table("syncs"), gaps: table("gaps"), pins: table("pins"), path: table("path"), parts: table("parts"), graph: table("graph"),
    colors: table("colors"), title: get("title"), note: get("note"), summary: get("summary"),
    message: get("message"), end: get("end_ns"), axis: data.axis_ns?.[0] ?? 0,
    bottom: get("content_px"), hidden: new Uint8Array(0), idle: [], hidesWaits: false, leftOut: 0};
}

/** @param {number[]} first @param {Column} delta @param {Column} length */
function absoluteTimes(first, delta, length) {
  const start = new Float64Array(delta.length), stop = new Float64Array(delta.length);
  for (let row = 0; row + 1 < first.length; row++) {
    for (let i = first[row], at = 0; i < first[row + 1]; i++) {
      at += delta[i];
      start[i] = at;
      stop[i] = at + length[i];
    }
  }
  return {start, stop};
}

/** Ends in order, also where spans of one row cover each other.
 * @param {number[]} first @param {Float64Array} stop @param {Column} crowded */
function reachOf(first, stop, crowded) {
  if (!crowded.some(Boolean)) return stop;
  const reach = stop.slice();
  for (let row = 0; row + 1 < first.length; row++) {
    if (!crowded[row]) continue;
    for (let i = first[row] + 1; i < first[row + 1]; i++) reach[i] = Math.max(reach[i], reach[i - 1]);
  }
  return reach;
}

/** @param {Float64Array} start @param {Float64Array} stop */
function blocksOf(start, stop) {
  const blocks = Math.floor(start.length / BLOCK);
  const longest = new Uint32Array(blocks), before = new Float64Array(blocks + 1);
  for (let k = 0, total = 0; k < blocks; k++) {
    let best = k * BLOCK;
    for (let i = best, end = best + BLOCK; i < end; i++) {
      total += stop[i] - start[i];
      if (stop[i] - start[i] > stop[best] - start[best]) best = i;
    }
    longest[k] = best;
    before[k + 1] = total;
  }
  return {longest, before};
}

/**
 * The first index in [low, high) whose value is not less than x (or, `after`, greater than x).
 * @param {ArrayLike<number>} values
 * @param {number} low
 * @param {number} high
 * @param {number} x
 * @param {boolean} [after]
 */
export function searchSorted(values, low, high, x, after = false) {
  while (low < high) {
    const mid = (low + high) >>> 1;
    if (values[mid] < x || (after && values[mid] === x)) low = mid + 1;
    else high = mid;
  }
  return low;
}

/**
 * Indices [low, high) of a row that hold every span in [from, to); in a crowded row others too.
 * @param {Table} table
 * @param {number} row
 * @param {number} from
 * @param {number} to
 */
export function inRange(table, row, from, to) {
  const begin = table.first[row], end = table.first[row + 1];
  const low = Math.min(searchSorted(table.reach, begin, end, from, true),
    searchSorted(table.start, begin, end, from));
  return [low, Math.max(low, searchSorted(table.start, low, end, to))];
}

/** @param {Table} table @param {number} i @returns {number} the row of a span */
export function rowOf(table, i) {
  return searchSorted(table.first, 0, table.first.length, i, true) - 1;
}

/** @param {Table} table @param {number} i @returns {number} */
export function lengthOf(table, i) {
  return table.stop[i] - table.start[i];
}

/** @param {Table} table @param {string} kind @returns {string} as `theme.COLORS` has it */
export function colorOfKind({colors}, kind) {
  return colors.color[colors.kind.indexOf(kind)];
}
