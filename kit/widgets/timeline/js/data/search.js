// Which spans and sync points belong to a text that is searched, or to a selection.
import {NOTHING} from "../../../base/js/listing.js";
import {isPlaced} from "./arrange.js";
import {ON_DEVICE} from "./launches.js";

/** @typedef {import("../../../base/js/listing.js").Selection} Selection */
/** Flags of keys (`lit`) and of sync points (`marks`).
 * @typedef {{lit: Uint8Array, marks: Uint8Array}} Flags */

/**
 * Flags of keys and sync points that hold every word of `text`, the spans of these keys by start,
 * and how many sync points there are. A text in quotation marks is a whole name.
 * @param {import("./table.js").Table} table
 * @param {string} text
 */
export function searchTimeline(table, text) {
  const whole = /^"(.+)"$/.exec(text.trim())?.[1];
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (/** @type {string[]} */ ...texts) => {
    const all = texts.join("\n").toLowerCase();
    return words.every((word) => all.includes(word)) ? 1 : 0;
  };
  const {keys, syncs} = table;
  const lit = flagsOf(keys.name, (name, k) => (whole !== undefined ? Number(name === whole)
    : has(name, keys.bar[k], keys.kind[k], keys.where[k], keys.detail[k])));
  const marks = flagsOf(syncs.cause, (cause, i) =>
    (table.hidesWaits || whole !== undefined ? 0 : has("sync point", cause, syncs.site[i], syncs.via[i])));
  return {lit, marks, hits: spansOf(table, lit), syncs: marks.reduce((total, x) => total + x, 0)};
}

/** @param {string[]} values @param {(value: string, i: number) => number} flag */
function flagsOf(values, flag) {
  return Uint8Array.from({length: values.length}, (_, i) => flag(values[i], i));
}

/**
 * The spans that are shown and whose key is flagged, by start: rows are in order already, so pairs of
 * them are merged.
 * @param {import("./table.js").Table} table
 * @param {Uint8Array} lit
 */
export function spansOf(table, lit) {
  const {first, key, start, hidden, rows} = table;
  let lists = [];
  for (let row = 0; row + 1 < first.length; row++) {
    if (!isPlaced(rows.top[row])) continue;
    const hits = new Uint32Array(first[row + 1] - first[row]);
    let n = 0;
    for (let i = first[row]; i < first[row + 1]; i++) if (lit[key[i]] && !hidden[key[i]]) hits[n++] = i;
    if (n > 0) lists.push(hits.subarray(0, n));
  }
  while (lists.length > 1) {
    const merged = [];
    for (let k = 0; k < lists.length; k += 2) {
      merged.push(k + 1 < lists.length ? merge(start, lists[k], lists[k + 1]) : lists[k]);
    }
    lists = merged;
  }
  return lists[0] ?? new Uint32Array(0);
}

/** @param {Float64Array} start @param {Uint32Array} a @param {Uint32Array} b */
function merge(start, a, b) {
  const out = new Uint32Array(a.length + b.length);
  for (let i = 0, j = 0, n = 0; n < out.length; n++) {
    out[n] = j === b.length || (i < a.length && start[a[i]] <= start[b[j]]) ? a[i++] : b[j++];
  }
  return out;
}

/**
 * Flags of what belongs to a selection: what computes one of the nodes, what the host did for their
 * segments, sync points of the lines. Nodes and segments are the first run's: of the others only lines
 * are lit.
 * @param {import("./table.js").Table} table
 * @param {{nodes: Set<number>, sites: Set<string>}} selection
 * @returns {Flags}
 */
export function matching(table, {nodes, sites}) {
  const {keys, graph, syncs} = table;
  const lit = new Uint8Array(keys.name.length);
  const marks = flagsOf(syncs.site, (site) => (sites.has(site) ? 1 : 0));
  if (nodes.size === 0) return {lit, marks};
  const segments = new Set();
  const holds = (/** @type {string} */ text) =>
    text !== "" && text.split(" ").some((id) => nodes.has(Number(id)));
  graph.nodes.forEach((/** @type {string} */ text, /** @type {number} */ s) => {
    if (holds(text)) segments.add(graph.segments[s]);
  });
  const mine = [...lit.keys()].filter((k) => !keys.part[k]);
  for (const k of mine) {
    if (!holds(keys.nodes[k])) continue;
    lit[k] = 1;
    if (ON_DEVICE.includes(keys.kind[k])) segments.add(keys.segment[k]);
  }
  for (const k of mine) {
    if (!ON_DEVICE.includes(keys.kind[k]) && keys.segment[k] >= 0 && segments.has(keys.segment[k])) lit[k] = 1;
  }
  return {lit, marks};
}

/**
 * The nodes and lines that a picked span or sync point stands for; nothing, if a run does not say, or if
 * it is not the first one's: nodes and lines are. As `TimelineView` does with a kernel.
 * @param {import("./table.js").Table} table
 * @param {string} kind
 * @param {number} i
 * @returns {Selection}
 */
export function selectionOf(table, kind, i) {
  return kind === "sync" ? selectionOfSync(table, i) : selectionOfSpan(table, i);
}

/** @param {import("./table.js").Table} table @param {number} i @returns {Selection} */
function selectionOfSync({syncs, graph}, i) {
  const site = syncs.site[i];
  if (site === "" || syncs.part[i]) return NOTHING;
  const line = graph.sites.indexOf(site);
  const own = line < 0 ? [] : [...graph.site.keys()].filter((node) => graph.site[node] === line);
  return {nodes: new Set(own), sites: new Set([site]), label: site};
}

/** @param {import("./table.js").Table} table @param {number} i @returns {Selection} */
function selectionOfSpan(table, i) {
  const {keys, graph} = table;
  const k = table.key[i], segment = table.segmentOf(i), name = keys.name[k];
  if (keys.part[k]) return NOTHING;
  const kindOf = keys.kind[k], isSegment = !ON_DEVICE.includes(kindOf) && segment >= 0;
  const text = isSegment ? graph.nodes[graph.segments.indexOf(segment)] ?? "" : keys.nodes[k];
  const ids = text.split(" ").filter(Boolean).map(Number);
  const nodes = new Set(ids.filter((/** @type {number} */ id) => id < graph.site.length));
  if (nodes.size === 0) return NOTHING;
  const lines = [...nodes].map((id) => graph.site[id]).filter((line) => line >= 0);
  const label = isSegment ? `segment ${segment}` : kindOf === "kernel" ? `kernel ${name}` : name;
  return {nodes, sites: new Set(lines.map((line) => graph.sites[line])), label};
}
