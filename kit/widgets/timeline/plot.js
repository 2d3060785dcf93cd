// Draws a timeline on a canvas over the bokeh figure that carries its columns, and answers to mouse
// and keyboard. What to draw is asked of model.js for each frame, so any zoom is exact.

// Light colours; `tone` gives their twins where the page is dark.
const TONES = {ink: "#1f2933", muted: "#66727f", line: "#e3e8ee", ground: "#ffffff", edge: "#c3ccd6",
  strip: "#f4f6f8", even: "#eaeef3", odd: "#dde3ea"};
const WAIT = "#dd5a3c";
const FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif";
const AXIS = 22, RIGHT = 10, OVERVIEW = 34, LEAST = 20; // pixels; nanoseconds
const KEYS = [["w, s, + and -", "zoom in, zoom out"], ["a, d, left and right", "move"],
  ["up, down", "scroll the lanes"], ["0", "show everything"], [". and ,", "next, previous span of the row"],
  ["f", "zoom to what is selected"], ["m", "measure what is selected, or all that is shown"],
  ["/", "search; Enter: next, Shift + Enter: previous"], ["Escape", "clear"]];

const tone = (color) => window.kitPage ? window.kitPage.twin(color) : color;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children); // a string becomes text, never markup
  return made;
}

class TimelinePlot {
  constructor(view, models) {
    this.models = models;
    this.figure = models.figure;
    this.scroll = 0;
    this.pick = null; // {kind: "span" | "sync", i}
    this.mark = null; // [from, to]: the range that is measured
    this.found = null; // what the search found
    this.lit = null; // {lit, marks}: what another view selected
    this.at = -1; // position in the hits
    this.build();
    this.mount(view);
    for (const [name, react] of [["timeline", () => this.load()], ["lit", () => this.highlight()],
      ["marked", () => this.takeMark()], ["reply", () => this.showRange()]]) {
      models[name].properties.data.change.connect(react);
    }
    this.load();
    this.highlight();
    this.takeMark();
    const me = new WeakRef(this); // a cell that ran again leaves no old plot behind
    window.addEventListener("kit-theme", function follow() {
      const plot = me.deref();
      if (plot) plot.dress();
      else window.removeEventListener("kit-theme", follow);
    });
  }

  // The colours of the page's theme, for the canvas and for what stands around it.
  dress() {
    const isDark = Boolean(window.kitPage && window.kitPage.isDark());
    this.tones = Object.fromEntries(Object.entries(TONES).map(([name, color]) => [name, tone(color)]));
    this.tones.accent = isDark ? "#6aa9f4" : "#1664c0";
    this.tones.card = isDark ? "#20262e" : "#ffffff";
    for (const [name, color] of Object.entries(this.tones)) this.root.style.setProperty(`--${name}`, color);
    this.root.style.colorScheme = isDark ? "dark" : "light";
    this.overview = null;
    this.fills = this.T.keys.color.map(tone);
    const rgb = this.fills.map((c) => parseInt(c.slice(1), 16));
    this.pixel = Uint32Array.from(rgb, (c) => (c & 255) << 16 | c & 0xff00 | c >> 16);
    this.draw();
  }

  mount(view) {
    // What bokeh drew lies under ours: neither the Tab key nor a screen reader should find it.
    for (const child of view.shadow_el.children) child.inert = true;
    view.shadow_el.append(this.root);
    // JupyterLab's one-letter commands (a, d d, ...) must not see what is typed into the view.
    for (let host = view.el; host; host = host.getRootNode().host) {
      host.setAttribute("data-lm-suppress-shortcuts", "true");
    }
    new ResizeObserver(() => this.resize()).observe(this.root);
  }

  build() {
    this.title = element("b", {class: "title"});
    this.search = element("input", {type: "search", placeholder: "search spans  ( / )",
      "aria-label": "search spans by name, op, line or lane", spellcheck: "false"});
    this.hits = element("span", {class: "hits", role: "status"});
    const button = (text, label, act) => {
      const made = element("button", {type: "button", title: label, "aria-label": label}, text);
      made.addEventListener("click", act);
      return made;
    };
    this.help = element("div", {class: "card help", hidden: ""}, ...KEYS.map(([keys, what]) =>
      element("div", {}, element("kbd", {}, keys), ` ${what}`)),
    element("div", {}, element("kbd", {}, "drag, Shift + wheel"), " move; ",
      element("kbd", {}, "Ctrl + wheel"), " zoom"),
    element("div", {}, element("kbd", {}, "Shift + drag"), " measure a range of time"));
    const buttons = element("span", {class: "buttons"},
      button("−", "zoom out (s)", () => this.zoom(1.6)),
      button("+", "zoom in (w)", () => this.zoom(1 / 1.6)),
      button("all", "show everything (0)", () => this.showAll()),
      button("PNG", "save the picture", () => this.save()),
      button("?", "keys", () => { this.help.hidden = !this.help.hidden; }));
    this.note = element("div", {class: "note"});
    this.over = element("canvas", {class: "over", "aria-hidden": "true"});
    this.canvas = element("canvas", {class: "main", tabindex: "0", role: "application",
      "aria-roledescription": "timeline"});
    this.card = element("div", {class: "card hover", hidden: "", "aria-hidden": "true"});
    this.range = element("div", {class: "card range", hidden: "", role: "status"});
    this.said = element("div", {class: "said", role: "status", "aria-live": "polite"});
    this.legend = element("div", {class: "legend"});
    const style = element("style");
    style.textContent = TIMELINE_CSS;
    this.root = element("div", {class: "kit-timeline"}, style,
      element("div", {class: "head"}, this.title,
        element("span", {class: "find"}, this.search, this.hits), buttons),
      this.note, element("div", {class: "body"}, this.over, this.canvas, this.card, this.range,
        this.help), this.said, this.legend);
    this.dust = document.createElement("canvas"); // narrow spans of all rows, a pixel high
    this.listen();
  }

  // What was drawn is replaced: all that pointed into it is dropped.
  load() {
    this.T = readTimeline(this.models.timeline.data);
    const {T} = this;
    this.title.textContent = T.title;
    this.note.textContent = T.note;
    this.note.hidden = T.note === "";
    this.canvas.setAttribute("aria-label", `${T.summary} Keys: w, s zoom; a, d move; ` +
      "full stop, comma: next and previous span; slash: search; 0: everything.");
    const kinds = new Set(T.keys.kind.map((kind, k) => kind === "record"
      ? (T.colors.kind.includes(T.keys.name[k]) ? T.keys.name[k] : "forward") : kind));
    if (T.syncs.at.length > 0) kinds.add("wait");
    this.legend.replaceChildren(...T.colors.kind.flatMap((kind, i) => {
      if (!kinds.has(kind)) return [];
      const swatch = element("i");
      swatch.style.background = T.colors.color[i];
      return [element("span", {}, swatch, T.colors.label[i])];
    }));
    this.pick = this.found = this.lit = null;
    this.scroll = 0;
    this.card.hidden = true;
    this.hovered = null;
    this.setMark(null, false);
    this.say("");
    this.overview = null;
    this.dress();
    [this.a, this.b] = this.whole();
    if (this.search.value) this.find();
    this.resize();
  }

  whole() {
    const {end} = this.T;
    return [-end * 0.005, Math.max(end * 1.005, LEAST)];
  }

  resize() {
    const width = this.root.clientWidth;
    if (!(width > 0)) return;
    this.width = width;
    this.gutter = Math.min(170, Math.max(96, Math.round(width * 0.13)));
    this.high = Math.min(Math.max(this.T.bottom + AXIS + 4, 120), 580);
    const ratio = window.devicePixelRatio || 1;
    for (const [canvas, height] of [[this.canvas, this.high], [this.over, OVERVIEW]]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    this.scrollTo(this.scroll);
    const wanted = Math.ceil(this.root.offsetHeight);
    if (Math.abs(this.figure.height - wanted) > 1) this.figure.setv({height: wanted}, {sync: false});
    this.paint(); // at once: a canvas that got a new size is empty
  }

  // The picture as it is, under its title, as a file.
  save() {
    const ratio = window.devicePixelRatio || 1, head = Math.round(34 * ratio);
    const picture = document.createElement("canvas");
    picture.width = this.canvas.width;
    picture.height = head + this.over.height + this.canvas.height;
    const ctx = picture.getContext("2d");
    ctx.fillStyle = this.tones.ground;
    ctx.fillRect(0, 0, picture.width, picture.height);
    ctx.fillStyle = this.tones.ink;
    ctx.font = `600 ${14 * ratio}px sans-serif`;
    ctx.textBaseline = "middle";
    ctx.fillText(this.title.textContent, 8 * ratio, head / 2);
    ctx.drawImage(this.over, 0, head);
    ctx.drawImage(this.canvas, 0, head + this.over.height);
    picture.toBlob((blob) => {
      const url = URL.createObjectURL(blob);
      element("a", {href: url, download: "timeline.png"}).click();
      setTimeout(() => URL.revokeObjectURL(url), 10000);
    });
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => this.paint());
  }

  get scale() {
    return (this.width - this.gutter - RIGHT) / (this.b - this.a);
  }

  x(time) {
    return this.gutter + (time - this.a) * this.scale;
  }

  time(x) {
    return this.a + (x - this.gutter) / this.scale;
  }

  y(y) {
    return y - this.scroll + AXIS;
  }

  // The range of time that is shown, kept inside of what there is.
  show(a, b) {
    const [low, high] = this.whole();
    const length = Math.min(Math.max(b - a, LEAST), high - low);
    const middle = (a + b) / 2;
    this.a = Math.min(Math.max(b - a === length ? a : middle - length / 2, low), high - length);
    this.b = this.a + length;
    this.draw();
  }

  showAll() {
    this.show(...this.whole());
    this.scrollTo(0);
  }

  zoom(factor, time = (this.a + this.b) / 2) {
    const [low, high] = this.whole();
    const length = Math.min(Math.max((this.b - this.a) * factor, LEAST), high - low);
    const part = (time - this.a) / (this.b - this.a);
    this.show(time - part * length, time - part * length + length);
  }

  move(part) {
    const by = (this.b - this.a) * part;
    this.show(this.a + by, this.b + by);
  }

  scrollTo(y) {
    const most = Math.max(0, this.T.bottom + AXIS + 4 - this.high);
    this.scroll = Math.min(Math.max(y, 0), most);
    this.draw();
    return most;
  }

  // Bring a time and a height into view, moving no more than it needs.
  reveal(from, to, top, bottom) {
    const shown = this.b - this.a;
    if ((to - from) * this.scale < 4 && shown > LEAST * 4) {
      const length = Math.max((to - from) * 40, shown / 400, LEAST);
      this.show((from + to) / 2 - length / 2, (from + to) / 2 + length / 2);
    } else if (to < this.a || from > this.b) {
      this.show((from + to) / 2 - shown / 2, (from + to) / 2 + shown / 2);
    }
    if (top < this.scroll) this.scrollTo(top - 30);
    else if (bottom + AXIS > this.scroll + this.high) this.scrollTo(bottom + AXIS + 30 - this.high);
  }

  revealSpan(i) {
    const r = rowOf(this.T, i);
    const top = this.T.rows.top[r];
    this.reveal(this.T.start[i], this.T.stop[i], top, top + this.T.rows.height[r]);
  }

  revealSync(i) {
    const top = this.T.parts.syncs_top[this.T.syncs.part[i]];
    const {at, wait} = this.T.syncs;
    this.reveal(at[i], at[i] + wait[i], top, top + 20);
  }

  choose(kind, i, tell = true) {
    this.pick = i < 0 ? null : {kind, i};
    this.arrows = this.pick && kind === "span" ? arrowsOf(this.T, i, 200) : [];
    const [head, rows] = this.pick ? this.describe(kind, i) : ["", []];
    const inLine = (text) => text.replace(/:\n/g, ": ").replace(/\n/g, ", ");
    this.say(head && [head, ...rows.map(([name, text]) => `${name} ${inLine(text)}`)].join("  ·  "));
    if (tell) {
      const serial = (this.models.picked.data.serial ?? [0])[0] + 1; // the same choice again is news, too
      this.models.picked.data = {kind: [this.pick ? kind : ""], index: [i < 0 ? -1 : i], serial: [serial]};
    }
    this.draw();
  }

  say(text) {
    this.said.textContent = text || "Click a bar to select it; Shift and drag to measure a range.";
    this.said.classList.toggle("quiet", !text);
  }

  describe(kind, i, near = 1) {
    const {T} = this;
    if (kind === "step") {
      return [T.steps.name[i], [["took", formatNs(T.steps.length[i])], ["began at", formatAt(T.steps.start[i])]]];
    }
    if (kind === "sync") {
      const rows = [["waited", formatNs(T.syncs.wait[i])], ["line", T.syncs.site[i] || "(no line known)"],
        ["through", T.syncs.via[i]], ["began at", formatAt(T.syncs.at[i])]];
      return [`sync point: ${T.syncs.cause[i]}`, rows.filter(([, text]) => text !== "")];
    }
    const k = T.key[i];
    const many = T.count === null ? near : Math.max(near, T.count[i]);
    const name = many > 1 ? `${many.toLocaleString("en")} spans here, the longest is ${T.keys.name[k]}`
      : T.keys.name[k];
    const isJoined = T.count !== null && T.count[i] > 1;
    const rows = [["kind", T.keys.kind[k]],
      [isJoined ? "covers" : "took", formatNs(T.stop[i] - T.start[i])], ["began at", formatAt(T.start[i])],
      ["lane", T.keys.where[k]], ["of", T.keys.detail[k]]];
    if (isJoined) rows.push(["joined", "this copy does not have each of them"]);
    else if (many > 1) rows.push(["zoom in", "to see each of them"]);
    return [name, rows.filter(([, text]) => text !== "")];
  }

  // What another view selected, in `lit`: {nodes: "1 2", sites: "a.py:1\\nb.py:2", label}.
  highlight() {
    const {nodes = [""], sites = [""]} = this.models.lit.data;
    const selection = {nodes: new Set((nodes[0] || "").split(" ").filter(Boolean).map(Number)),
      sites: new Set((sites[0] || "").split("\n").filter(Boolean))};
    this.lit = selection.nodes.size + selection.sites.size > 0 ? matching(this.T, selection) : null;
    const [answered, clicks] = ["lit", "picked"].map((name) => (this.models[name].data.serial ?? [0])[0]);
    const isLate = answered < clicks; // it answers an older choice
    if (this.lit && this.pick && !isLate) { // is what was chosen here a part of what is selected now?
      const {kind, i} = this.pick;
      if (!(kind === "span" ? this.lit.lit[this.T.key[i]] : this.lit.marks[i])) this.choose("", -1, false);
    }
    if (this.lit && this.pick === null) this.revealLit();
    this.draw();
  }

  // Nothing that matches is on the screen: go to the first that does.
  revealLit() {
    const {T, a, b} = this;
    const spans = spansOf(T, this.lit.lit);
    const syncs = [...this.lit.marks.keys()].filter((i) => this.lit.marks[i]);
    const isOn = (from, to) => to >= a && from <= b;
    if (spans.some((i) => isOn(T.start[i], T.stop[i]))
        || syncs.some((i) => isOn(T.syncs.at[i], T.syncs.at[i] + T.syncs.wait[i]))) return;
    if (spans.length > 0) this.revealSpan(spans[0]);
    else if (syncs.length > 0) this.revealSync(syncs[0]);
  }

  find() {
    const text = this.search.value;
    this.at = -1;
    this.found = text.trim() === "" ? null : searchTimeline(this.T, text);
    this.sayHits();
    this.draw();
  }

  sayHits() {
    const {found} = this;
    const many = found ? found.hits.length || found.syncs : 0;
    const what = found && !found.hits.length && found.syncs ? " sync points" : "";
    this.hits.textContent = found === null ? ""
      : many === 0 ? "nothing found"
        : `${this.at < 0 ? "" : `${(this.at + 1).toLocaleString("en")} of `}${many.toLocaleString("en")}${what}`;
  }

  next(by) {
    if (!this.found) return;
    const {hits, marks} = this.found;
    const syncs = hits.length ? [] : [...marks.keys()].filter((i) => marks[i]);
    const many = hits.length || syncs.length;
    if (many === 0) return;
    this.at = this.at < 0 ? (by > 0 ? 0 : many - 1) : (this.at + by + many) % many;
    this.sayHits();
    if (hits.length) {
      this.choose("span", hits[this.at]);
      this.revealSpan(hits[this.at]);
    } else {
      this.choose("sync", syncs[this.at]);
      this.revealSync(syncs[this.at]);
    }
  }

  // The neighbour of the chosen span in its row; without one, the first span that is shown.
  step(by) {
    const {T} = this;
    if (T.n === 0) return;
    let i = this.pick && this.pick.kind === "span" ? this.pick.i + by : -1;
    if (i < 0) {
      const shown = T.rows.top.map ? [...T.rows.top.keys()] : [];
      const starts = shown.map((r) => inRange(T, r, this.a, this.b)).filter(([low, high]) => high > low);
      i = starts.length ? starts[0][0] : 0;
    }
    i = Math.min(Math.max(i, 0), T.n - 1);
    this.choose("span", i);
    this.revealSpan(i);
  }

  setMark(mark, tell = true) {
    this.mark = mark && (mark[0] < mark[1] ? mark : [mark[1], mark[0]]);
    if (this.mark && this.mark[1] - this.mark[0] < 1) this.mark = null;
    if (tell && this.T) {
      this.models.marked.data = {start: this.mark ? [this.mark[0]] : [], stop: this.mark ? [this.mark[1]] : []};
    }
    this.showRange();
    this.draw();
  }

  takeMark() {
    const {start = [], stop = []} = this.models.marked.data;
    const mark = start.length ? [start[0], stop[0]] : null;
    if (String(mark) !== String(this.mark)) this.setMark(mark, false);
  }

  showRange() {
    this.range.hidden = this.mark === null;
    if (this.mark === null) return;
    const [a, b] = this.mark;
    const {T} = this;
    const percent = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(0)} %` : "-";
    const close = element("button", {type: "button", "aria-label": "clear the range"}, "×");
    close.addEventListener("click", () => this.setMark(null));
    const zoom = element("button", {type: "button"}, "zoom to it");
    zoom.addEventListener("click", () => this.show(a, b));
    const lines = T.parts.label.flatMap((label, part) => {
      const m = rangeMetrics(T, a, b, part);
      const most = T.count === null ? "" : "at most "; // joined spans cover the pauses between them
      const rows = m.devices.map(([name, ns]) =>
        [`${name} busy`, `${most}${percent(ns, b - a)}, ${formatNs(ns)}`]);
      if (m.recording > 0 && m.devices.length && T.count === null) {
        rows.push(["recording hidden", `${percent(m.hidden, m.recording)} of ${formatNs(m.recording)}`]);
      }
      rows.push(["sync points", m.waits ? `${m.waits}, ${formatNs(m.waited)} waited` : "none"]);
      m.idle.forEach(([cause, ns]) => rows.push([`idle: ${cause}`, formatNs(ns)]));
      if (!m.knowsIdle && !T.parts.outline[part]) {
        const told = (this.models.reply.data.text || [""])[0];
        if (told) told.split("\n").forEach((line) => rows.push(line.split("\t")));
        else rows.push(["idle by cause", "too many kernels to say so here"]);
      }
      const cells = rows.map(([name, text]) => element("div", {}, element("span", {}, name), text));
      return label ? [element("div", {class: "part"}, label), ...cells] : cells;
    });
    this.range.replaceChildren(element("div", {class: "bar"}, element("b", {}, formatNs(b - a)),
      zoom, close), ...lines);
  }
}
