// The grid of recorded runs: which of them is nearest to a setting, and what to say of it.

/**
 * `at`: a position on each axis. `step`: milliseconds, null if they are not known; `low`, `high`:
 * between which a rerun's are to be expected. `doubt`: why the run is not to be believed.
 * @typedef {{at: number[], step: number | null, low?: number | null, high?: number | null,
 *   doubt?: string}} Cell
 * @typedef {{name: string, label: string, number: boolean, values: string[]}} Axis
 * `beside`: the run that the first one is compared with on opening, and what it is called.
 * @typedef {{axes: Axis[], cells: Cell[], first: number, beside?: number | null, besideName?: string,
 *   parts: string[],
 *   models: Record<string, Record<string, string>>}} Index
 */

/** A position that differs is far off, however near it is. @param {number[]} a @param {number[]} b */
export function distance(a, b) {
  return a.reduce((sum, x, k) => sum + (x === b[k] ? 0 : 100 + Math.abs(x - b[k])), 0);
}

/** @param {Cell[]} cells @param {number[]} at @returns {number} */
export function nearest(cells, at) {
  let best = 0;
  cells.forEach((cell, i) => {
    if (distance(cell.at, at) < distance(cells[best].at, at)) best = i;
  });
  return best;
}

/** @param {Axis[]} axes @param {number[]} at
 * @returns {string} "batch size 8; loss scaling none": names and values may have commas */
export function settingsAt(axes, at) {
  return axes.map(({label, values}, k) => `${label} ${values[at[k]]}`).join("; ");
}

/** @param {Axis[]} axes @param {number[]} before @param {number[]} now
 * @returns {string} what was moved: "batch size 8 → 16; loss scaling none → static" */
export function movedText(axes, before, now) {
  return axes.flatMap(({label, values}, k) =>
    (before[k] === now[k] ? [] : [`${label} ${values[before[k]]} → ${values[now[k]]}`])).join("; ");
}

/** What to say if a setting was not recorded; "" if it was.
 * @param {Axis[]} axes @param {Cell} cell the one that is shown @param {number[]} at */
export function missingText(axes, cell, at) {
  if (distance(cell.at, at) === 0) return "";
  return `Not recorded: ${settingsAt(axes, at)}. Showing the nearest that was: ${settingsAt(axes, cell.at)}. `;
}

/**
 * One measured setting of a line: its place on the axis, and its step time in milliseconds.
 * @typedef {{place: number, ms: number, low: number, high: number, doubt: string}} Point
 */

/**
 * The step times along one axis, a line for each value of another one; elsewhere as in `near`.
 * @param {Index} index
 * @param {number} along the axis
 * @param {number} split the other axis, -1 for none
 * @param {number[]} near
 * @returns {Point[][]} the points of each line
 */
export function sweepLines({axes, cells}, along, split, near) {
  const groups = split < 0 ? [0] : axes[split].values.map((_, n) => n);
  return groups.map((group) => axes[along].values.flatMap((_, place) => {
    const cell = cells.find((c) => c.at.every(
      (v, k) => v === (k === along ? place : k === split ? group : near[k])));
    if (!cell?.step) return [];
    const ms = cell.step;
    return [{place, ms, low: cell.low ?? ms, high: cell.high ?? ms, doubt: cell.doubt ?? ""}];
  }));
}
