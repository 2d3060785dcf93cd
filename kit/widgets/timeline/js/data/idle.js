// The gaps of one device: which of them are in view, and how much of each pixel they fill.
import {searchSorted} from "./table.js";

const WIDE_PX = 2; // a gap as wide as this is a bar of its own

/**
 * The gaps of a device in one part, in order of time; none covers another.
 * @typedef {{start: Float64Array, stop: Float64Array, index: Uint32Array}} Gaps `index` into `table.gaps`
 */

/**
 * @param {import("./table.js").Table} table
 * @param {number} part
 * @param {string} device
 * @returns {Gaps}
 */
export function gapsOf({gaps}, part, device) {
  const found = [];
  for (let i = 0; i < gaps.start.length; i++) {
    if (gaps.part[i] === part && gaps.device[i] === device) found.push(i);
  }
  found.sort((i, j) => gaps.start[i] - gaps.start[j]);
  return {index: Uint32Array.from(found), start: Float64Array.from(found, (i) => gaps.start[i]),
    stop: Float64Array.from(found, (i) => Number(gaps.start[i]) + Number(gaps.length[i]))};
}

/**
 * Positions [low, high) of the gaps that reach into [from, to].
 * @param {Gaps} gaps
 * @param {number} from
 * @param {number} to
 */
export function gapsBetween({start, stop}, from, to) {
  const low = searchSorted(stop, 0, stop.length, from);
  return [low, Math.max(low, searchSorted(start, low, start.length, to, true))];
}

/**
 * What a row of `width` pixels shows of [from, to]: the positions of gaps that are bars, and for all
 * others together which part of each pixel is idle, and the cause that took most of it.
 * @param {Gaps} gaps
 * @param {ArrayLike<number>} cause of each gap of the table
 * @param {number} from
 * @param {number} to
 * @param {number} width
 */
export function idlePixels(gaps, cause, from, to, width) {
  const {start, stop, index} = gaps, scale = width / (to - from);
  const [low, high] = gapsBetween(gaps, from, to);
  /** @type {number[]} */
  const wide = [];
  const filled = new Float64Array(width), causes = new Int16Array(width).fill(-1);
  /** @type {Map<number, number>[]} */
  const shares = [];
  for (let n = low; n < high; n++) {
    const left = Math.max((start[n] - from) * scale, 0), right = Math.min((stop[n] - from) * scale, width);
    if (right - left >= WIDE_PX) {
      wide.push(n);
      continue;
    }
    for (let p = Math.floor(left); p < Math.min(Math.ceil(right), width); p++) {
      const part = Math.min(right, p + 1) - Math.max(left, p), own = cause[index[n]];
      const share = (shares[p] ??= new Map());
      share.set(own, (share.get(own) ?? 0) + part);
      filled[p] += part;
      if (causes[p] < 0 || Number(share.get(own)) > Number(share.get(causes[p]))) causes[p] = own;
    }
  }
  return {wide, filled, causes};
}
