// The run before, which lies under the one that is shown: pale lines under the bars of each lane.

/**
 * `shift`: nanoseconds by which its times move, so that both first steps begin together. `rows`: for
 * each row of the table the row of the ghost, -1 if there is none. `missing`: lanes that the table lacks.
 * @typedef {{table: import("./table.js").Table, name: string, shift: number, rows: Int32Array,
 *   missing: number}} Ghost
 */

/**
 * Match the rows of two timelines: a row lies under the row of the same lane that is as deep.
 * @param {import("./table.js").Table} table
 * @param {import("./table.js").Table} under
 * @param {string} name
 * @returns {Ghost}
 */
export function ghostOf(table, under, name) {
  const mine = rowsByLane(table), theirs = rowsByLane(under);
  const rows = new Int32Array(table.rows.top.length).fill(-1);
  for (const [lane, own] of mine) {
    const other = theirs.get(lane) ?? [];
    own.forEach((row, depth) => { rows[row] = other[depth] ?? -1; });
  }
  const missing = [...theirs.keys()].filter((lane) => !mine.has(lane)).length;
  return {table: under, name, shift: firstStep(table) - firstStep(under), rows, missing};
}

/** The rows of the first part by their lane. @param {import("./table.js").Table} table
 * @returns {Map<string, number[]>} */
function rowsByLane({rows, lanes}) {
  const found = new Map();
  for (let row = 0; row < rows.top.length; row++) {
    if (rows.part[row] !== 0) continue;
    const lane = `${lanes.group[rows.lane[row]]}\0${lanes.label[rows.lane[row]]}`;
    found.set(lane, [...(found.get(lane) ?? []), row]);
  }
  return found;
}

/** @param {import("./table.js").Table} table @returns {number} when the first part's steps begin */
function firstStep({steps}) {
  const at = steps.part.indexOf(0);
  return at < 0 ? 0 : steps.start[at];
}
