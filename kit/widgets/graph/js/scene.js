// The graph of a step as rows: phases, groups and ops, each row before those that are in it.

export const PHASE = 0;
export const GROUP = 1;
export const SAME = 2;
export const OP = 5;
export const CHANGES = ["same", "added", "changed", "rewired", "removed"];
const AS_JSON = ["strings", "shapes", "dots"]; // as texts, if bokeh carries them

/** What `graph_payload` in Python made, with questions that several parts of the view ask. */
export class Scene {
  /** @param {Record<string, any>} given */
  constructor(given) {
    const read = (/** @type {string} */ name, /** @type {any} */ value) =>
      (AS_JSON.includes(name) && typeof value === "string" ? JSON.parse(value) : value);
    const all = /** @type {Record<string, any>} */ (
      Object.fromEntries(Object.entries(given).map(([name, value]) => [name, read(name, value)])));
    this.rows = all.rows;
    this.strings = /** @type {string[]} */ (all.strings);
    this.shapes = /** @type {Record<string, any>[]} */ (all.shapes);
    this.dots = /** @type {string[]} */ (all.dots ?? []); // layouts that graphviz in the page can do
    this.sources = /** @type {number[]} */ (all.sources); // rows: edge e is read by targets[e]
    this.targets = /** @type {number[]} */ (all.targets);
    this.theme = all.theme; // colours
    this.drawing = /** @type {number} */ (all.drawing ?? 0); // its number, if a kernel drew it
    this.title = /** @type {string} */ (all.title);
    this.note = /** @type {string} */ (all.note);
    this.message = /** @type {string} */ (all.message);
    this.drawnBy = /** @type {string} */ (all.drawn_by);
    this.hasTimes = Boolean(all.has_times);
    this.hasChanges = Boolean(all.has_changes);
  }

  get count() {
    return this.rows.parent.length;
  }

  /** @param {number} row */
  isOp(row) {
    return this.rows.kind[row] === OP;
  }

  /** @param {number} row @returns {string} */
  key(row) {
    return this.strings[this.rows.key[row]];
  }

  /** @param {string} column @param {number} row @returns {string} */
  text(column, row) {
    return this.strings[this.rows[column][row]];
  }

  /** @param {number} row @returns {number[]} */
  opsIn(row) {
    const found = [];
    for (let i = row; i < this.rows.end[row]; i += 1) if (this.isOp(i)) found.push(i);
    return found;
  }

  /** The rows around a row, from the inside to the outside. @param {number} row @returns {number[]} */
  around(row) {
    const found = [], {parent} = this.rows;
    for (let p = parent[row]; p >= 0; p = parent[p]) found.push(p);
    return found;
  }

  /** @param {number} row @returns {string} the colour of its phase */
  phaseColor(row) {
    const {phases, faint} = this.theme;
    return phases[this.key(this.around(row).at(-1) ?? row)] || faint;
  }

  /** After how many ops of a row the program stops. @param {number} row */
  stopsIn(row) {
    let found = 0;
    for (let i = row; i < this.rows.end[row]; i += 1) if (this.rows.stop[i]) found += 1;
    return found;
  }

  /** How many ops of a row have changed, by the kind of change.
   * @param {number} row @returns {Record<string, number>} */
  changesIn(row) {
    const {end, change} = this.rows;
    /** @type {Record<string, number>} */
    const found = {};
    for (let i = row; i < end[row]; i += 1) {
      if (change[i]) found[CHANGES[change[i]]] = (found[CHANGES[change[i]]] || 0) + 1;
    }
    return found;
  }
}

/**
 * The ops that belong to a selection: by nodes, or by lines where it has no nodes.
 * @param {Scene} scene
 * @param {{nodes?: Iterable<number>, sites?: Iterable<string>}} selection
 */
export function opsOf(scene, selection) {
  const nodes = new Set(selection.nodes), sites = new Set(selection.sites), {rows} = scene;
  const found = [];
  for (let i = 0; i < scene.count; i += 1) {
    if (!scene.isOp(i) || rows.node[i] < 0) continue;
    if (nodes.size ? nodes.has(rows.node[i]) : sites.has(scene.text("site", i))) found.push(i);
  }
  return found;
}

/**
 * All ops on the way from some ops to the inputs or to the outputs of the step.
 * @param {Scene} scene
 * @param {Set<number>} ops
 * @param {string} name "inputs" or "outputs"
 * @returns {Set<number>}
 */
export function pathOf({sources, targets}, ops, name) {
  const [from, to] = name === "inputs" ? [targets, sources] : [sources, targets];
  /** @type {Map<number, number[]>} */
  const next = new Map();
  for (let e = 0; e < from.length; e += 1) {
    const found = next.get(from[e]);
    if (found) found.push(to[e]);
    else next.set(from[e], [to[e]]);
  }
  const path = new Set(), queue = [...ops];
  while (queue.length) {
    for (const i of next.get(/** @type {number} */ (queue.pop())) ?? []) {
      if (!path.has(i) && !ops.has(i)) {
        path.add(i);
        queue.push(i);
      }
    }
  }
  return path;
}

/** What a search finds, and which of its hits is shown. */
export class Search {
  constructor() {
    this.query = "";
    /** @type {number[]} */
    this.hits = [];
    this.at = -1; // position in the hits
    /** @type {string[] | null} */
    this.lower = null; // the strings of the scene, for the search
  }

  /** The strings are of another scene now. @param {Scene} scene */
  take(scene) {
    this.lower = null;
    this.find(scene, this.query);
  }

  /** @param {Scene | null} scene @param {string} query */
  find(scene, query) {
    this.query = query;
    this.hits = [];
    this.at = -1;
    const words = query.trim().toLowerCase();
    if (!words || !scene) return;
    this.lower ??= scene.strings.map((text) => text.toLowerCase());
    const has = this.lower.map((text) => text.includes(words)), {rows} = scene;
    for (let i = 0; i < scene.count; i += 1) {
      const isOp = scene.isOp(i);
      if (has[rows.label[i]] || (isOp && (has[rows.op[i]] || has[rows.site[i]] || has[rows.sub[i]]))
        || (isOp && words === `%${rows.node[i]}`)) this.hits.push(i);
    }
  }

  /** @param {number} by @returns {number} the row to show, -1 if there is none */
  next(by) {
    if (!this.hits.length) return -1;
    const many = this.hits.length;
    this.at = this.at < 0 ? (by > 0 ? 0 : many - 1) : (this.at + by + many) % many;
    return this.hits[this.at];
  }
}
