// What one row shows at a width: wide spans one by one, narrow ones summed up pixel by pixel.
import {BLOCK, inRange} from "./table.js";

const WIDE = 3; // pixels from which a span is a bar of its own; narrower ones share a pixel

/**
 * The narrow spans of a row, by pixel.
 * @typedef {object} Dust
 * @property {Uint32Array} count
 * @property {Float64Array} busy the part of the pixel that they fill
 * @property {Int32Array} longest which span is the longest
 * @property {Uint8Array} lit is one of them highlighted?
 */

/** @param {number} width @returns {Dust} */
export function dustOf(width) {
  return {count: new Uint32Array(width), busy: new Float64Array(width),
    longest: new Int32Array(width), lit: new Uint8Array(width)};
}

/**
 * One row of [from, to) on `width` pixels. Spans of WIDE pixels and more are returned; each narrower
 * one is counted in `dust`, at the pixel where it begins (or where the range does).
 * @param {import("./table.js").Table} table
 * @param {number} row
 * @param {number} from
 * @param {number} to
 * @param {number} width
 * @param {Dust} dust
 * @param {Uint8Array | null} [lit] flags of keys that are highlighted
 * @returns {number[]}
 */
export function levelOfDetail(table, row, from, to, width, dust, lit = null) {
  const {start, stop, key, count, hidden} = table;
  const scale = width / (to - from);
  const wide = [];
  dust.count.fill(0);
  dust.busy.fill(0);
  dust.lit.fill(0);
  const [low, high] = inRange(table, row, from, to);
  const hasBlocks = lit === null && canCountBlocks(table, row);
  for (let i = low; i < high; i++) {
    const s = start[i], e = stop[i];
    if (hasBlocks && i % BLOCK === 0 && i + BLOCK <= high && s > from && stop[i + BLOCK - 1] <= to
        && addBlock(table, i, from, scale, dust)) {
      i += BLOCK - 1;
      continue;
    }
    if ((e <= from && s < from) || hidden[key[i]]) continue;
    if ((e - s) * scale >= WIDE) {
      wide.push(i);
      continue;
    }
    let p = s <= from ? 0 : ((s - from) * scale) | 0;
    if (p >= width) p = width - 1;
    const was = dust.longest[p];
    const isLit = lit === null ? 0 : lit[key[i]];
    if (dust.count[p] === 0 || isLit > dust.lit[p]
        || (isLit === dust.lit[p] && e - s > stop[was] - start[was])) dust.longest[p] = i;
    if (isLit) dust.lit[p] = 1;
    dust.count[p] += count === null ? 1 : count[i];
    dust.busy[p] += ((e < to ? e : to) - (s > from ? s : from)) * scale;
  }
  return wide;
}

/** Does each span of a row count for one? @param {import("./table.js").Table} table
 * @param {number} row */
function canCountBlocks({count, hidden, rows}, row) {
  return count === null && hidden.length === 0 && !rows.crowded[row];
}

/** Count the block of spans that begins at i; false if its spans do not share one pixel.
 * @param {import("./table.js").Table} table @param {number} i @param {number} from
 * @param {number} scale @param {Dust} dust */
function addBlock({start, stop, longest, before}, i, from, scale, dust) {
  const p = ((start[i] - from) * scale) | 0, k = i / BLOCK, best = longest[k];
  if (p >= dust.count.length || p !== (((start[i + BLOCK - 1] - from) * scale) | 0)
      || (stop[best] - start[best]) * scale >= WIDE) return false;
  const was = dust.longest[p];
  if (dust.count[p] === 0 || stop[best] - start[best] > stop[was] - start[was]) dust.longest[p] = best;
  dust.count[p] += BLOCK;
  dust.busy[p] += (before[k + 1] - before[k]) * scale;
  return true;
}

/**
 * The busiest row of the host and of the devices in each pixel of [low, high).
 * @param {import("./table.js").Table} table
 * @param {number} width
 * @param {number} low
 * @param {number} high
 */
export function busiest(table, width, low, high) {
  const host = new Float64Array(width), device = new Float64Array(width);
  const {keys, rows, first} = table;
  const isKernel = keys.kind.map((/** @type {string} */ kind) => kind === "kernel");
  const isBusy = keys.kind.map((/** @type {string} */ kind) =>
    !["wait", "elsewhere", "ahead", "device step", "reduction", "communication", "callback"].includes(kind));
  for (let row = 0; row < rows.top.length; row++) {
    let i = first[row];
    while (i < first[row + 1] && !isBusy[table.key[i]]) i++; // a lane of a device may begin with a collective
    if (table.parts.outline[rows.part[row]] || i === first[row + 1]) continue;
    const side = isKernel[table.key[i]] ? device : host;
    const bins = busyPixels(table, row, isBusy, width, low, width / (high - low));
    for (let p = 0; p < width; p++) if (bins[p] > side[p]) side[p] = bins[p];
  }
  return {host, device};
}

/** @param {import("./table.js").Table} table @param {number} row @param {boolean[]} isBusy
 * @param {number} width @param {number} low @param {number} scale pixels of a nanosecond */
function busyPixels(table, row, isBusy, width, low, scale) {
  const {start, stop, key, first} = table;
  const bins = new Float64Array(width);
  for (let i = first[row]; i < first[row + 1]; i++) {
    if (!isBusy[key[i]]) continue;
    const from = Math.max((start[i] - low) * scale, 0), to = Math.min((stop[i] - low) * scale, width - 1e-9);
    const p = from | 0, q = to | 0;
    if (p === q) bins[p] += to - from;
    else {
      bins[p] += p + 1 - from;
      for (let k = p + 1; k < q; k++) bins[k] += 1;
      bins[q] += to - q;
    }
  }
  return bins;
}
