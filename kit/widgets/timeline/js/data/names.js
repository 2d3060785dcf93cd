// What a range of time holds, by name: how often, how long, and how long without what ran inside.
import {isPlaced} from "./arrange.js";
import {inRange, lengthOf} from "./table.js";

export const MOST = 200_000; // spans that are summed up; it takes a moment
const JOINED = "(several names, joined)", ANY_KIND = "(any)";

/**
 * `total`, `self`: nanoseconds in the range; `whole`: of the same spans, also outside of it. A joined bar
 * covers the pauses between its spans, so that all numbers of an `isJoined` row are the most that they can
 * be; `self` is null where joined bars hide how much ran inside.
 * @typedef {{name: string, kind: string, count: number, total: number, self: number | null, whole: number,
 *   isJoined: boolean}} Named
 */

/**
 * The spans of one part that reach into [from, to), each cut to it; null where there are too many.
 * What runs inside of a span, on its own lane, is not in its `self`.
 * @param {import("./table.js").Table} table
 * @param {number} from
 * @param {number} to
 * @param {number} [part]
 * @returns {Named[] | null} what took most first
 */
export function namesIn(table, from, to, part = 0) {
  const lanes = spansByLane(table, from, to, part);
  if (lanes === null) return null;
  const {keys, key, count, hidden} = table;
  /** @type {Map<string, Named>} */
  const found = new Map();
  for (const spans of lanes.values()) {
    const {inside, isUnknown} = timeInside(table, spans, from, to);
    spans.forEach((i, n) => {
      const k = key[i], many = count === null ? 1 : count[i];
      if (hidden[k]) return;
      const isJoined = many > 1, kind = isJoined ? ANY_KIND : keys.kind[k];
      const name = isJoined ? JOINED : keys.name[k], id = `${isJoined}\0${kind}\0${name}`;
      const row = found.get(id)
        ?? {name, kind, count: 0, total: 0, self: 0, whole: 0, isJoined};
      const own = Math.min(table.stop[i], to) - Math.max(table.start[i], from);
      row.count += many;
      row.total += own;
      row.self = row.self === null || isUnknown[n] ? null : row.self + own - inside[n];
      row.whole += lengthOf(table, i);
      found.set(id, row);
    });
  }
  return [...found.values()].sort((a, b) => b.total - a.total || b.count - a.count || (a.name < b.name ? -1 : 1));
}

/** Lane of the program -> spans by start, the longer first.
 * @param {import("./table.js").Table} table @param {number} from @param {number} to
 * @param {number} part @returns {Map<string, number[]> | null} */
function spansByLane(table, from, to, part) {
  const {rows, start, stop, keys, key} = table;
  const lanes = new Map();
  let many = 0;
  for (let row = 0; row < rows.top.length; row++) {
    if (rows.part[row] !== part || !isPlaced(rows.top[row])) continue;
    const [low, high] = inRange(table, row, from, to);
    if ((many += high - low) > MOST) return null;
    for (let i = low; i < high; i++) {
      if (stop[i] <= from && start[i] < from) continue;
      const lane = keys.where[key[i]];
      if (!lanes.has(lane)) lanes.set(lane, []);
      lanes.get(lane).push(i);
    }
  }
  for (const spans of lanes.values()) {
    spans.sort((/** @type {number} */ i, /** @type {number} */ j) =>
      start[i] - start[j] || lengthOf(table, j) - lengthOf(table, i) || i - j);
  }
  return lanes;
}

/** For each span the time in the range that others fill which lie inside of it; and whether a joined bar
 * reaches over it, so that it is not known.
 * @param {import("./table.js").Table} table @param {number[]} spans as `spansByLane` has them
 * @param {number} from @param {number} to */
function timeInside({start, stop, count}, spans, from, to) {
  const inside = new Float64Array(spans.length), isUnknown = new Uint8Array(spans.length);
  const until = new Float64Array(spans.length).fill(from);
  /** @type {number[]} */
  let open = [];
  spans.forEach((i, n) => {
    open = open.filter((m) => stop[spans[m]] > start[i]);
    for (const m of open) {
      if (count !== null && count[i] > 1) isUnknown[m] = 1;
      if (count !== null && count[spans[m]] > 1) isUnknown[n] = 1;
      if (stop[spans[m]] < stop[i]) continue;
      const end = Math.min(stop[i], to), begin = Math.max(start[i], until[m]);
      if (end <= begin) continue;
      inside[m] += end - begin;
      until[m] = end;
    }
    open.push(n);
  });
  return {inside, isUnknown};
}
