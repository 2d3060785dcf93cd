// Which spans and sync points the legend and the filter of lanes leave in the picture.
import {isPlaced} from "./arrange.js";
import {inRange, rowOf} from "./table.js";

/** @param {import("./table.js").Table} table @param {{kind: string, i: number}} thing */
export function isShown(table, {kind, i}) {
  if (kind === "sync") return !table.hidesWaits;
  return !table.hidden[table.key[i]] && isPlaced(table.rows.top[rowOf(table, i)]);
}

/**
 * The next span that is shown, row after row; -1 if there is none.
 * @param {import("./table.js").Table} table
 * @param {number} i
 * @param {number} by 1 or -1
 */
export function neighbour(table, i, by) {
  for (let next = i + by; next >= 0 && next < table.n; next += by) {
    if (isShown(table, {kind: "span", i: next})) return next;
  }
  return -1;
}

/**
 * The first span in the uppermost row that shows one of [from, to); without one there, of all time.
 * @param {import("./table.js").Table} table
 * @param {number} from
 * @param {number} to
 */
export function firstShown(table, from, to) {
  for (let row = 0; row + 1 < table.first.length; row++) {
    const [low, high] = inRange(table, row, from, to);
    for (let i = low; i < high; i++) {
      if (table.stop[i] > from && isShown(table, {kind: "span", i})) return i;
    }
  }
  return neighbour(table, -1, 1);
}
