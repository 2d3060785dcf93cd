// The picture of a scene as columns of bokeh's sources: colours, texts, boxes, edges, marks.

const number = (n) => n.toLocaleString("en-US");
const figures = (v) => String(Number(v.toPrecision(3)));

function formatNs(ns) {
  for (const [scale, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= scale) return `${figures(ns / scale)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

function formatBytes(size) {
  for (const [scale, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (size >= scale) return `${figures(size / scale)} ${unit}`;
  }
  return `${Math.round(size)} B`;
}

const channels = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));

function tint(color, amount) {
  return "#" + channels(color).map((p) => Math.round(p + (255 - p) * amount).toString(16).padStart(2, "0")).join("");
}

function brightness(color) {
  const [r, g, b] = channels(color);
  return 0.299 * r + 0.587 * g + 0.114 * b;
}

const inkOn = (color) => (brightness(color) > 140 ? "#1f2933" : "#ffffff");

const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

class KitGraph extends KitGraphView {
  visible() {
    const {rects} = this.placed, all = [...rects.keys()];
    this.dropped = 0;
    if (all.length <= MOST_BOXES) return new Set(all);
    const {x_range, y_range} = this.models.figure;
    const [mx, my] = [(x_range.end - x_range.start) * 0.3, (y_range.start - y_range.end) * 0.3];
    const near = all.filter((i) => {
      const [x, y, w, h] = rects.get(i);
      return x + w / 2 > x_range.start - mx && x - w / 2 < x_range.end + mx
        && y + h / 2 > y_range.end - my && y - h / 2 < y_range.start + my;
    });
    if (near.length > MOST_BOXES) {
      near.sort((a, b) => rects.get(b)[2] * rects.get(b)[3] - rects.get(a)[2] * rects.get(a)[3] || a - b);
      this.dropped = near.length - MOST_BOXES;
      near.length = MOST_BOXES;
      near.sort((a, b) => a - b);
    }
    return new Set(near);
  }

  counts(set) { // how many rows of a set are in each visible box
    const found = new Map();
    for (const i of set) {
      for (let r = this.placed.owner[i]; r >= 0; r = this.scene.rows.parent[r]) {
        found.set(r, (found.get(r) || 0) + 1);
      }
    }
    return found;
  }

  draw(isMoving = false) {
    if (!this.scene || !this.placed) return;
    if (!isMoving) this.sides = this.outOfSight(); // a line that comes and goes would move the plot
    const {models, scene} = this, seen = this.visible();
    this.lastScale = this.scale();
    const marked = this.counts(this.chosen), hits = this.counts(this.hits), onPath = this.counts(this.path);
    const most = this.most(seen);
    const drawn = [...seen];
    const columns = {
      frames: this.frameColumns(drawn),
      edges: this.edgeColumns(seen),
      arrows: null,
      boxes: this.boxColumns(drawn, most, marked, hits, onPath),
      bars: this.barColumns(drawn, most.time),
      marks: this.markColumns(drawn, marked, hits, onPath),
      links: this.linkColumns(),
      message: scene.message ? {x: [0.5], y: [0.5], text: [scene.message]} : {x: [], y: [], text: []},
      view: {width: [this.placed.width], height: [this.placed.height], left: [0], top: [0]},
    };
    columns.arrows = this.arrowColumns(columns.edges);
    models.boxes.selected.setv({indices: []}, {sync: false});
    for (const [name, data] of Object.entries(columns)) models[name].setv({data}, {sync: false});
    models.figure.title.setv({text: scene.title}, {sync: false});
    const drawer = scene.rows.parent.length ? `laid out by ${this.engine || scene.drawn_by}` : "";
    const bars = scene.has_times && scene.rows.parent.length ? "dark bar: device time" : "";
    models.note.setv({text: [scene.note, bars, drawer].filter(Boolean).join("  ·  ")}, {sync: false});
    this.say(most);
  }

  most(seen) {
    const found = {time: 0, bytes: 0};
    for (const i of seen) {
      if (this.placed.frames.has(i)) continue;
      found.time = Math.max(found.time, this.scene.rows.time[i]);
      found.bytes = Math.max(found.bytes, this.scene.rows.bytes[i]);
    }
    return found;
  }

  phaseOf(row) {
    const {rows} = this.scene;
    let r = row;
    while (rows.parent[r] >= 0) r = rows.parent[r];
    return this.key(r);
  }

  colors(row, most) {
    const {rows, theme} = this.scene, isOp = rows.kind[row] === OP;
    const phase = theme.phases[this.phaseOf(row)] || theme.faint;
    if (this.colorBy === "segment") {
      if (rows.high[row] < 0) return ["#ffffff", theme.faint];
      if (rows.low[row] !== rows.high[row]) return ["#dfe4ea", theme.faint];
      const color = theme.segments[rows.low[row] % theme.segments.length];
      return [tint(color, 0.35), color];
    }
    if (this.colorBy === "time" || this.colorBy === "memory") {
      const [value, top] = this.colorBy === "time" ? [rows.time[row], most.time] : [rows.bytes[row], most.bytes];
      const share = top > 0 ? Math.sqrt(value / top) : 0;
      return [tint(theme.ramps[this.colorBy], 1 - 0.9 * share), theme.ramps[this.colorBy]];
    }
    if (this.colorBy === "dtype") {
      const color = theme.dtypes[this.text("dtype", row)] || theme.faint;
      return [tint(color, 0.35), color];
    }
    if (this.colorBy === "change") {
      const found = this.changesIn(row), kinds = Object.keys(found);
      if (!kinds.length) return ["#ffffff", theme.faint];
      const color = theme.changes[kinds.length === 1 ? kinds[0] : "changed"];
      return [tint(color, isOp ? 0.3 : 0.55), color];
    }
    return [isOp ? "#ffffff" : tint(phase, 0.72), phase];
  }

  changesIn(row) {
    const {rows} = this.scene, found = {};
    for (let i = row; i < rows.end[row]; i += 1) {
      if (rows.change[i]) found[CHANGES[rows.change[i]]] = (found[CHANGES[rows.change[i]]] || 0) + 1;
    }
    return found;
  }

  frameColumns(drawn) {
    const out = {x: [], y: [], w: [], h: [], color: [], line: []}, {rows, theme} = this.scene;
    const add = (x, y, w, h, color, line) => {
      [x, y, w, h, color, line].forEach((v, n) => out[["x", "y", "w", "h", "color", "line"][n]].push(v));
    };
    for (const i of drawn) {
      const [x, y, w, h] = this.placed.rects.get(i);
      const phase = theme.phases[this.phaseOf(i)] || theme.faint;
      if (this.placed.frames.has(i)) {
        let depth = 0;
        for (let p = rows.parent[i]; p >= 0; p = rows.parent[p]) depth += 1;
        depth = Math.min(depth, 3);
        add(x, y, w, h, tint(phase, 0.95 - 0.05 * depth), tint(phase, 0.7 - 0.1 * depth));
      } else if (rows.kind[i] === SAME) {
        for (const d of [6, 3]) add(x + d, y + d, w, h, tint(phase, 0.85), tint(phase, 0.35));
      }
    }
    return out;
  }

  boxColumns(drawn, most, marked, hits, onPath) {
    const names = ["x", "y", "w", "h", "label", "sublabel", "label_x", "label_y", "sublabel_x", "sublabel_y", "align",
      "color", "line", "ink", "key", "kind", "name", "what", "time", "place", "makes", "row"];
    const out = Object.fromEntries(names.map((name) => [name, []]));
    const {rows} = this.scene;
    for (const i of drawn) {
      const [x, y, w, h] = this.placed.rects.get(i), isFrame = this.placed.frames.has(i);
      const kind = rows.kind[i];
      const sign = kind === OP ? "" : isFrame ? (kind === PHASE ? "" : "▾ ") : "▸ ";
      const [fill, line] = isFrame ? ["#ffffff00", "#ffffff00"] : this.colors(i, most);
      const label = sign + this.text("label", i);
      const total = rows.ops[i];
      let sub = isFrame ? plural(total, "op") : this.text("sub", i);
      const fitting = (...texts) => texts.find((text) => 6.3 * text.length < w - 6) ?? texts.at(-1);
      const of = (n, word) => (kind === OP ? word
        : fitting(`${number(n)} of ${number(total)} ${word}`, `${number(n)} of ${number(total)}`));
      if (!isFrame && this.colorBy === "change") {
        const told = Object.entries(this.changesIn(i));
        const count = told.reduce((sum, [, n]) => sum + n, 0);
        if (count) sub = kind === OP ? told[0][0] : fitting(told.map(([name, n]) => `${n} ${name}`).join(", "), `${count} differ`);
      }
      if (marked.has(i)) sub = of(marked.get(i), "selected");
      else if (onPath.has(i) && kind !== OP) sub = of(onPath.get(i), "on the path");
      else if (hits.has(i) && kind !== OP) sub = `${number(hits.get(i))} found`;
      if (isFrame && LABEL_PX * ([...label].length + 3) + 6.3 * sub.length > w) sub = "";
      const ink = isFrame ? "#1f2933" : inkOn(fill);
      const row = {label, sublabel: sub, color: fill, line, ink,
        key: kind === OP ? `%${rows.node[i]}` : this.key(i), row: i,
        kind: kind === PHASE ? "phase" : isFrame ? "open" : kind === OP ? "op" : kind === SAME || kind === GROUP ? "group" : "ops",
        ...this.hover(i)};
      if (isFrame) {
        const left = x - w / 2 + 6, width = LABEL_PX * [...label].length + 12, top = y - h / 2 + 15;
        Object.assign(row, {x: left + width / 2, y: top, w: width, h: 22, align: "left", label_x: left + 6,
          label_y: top, sublabel_x: left + width + 4, sublabel_y: top});
      } else {
        Object.assign(row, {x, y, w, h, align: "center", label_x: x, label_y: y - 8.5, sublabel_x: x, sublabel_y: y + 8});
      }
      for (const name of names) out[name].push(row[name]);
    }
    return out;
  }

  hover(row) { // of a group it looks at all that is in it, so it is kept
    if (!this.hovers.has(row)) this.hovers.set(row, this.makeHover(row));
    return this.hovers.get(row);
  }

  makeHover(row) {
    const {rows, strings} = this.scene, isOp = rows.kind[row] === OP;
    let what = `%${rows.node[row]} = ${this.text("op", row)}`;
    let makes = `${this.text("sub", row)} (${formatBytes(rows.bytes[row])})`;
    const lines = new Set(), ops = new Map();
    if (isOp) {
      if (rows.change[row]) what = `${CHANGES[rows.change[row]]}: ${rows.node[row] < 0 ? this.text("op", row) : what}`;
      if (rows.site[row]) lines.add(rows.site[row]);
    } else {
      for (let i = row; i < rows.end[row]; i += 1) {
        if (rows.kind[i] !== OP) continue;
        if (rows.site[i]) lines.add(rows.site[i]);
        const name = strings[rows.label[i]].split(": ").pop();
        ops.set(name, (ops.get(name) || 0) + 1);
      }
      const common = [...ops].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([name, n]) => `${n} ${name}`);
      what = `${plural(rows.ops[row], "op")}: ${common.join(", ")}${ops.size > 5 ? ", …" : ""}`;
      makes = `${formatBytes(rows.bytes[row])} in all`;
    }
    const [low, high] = [rows.low[row], rows.high[row]];
    const cut = high < 0 ? "" : low === high ? `segment ${low}` : `segments ${low} to ${high}`;
    const site = lines.size === 1 ? strings[[...lines][0]] : lines.size ? `${number(lines.size)} lines of code` : "";
    return {name: this.text("label", row), what, makes,
      time: rows.time[row] > 0 ? `${formatNs(rows.time[row])} a step` : "not known",
      place: [isOp ? this.text("scope", row) : "", site, cut].filter(Boolean).join("\n") || "-"};
  }

  barColumns(drawn, most) {
    const out = {left: [], right: [], top: [], bottom: []};
    for (const i of drawn) {
      const time = this.scene.rows.time[i];
      if (!(time > 0) || !(most > 0) || this.placed.frames.has(i)) continue;
      const [x, y, w, h] = this.placed.rects.get(i);
      out.left.push(x - w / 2 + 5);
      out.right.push(x - w / 2 + 5 + (w - 10) * (time / most));
      out.top.push(y + h / 2 - 2 - BAR);
      out.bottom.push(y + h / 2 - 2);
    }
    return out;
  }

  edgeColumns(seen) {
    const out = {xs: [], ys: [], width: [], alpha: [], name: []};
    const edges = this.placed.edges.filter((e) => seen.has(e.from) && seen.has(e.to));
    const thin = edges.filter((e) => e.isCrossing).sort((a, b) => b.size - a.size).slice(250);
    const hidden = new Set(thin), steps = edges.length > 600 ? 3 : 8;
    for (const e of edges) {
      if (hidden.has(e)) continue;
      const [xs, ys] = polyline(e.points, e.isCrossing ? (edges.length > 600 ? 12 : 24) : steps);
      out.xs.push(xs);
      out.ys.push(ys);
      out.width.push(1 + Math.min(Math.max(Math.log10(Math.max(e.size, 1)) - 3, 0) * 0.35, 1.75));
      out.alpha.push(e.isCrossing ? 0.4 : 0.9);
      out.name.push(`${plural(e.values, "value")}, ${formatBytes(e.size)}`);
    }
    return out;
  }

  arrowColumns(edges) {
    const out = {xs: [], ys: [], alpha: []};
    edges.xs.forEach((xs, n) => {
      const ys = edges.ys[n], x = xs.at(-1), y = ys.at(-1);
      let k = xs.length - 2;
      while (k > 0 && Math.hypot(x - xs[k], y - ys[k]) <= 1) k -= 1;
      const length = Math.hypot(x - xs[k], y - ys[k]) || 1;
      const [dx, dy] = [(x - xs[k]) / length, (y - ys[k]) / length];
      const [bx, by, s] = [x - dx * ARROW, y - dy * ARROW, ARROW * 0.45];
      out.xs.push([x, bx - dy * s, bx + dy * s]);
      out.ys.push([y, by + dx * s, by - dx * s]);
      out.alpha.push(edges.alpha[n]);
    });
    return out;
  }

  markColumns(drawn, marked, hits, onPath) {
    const out = {x: [], y: [], w: [], h: [], line: [], fill: []}, {theme} = this.scene;
    const add = (i, grow, line, fill) => {
      const [x, y, w, h] = this.placed.rects.get(i);
      [x, y, w + grow, h + grow, line, fill].forEach((v, n) => out[["x", "y", "w", "h", "line", "fill"][n]].push(v));
    };
    for (const i of drawn) {
      if (this.placed.frames.has(i)) continue;
      if (onPath.has(i)) add(i, 5, theme.path, "#ffffff00");
      if (hits.has(i)) add(i, 5, theme.hit, "#ffffff00");
      if (marked.has(i)) add(i, 8, theme.ink, "#ffd54a55");
    }
    if (this.isByKeys && drawn.includes(this.cursor)) add(this.cursor, 12, theme.focus, "#ffffff00");
    return out;
  }

  linkColumns() { // from real producers to real users of what is selected, and along a path
    const out = {xs: [], ys: [], line: []}, {sources, targets, theme} = this.scene, found = new Map();
    if (!this.chosen.size || (this.chosen.size > 200 && !this.path.size)) return out;
    const inPath = (i) => this.path.has(i) || this.chosen.has(i);
    for (let e = 0; e < sources.length && found.size < MOST_LINKS; e += 1) {
      const [s, t] = [sources[e], targets[e]];
      const wanted = this.path.size ? inPath(s) && inPath(t) : this.chosen.has(s) || this.chosen.has(t);
      const [a, b] = [this.placed.owner[s], this.placed.owner[t]];
      if (wanted && a !== b) found.set(`${a} ${b}`, [a, b]);
    }
    for (const [a, b] of found.values()) {
      const [p, q] = [this.placed.rects.get(a), this.placed.rects.get(b)];
      const isBeside = Math.abs(p[0] - q[0]) > (p[2] + q[2]) / 2;
      const down = q[1] >= p[1] ? 1 : -1, [y0, y1] = [p[1] + (down * p[3]) / 2, q[1] - (down * q[3]) / 2];
      const [xs, ys] = polyline(isBeside ? across(p, q)
        : [p[0], y0, p[0], (y0 + y1) / 2, q[0], (y0 + y1) / 2, q[0], y1], 16);
      out.xs.push(xs);
      out.ys.push(ys);
      out.line.push(theme.path);
    }
    return out;
  }
}

