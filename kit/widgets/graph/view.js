// What is open, selected and found in a scene, and where we look.

class KitGraphView {
  constructor(models) {
    this.models = models;
    this.scene = null;
    this.open = new Set();
    this.colorBy = "phase";
    this.chosen = new Set(); // rows of ops that are selected
    this.chosenLabel = "";
    this.path = new Set(); // rows on the way to inputs or outputs of what is selected
    this.pathName = "";
    this.query = "";
    this.hits = [];
    this.hit = -1;
    this.cursor = -1; // row that the keyboard is at
    this.tell = null;
    this.sequence = Date.now(); // no other copy of the figure begins with the same
    this.engine = "";
    this.drawing = false;
  }

  take(given) {
    if (!given || !given.rows) return;
    const scene = Object.fromEntries(Object.entries(given).map(([name, value]) => [name,
      ["strings", "shapes", "dots"].includes(name) && typeof value === "string" ? JSON.parse(value) : value]));
    const isFirst = this.scene === null, before = this.placed;
    this.scene = scene;
    this.lower = null;
    this.hovers = new Map();
    this.engine = "";
    this.chosen = new Set();
    this.path = new Set();
    this.cursor = -1;
    if (this.colorBy === "change" && !scene.has_changes) this.colorBy = "phase";
    if (scene.has_changes && !this.hadChanges) this.colorBy = "change";
    this.hadChanges = scene.has_changes;
    this.search(this.query);
    this.place();
    const isAlike = before && !this.isFitted && before.rects.size === this.placed.rects.size;
    if (!isAlike) this.fit(); // else keep looking where somebody looks: a slider moved
    this.draw();
    this.controls();
    if (scene.dots && scene.dots.length) this.layOut();
    if (isFirst && this.waiting) this.highlight(this.waiting);
  }

  place() {
    this.placed = placeScene(this.scene, this.open);
    this.adjustHeight();
  }

  adjustHeight() { // a new height paints at once, and bokeh has not yet taken all columns by now
    if (this.isAdjusting) return;
    this.isAdjusting = true;
    requestAnimationFrame(() => {
      this.isAdjusting = false;
      this.models.figure.setv({height: this.height()}, {sync: false});
    });
  }

  height() {
    const scale = Math.max(0.72, Math.min(1.15, this.size()[0] / (this.placed.width + 24)));
    return Math.round(Math.min(Math.max((this.placed.height + 24) * scale + 74, 200), 640));
  }

  key(row) {
    return this.scene.strings[this.scene.rows.key[row]];
  }

  text(name, row) {
    return this.scene.strings[this.scene.rows[name][row]];
  }

  rowByKey(key) {
    const {rows} = this.scene;
    for (let i = 0; i < rows.parent.length; i += 1) if (rows.key[i] && this.key(i) === key) return i;
    return -1;
  }

  // -- opening and closing

  setOpen(keys, {anchor = -1, silent = false} = {}) {
    const before = anchor >= 0 ? this.placed.rects.get(anchor) : null;
    const corner = before && [before[0] - before[2] / 2, before[1] - before[3] / 2];
    this.open = new Set(keys);
    if (!this.scene) return;
    this.place();
    const after = anchor >= 0 ? this.placed.rects.get(anchor) : null;
    if (corner && after) this.shift(after[0] - after[2] / 2 - corner[0], after[1] - after[3] / 2 - corner[1]);
    else if (anchor < 0) this.fit();
    this.draw();
    if (!silent) this.report();
  }

  toggle(row) {
    const keys = new Set(this.open), key = this.key(row);
    if (!keys.delete(key)) keys.add(key);
    this.setOpen(keys, {anchor: row});
  }

  reveal(rows) {
    const keys = new Set(this.open);
    for (const row of rows) {
      for (let p = this.scene.rows.parent[row]; p >= 0 && this.scene.rows.parent[p] >= 0; p = this.scene.rows.parent[p]) {
        keys.add(this.key(p));
      }
    }
    this.open = keys;
    this.place();
    this.center(rows[0]);
    this.draw();
    this.report();
  }

  // -- what is selected

  opsIn(row) {
    const {rows} = this.scene, found = [];
    for (let i = row; i < rows.end[row]; i += 1) if (rows.kind[i] === OP) found.push(i);
    return found;
  }

  pick(row) {
    const ops = this.opsIn(row), {rows} = this.scene;
    const nodes = new Set(ops.map((i) => rows.node[i]).filter((n) => n >= 0));
    const sites = new Set(ops.map((i) => this.text("site", i)).filter(Boolean));
    const label = rows.kind[row] === OP ? `%${rows.node[row]} ${this.text("label", row)}` : this.text("label", row);
    this.choose(ops, label);
    this.report({nodes: [...nodes], label, isOp: rows.kind[row] === OP});
    if (this.tell) this.tell({nodes, sites, label});
  }

  unpick() {
    if (!this.chosen.size) return;
    this.choose([], "");
    this.report({nodes: [], label: "", isOp: false});
    if (this.tell) this.tell({nodes: new Set(), sites: new Set(), label: ""});
  }

  highlight(selection) {
    if (!this.scene) {
      this.waiting = selection;
      return;
    }
    const {rows} = this.scene, found = [];
    const nodes = new Set(selection.nodes), sites = new Set(selection.sites);
    for (let i = 0; i < rows.kind.length; i += 1) {
      if (rows.kind[i] !== OP || rows.node[i] < 0) continue;
      if (nodes.size ? nodes.has(rows.node[i]) : sites.has(this.text("site", i))) found.push(i);
    }
    this.choose(found, selection.label || "");
    if (found.length && !this.inSight(found)) {
      this.center(this.placed.owner[found[0]]);
      this.draw();
    }
  }

  choose(ops, label) {
    this.chosen = new Set(ops);
    this.chosenLabel = label;
    this.path = new Set();
    this.pathName = "";
    this.draw();
  }

  inSight(ops) {
    const {x_range, y_range} = this.models.figure;
    return ops.some((i) => {
      const [x, y, w, h] = this.placed.rects.get(this.placed.owner[i]);
      return x + w / 2 > x_range.start && x - w / 2 < x_range.end && y + h / 2 > y_range.end && y - h / 2 < y_range.start;
    });
  }

  trace(name) {
    if (this.pathName === name || !this.chosen.size) {
      this.path = new Set();
      this.pathName = "";
      this.draw();
      return;
    }
    const {sources, targets} = this.scene;
    const [from, to] = name === "inputs" ? [targets, sources] : [sources, targets];
    const next = new Map();
    for (let e = 0; e < from.length; e += 1) {
      if (!next.has(from[e])) next.set(from[e], []);
      next.get(from[e]).push(to[e]);
    }
    const found = new Set(), queue = [...this.chosen];
    while (queue.length) {
      for (const i of next.get(queue.pop()) || []) {
        if (!found.has(i) && !this.chosen.has(i)) {
          found.add(i);
          queue.push(i);
        }
      }
    }
    this.path = found;
    this.pathName = name;
    this.draw();
  }

  // -- search

  search(query) {
    this.query = query;
    this.hits = [];
    this.hit = -1;
    const words = query.trim().toLowerCase();
    if (!words || !this.scene) return;
    this.lower ??= this.scene.strings.map((s) => s.toLowerCase());
    const has = this.lower.map((s) => s.includes(words));
    const {rows} = this.scene;
    for (let i = 0; i < rows.kind.length; i += 1) {
      const isOp = rows.kind[i] === OP;
      if (has[rows.label[i]] || (isOp && (has[rows.op[i]] || has[rows.site[i]] || has[rows.sub[i]]))
        || (isOp && words === `%${rows.node[i]}`)) this.hits.push(i);
    }
  }

  nextHit(by) {
    if (!this.hits.length) return;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    this.cursor = this.hits[this.hit];
    this.reveal([this.hits[this.hit]]);
  }

  // -- where we look: x grows to the right, y downwards, one unit is a pixel at scale 1

  size() {
    const {inner_width: w, inner_height: h} = this.models.figure;
    return [w > 0 ? w : 600, h > 0 ? h : 400];
  }

  scale() {
    const {x_range} = this.models.figure;
    return this.size()[0] / Math.max(x_range.end - x_range.start, 1e-9);
  }

  look(left, top, scale) {
    const [w, h] = this.size(), {x_range, y_range} = this.models.figure;
    const set = (range, start, end) => range.setv({start, end, reset_start: start, reset_end: end}, {sync: false});
    this.looked = [left, left + w / scale, top]; // our own events come later
    this.isFitted = false;
    set(x_range, left, left + w / scale);
    set(y_range, top + h / scale, top);
    this.lastScale = scale;
    this.rescale();
  }

  // All of it with square pixels, but not smaller than can be read: what does not fit is reached by
  // dragging. `whole` is for the key 0, which shows everything whatever the size.
  fit(whole = false) {
    const [w, h] = this.size(), W = this.placed.width + 24, H = this.placed.height + 24;
    const least = whole ? 0.002 : 0.72;
    const scale = Math.max(least, Math.min(1.15, w / W, h / H));
    const [sw, sh] = [w / scale, h / scale];
    this.look((W <= sw ? (W - sw) / 2 : 0) - 12, (H <= sh ? (H - sh) / 2 : 0) - 12, scale);
    this.isFitted = true; // until somebody looks elsewhere: a new size shows all of it again
  }

  shift(dx, dy) {
    const {x_range, y_range} = this.models.figure;
    this.look(x_range.start + dx, y_range.end + dy, this.scale());
  }

  zoom(by) {
    const {x_range, y_range} = this.models.figure, [w, h] = this.size();
    const scale = Math.min(Math.max(this.scale() * by, 0.002), 4);
    const [x, y] = [(x_range.start + x_range.end) / 2, (y_range.start + y_range.end) / 2];
    this.look(x - w / scale / 2, y - h / scale / 2, scale);
    this.draw();
  }

  center(row) {
    const [x, y, bw, bh] = this.placed.rects.get(this.placed.owner[row]), [w, h] = this.size();
    const scale = Math.max(this.scale(), 0.72);
    const left = bw * scale > w ? x - bw / 2 - 24 : x - w / scale / 2;
    const top = bh * scale > h ? y - bh / 2 - 24 : y - h / scale / 2;
    this.look(left, top, scale);
  }

  rescale() { // text is drawn in units of the plot, so that labels stay inside their boxes
    const scale = this.scale();
    for (const renderer of this.models.figure.renderers) {
      const size = {label: 12.5, sublabel: 10.5}[renderer.name];
      if (!size) continue;
      renderer.setv({visible: size * scale > 2.5}, {sync: false}); // smaller is a blot
      renderer.glyph.setv({text_font_size: {value: `${Math.max(1, size * scale).toFixed(2)}px`}}, {sync: false});
    }
  }

  resized() {
    const [w, h] = this.size();
    if (this.lastSize && this.lastSize[0] === w && this.lastSize[1] === h) return;
    const {x_range, y_range} = this.models.figure;
    this.lastSize = [w, h];
    this.controls();
    if (this.isFitted) {
      this.adjustHeight();
      this.fit();
    }
    else this.look(x_range.start, y_range.end, this.lastScale || this.scale());
    this.draw();
  }

  moved() {
    const {x_range, y_range} = this.models.figure;
    const now = [x_range.start, x_range.end, y_range.end];
    if (this.looked && now.every((v, n) => Math.abs(v - this.looked[n]) < 1e-6)) return;
    this.isFitted = false;
    this.rescale();
    this.lastScale = this.scale();
    if (!this.placed || this.drawing || this.placed.rects.size <= MOST_BOXES) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.draw(true);
    });
  }

  outOfSight() {
    const {x_range, y_range} = this.models.figure, {width, height} = this.placed;
    return [width > x_range.end + 1 && "to the right", height > y_range.start + 1 && "below"].filter(Boolean);
  }
}
