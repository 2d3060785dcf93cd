// Mouse, keyboard, search, export, and messages to and from the kernel, where there is one.

const GRAPH_STYLE = `
.kit-graph-bar { display: flex; flex-wrap: wrap; gap: 4px 6px; align-items: center; margin: 0 0 2px; padding: 2px 0;
  font: 12px/1.4 Inter, "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", sans-serif; color: var(--kit-ink, #1f2933); }
.kit-graph-bar button, .kit-graph-bar select, .kit-graph-bar input { font: inherit; color: inherit;
  background: var(--kit-card, #fff); border: 1px solid var(--kit-line, #cbd2d9); border-radius: 5px; height: 24px; padding: 0 7px; margin: 0; box-sizing: border-box; }
.kit-graph-bar button { cursor: pointer; min-width: 24px; }
.kit-graph-bar button:hover:not(:disabled) { border-color: #5674d8; }
.kit-graph-bar button[aria-pressed=true] { border-color: #5674d8; box-shadow: inset 0 0 0 1px #5674d8; }
.kit-graph-bar button:disabled { color: #9aa5b1; cursor: default; }
.kit-graph-bar :focus-visible { outline: 2px solid #2f6db5; outline-offset: 1px; }
.kit-graph-bar input[type=search] { width: 150px; }
.kit-graph-bar label { display: inline-flex; gap: 4px; align-items: center; color: var(--kit-muted, #66727f); }
.kit-graph-bar .kit-graph-gap { flex: 1 1 0; }
.kit-graph-bar output { color: var(--kit-muted, #66727f); font-variant-numeric: tabular-nums; }
.kit-graph-bar .kit-graph-line { flex: 1 0 100%; display: flex; flex-wrap: wrap; gap: 2px 10px; align-items: center;
  min-height: 24px; color: var(--kit-muted, #66727f); }
.kit-graph-bar .kit-graph-key { display: inline-flex; gap: 4px; align-items: center; }
.kit-graph-bar .kit-graph-key i { width: 11px; height: 11px; border-radius: 3px; border: 1px solid #9aa5b188; }
.kit-graph-bar .kit-graph-key i.kit-graph-ramp { width: 60px; }
`;
const GRAPH_KEYS_HELP = "Keys: + and − zoom, arrows move, 0 shows all, n and p go from box to box, Enter opens "
  + "or selects, Esc closes, / finds. Shift and a click, or Shift and Enter, select a whole group.";

function element(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

Object.assign(KitGraph.prototype, {
  // -- messages

  report(pick, need) {
    this.sequence += 1;
    const message = {from: "page", sequence: this.sequence, open: [...this.open], color_by: this.colorBy};
    if (pick) message.pick = pick;
    if (need) message.need = need;
    this.models.state.setv({tags: [JSON.stringify(message)]});
  },

  obey(text, isFirst) {
    if (!text) return;
    const message = JSON.parse(text);
    if (message.from === "page" && !isFirst) return;
    if (message.color_by) this.colorBy = message.color_by;
    const nodes = message.nodes ?? message.pick?.nodes;
    const chosen = {nodes, sites: message.sites ?? [], label: message.label ?? message.pick?.label};
    if (isFirst) { // the page, or its copy of the figure, is new
      this.open = new Set(message.open ?? []);
      if (nodes?.length) this.waiting = chosen;
      return;
    }
    if (message.open && message.open.join("\n") !== [...this.open].sort().join("\n")) {
      this.setOpen(message.open, {silent: true});
    }
    const now = [...this.chosen].map((i) => this.scene.rows.node[i]).sort((a, b) => a - b);
    if (nodes && nodes.join() !== now.join()) this.highlight(chosen);
    this.draw();
  },

  // -- mouse and keyboard

  clicked() {
    const {selected, data} = this.models.boxes, index = selected.indices.at(-1);
    if (index === undefined || !this.scene) return;
    const row = data.row[index];
    this.isByKeys = false;
    setTimeout(() => selected.setv({indices: []}, {sync: false}));
    this.act(row, this.isShift);
  },

  act(row, wholeGroup) {
    const kind = this.scene.rows.kind[row];
    this.cursor = row;
    if (kind === OP && this.chosen.size === 1 && this.chosen.has(row)) this.unpick();
    else if (kind === OP || wholeGroup) this.pick(row);
    else if (kind !== PHASE) this.toggle(row);
  },

  step(by) {
    const rows = [...this.placed.rects.keys()].filter((i) => this.scene.rows.parent[i] >= 0);
    if (!rows.length) return;
    const at = rows.indexOf(this.cursor);
    this.cursor = at < 0 ? rows[by > 0 ? 0 : rows.length - 1] : rows[(at + by + rows.length) % rows.length];
    const [x, y, w, h] = this.placed.rects.get(this.cursor), {x_range, y_range} = this.models.figure;
    if (x - w / 2 < x_range.start || x + w / 2 > x_range.end || y - h / 2 < y_range.end || y + h / 2 > y_range.start) {
      this.center(this.cursor);
    }
    this.draw();
  },

  escape() {
    if (this.path.size) this.trace(this.pathName);
    else if (this.chosen.size) this.unpick();
    else {
      let row = this.cursor;
      while (row >= 0 && !(this.placed.frames.has(row) && this.scene.rows.parent[row] >= 0)) row = this.scene.rows.parent[row];
      if (row < 0) return;
      this.cursor = row;
      this.toggle(row);
    }
  },

  pressed(key, wholeGroup) { // true if it is one of ours
    const [w, h] = this.size().map((v) => (v / this.scale()) * 0.15);
    const keys = {
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8), "_": () => this.zoom(0.8),
      0: () => { this.fit(true); this.draw(); },
      ArrowLeft: () => this.moveBy(-w, 0), ArrowRight: () => this.moveBy(w, 0),
      ArrowUp: () => this.moveBy(0, -h), ArrowDown: () => this.moveBy(0, h),
      n: () => this.step(1), p: () => this.step(-1),
      Enter: () => (this.cursor >= 0 && this.placed.rects.has(this.cursor) ? this.act(this.cursor, wholeGroup) : this.step(1)),
      Escape: () => this.escape(),
      "/": () => this.bar.querySelector("input").focus(),
    };
    if (!Object.hasOwn(keys, key) || !this.scene) return false;
    this.isByKeys = true;
    keys[key]();
    return true;
  },

  moveBy(dx, dy) {
    this.shift(dx, dy);
    this.draw();
  },

  // JupyterLab looks at keys while they come down from the document, before any element sees them:
  // so ours are taken at the window, only while the plot has the focus, and never with Ctrl or Cmd.
  listen(host) {
    const isOurs = (event) => event.composedPath().includes(host)
      && !event.composedPath()[0].closest?.("button, input, [class*=ToolButton]"); // bokeh's toolbar
    const stop = (event) => {
      event.preventDefault();
      event.stopImmediatePropagation();
    };
    const onKey = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (isOurs(event)) {
        if (this.pressed(event.key, event.shiftKey)) stop(event);
      } else if (event.composedPath().includes(this.bar) && event.composedPath()[0].type === "search"
          && ["Enter", "Escape"].includes(event.key)) {
        stop(event);
        if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
        else {
          event.composedPath()[0].value = "";
          this.search("");
          this.draw();
          host.focus();
        }
      }
    };
    for (const part of [host, this.bar]) {
      part.addEventListener("focusin", () => window.addEventListener("keydown", onKey, true));
      part.addEventListener("focusout", () => window.removeEventListener("keydown", onKey, true));
    }
    host.addEventListener("pointerdown", (event) => {
      this.isShift = event.shiftKey;
      host.focus({preventScroll: true});
    }, true);
    host.tabIndex = 0;
    host.style.outlineOffset = "-2px";
    host.setAttribute("role", "application");
    host.setAttribute("aria-label", `IR graph. ${GRAPH_KEYS_HELP}`);
    const ring = () => { host.style.outline = host.matches(":focus-visible") ? "2px solid #2f6db5" : "none"; };
    host.addEventListener("focus", ring);
    host.addEventListener("blur", () => { host.style.outline = "none"; });
    ring();
  },

  // -- the row of controls above the plot

  controls() {
    const view = globalThis.Bokeh?.index?.find_one?.(this.models.figure);
    const host = view?.el;
    if (!host || !host.parentNode) return;
    if (this.host !== host) {
      this.host = host;
      this.bar?.remove();
      for (const old of host.parentNode.querySelectorAll(":scope > .kit-graph-bar")) old.remove();
      this.bar = this.makeBar();
      host.parentNode.insertBefore(this.bar, host);
      this.listen(host);
    }
    const names = ["phase", "segment", "time", "memory", "dtype"];
    if (this.scene?.has_changes) names.push("change");
    this.select.replaceChildren(...names.map((name) => element("option", {value: name, selected: name === this.colorBy}, name)));
    this.bar.style.display = this.scene && this.scene.rows.parent.length ? "" : "none";
  },

  makeBar() {
    const button = (text, label, act) => element("button", {type: "button", title: label, "aria-label": label,
      onclick: () => this.scene && act()}, text);
    this.select = element("select", {"aria-label": "colour by", onchange: () => {
      this.colorBy = this.select.value;
      this.draw();
      this.report();
    }});
    const box = element("input", {type: "search", placeholder: "find op, line, module", "aria-label": "find in the graph",
      oninput: () => { this.search(box.value); this.draw(); }});
    this.found = element("output", {"aria-live": "polite"});
    this.line = element("div", {class: "kit-graph-line", "aria-live": "polite"});
    return element("div", {class: "kit-graph-bar", role: "toolbar", "aria-label": "graph"},
      element("style", {}, GRAPH_STYLE), box, button("↑", "previous found", () => this.nextHit(-1)),
      button("↓", "next found", () => this.nextHit(1)), this.found,
      element("label", {}, "colour by", this.select), element("span", {class: "kit-graph-gap"}),
      button("−", "zoom out", () => this.zoom(0.8)), button("+", "zoom in", () => this.zoom(1.25)),
      button("all", "show the whole graph", () => { this.fit(true); this.draw(); }),
      button("collapse", "close all groups", () => this.setOpen([])),
      button("SVG", "save the picture as SVG", () => this.save("svg", this.svg())),
      button("DOT", "save the visible boxes as DOT", () => this.save("dot", this.dot())),
      this.line);
  },

  say(most) {
    if (!this.bar) return;
    const isLost = this.query.trim() && !this.hits.length;
    this.found.textContent = isLost ? "none" : this.hits.length
      ? `${this.hit >= 0 ? `${number(this.hit + 1)} of ` : ""}${number(this.hits.length)}` : "";
    if (this.select.value !== this.colorBy) this.select.value = this.colorBy;
    const parts = this.chosen.size ? this.selectionLine() : [this.legend(most)];
    if (!this.chosen.size) {
      parts.push(element("span", {title: GRAPH_KEYS_HELP}, "▸ click opens a group, shift + click selects it · keys + − 0 n p Enter Esc"));
    }
    if (this.sides.length) {
      const where = `more ${this.sides.join(" and ")}: drag, or press “all”`;
      parts.push(element("b", {style: "font-weight:600"}, where));
    }
    if (this.dropped) parts.push(`${number(this.dropped)} small boxes are not drawn: zoom in`);
    this.line.replaceChildren(...parts);
  },

  selectionLine() {
    const hidden = [...this.chosen].filter((i) => this.placed.owner[i] !== i).length;
    const parts = [element("b", {style: "color:var(--kit-ink, #1f2933)"}, this.chosenLabel || "selected"),
      `${plural(this.chosen.size, "op")}${hidden ? `, ${number(hidden)} in closed groups` : ""}`];
    const button = (text, title, act, pressed) => element("button", {type: "button", title, onclick: act,
      ...(pressed === undefined ? {} : {"aria-pressed": String(pressed)})}, text);
    parts.push(button("show in graph", "open the groups around it and go there", () => this.reveal([...this.chosen].slice(0, 200))));
    for (const name of ["inputs", "outputs"]) {
      parts.push(button(`path to ${name}`, `everything on the way to the ${name}`, () => this.trace(name), this.pathName === name));
    }
    parts.push(button("clear", "select nothing (Esc)", () => (this.chosen.size ? this.unpick() : undefined)));
    if (this.pathName) parts.push(`${plural(this.path.size, "op")} on the way to its ${this.pathName}`);
    return parts;
  },

  legend(most) {
    const {theme, rows, strings} = this.scene;
    const twin = (color) => globalThis.kitPage?.twin?.(color) ?? color; // as the page's theme wants it
    const key = (color, text) => element("span", {class: "kit-graph-key"},
      element("i", {style: `background:${twin(color)}`}), text);
    const line = element("span", {style: "display:inline-flex;gap:10px;flex-wrap:wrap"});
    if (this.colorBy === "phase") for (const [name, color] of Object.entries(theme.phases)) line.append(key(tint(color, 0.45), name));
    if (this.colorBy === "segment") line.append(key("#dfe4ea", "in several segments"), "other colours: one segment");
    if (this.colorBy === "dtype") {
      const seen = [...new Set([...rows.dtype].filter(Boolean))].slice(0, 8);
      for (const id of seen) line.append(key(tint(theme.dtypes[strings[id]] || theme.faint, 0.35), strings[id]));
    }
    if (this.colorBy === "change") for (const name of CHANGES.slice(1)) line.append(key(tint(theme.changes[name], 0.3), name));
    if (this.colorBy === "time" || this.colorBy === "memory") {
      const color = theme.ramps[this.colorBy];
      const ramp = element("span", {class: "kit-graph-key"}, "0", element("i", {class: "kit-graph-ramp",
        style: `background:linear-gradient(90deg,${twin("#ffffff")},${twin(tint(color, 0.1))})`}),
      this.colorBy === "time" ? `${formatNs(most.time)} on the device` : `${formatBytes(most.bytes)} of results`);
      line.append(ramp);
    }
    return line;
  },

  // -- graphviz in the page, for a kernel that has no dot

  async layOut() {
    const {scene} = this, page = globalThis;
    if (!scene?.dots?.length || this.engine) return;
    if (!page.kitGraphviz) {
      const [code] = this.models.engine.tags;
      if (!code) {
        this.report(undefined, "engine");
        return;
      }
      const url = URL.createObjectURL(new Blob([code], {type: "text/javascript"}));
      page.kitGraphviz = import(url).then((module) => module.Graphviz.load());
      page.kitGraphviz.finally(() => URL.revokeObjectURL(url)).catch(() => {});
    }
    try {
      const graphviz = await page.kitGraphviz, answers = new Map();
      for (const text of new Set(scene.dots)) {
        answers.set(text, JSON.parse(graphviz.layout(`digraph g ${text}`, "json0", "dot")));
        if (scene !== this.scene) return;
      }
      const shapes = scene.shapes.map((shape, n) => readDot(answers.get(scene.dots[n]), shape));
      this.scene.shapes = shapes;
      this.engine = `graphviz ${graphviz.version()} in this page (WebAssembly), as there is no dot`;
      this.place();
      this.fit();
      this.draw();
    } catch (error) {
      this.engine = `${scene.drawn_by}, and graphviz in this page failed: ${String(error).slice(0, 80)}`;
      this.draw();
    }
  },

  // -- export

  save(kind, text) {
    const type = kind === "svg" ? "image/svg+xml" : "text/vnd.graphviz";
    const url = URL.createObjectURL(new Blob([text], {type}));
    const link = element("a", {href: url, download: `graph.${kind}`});
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  },

  everything() {
    const rows = [...this.placed.rects.keys()], seen = new Set(rows), most = this.most(seen);
    const marks = [this.chosen, this.hits, this.path].map((set) => this.counts(set));
    const edges = this.edgeColumns(seen);
    return {rows, edges, arrows: this.arrowColumns(edges), frames: this.frameColumns(rows),
      boxes: this.boxColumns(rows, most, ...marks), bars: this.barColumns(rows, most.time),
      marks: this.markColumns(rows, ...marks), links: this.linkColumns()};
  },

  svg() {
    const {edges, arrows, frames, boxes, bars, marks, links} = this.everything();
    const f = (v) => String(Math.round(v * 10) / 10);
    const safe = (s) => String(s).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
    const rect = (c, n, fill, line, width, r) => `<rect x="${f(c.x[n] - c.w[n] / 2)}" y="${f(c.y[n] - c.h[n] / 2)}" `
      + `width="${f(c.w[n])}" height="${f(c.h[n])}" rx="${r}" fill="${fill}" stroke="${line}" stroke-width="${width}"/>`;
    const path = (xs, ys) => `M${xs.map((x, n) => `${f(x)} ${f(ys[n])}`).join("L")}`;
    const out = [];
    frames.x.forEach((_, n) => out.push(rect(frames, n, frames.color[n], frames.line[n], 1, 10)));
    edges.xs.forEach((xs, n) => out.push(`<path d="${path(xs, edges.ys[n])}" fill="none" stroke="#9aa5b1" `
      + `stroke-width="${f(edges.width[n])}" opacity="${edges.alpha[n]}"/>`));
    arrows.xs.forEach((xs, n) => out.push(`<path d="${path(xs, arrows.ys[n])}Z" fill="#9aa5b1" opacity="${arrows.alpha[n]}"/>`));
    boxes.x.forEach((_, n) => {
      const shown = boxes.color[n].length === 7;
      out.push(`<g><title>${safe(`${boxes.name[n]}\n${boxes.what[n]}\n${boxes.place[n]}`)}</title>`);
      if (shown) out.push(rect(boxes, n, boxes.color[n], boxes.line[n], 1.3, 7));
      for (const [name, size, weight, alpha] of [["label", 12.5, "bold", 1], ["sublabel", 10.5, "normal", 0.72]]) {
        const anchor = boxes.align[n] === "left" ? "start" : "middle";
        out.push(`<text x="${f(boxes[`${name}_x`][n])}" y="${f(boxes[`${name}_y`][n])}" font-size="${size}" font-weight="${weight}" `
          + `fill="${boxes.ink[n]}" opacity="${alpha}" text-anchor="${anchor}" dominant-baseline="central">${safe(boxes[name][n])}</text>`);
      }
      out.push("</g>");
    });
    bars.left.forEach((left, n) => out.push(`<rect x="${f(left)}" y="${f(bars.top[n])}" width="${f(bars.right[n] - left)}" height="${BAR}" fill="#587080"/>`));
    marks.x.forEach((_, n) => out.push(rect(marks, n, "none", marks.line[n], 2.4, 9)));
    links.xs.forEach((xs, n) => out.push(`<path d="${path(xs, links.ys[n])}" fill="none" stroke="${links.line[n]}" stroke-width="2"/>`));
    const {width, height} = this.placed;
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 ${f(width + 24)} ${f(height + 24)}" width="${f(width + 24)}" `
      + `height="${f(height + 24)}" font-family="Inter, Helvetica, Arial, sans-serif"><rect x="-12" y="-12" width="100%" `
      + `height="100%" fill="#ffffff"/>${out.join("\n")}</svg>\n`;
  },

  dot() {
    const {rects, frames, edges} = this.placed, {rows} = this.scene;
    const quote = (s) => `"${String(s).replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
    const lines = ["digraph step {", "  compound=true; node [shape=box];"];
    const write = (row, indent) => {
      if (!frames.has(row)) {
        lines.push(`${indent}n${row} [label=${quote(`${this.text("label", row)} ${this.text("sub", row)}`)}];`);
        return;
      }
      lines.push(`${indent}subgraph cluster_${row} {`, `${indent}  label=${quote(this.text("label", row))};`);
      for (const child of childrenOf(rows, row)) write(child, `${indent}  `);
      lines.push(`${indent}}`);
    };
    for (let row = 0; row < rows.parent.length; row = rows.end[row]) write(row, "  ");
    const inner = (row) => { // an edge of a frame is drawn from a box in it
      let at = row;
      while (frames.has(at)) at += 1;
      return at;
    };
    for (const {from, to, values} of edges) {
      if (!rects.has(from) || !rects.has(to)) continue;
      const ends = [frames.has(from) ? `ltail=cluster_${from}` : "", frames.has(to) ? `lhead=cluster_${to}` : "",
        values > 1 ? `label="${values}"` : ""].filter(Boolean).join(" ");
      lines.push(`  n${inner(from)} -> n${inner(to)}${ends ? ` [${ends}]` : ""};`);
    }
    return `${lines.join("\n")}\n}\n`;
  },
});

function readDot(answer, shape) { // as graph_dot.py reads it; a shape that dot left out is kept
  const [, , width, height] = answer.bb.split(",").map(Number);
  const places = new Map(), ids = new Map(), curves = new Map();
  for (const thing of answer.objects) {
    const i = Number(thing.name.slice(1)), [x, y] = thing.pos.split(",").map(Number);
    places.set(i, [x, height - y]);
    ids.set(thing._gvid, i);
  }
  for (const line of answer.edges || []) {
    if (line.style === "invis") continue;
    const pairs = line.pos.split(" ").filter((p) => !/^[se]/.test(p)).map((p) => p.split(",").map(Number));
    let [a, b] = [ids.get(line.tail), ids.get(line.head)];
    if (shape.reversed) {
      [a, b] = [b, a];
      pairs.reverse();
    }
    curves.set(`${a} ${b}`, pairs.flatMap(([x, y]) => [x, height - y]));
  }
  return {...shape, width, height, boxes: shape.boxes.map(([, , w, h], i) => [...places.get(i), w, h]),
    edges: shape.edges.map(([a, b, values, size, curve]) => [a, b, values, size, curves.get(`${a} ${b}`) || curve])};
}
