// What a range of time holds: busy devices, hidden recording, waits, idle time by cause.
import {inRange} from "./table.js";

// As in kit/trace/kinds.py: while one of these goes on a thread records nothing.
const AWAY = ["wait", "input", "ahead", "elsewhere", "own"];
// As in kit/trace/devices.py: what native torch computes in the calls themselves hides nothing.
const TORCH_CPU = "device/0 torch cpu";

/** A set of time: sorted [start, stop] that do not touch. @typedef {number[][]} Pieces */

/** @param {Pieces} pieces in any order @returns {Pieces} */
export function union(pieces) {
  const sorted = [...pieces].sort((x, y) => x[0] - y[0]);
  /** @type {Pieces} */
  const out = [];
  for (const [start, stop] of sorted) {
    const last = out[out.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], stop);
    else out.push([start, stop]);
  }
  return out;
}

/** @param {Pieces} x @param {Pieces} y @returns {Pieces} the time that is in both */
export function intersection(x, y) {
  const out = [];
  for (let i = 0, j = 0; i < x.length && j < y.length;) {
    const start = Math.max(x[i][0], y[j][0]), stop = Math.min(x[i][1], y[j][1]);
    if (start < stop) out.push([start, stop]);
    if (x[i][1] < y[j][1]) i++;
    else j++;
  }
  return out;
}

/** @param {Pieces} pieces @returns {number} */
export function total(pieces) {
  return pieces.reduce((sum, [start, stop]) => sum + stop - start, 0);
}

/**
 * What [from, to) holds, of one part: as `kit.widgets.timeline.range.range_metrics`.
 * @param {import("./table.js").Table} table
 * @param {number} from
 * @param {number} to
 * @param {number} [part]
 */
export function rangeMetrics(table, from, to, part = 0) {
  const pieces = piecesIn(table, from, to, part);
  const devices = [...pieces.devices].map(([name, own]) => [name, union(own)]);
  const busy = union(devices.flatMap(([, own]) => /** @type {Pieces} */ (own)));
  const record = union(pieces.record);
  const away = intersection(record, union(pieces.away));
  return {length: to - from,
    devices: devices.map(([name, own]) => [name, total(/** @type {Pieces} */ (own))]),
    recording: total(record) - total(away),
    hidden: canHide(table, part) ? total(intersection(record, busy)) - total(intersection(away, busy)) : NaN,
    ...waitsIn(table, from, to, part),
    idle: idleIn(table, from, to, part),
    isOfMany: devices.length > 1 || devicesOf(table, part) > 1,
    knowsIdle: Boolean(table.parts.gaps_known[part])};
}

/** @param {import("./table.js").Table} table @param {number} part */
function canHide({keys}, part) {
  const {kind, where} = keys;
  return !kind.some((/** @type {string} */ name, /** @type {number} */ k) =>
    name === "kernel" && where[k] === TORCH_CPU && keys.part[k] === part);
}

/** The spans that lie in a range, cut to it: recording, time away from recording, each device.
 * @param {import("./table.js").Table} table @param {number} from @param {number} to
 * @param {number} part */
function piecesIn(table, from, to, part) {
  const {keys, lanes, rows, start, stop} = table;
  /** @type {{record: Pieces, away: Pieces, devices: Map<string, Pieces>}} */
  const found = {record: [], away: [], devices: new Map()};
  for (let row = 0; row < rows.part.length; row++) {
    if (rows.part[row] !== part) continue;
    const lane = rows.lane[row], device = lanes.group[lane] || lanes.label[lane];
    const [low, high] = inRange(table, row, from, to);
    for (let i = low; i < high; i++) {
      if (stop[i] <= from) continue;
      const piece = [Math.max(start[i], from), Math.min(stop[i], to)];
      const k = table.key[i], kind = keys.kind[k];
      if (kind === "kernel") {
        if (!found.devices.has(device)) found.devices.set(device, []);
        found.devices.get(device)?.push(piece);
      } else if (keys.where[k] === "host/loader") continue;
      else if (kind === "record") found.record.push(piece);
      else if (AWAY.includes(kind)) found.away.push(piece);
    }
  }
  return found;
}

/** @param {import("./table.js").Table} table @param {number} from @param {number} to
 * @param {number} part */
function waitsIn({syncs}, from, to, part) {
  const {at, wait} = syncs;
  let waits = 0, waited = 0;
  for (let i = 0; i < at.length; i++) {
    if (syncs.part[i] !== part || at[i] >= to || (at[i] + wait[i] <= from && at[i] < from)) continue;
    waits += 1;
    waited += Math.max(0, Math.min(at[i] + wait[i], to) - Math.max(at[i], from));
  }
  return {waits, waited};
}

/** How many devices were ever idle. @param {import("./table.js").Table} table @param {number} part */
function devicesOf({gaps}, part) {
  return new Set(Array.from(gaps.device).filter((_, i) => gaps.part[i] === part)).size;
}

/** Nanoseconds by cause, the largest first.
 * @param {import("./table.js").Table} table @param {number} from @param {number} to
 * @param {number} part @returns {[string, number][]} */
function idleIn({gaps, colors}, from, to, part) {
  const idle = new Map();
  for (let i = 0; i < gaps.start.length; i++) {
    if (gaps.part[i] !== part) continue;
    const ns = Math.min(gaps.start[i] + gaps.length[i], to) - Math.max(gaps.start[i], from);
    const cause = colors.causes[gaps.cause[i]];
    if (ns > 0) idle.set(cause, (idle.get(cause) || 0) + ns);
  }
  return [...idle].sort((x, y) => y[1] - x[1] || (x[0] < y[0] ? -1 : 1));
}
