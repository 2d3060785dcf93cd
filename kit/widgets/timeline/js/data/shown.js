// Which spans and sync points the legend and the filter of lanes leave in the picture.
import {isPlaced} from "./arrange.js";
import {inRange, rowOf} from "./table.js";

/** @param {import("./table.js").Table} table @param {{kind: string, i: number}} thing */
export function isShown(table, {kind, i}) {
  if (kind === "sync") return !table.hidesWaits;
  return !table.hidden[table.key[i]] && isPlaced(table.rows.top[rowOf(table, i)]);
}

/** Rows that are shown, from the top. @param {import("./table.js").Table} table @returns {number[]} */
function placedRows({rows: {top}}) {
  return [...top.keys()].filter((row) => isPlaced(top[row])).sort((a, b) => top[a] - top[b] || a - b);
}

/**
 * The next span that is shown: in its row, then in the row that stands below it, or above; -1 if
 * there is none.
 * @param {import("./table.js").Table} table
 * @param {number} i -1: before all
 * @param {number} by 1 or -1
 */
export function neighbour(table, i, by) {
  const {first, key, hidden} = table, rows = placedRows(table);
  if (by < 0) rows.reverse();
  const own = i < 0 ? -1 : rows.indexOf(rowOf(table, i));
  for (let at = Math.max(own, 0); at < rows.length; at++) {
    const [low, high] = [first[rows[at]], first[rows[at] + 1]];
    for (let next = at === own ? i + by : by > 0 ? low : high - 1; next >= low && next < high; next += by) {
      if (!hidden[key[next]]) return next;
    }
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
  for (const row of placedRows(table)) {
    const [low, high] = inRange(table, row, from, to);
    for (let i = low; i < high; i++) {
      if (table.stop[i] > from && isShown(table, {kind: "span", i})) return i;
    }
  }
  return neighbour(table, -1, 1);
}
