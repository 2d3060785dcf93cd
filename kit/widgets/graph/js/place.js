// Where the boxes of a scene are when some of its groups are open: the rules of layout.py.

export const HEADER = 26;
export const MARGIN = 14;
export const LABEL_PX = 8.2;
const COLUMN_GAP = 84;
const ROW_GAP = 56; // above the update

/**
 * Columns of a graph, and the layout of each different group with its children closed, as
 * `graph_payload` makes them.
 * @typedef {Record<string, any>} SceneData
 *
 * [x, y, width, height]: the middle of a box, and its size.
 * @typedef {number[]} Rect
 *
 * An open group: how its inside is stretched, and where its children are in it.
 * @typedef {{width: number, height: number, left: number, children: number[], fx: Stretch, fy: Stretch,
 *   rects: Rect[]}} Frame
 *
 * A line between two boxes; a crossing one goes from phase to phase.
 * @typedef {{from: number, to: number, values: number, size: number, points: number[],
 *   isCrossing: boolean}} Edge
 *
 * `owner`: the visible box that each row is in.
 * @typedef {{rects: Map<number, Rect>, frames: Map<number, Frame>, edges: Edge[], owner: Int32Array,
 *   width: number, height: number}} Placed
 */

/** Makes room along one axis: what lies in [low, high] becomes longer by extra. */
export class Stretch {
  /** @param {number[][]} spans [low, high, extra] */
  constructor(spans) {
    const grown = spans.filter(([, , extra]) => extra > 0);
    this.cuts = [...new Set(grown.flatMap(([low, high]) => [low, high]))].sort((a, b) => a - b);
    this.rates = this.cuts.map((x) => Math.max(0, ...grown
      .filter(([low, high]) => low <= x && x < high).map(([low, high, extra]) => extra / (high - low))));
    this.added = [0];
    for (let n = 0; n + 1 < this.cuts.length; n += 1) {
      this.added.push(this.added[n] + this.rates[n] * (this.cuts[n + 1] - this.cuts[n]));
    }
  }

  /** @param {number} x @returns {number} where x is once there is room */
  at(x) {
    let [low, high] = [0, this.cuts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.cuts[middle] <= x) low = middle + 1; else high = middle;
    }
    return low ? x + this.added[low - 1] + this.rates[low - 1] * (x - this.cuts[low - 1]) : x;
  }
}

/** @param {SceneData["rows"]} rows @param {number} row @returns {number[]} */
export function childrenOf(rows, row) {
  const found = [];
  for (let child = row + 1; child < rows.end[row]; child = rows.end[child]) found.push(child);
  return found;
}

/** Where an end of a line is, now that its box has another place and size.
 * @param {number} x @param {number} y @param {Rect} closed @param {Rect} now */
function attach(x, y, closed, now) {
  const clamp = (/** @type {number} */ v) => Math.min(Math.max(v, -0.5), 0.5);
  return [now[0] + clamp((x - closed[0]) / closed[2]) * now[2],
    now[1] + clamp((y - closed[1]) / closed[3]) * now[3]];
}

/** A curve from the side of a box to the side of another. @param {Rect} a @param {Rect} b */
export function across(a, b) {
  const right = b[0] >= a[0] ? 1 : -1;
  const x0 = a[0] + (right * a[2]) / 2, x1 = b[0] - (right * b[2]) / 2;
  return [x0, a[1], (x0 + x1) / 2, a[1], (x0 + x1) / 2, b[1], x1, b[1]];
}

/** A curve from the bottom of a box to the top of another. @param {Rect} a @param {Rect} b */
export function down(a, b) {
  const y0 = a[1] + a[3] / 2, y1 = b[1] - b[3] / 2, middle = (y0 + y1) / 2;
  return [a[0], y0, a[0], middle, b[0], middle, b[0], y1];
}

/** Measures groups and puts them into place, from the outside to the inside. */
class Placer {
  /** @param {SceneData} scene @param {Set<string>} open keys of the open groups */
  constructor(scene, open) {
    this.scene = scene;
    this.open = open;
    /** @type {Map<number, Frame>} */
    this.frames = new Map();
    /** @type {Map<number, Rect>} */
    this.rects = new Map();
    /** @type {Edge[]} */
    this.edges = [];
  }

  /** @param {number} row */
  isOpen(row) {
    const {rows, strings} = this.scene;
    return rows.shape[row] >= 0 && (rows.parent[row] < 0 || this.open.has(strings[rows.key[row]]));
  }

  /** @param {number} row @returns {Frame} */
  measure(row) {
    const {rows, shapes, strings} = this.scene;
    const shape = shapes[rows.shape[row]], children = childrenOf(rows, row);
    /** @type {number[][]} */
    const wide = [];
    /** @type {number[][]} */
    const tall = [];
    const sizes = children.map((child, n) => {
      const [x, y, w, h] = shape.boxes[n];
      if (!this.isOpen(child)) return [w, h];
      const inner = this.measure(child);
      wide.push([x - w / 2, x + w / 2, inner.width - w]);
      tall.push([y - h / 2, y + h / 2, inner.height - h]);
      return [inner.width, inner.height];
    });
    const fx = new Stretch(wide), fy = new Stretch(tall);
    const inside = fx.at(shape.width), label = [...strings[rows.label[row]]].length;
    const width = Math.max(inside, LABEL_PX * (label + 2) + 12) + 2 * MARGIN;
    const frame = {width, height: fy.at(shape.height) + HEADER + 2 * MARGIN, left: (width - inside) / 2,
      children, fx, fy, rects: shape.boxes.map((/** @type {Rect} */ [x, y, w, h], /** @type {number} */ n) => [
        (fx.at(x - w / 2) + fx.at(x + w / 2)) / 2, (fy.at(y - h / 2) + fy.at(y + h / 2)) / 2, ...sizes[n]])};
    this.frames.set(row, frame);
    return frame;
  }

  /** @param {number} row @param {Rect} rect @param {number[]} seen collects the rows that are placed */
  put(row, rect, seen) {
    this.rects.set(row, rect);
    seen.push(row);
    const frame = this.frames.get(row);
    if (!frame) return;
    const left = rect[0] - rect[2] / 2 + frame.left, top = rect[1] - rect[3] / 2 + HEADER + MARGIN;
    frame.children.forEach((child, n) => {
      const [x, y, w, h] = frame.rects[n];
      this.put(child, [x + left, y + top, w, h], seen);
    });
    this.putEdges(row, frame, left, top);
  }

  /** @param {number} row @param {Frame} frame @param {number} left @param {number} top */
  putEdges(row, frame, left, top) {
    const shape = this.scene.shapes[this.scene.rows.shape[row]];
    for (const [a, b, values, size, curve] of shape.edges) {
      const points = curve.map((/** @type {number} */ v, /** @type {number} */ n) =>
        (n % 2 ? frame.fy.at(v) + top : frame.fx.at(v) + left));
      const end = curve.length - 2;
      const [from, to] = [frame.children[a], frame.children[b]];
      const ends = /** @type {[number, number, number[]][]} */ ([
        [0, 2, attach(curve[0], curve[1], shape.boxes[a], this.rectOf(from))],
        [end, end - 2, attach(curve[end], curve[end + 1], shape.boxes[b], this.rectOf(to))]]);
      for (const [at, next, [ax, ay]] of ends) { // the control point beside an end moves with it
        points[next] += ax - points[at];
        points[next + 1] += ay - points[at + 1];
        [points[at], points[at + 1]] = [ax, ay];
      }
      this.edges.push({from, to, values, size, points, isCrossing: false});
    }
  }

  /** @param {number} row @returns {Rect} */
  rectOf(row) {
    return /** @type {Rect} */ (this.rects.get(row));
  }
}

/**
 * @param {SceneData} scene
 * @param {Set<string>} open keys of the open groups
 * @returns {Placed}
 */
export function placeScene(scene, open) {
  const {rows} = scene, count = rows.parent.length;
  const placer = new Placer(scene, open), {rects, frames, edges} = placer;
  /** @type {Columns} */
  const columns = new Map();
  let x = 0;
  for (let row = 0; row < count; row = rows.end[row]) {
    /** @type {number[]} */
    const seen = [];
    const frame = placer.measure(row), first = edges.length;
    placer.put(row, [x + frame.width / 2, frame.height / 2, frame.width, frame.height], seen);
    columns.set(row, {seen, edges: edges.slice(first)});
    x += frame.width + COLUMN_GAP;
  }
  shiftColumns(scene, columns, rects);
  const owner = new Int32Array(count), root = new Int32Array(count);
  for (let i = 0; i < count; i += 1) {
    const parent = rows.parent[i];
    root[i] = parent < 0 ? i : root[parent];
    owner[i] = parent < 0 || rects.has(i) ? i : owner[parent];
  }
  edges.push(...crossingEdges(scene, rects, owner, root));
  let [width, height] = [1, 1];
  for (const [rx, ry, w, h] of rects.values()) {
    width = Math.max(width, rx + w / 2);
    height = Math.max(height, ry + h / 2);
  }
  return {rects, frames, edges, owner, width, height};
}

/** The phases of a step, one beside the other, by their rows.
 * @typedef {Map<number, {seen: number[], edges: Edge[]}>} Columns */

/** Move the phases, so that a module's backward stands beside its forward, and the update below both.
 * @param {SceneData} scene @param {Columns} columns @param {Map<number, Rect>} rects */
function shiftColumns({rows, strings}, columns, rects) {
  const key = (/** @type {number} */ row) => strings[rows.key[row]];
  const rect = (/** @type {number} */ row) => /** @type {Rect} */ (rects.get(row));
  const top = (/** @type {number} */ row) => rect(row)[1] - rect(row)[3] / 2;
  const tail = (/** @type {number} */ row) => key(row).slice(key(row).indexOf("/") + 1);
  const seen = (/** @type {number} */ row) =>
    (columns.get(row)?.seen ?? []).filter((i) => key(i).includes("/"));
  const byName = new Map([...columns.keys()].map((row) => [key(row), row]));
  const shifts = new Map([...columns.keys()].map((row) => [row, 0]));
  const [forward, backward, update] = ["forward", "backward", "update"].map((name) => byName.get(name));
  if (forward !== undefined && backward !== undefined) {
    const level = new Map(seen(forward).map((i) => [tail(i), top(i)]));
    const mates = seen(backward).filter((i) => level.has(tail(i))).map((i) => (level.get(tail(i)) ?? 0) - top(i));
    if (mates.length) shifts.set(backward, Math.min(...mates));
  }
  const least = shifts.size ? Math.min(...shifts.values()) : 0;
  const move = (/** @type {number} */ row, /** @type {number} */ right, /** @type {number} */ by) => {
    const {seen: own, edges} = /** @type {{seen: number[], edges: Edge[]}} */ (columns.get(row));
    for (const i of own) {
      rect(i)[0] += right;
      rect(i)[1] += by;
    }
    for (const {points} of edges) for (let n = 0; n < points.length; n += 1) points[n] += n % 2 ? by : right;
  };
  for (const row of columns.keys()) if (row !== update) move(row, 0, (shifts.get(row) ?? 0) - least);
  if (update === undefined) return;
  const others = [...columns.keys()].filter((row) => row !== update).map(rect), last = others[others.length - 1];
  if (!last) return;
  const own = rect(update), right = Math.max(...others.map(([x, , w]) => x + w / 2));
  const left = Math.max(0, Math.min(last[0] - last[2] / 2, right - own[2]));
  move(update, left - (own[0] - own[2] / 2), Math.max(...others.map(([, y, , h]) => y + h / 2)) + ROW_GAP);
}

/** Lines between boxes of different phases, one for each pair.
 * @param {SceneData} scene @param {Map<number, Rect>} rects @param {Int32Array} owner
 * @param {Int32Array} root @returns {Edge[]} */
function crossingEdges({rows, strings, sources, targets}, rects, owner, root) {
  /** @type {Map<number, Set<number>>} */
  const found = new Map();
  for (let e = 0; e < sources.length; e += 1) {
    const a = sources[e], b = targets[e];
    if (root[a] === root[b]) continue;
    const pair = owner[a] * rows.parent.length + owner[b];
    const ops = found.get(pair) ?? new Set();
    found.set(pair, ops.add(a));
  }
  return [...found].map(([pair, ops]) => {
    const from = Math.floor(pair / rows.parent.length), to = pair % rows.parent.length;
    let size = 0;
    for (const i of ops) size += rows.bytes[i];
    const curve = strings[rows.key[root[to]]] === "update" ? down : across;
    const points = curve(/** @type {Rect} */ (rects.get(from)), /** @type {Rect} */ (rects.get(to)));
    return {from, to, values: ops.size, size, points, isCrossing: true};
  });
}

/** Points on a chain of Bézier curves: their x, their y.
 * @param {number[]} points @param {number} steps of each curve */
export function polyline(points, steps) {
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
