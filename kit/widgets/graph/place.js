// Where the boxes of a scene are when some of its groups are open: the rules of graph_layout.py.

const HEADER = 26, MARGIN = 14, COLUMN_GAP = 84, LABEL_PX = 8.2, BAR = 4, ARROW = 7;
const MOST_BOXES = 2000; // glyphs at once: a frame of 2,000 took 50 ms
const MOST_LINKS = 400;
const [PHASE, GROUP, SAME, OPS, MORE, OP] = [0, 1, 2, 3, 4, 5];
const CHANGES = ["same", "added", "changed", "rewired", "removed"];

class Stretch {
  constructor(spans) {
    const grown = spans.filter((s) => s[2] > 0);
    this.cuts = [...new Set(grown.flatMap((s) => [s[0], s[1]]))].sort((a, b) => a - b);
    this.rates = this.cuts.map((x) => Math.max(0, ...grown
      .filter(([low, high]) => low <= x && x < high).map(([low, high, extra]) => extra / (high - low))));
    this.added = [0];
    for (let n = 0; n + 1 < this.cuts.length; n += 1) {
      this.added.push(this.added[n] + this.rates[n] * (this.cuts[n + 1] - this.cuts[n]));
    }
  }

  at(x) {
    let [low, high] = [0, this.cuts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.cuts[middle] <= x) low = middle + 1; else high = middle;
    }
    return low ? x + this.added[low - 1] + this.rates[low - 1] * (x - this.cuts[low - 1]) : x;
  }
}

function childrenOf(rows, row) {
  const found = [];
  for (let child = row + 1; child < rows.end[row]; child = rows.end[child]) found.push(child);
  return found;
}

function attach(x, y, closed, now) {
  const clamp = (v) => Math.min(Math.max(v, -0.5), 0.5);
  return [now[0] + clamp((x - closed[0]) / closed[2]) * now[2],
    now[1] + clamp((y - closed[1]) / closed[3]) * now[3]];
}

function across(a, b) {
  const right = b[0] >= a[0] ? 1 : -1;
  const x0 = a[0] + (right * a[2]) / 2, x1 = b[0] - (right * b[2]) / 2;
  return [x0, a[1], (x0 + x1) / 2, a[1], (x0 + x1) / 2, b[1], x1, b[1]];
}

function placeScene(scene, open) {
  const {rows, shapes, strings} = scene;
  const count = rows.parent.length;
  const frames = new Map(), rects = new Map(), edges = [];
  const isOpen = (row) => rows.shape[row] >= 0 && (rows.parent[row] < 0 || open.has(strings[rows.key[row]]));

  function measure(row) {
    const shape = shapes[rows.shape[row]], children = childrenOf(rows, row);
    const wide = [], tall = [];
    const sizes = children.map((child, n) => {
      const [x, y, w, h] = shape.boxes[n];
      if (!isOpen(child)) return [w, h];
      const f = measure(child);
      wide.push([x - w / 2, x + w / 2, f.width - w]);
      tall.push([y - h / 2, y + h / 2, f.height - h]);
      return [f.width, f.height];
    });
    const fx = new Stretch(wide), fy = new Stretch(tall);
    const inner = fx.at(shape.width);
    const width = Math.max(inner, LABEL_PX * ([...strings[rows.label[row]]].length + 2) + 12) + 2 * MARGIN;
    const frame = {width, height: fy.at(shape.height) + HEADER + 2 * MARGIN, left: (width - inner) / 2,
      children, fx, fy, rects: shape.boxes.map(([x, y, w, h], n) => [
        (fx.at(x - w / 2) + fx.at(x + w / 2)) / 2, (fy.at(y - h / 2) + fy.at(y + h / 2)) / 2, ...sizes[n]])};
    frames.set(row, frame);
    return frame;
  }

  function put(row, rect, seen) {
    rects.set(row, rect);
    seen.push(row);
    const frame = frames.get(row);
    if (!frame) return;
    const left = rect[0] - rect[2] / 2 + frame.left, top = rect[1] - rect[3] / 2 + HEADER + MARGIN;
    frame.children.forEach((child, n) => {
      const [x, y, w, h] = frame.rects[n];
      put(child, [x + left, y + top, w, h], seen);
    });
    const shape = shapes[rows.shape[row]];
    for (const [a, b, values, size, curve] of shape.edges) {
      const points = curve.map((v, n) => (n % 2 ? frame.fy.at(v) + top : frame.fx.at(v) + left));
      const end = curve.length - 2;
      const [from, to] = [frame.children[a], frame.children[b]];
      const ends = [[0, 2, attach(curve[0], curve[1], shape.boxes[a], rects.get(from))],
        [end, end - 2, attach(curve[end], curve[end + 1], shape.boxes[b], rects.get(to))]];
      for (const [at, next, [ax, ay]] of ends) { // the control point beside an end moves with it
        points[next] += ax - points[at];
        points[next + 1] += ay - points[at + 1];
        [points[at], points[at + 1]] = [ax, ay];
      }
      edges.push({from, to, values, size, points, isCrossing: false});
    }
  }

  const columns = new Map();
  let x = 0;
  for (let row = 0; row < count; row = rows.end[row]) {
    const seen = [], frame = measure(row), first = edges.length;
    put(row, [x + frame.width / 2, frame.height / 2, frame.width, frame.height], seen);
    columns.set(row, {seen, edges: edges.slice(first)});
    x += frame.width + COLUMN_GAP;
  }
  shiftColumns(scene, columns, rects);
  const owner = new Int32Array(count), root = new Int32Array(count);
  for (let i = 0; i < count; i += 1) {
    const p = rows.parent[i];
    root[i] = p < 0 ? i : root[p];
    owner[i] = p < 0 || rects.has(i) ? i : owner[p];
  }
  edges.push(...crossing(scene, rects, owner, root));
  let [width, height] = [1, 1];
  for (const [rx, ry, w, h] of rects.values()) {
    width = Math.max(width, rx + w / 2);
    height = Math.max(height, ry + h / 2);
  }
  return {rects, frames, edges, owner, width, height};
}

function shiftColumns(scene, columns, rects) {
  const {rows, strings} = scene;
  const key = (row) => strings[rows.key[row]];
  const top = (row) => rects.get(row)[1] - rects.get(row)[3] / 2;
  const tail = (row) => key(row).slice(key(row).indexOf("/") + 1);
  const byName = new Map([...columns.keys()].map((row) => [key(row), row]));
  const shifts = new Map([...columns.keys()].map((row) => [row, 0]));
  const [forward, backward, update] = ["forward", "backward", "update"].map((k) => byName.get(k));
  if (forward !== undefined && backward !== undefined) {
    const level = new Map();
    for (const i of columns.get(forward).seen) if (key(i).includes("/")) level.set(tail(i), top(i));
    const mates = columns.get(backward).seen.filter((i) => key(i).includes("/") && level.has(tail(i)))
      .map((i) => level.get(tail(i)) - top(i));
    if (mates.length) shifts.set(backward, Math.min(...mates));
  }
  if (update !== undefined && backward !== undefined) shifts.set(update, shifts.get(backward));
  const least = shifts.size ? Math.min(...shifts.values()) : 0;
  for (const [row, {seen, edges}] of columns) {
    const by = shifts.get(row) - least;
    for (const i of seen) rects.get(i)[1] += by;
    for (const {points} of edges) for (let n = 1; n < points.length; n += 2) points[n] += by;
  }
}

function crossing(scene, rects, owner, root) {
  const {rows, sources, targets} = scene, found = new Map();
  for (let e = 0; e < sources.length; e += 1) {
    const a = sources[e], b = targets[e];
    if (root[a] === root[b]) continue;
    const pair = owner[a] * rows.parent.length + owner[b];
    if (!found.has(pair)) found.set(pair, new Set());
    found.get(pair).add(a);
  }
  return [...found].map(([pair, ops]) => {
    const from = Math.floor(pair / rows.parent.length), to = pair % rows.parent.length;
    let size = 0;
    for (const i of ops) size += rows.bytes[i];
    return {from, to, values: ops.size, size, points: across(rects.get(from), rects.get(to)), isCrossing: true};
  });
}

function polyline(points, steps) {
  const xs = [points[0]], ys = [points[1]];
  for (let i = 0; i + 7 < points.length; i += 6) {
    for (let k = 1; k <= steps; k += 1) {
      const t = k / steps, u = 1 - t;
      const [a, b, c, d] = [u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t];
      xs.push(a * points[i] + b * points[i + 2] + c * points[i + 4] + d * points[i + 6]);
      ys.push(a * points[i + 1] + b * points[i + 3] + c * points[i + 5] + d * points[i + 7]);
    }
  }
  return [xs, ys];
}

