// What a timeline asks of its columns: which spans lie in a range, what a pixel stands for, what is
// under the pointer, what a search finds, what a range of time holds. Pure: nothing is drawn here.

const WIDE = 3; // pixels from which a span is a bar of its own; narrower ones share a pixel
const BLOCK = 16; // spans that are counted at once where they share one pixel

// The columns of `timeline_payload`, with absolute times. Times are nanoseconds in float64.
function readTimeline(data) {
  const get = (name) => data[name][0];
  const table = (name) => Object.fromEntries(Object.keys(data)
    .filter((k) => k.startsWith(`${name}.`)).map((k) => [k.slice(name.length + 1), get(k)]));
  const [delta, length, key] = ["delta", "length", "key"].map((c) => get(`spans.${c}`));
  const n = delta.length;
  const rows = table("rows");
  const first = Array.from(rows.first);
  first.push(n);
  const start = new Float64Array(n), stop = new Float64Array(n);
  for (let r = 0; r + 1 < first.length; r++) {
    for (let i = first[r], at = 0; i < first[r + 1]; i++) {
      at += delta[i];
      start[i] = at;
      stop[i] = at + length[i];
    }
  }
  let reach = stop; // ends in order, also where spans of one row cover each other
  if (rows.crowded.some(Boolean)) {
    reach = stop.slice();
    for (let r = 0; r + 1 < first.length; r++) {
      if (!rows.crowded[r]) continue;
      for (let i = first[r] + 1; i < first[r + 1]; i++) reach[i] = Math.max(reach[i], reach[i - 1]);
    }
  }
  const blocks = Math.floor(n / BLOCK);
  const longest = new Uint32Array(blocks), before = new Float64Array(blocks + 1);
  for (let k = 0, total = 0; k < blocks; k++) {
    let best = k * BLOCK;
    for (let i = best, end = best + BLOCK; i < end; i++) {
      total += stop[i] - start[i];
      if (stop[i] - start[i] > stop[best] - start[best]) best = i;
    }
    longest[k] = best;
    before[k + 1] = total;
  }
  const keys = table("keys");
  const count = get("spans.count"), segment = get("spans.segment");
  const segmentOf = (i) => segment.length ? segment[i] - 1 : keys.segment[key[i]];
  return {n, first, start, stop, reach, longest, before, key, segmentOf, count: count.length ? count : null, keys, rows,
    lanes: table("lanes"), headings: table("headings"), steps: table("steps"),
    syncs: table("syncs"), gaps: table("gaps"), parts: table("parts"), graph: table("graph"),
    colors: table("colors"), title: get("title"), note: get("note"), summary: get("summary"),
    message: get("message"), end: get("end_ns"), bottom: get("content_px")};
}

// The first index in [low, high) whose value is not less than x (or, `after`, greater than x).
function searchSorted(values, low, high, x, after = false) {
  while (low < high) {
    const mid = (low + high) >>> 1;
    if (values[mid] < x || (after && values[mid] === x)) low = mid + 1;
    else high = mid;
  }
  return low;
}

// Indices [low, high) of a row that hold every span in the range [a, b); in a crowded row others too.
function inRange(T, row, a, b) {
  const [from, to] = [T.first[row], T.first[row + 1]];
  const low = Math.min(searchSorted(T.reach, from, to, a, true), searchSorted(T.start, from, to, a));
  return [low, Math.max(low, searchSorted(T.start, low, to, b))];
}

function dustOf(width) {
  return {count: new Uint32Array(width), busy: new Float64Array(width),
    longest: new Int32Array(width), lit: new Uint8Array(width)};
}

// One row of [a, b) on `width` pixels. Spans of WIDE pixels and more are returned; each narrower one
// is counted in `dust`, at the pixel where it begins (or where the range does).
function levelOfDetail(T, row, a, b, width, dust, lit = null) {
  const {start, stop, key, count} = T;
  const scale = width / (b - a);
  const wide = [];
  dust.count.fill(0);
  dust.busy.fill(0);
  dust.lit.fill(0);
  const [low, high] = inRange(T, row, a, b);
  const hasBlocks = lit === null && count === null && !T.rows.crowded[row];
  for (let i = low; i < high; i++) {
    const s = start[i], e = stop[i];
    if (hasBlocks && i % BLOCK === 0 && i + BLOCK <= high && s > a && stop[i + BLOCK - 1] <= b) {
      const p = ((s - a) * scale) | 0, k = i / BLOCK, best = T.longest[k];
      if (p < width && p === (((start[i + BLOCK - 1] - a) * scale) | 0)
          && (stop[best] - start[best]) * scale < WIDE) {
        const was = dust.longest[p];
        if (dust.count[p] === 0 || stop[best] - start[best] > stop[was] - start[was]) dust.longest[p] = best;
        dust.count[p] += BLOCK;
        dust.busy[p] += (T.before[k + 1] - T.before[k]) * scale;
        i += BLOCK - 1;
        continue;
      }
    }
    if (e <= a && s < a) continue;
    if ((e - s) * scale >= WIDE) {
      wide.push(i);
      continue;
    }
    let p = s <= a ? 0 : ((s - a) * scale) | 0;
    if (p >= width) p = width - 1;
    const was = dust.longest[p];
    const isLit = lit === null ? 0 : lit[key[i]];
    if (dust.count[p] === 0 || isLit > dust.lit[p]
        || (isLit === dust.lit[p] && e - s > stop[was] - start[was])) dust.longest[p] = i;
    if (isLit) dust.lit[p] = 1;
    dust.count[p] += count === null ? 1 : count[i];
    dust.busy[p] += ((e < b ? e : b) - (s > a ? s : a)) * scale;
  }
  return wide;
}

function rowOf(T, i) {
  return searchSorted(T.first, 0, T.first.length, i, true) - 1;
}

// The row at a height, or -1.
function rowAt(T, y) {
  const {top, height} = T.rows;
  for (let r = 0; r < top.length; r++) if (y >= top[r] && y <= top[r] + height[r]) return r;
  return -1;
}

// The span of a row at a time, or within `slack` of it: the longest where several are that near.
// Returns [index or -1, how many are that near].
function spanAt(T, row, time, slack) {
  const [low, high] = inRange(T, row, time - slack, time + slack + 1);
  let found = -1, near = 0, isOn = false;
  for (let i = low; i < high; i++) {
    if (T.stop[i] < time - slack || T.start[i] > time + slack) continue;
    near += T.count === null ? 1 : T.count[i];
    const on = T.start[i] <= time && time <= T.stop[i] && T.stop[i] - T.start[i] > slack;
    const longer = found < 0 || T.stop[i] - T.start[i] > T.stop[found] - T.start[found];
    if (on > isOn || (on === isOn && longer)) [found, isOn] = [i, on];
  }
  return [found, isOn ? 1 : near];
}

function syncAt(T, part, time, slack) {
  let best = -1;
  for (let i = 0; i < T.syncs.at.length; i++) {
    if (T.syncs.part[i] !== part) continue;
    const off = Math.abs(T.syncs.at[i] - time);
    if (off <= slack && (best < 0 || off < Math.abs(T.syncs.at[best] - time))) best = i;
  }
  return best;
}

// Flags of keys and sync points that hold every word of `text`, and the spans of these keys by start.
function searchTimeline(T, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (...texts) => {
    const all = texts.join("\n").toLowerCase();
    return words.every((w) => all.includes(w));
  };
  const {keys, syncs} = T;
  const lit = Uint8Array.from(keys.name, (name, k) =>
    has(name, keys.kind[k], keys.where[k], keys.detail[k]) ? 1 : 0);
  const marks = Uint8Array.from(syncs.cause, (cause, i) =>
    has("sync point", cause, syncs.site[i], syncs.via[i]) ? 1 : 0);
  return {lit, marks, hits: spansOf(T, lit), syncs: marks.reduce((sum, x) => sum + x, 0)};
}

// The spans whose key is flagged, by start: rows are in order already, so pairs of them are merged.
function spansOf(T, lit) {
  let lists = [];
  for (let r = 0; r + 1 < T.first.length; r++) {
    const hits = new Uint32Array(T.first[r + 1] - T.first[r]);
    let n = 0;
    for (let i = T.first[r]; i < T.first[r + 1]; i++) if (lit[T.key[i]]) hits[n++] = i;
    if (n > 0) lists.push(hits.subarray(0, n));
  }
  while (lists.length > 1) {
    const merged = [];
    for (let k = 0; k < lists.length; k += 2) {
      merged.push(k + 1 < lists.length ? merge(T.start, lists[k], lists[k + 1]) : lists[k]);
    }
    lists = merged;
  }
  return lists[0] ?? new Uint32Array(0);
}

function merge(start, a, b) {
  const out = new Uint32Array(a.length + b.length);
  for (let i = 0, j = 0, n = 0; n < out.length; n++) {
    out[n] = j === b.length || (i < a.length && start[a[i]] <= start[b[j]]) ? a[i++] : b[j++];
  }
  return out;
}

// Flags of what belongs to a selection {nodes: Set of numbers, sites: Set of strings}: kernels that
// compute one of the nodes, what the host did for their segments, sync points of the lines.
function matching(T, {nodes, sites}) {
  const {keys, graph, syncs} = T;
  const lit = new Uint8Array(keys.name.length);
  const segments = new Set();
  const holds = (text) => text !== "" && text.split(" ").some((id) => nodes.has(Number(id)));
  if (nodes.size > 0) {
    graph.nodes.forEach((text, s) => {
      if (holds(text)) segments.add(graph.segments[s]);
    });
    keys.nodes.forEach((text, k) => {
      if (keys.kind[k] === "kernel") {
        lit[k] = holds(text) ? 1 : 0;
        if (lit[k]) segments.add(keys.segment[k]);
      }
    });
    keys.kind.forEach((kind, k) => {
      if (kind !== "kernel" && keys.segment[k] >= 0 && segments.has(keys.segment[k])) lit[k] = 1;
    });
  }
  return {lit, marks: Uint8Array.from(syncs.site, (site) => sites.has(site) ? 1 : 0)};
}

// The nodes and lines that a picked span or sync point stands for; nothing, if a run does not say.
function selectionOf(T, kind, i) {
  if (kind === "sync") {
    const site = T.syncs.site[i];
    const line = T.graph.sites.indexOf(site);
    const own = line < 0 ? [] : [...T.graph.site.keys()].filter((n) => T.graph.site[n] === line);
    return site === "" ? {nodes: new Set(), sites: new Set(), label: ""}
      : {nodes: new Set(own), sites: new Set([site]), label: site};
  }
  const k = T.key[i], segment = T.segmentOf(i);
  const at = T.graph.segments.indexOf(segment);
  const isKernel = T.keys.kind[k] === "kernel";
  const text = T.keys.nodes[k] || (segment >= 0 && at >= 0 && !isKernel ? T.graph.nodes[at] : "");
  const nodes = new Set(text.split(" ").filter(Boolean).map(Number)
    .filter((id) => id < T.graph.site.length));
  const lines = [...nodes].map((id) => T.graph.site[id]).filter((s) => s >= 0);
  const label = nodes.size === 0 ? "" : isKernel ? `kernel ${T.keys.name[k]}` : `segment ${segment}`;
  return {nodes, sites: new Set(lines.map((s) => T.graph.sites[s])), label};
}

// For each kernel the dispatch that launched it: the last one of its segment that began before it;
// where spans name no segments and there are as many of both, in order. As `kit.trace.active.launches`.
function launchesOf(T) {
  if (T.launches) return T.launches;
  const groups = new Map();
  const role = T.keys.kind.map((k) => k === "dispatch" ? "calls" : k === "kernel" ? "kernels" : "");
  for (let r = 0; r < T.rows.part.length; r++) {
    for (let i = T.first[r]; i < T.first[r + 1]; i++) {
      const what = role[T.key[i]];
      if (what === "") continue;
      const segment = T.segmentOf(i), id = T.rows.part[r] * 2 ** 32 + segment;
      if (!groups.has(id)) groups.set(id, {calls: [], kernels: [], known: segment >= 0});
      groups.get(id)[what].push(i);
    }
  }
  const byStart = (i, j) => T.start[i] - T.start[j] || i - j;
  const found = new Int32Array(T.n).fill(-1);
  for (const {calls, kernels, known} of groups.values()) {
    calls.sort(byStart);
    kernels.sort(byStart);
    if (known) {
      for (let k = 0, c = -1; k < kernels.length; k++) {
        while (c + 1 < calls.length && T.start[calls[c + 1]] <= T.start[kernels[k]]) c++;
        if (c >= 0) found[kernels[k]] = calls[c];
      }
    } else if (calls.length === kernels.length
        && calls.every((c, k) => T.start[c] <= T.start[kernels[k]])) {
      kernels.forEach((i, k) => { found[i] = calls[k]; });
    }
  }
  T.launches = found;
  return found;
}

// [dispatch, kernel] pairs of a picked span, at most `most` of them.
function arrowsOf(T, i, most) {
  const kind = T.keys.kind[T.key[i]];
  if (kind !== "kernel" && kind !== "dispatch") return [];
  const launches = launchesOf(T);
  if (kind === "kernel") return launches[i] < 0 ? [] : [[launches[i], i]];
  const pairs = [];
  for (let k = 0; k < T.n && pairs.length < most; k++) if (launches[k] === i) pairs.push([i, k]);
  return pairs;
}

// Sets of time, as sorted lists of [start, stop] that do not touch.
function union(pieces) {
  pieces.sort((x, y) => x[0] - y[0]);
  const out = [];
  for (const [a, b] of pieces) {
    const last = out[out.length - 1];
    if (last && a <= last[1]) last[1] = Math.max(last[1], b);
    else out.push([a, b]);
  }
  return out;
}

function both(x, y) {
  const out = [];
  for (let i = 0, j = 0; i < x.length && j < y.length;) {
    const a = Math.max(x[i][0], y[j][0]), b = Math.min(x[i][1], y[j][1]);
    if (a < b) out.push([a, b]);
    if (x[i][1] < y[j][1]) i++;
    else j++;
  }
  return out;
}

const sum = (pieces) => pieces.reduce((total, [a, b]) => total + b - a, 0);

// What a range of time holds, of one part: as `kit.widgets.timeline.range.range_metrics`.
function rangeMetrics(T, a, b, part = 0) {
  const of = {record: [], away: [], devices: new Map()};
  for (let r = 0; r < T.rows.part.length; r++) {
    if (T.rows.part[r] !== part) continue;
    const lane = T.rows.lane[r];
    const [low, high] = inRange(T, r, a, b);
    for (let i = low; i < high; i++) {
      if (T.stop[i] <= a) continue;
      const k = T.key[i], kind = T.keys.kind[k];
      let set = null;
      if (kind === "kernel") {
        const device = T.lanes.group[lane] || T.lanes.label[lane];
        if (!of.devices.has(device)) of.devices.set(device, []);
        set = of.devices.get(device);
      } else if (T.keys.where[k] === "host/loader") continue;
      else if (kind === "record") set = of.record;
      else if (kind === "wait" || kind === "input" || kind === "ahead") set = of.away;
      if (set) set.push([Math.max(T.start[i], a), Math.min(T.stop[i], b)]);
    }
  }
  const devices = [...of.devices].map(([name, pieces]) => [name, union(pieces)]);
  const busy = union(devices.flatMap(([, pieces]) => pieces.map((p) => [...p])));
  const record = union(of.record);
  const away = both(record, union(of.away));
  const recording = sum(record) - sum(away);
  const hidden = sum(both(record, busy)) - sum(both(away, busy));
  const {at, wait} = T.syncs;
  let waits = 0, waited = 0;
  for (let i = 0; i < at.length; i++) {
    if (T.syncs.part[i] !== part || at[i] >= b || (at[i] + wait[i] <= a && at[i] < a)) continue;
    waits += 1;
    waited += Math.max(0, Math.min(at[i] + wait[i], b) - Math.max(at[i], a));
  }
  const idle = new Map();
  for (let i = 0; i < T.gaps.start.length; i++) {
    if (T.gaps.part[i] !== part) continue;
    const ns = Math.min(T.gaps.start[i] + T.gaps.length[i], b) - Math.max(T.gaps.start[i], a);
    const cause = T.colors.causes[T.gaps.cause[i]];
    if (ns > 0) idle.set(cause, (idle.get(cause) || 0) + ns);
  }
  return {length: b - a, devices: devices.map(([name, pieces]) => [name, sum(pieces)]),
    recording, hidden, waits, waited,
    idle: [...idle].sort((x, y) => y[1] - x[1] || (x[0] < y[0] ? -1 : 1)),
    knowsIdle: Boolean(T.parts.gaps_known[part])};
}

function formatNs(ns) {
  const three = (x) => Math.abs(x) < 1000 ? String(Number(x.toPrecision(3))) : Math.round(x).toLocaleString("en");
  for (const [scale, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Math.abs(ns) >= scale * 0.9995) return `${three(ns / scale)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// A time to the nanosecond, so that neighbours differ.
function formatAt(ns) {
  for (const [scale, unit, digits] of [[1e9, "s", 9], [1e6, "ms", 6], [1e3, "µs", 3]]) {
    if (Math.abs(ns) < scale) continue;
    return `${(ns / scale).toLocaleString("en", {maximumFractionDigits: digits})} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}
