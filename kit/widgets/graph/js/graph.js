// A graph in the page: what is open, selected and found. No kernel is needed for any of it.
import {download} from "../../base/js/dom.js";
import {titleIn} from "../../base/js/fit.js";
import {Bar} from "./bar.js";
import {hoverOf} from "./boxes.js";
import {Camera} from "./camera.js";
import {columnsOf, countsOf, mostOf} from "./columns.js";
import {graphvizOf, shapesBy} from "./engine.js";
import {dotOf, svgOf} from "./export.js";
import {listen} from "./keys.js";
import {Messages} from "./messages.js";
import {placeScene} from "./place.js";
import {opsOf, pathOf, PHASE, Scene, Search} from "./scene.js";

const MOST_BOXES = 2000; // glyphs at once: a frame of 2,000 took 50 ms
const NARROW_PX = 600; // a figure in which the notes do not fit beside each other
const BETWEEN = "  ·  "; // notes, as in payload.py
const MARGIN = 8; // pixels beside the title
const NEAR = 0.3; // of what is shown: boxes as far outside are drawn, too

/** @typedef {{nodes: Set<number>, sites: Set<string>, label: string}} Selection */

/**
 * The state of one graph. It has many methods because each is one thing that the user can do; what
 * they need (camera, search, bar, columns, keys, engine, messages) are parts of their own.
 */
export class KitGraph {
  /** @param {Record<string, any>} models those of `graph_js_args` */
  constructor(models) {
    this.models = models;
    this.messages = new Messages(this);
    this.camera = new Camera(models.figure);
    this.search = new Search();
    /** @type {Scene | null} */
    this.scene = null;
    /** @type {import("./place.js").Placed | null} */
    this.placed = null;
    /** @type {Bar | null} */
    this.bar = null;
    /** @type {HTMLElement | null} */
    this.host = null; // the element of the figure
    /** @type {Set<string>} */
    this.open = new Set(); // keys of groups
    this.colorBy = "phase";
    this.hadChanges = false;
    /** @type {Set<number>} */
    this.chosen = new Set(); // rows of ops that are selected
    this.chosenLabel = "";
    /** @type {Set<number>} */
    this.path = new Set(); // rows on the way to inputs or outputs of what is selected
    this.pathName = "";
    this.cursor = -1; // row that the keyboard is at
    this.isByKeys = false; // the cursor is shown
    this.isShift = false; // held while the pointer went down
    /** @type {string[]} */
    this.sides = []; // where there is more than can be seen
    this.engine = ""; // what laid the scene out in this page
    this.hovers = new Map();
    this.waiting = /** @type {Record<string, any> | null} */ (null); // a selection for the first scene
    /** @type {((selection: Selection) => void) | null} */
    this.tell = null; // of a page without a kernel
    this.lastSize = "";
    this.isDrawing = false;
    this.isAdjusting = false;
  }

  // -- drawing

  /** Show a scene. @param {Record<string, any> | null} given what `graph_payload` in Python made */
  take(given) {
    if (!given || !given.rows) return;
    const isFirst = this.scene === null, before = this.placed;
    const scene = new Scene(given);
    this.scene = scene;
    this.hovers = new Map();
    this.engine = "";
    this.chosen = new Set();
    this.path = new Set();
    this.cursor = -1;
    if (this.colorBy === "change" && !scene.hasChanges) this.colorBy = "phase";
    if (scene.hasChanges && !this.hadChanges) this.colorBy = "change";
    this.hadChanges = scene.hasChanges;
    this.search.take(scene);
    const placed = this.place(scene);
    const isAlike = before && !this.camera.isFitted && before.rects.size === placed.rects.size;
    if (!isAlike) this.camera.fit(placed); // else keep looking at the same place: a slider moved
    this.draw();
    this.showBar();
    if (scene.dots.length) this.layOut();
    if (isFirst && this.waiting) this.highlight(this.waiting);
  }

  /** @param {Scene} scene @returns {import("./place.js").Placed} */
  place(scene) {
    this.placed = placeScene(scene, this.open);
    this.adjustHeight();
    return this.placed;
  }

  /** A new height paints at once, and bokeh has not yet taken all columns by now: wait a frame. */
  adjustHeight() {
    if (this.isAdjusting) return;
    this.isAdjusting = true;
    requestAnimationFrame(() => {
      this.isAdjusting = false;
      if (this.placed) this.models.figure.setv({height: this.camera.heightFor(this.placed)}, {sync: false});
    });
  }

  /** The boxes to draw: all of them, or those near to what is shown, the largest first.
   * @param {import("./place.js").Placed} placed @returns {number[]} */
  visible({rects}) {
    const rect = (/** @type {number} */ i) => /** @type {number[]} */ (rects.get(i));
    const area = (/** @type {number} */ i) => rect(i)[2] * rect(i)[3];
    const all = [...rects.keys()];
    if (all.length <= MOST_BOXES) return all;
    const near = all.filter((i) => this.camera.sees(rect(i), NEAR));
    if (near.length <= MOST_BOXES) return near;
    return near.sort((a, b) => area(b) - area(a) || a - b).slice(0, MOST_BOXES).sort((a, b) => a - b);
  }

  /** @param {Scene} scene @param {import("./place.js").Placed} placed @param {number[]} drawn
   * @returns {import("./columns.js").Picture} */
  picture(scene, placed, drawn) {
    const counts = (/** @type {Iterable<number>} */ set) => countsOf(scene, placed, set);
    return {scene, placed, drawn, colorBy: this.colorBy, most: mostOf(scene, placed, drawn),
      chosen: this.chosen, path: this.path, marked: counts(this.chosen), hits: counts(this.search.hits),
      onPath: counts(this.path), cursor: this.isByKeys ? this.cursor : -1, hover: (row) => this.hover(row)};
  }

  /** The texts of a hover card; those of a group look at all that is in it, so they are kept.
   * @param {number} row */
  hover(row) {
    if (!this.hovers.has(row) && this.scene) this.hovers.set(row, hoverOf(this.scene, row));
    return this.hovers.get(row);
  }

  /** @param {boolean} [isMoving] more frames follow */
  draw(isMoving = false) {
    const {models, scene, placed, camera} = this;
    if (!scene || !placed) return;
    if (!isMoving) this.sides = camera.outOfSight(placed); // a line that comes and goes would move the plot
    camera.lastScale = camera.scale();
    const drawn = this.visible(placed), picture = this.picture(scene, placed, drawn);
    models.boxes.selected.setv({indices: []}, {sync: false});
    for (const [name, data] of Object.entries(columnsOf(picture))) models[name].setv({data}, {sync: false});
    const bars = scene.hasTimes && scene.count ? "bar: device time" : "";
    const drawer = scene.count ? `laid out by ${this.engine || scene.drawnBy}` : "";
    const notes = [scene.note, bars, drawer].filter(Boolean).join(BETWEEN);
    const width = models.figure.outer_width; // 0 until it is laid out
    const isNarrow = width > 0 && width < NARROW_PX, {title} = models.figure;
    this.write(title, isNarrow ? titleIn(title, scene.title, width - MARGIN) : scene.title);
    this.write(models.note, isNarrow ? notes.replaceAll(BETWEEN, "\n") : notes);
    const isCut = drawn.length === MOST_BOXES && placed.rects.size > MOST_BOXES;
    this.bar?.say(picture, isCut ? this.nearCount(placed) - MOST_BOXES : 0);
  }

  /** Write above the figure. Bokeh makes the letters a moment later, and then does not ask how high
   * they are. @param {any} title @param {string} text */
  write(title, text) {
    if (title.text === text) return;
    title.setv({text}, {sync: false});
    requestAnimationFrame(() => { for (const view of Bokeh.index.find(this.models.figure)) view.invalidate_layout(); });
  }

  /** @param {import("./place.js").Placed} placed */
  nearCount({rects}) {
    return [...rects.values()].filter((rect) => this.camera.sees(rect, NEAR)).length;
  }

  /** Put the row of controls above the figure, once the figure is in the page. */
  showBar() {
    const host = window.Bokeh?.index?.find_one?.(this.models.figure)?.el;
    if (!host || !host.parentNode) return;
    if (this.host !== host) {
      this.host = host;
      for (const old of host.parentNode.querySelectorAll(":scope > .kit-graph-bar")) old.remove();
      this.bar?.root.remove();
      this.bar = new Bar(this);
      host.parentNode.insertBefore(this.bar.root, host);
      listen(this, host, this.bar);
    }
    this.bar?.offer();
  }

  /** The figure has a new size. */
  resized() {
    const size = String(this.camera.size());
    if (this.lastSize === size || !this.placed) return;
    this.lastSize = size;
    this.showBar();
    if (this.camera.isFitted) {
      this.adjustHeight();
      this.camera.fit(this.placed);
    } else this.camera.keep();
    this.draw();
  }

  /** The ranges of the figure have changed: of very many boxes others are drawn. */
  moved() {
    if (!this.camera.moved()) return;
    if (!this.placed || this.isDrawing || this.placed.rects.size <= MOST_BOXES) return;
    this.isDrawing = true;
    requestAnimationFrame(() => {
      this.isDrawing = false;
      this.draw(true);
    });
  }

  /** @param {string} name */
  setColorBy(name) {
    this.colorBy = name;
    this.draw();
    this.messages.report();
  }

  // -- opening and closing

  /**
   * Open these groups and no others.
   * @param {Iterable<string>} keys
   * @param {{anchor?: number, isSilent?: boolean}} [how] anchor: a row that stays where it is
   */
  setOpen(keys, {anchor = -1, isSilent = false} = {}) {
    const corner = this.cornerOf(anchor);
    this.open = new Set(keys);
    if (!this.scene) return;
    const placed = this.place(this.scene), now = this.cornerOf(anchor);
    if (corner && now) this.camera.shift(now[0] - corner[0], now[1] - corner[1]);
    else if (anchor < 0) this.camera.fit(placed);
    this.draw();
    if (!isSilent) this.messages.report();
  }

  /** @param {number} row */
  cornerOf(row) {
    const rect = this.placed?.rects.get(row);
    return rect && [rect[0] - rect[2] / 2, rect[1] - rect[3] / 2];
  }

  /** @param {number} row */
  toggle(row) {
    if (!this.scene) return;
    const keys = new Set(this.open), key = this.scene.key(row);
    if (!keys.delete(key)) keys.add(key);
    this.setOpen(keys, {anchor: row});
  }

  /** Open the groups around some rows, and go to the first. @param {number[]} rows */
  reveal(rows) {
    const {scene} = this;
    if (!scene) return;
    for (const row of rows) {
      for (const group of scene.around(row).slice(0, -1)) this.open.add(scene.key(group));
    }
    this.place(scene);
    this.center(rows[0]);
    this.draw();
    this.messages.report();
  }

  // -- what is selected

  /** Select all ops of a row. @param {number} row */
  pick(row) {
    const {scene} = this;
    if (!scene) return;
    const ops = scene.opsIn(row), isOp = scene.isOp(row), {node} = scene.rows;
    const nodes = new Set(ops.map((i) => node[i]).filter((n) => n >= 0));
    const sites = new Set(ops.map((i) => scene.text("site", i)).filter(Boolean));
    const number = isOp && node[row] >= 0 ? `%${node[row]} ` : ""; // what was removed has none now
    const label = `${number}${scene.text("label", row)}`;
    this.choose(ops, label);
    this.messages.report({pick: {nodes: [...nodes], label, isOp}});
    this.tell?.({nodes, sites, label});
  }

  unpick() {
    if (!this.chosen.size) return;
    this.choose([], "");
    this.messages.report({pick: {nodes: [], label: "", isOp: false}});
    this.tell?.({nodes: new Set(), sites: new Set(), label: ""});
  }

  /** Ring what belongs to a selection; nothing is opened. @param {Record<string, any>} selection */
  highlight(selection) {
    const {scene, placed} = this;
    if (!scene || !placed) {
      this.waiting = selection;
      return;
    }
    const found = opsOf(scene, selection);
    this.choose(found, selection.label || "");
    const isInSight = found.some((i) => this.camera.sees(this.rectAround(i)));
    if (found.length && !isInSight) {
      this.center(found[0]);
      this.draw();
    }
  }

  /** @param {Iterable<number>} ops @param {string} label */
  choose(ops, label) {
    this.chosen = new Set(ops);
    this.chosenLabel = label;
    this.setPath("");
  }

  /** Show the path to the inputs or the outputs; once more: do not. @param {string} name */
  trace(name) {
    this.setPath(this.pathName === name || !this.chosen.size ? "" : name);
  }

  /** @param {string} name */
  setPath(name) {
    this.path = name && this.scene ? pathOf(this.scene, this.chosen, name) : new Set();
    this.pathName = name;
    this.draw();
  }

  /** The visible box of a row. @param {number} row @returns {number[]} */
  rectAround(row) {
    return this.placed?.rects.get(this.placed.owner[row]) ?? [0, 0, 0, 0];
  }

  // -- what the user does

  /** A box was clicked. */
  clicked() {
    const {selected, data} = this.models.boxes, index = selected.indices.at(-1);
    if (index === undefined || !this.scene) return;
    const row = data.row[index];
    this.isByKeys = false;
    setTimeout(() => selected.setv({indices: []}, {sync: false}));
    this.act(row, this.isShift);
  }

  /** @param {number} row @param {boolean} isWholeGroup select a group instead of opening it */
  act(row, isWholeGroup) {
    const {scene} = this;
    if (!scene) return;
    this.cursor = row;
    if (scene.isOp(row) && this.chosen.size === 1 && this.chosen.has(row)) this.unpick();
    else if (scene.isOp(row) || isWholeGroup) this.pick(row);
    else if (scene.rows.kind[row] !== PHASE) this.toggle(row);
  }

  /** @param {boolean} isWholeGroup */
  enter(isWholeGroup) {
    if (this.cursor >= 0 && this.placed?.rects.has(this.cursor)) this.act(this.cursor, isWholeGroup);
    else this.step(1);
  }

  /** Go from box to box. @param {number} by */
  step(by) {
    const {scene, placed} = this;
    if (!scene || !placed) return;
    const rows = [...placed.rects.keys()].filter((i) => scene.rows.parent[i] >= 0);
    if (!rows.length) return;
    const at = rows.indexOf(this.cursor);
    this.cursor = at < 0 ? rows[by > 0 ? 0 : rows.length - 1] : rows[(at + by + rows.length) % rows.length];
    if (!this.camera.holds(this.rectAround(this.cursor))) this.center(this.cursor);
    this.draw();
  }

  /** Undo one thing: the path, the selection, or the group that the cursor is in. */
  escape() {
    const {scene, placed} = this;
    if (this.path.size) this.setPath("");
    else if (this.chosen.size) this.unpick();
    else if (scene && placed && this.cursor >= 0) {
      const row = [this.cursor, ...scene.around(this.cursor)]
        .find((i) => placed.frames.has(i) && scene.rows.parent[i] >= 0);
      if (row === undefined) return;
      this.cursor = row;
      this.toggle(row);
    }
  }

  /** @param {string} query */
  find(query) {
    this.search.find(this.scene, query);
    this.draw();
  }

  /** @param {number} by */
  nextHit(by) {
    const row = this.search.next(by);
    if (row < 0) return;
    this.cursor = row;
    this.reveal([row]);
  }

  /** @param {number} by */
  zoom(by) {
    this.camera.zoom(by);
    this.draw();
  }

  /** @param {number} dx @param {number} dy */
  shift(dx, dy) {
    this.camera.shift(dx, dy);
    this.draw();
  }

  showAll() {
    if (this.placed) this.camera.fit(this.placed, true);
    this.draw();
  }

  /** @param {number} row */
  center(row) {
    this.camera.center(this.rectAround(row));
  }

  saveSvg() {
    const {scene, placed} = this;
    if (!scene || !placed) return;
    const text = svgOf(this.picture(scene, placed, [...placed.rects.keys()]));
    download("graph.svg", new Blob([text], {type: "image/svg+xml"}));
  }

  saveDot() {
    const {scene, placed} = this;
    if (scene && placed) download("graph.dot", new Blob([dotOf(scene, placed)], {type: "text/vnd.graphviz"}));
  }

  // -- an engine of the page's own

  /** Lay the scene out with graphviz in the page, or ask the kernel for graphviz. */
  async layOut() {
    const {scene} = this;
    if (!scene?.dots.length || this.engine) return;
    const loading = graphvizOf(this.models.engine.tags[0]);
    if (loading === null) {
      this.messages.report({need: "engine"});
      return;
    }
    try {
      const graphviz = await loading;
      if (scene !== this.scene) return;
      scene.shapes = shapesBy(graphviz, scene);
      this.engine = `graphviz ${graphviz.version()} in this page (WebAssembly), as there is no dot`;
      this.camera.fit(this.place(scene));
    } catch (error) {
      this.engine = `${scene.drawnBy}, and graphviz in this page failed: ${String(error).slice(0, 80)}`;
    }
    this.draw();
  }
}
