// What is at a place of the lanes: a span, a sync point, a step.
import {gapsBetween} from "./idle.js";
import {inRange, lengthOf} from "./table.js";

const SYNC_PX = 21, STEP_PX = 20, IDLE_PX = 16; // heights of the two strips above the lanes of a part

/**
 * `near`: how many spans or sync points are as close as the one that was found.
 * @typedef {{kind: "span" | "sync" | "step" | "gap", i: number, near: number}} Hit
 */

/**
 * @param {import("./table.js").Table} table
 * @param {number} time
 * @param {number} down pixels below the top of the lanes
 * @param {number} scale pixels of a nanosecond
 * @returns {Hit | null}
 */
export function hitAt(table, time, down, scale) {
  const {parts} = table;
  for (let part = 0; part < parts.label.length; part++) {
    const inSyncs = down - parts.syncs_top[part];
    if (!table.hidesWaits && inSyncs >= 0 && inSyncs < SYNC_PX) {
      return found("sync", ...syncAt(table, part, time, scale));
    }
    const inSteps = down - parts.steps_top[part];
    if (inSteps >= 0 && inSteps < STEP_PX) return found("step", stepAt(table, part, time), 1);
  }
  const idle = table.idle.find(({top}) => down >= top && down < top + IDLE_PX);
  if (idle) return found("gap", gapAt(idle, time, 2 / scale), 1);
  const row = rowAt(table, down);
  if (row < 0) return null;
  const [i, near] = spanAt(table, row, time, 3 / scale);
  return found("span", i, near);
}

/** @param {Hit["kind"]} kind @param {number} i @param {number} near @returns {Hit | null} */
function found(kind, i, near) {
  return i < 0 ? null : {kind, i, near};
}

/** The row at a height, or -1. @param {import("./table.js").Table} table @param {number} y */
function rowAt(table, y) {
  const {top, height} = table.rows;
  for (let row = 0; row < top.length; row++) if (y >= top[row] && y <= top[row] + height[row]) return row;
  return -1;
}

/** The lane at a height, or -1. @param {import("./table.js").Table} table @param {number} y */
export function laneAt(table, y) {
  const {top, bottom} = table.lanes;
  return Array.from(top, Number).findIndex((from, lane) => y >= from && y <= bottom[lane]);
}

/**
 * The span of a row at a time, or within `slack` of it: the longest where several are that near.
 * @param {import("./table.js").Table} table
 * @param {number} row
 * @param {number} time
 * @param {number} slack
 * @returns {[number, number]} index or -1, how many are that near
 */
function spanAt(table, row, time, slack) {
  const {start, stop, count, hidden, key} = table;
  const [low, high] = inRange(table, row, time - slack, time + slack + 1);
  let best = -1, near = 0, isOn = false;
  for (let i = low; i < high; i++) {
    if (stop[i] < time - slack || start[i] > time + slack || hidden[key[i]]) continue;
    near += count === null ? 1 : count[i];
    const on = start[i] <= time && time <= stop[i] && lengthOf(table, i) > slack;
    const isLonger = best < 0 || lengthOf(table, i) > lengthOf(table, best);
    if ((on && !isOn) || (on === isOn && isLonger)) [best, isOn] = [i, on];
  }
  return [best, isOn ? 1 : near];
}

/**
 * The sync point that is nearest to a time: the longest where others lie on top of it.
 * @param {import("./table.js").Table} table
 * @param {number} part
 * @param {number} time
 * @param {number} scale pixels of a nanosecond
 * @returns {[number, number]} index or -1, how many lie there
 */
function syncAt({syncs: {at, wait, part: partOf}}, part, time, scale) {
  const mine = [...at.keys()].filter((i) => partOf[i] === part && Math.abs(at[i] - time) <= 7 / scale);
  const off = mine.reduce((least, i) => Math.min(least, Math.abs(at[i] - time)), Infinity);
  const near = mine.filter((i) => Math.abs(at[i] - time) < off + 3 / scale);
  return [near.reduce((best, i) => (best < 0 || wait[i] > wait[best] ? i : best), -1), near.length];
}

/** The longest gap at a time, or within `slack` of it. @param {import("./arrange.js").IdleRow} row
 * @param {number} time @param {number} slack @returns {number} index in `table.gaps` or -1 */
function gapAt({gaps}, time, slack) {
  const {start, stop, index} = gaps, [low, high] = gapsBetween(gaps, time - slack, time + slack);
  let best = -1;
  for (let n = low; n < high; n++) {
    if (best < 0 || stop[n] - start[n] > stop[best] - start[best]) best = n;
  }
  return best < 0 ? -1 : index[best];
}

/** @param {import("./table.js").Table} table @param {number} part @param {number} time */
function stepAt(table, part, time) {
  const {start, length, part: partOf} = table.steps;
  return start.findIndex((/** @type {number} */ from, /** @type {number} */ i) =>
    partOf[i] === part && from <= time && time <= from + length[i]);
}
