// What the mouse and the keyboard do to a timeline.

Object.assign(TimelinePlot.prototype, {
  listen() {
    const {canvas, search} = this;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", () => { this.drag = null; });
    canvas.addEventListener("pointerleave", () => this.hover(null));
    canvas.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.hit(event.offsetX, event.offsetY);
      if (hit && hit.kind === "span") this.zoomTo(hit.i);
    });
    search.addEventListener("input", () => this.find());
    search.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") {
        event.preventDefault();
        this.next(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        search.value = "";
        this.find();
        canvas.focus({preventScroll: true});
      }
    });
    const aim = (event) => {
      if (event.buttons !== 1) return;
      const [low, high] = this.whole();
      const part = (event.offsetX - this.gutter) / (this.width - this.gutter - RIGHT);
      const middle = low + (high - low) * part, half = (this.b - this.a) / 2;
      this.show(middle - half, middle + half);
    };
    this.over.addEventListener("pointerdown", (event) => {
      this.over.setPointerCapture(event.pointerId);
      aim(event);
    });
    this.over.addEventListener("pointermove", aim);
  },

  down(event) {
    if (event.button !== 0) return;
    this.canvas.focus({preventScroll: true});
    this.canvas.setPointerCapture(event.pointerId);
    const isMark = event.shiftKey;
    this.drag = {x: event.offsetX, y: event.offsetY, a: this.a, b: this.b, scroll: this.scroll, isMark,
      from: this.time(event.offsetX), isMoved: false};
    if (event.pointerType === "mouse") event.preventDefault(); // no selecting of text while dragging
  },

  moved(event) {
    const {drag} = this;
    if (!drag) {
      this.hover(event);
      return;
    }
    const [dx, dy] = [event.offsetX - drag.x, event.offsetY - drag.y];
    if (!drag.isMoved && Math.hypot(dx, dy) < 4) return;
    drag.isMoved = true;
    this.card.hidden = true;
    if (drag.isMark) {
      this.setMark([drag.from, this.time(event.offsetX)], false);
      return;
    }
    const by = dx / this.scale;
    this.show(drag.a - by, drag.b - by);
    this.scrollTo(drag.scroll - dy);
  },

  up(event) {
    const {drag} = this;
    this.drag = null;
    if (!drag) return;
    if (drag.isMoved) {
      if (drag.isMark) this.setMark(this.mark);
      return;
    }
    const hit = this.hit(event.offsetX, event.offsetY);
    if (hit && hit.kind === "step") {
      this.setMark([this.T.steps.start[hit.i], this.T.steps.start[hit.i] + this.T.steps.length[hit.i]]);
    } else if (hit) this.choose(hit.kind, hit.i);
    else this.choose("", -1);
  },

  wheel(event) {
    const scale = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const [dx, dy] = [event.deltaX * scale, event.deltaY * scale];
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-1, Math.min(1, dy * 0.004))), this.time(event.offsetX));
    } else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) {
      event.preventDefault();
      const by = (dx || dy) / this.scale;
      this.show(this.a + by, this.b + by);
    } else if (this.root.getRootNode().activeElement === this.canvas) {
      const was = this.scroll;
      this.scrollTo(was + dy);
      if (this.scroll !== was) event.preventDefault(); // at the end, the page scrolls on
    }
  },

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      w: () => this.zoom(1 / 1.4), s: () => this.zoom(1.4), "+": () => this.zoom(1 / 1.4),
      "=": () => this.zoom(1 / 1.4), "-": () => this.zoom(1.4),
      a: () => this.move(-0.15), d: () => this.move(0.15),
      ArrowLeft: () => this.move(-0.15), ArrowRight: () => this.move(0.15),
      ArrowUp: () => this.scrollTo(this.scroll - 40), ArrowDown: () => this.scrollTo(this.scroll + 40),
      0: () => this.showAll(), Home: () => this.showAll(),
      ".": () => this.step(1), ",": () => this.step(-1),
      f: () => this.pick && this.pick.kind === "span" && this.zoomTo(this.pick.i),
      m: () => this.measure(),
      "/": () => this.search.focus(),
      "?": () => { this.help.hidden = !this.help.hidden; },
      Escape: () => this.clear(),
    }[event.key];
    if (!act) return; // Tab and all that is not ours goes on to the page
    event.preventDefault();
    event.stopPropagation();
    act();
  },

  clear() {
    this.help.hidden = true;
    this.search.value = "";
    this.find();
    this.setMark(null);
    this.choose("", -1);
  },

  measure() {
    const {pick, T} = this;
    if (pick && pick.kind === "span") this.setMark([T.start[pick.i], T.stop[pick.i]]);
    else if (pick) this.setMark([T.syncs.at[pick.i], T.syncs.at[pick.i] + T.syncs.wait[pick.i]]);
    else this.setMark([Math.max(this.a, 0), Math.min(this.b, T.end)]);
  },

  zoomTo(i) {
    const length = Math.max(this.T.stop[i] - this.T.start[i], LEAST / 4);
    const middle = (this.T.start[i] + this.T.stop[i]) / 2;
    this.show(middle - length, middle + length);
  },

  // What is at a place of the canvas: {kind: "span" | "sync" | "step", i, near}, or null.
  hit(x, y) {
    const {T} = this;
    if (x < this.gutter || x > this.width - RIGHT || y < AXIS) return null;
    const time = this.time(x), slack = 3 / this.scale, down = y - AXIS + this.scroll;
    for (let part = 0; part < T.parts.label.length; part++) {
      const off = down - T.parts.syncs_top[part];
      if (off >= 0 && off < 21) {
        const i = syncAt(T, part, time, 7 / this.scale);
        return i < 0 ? null : {kind: "sync", i, near: 1};
      }
      const above = down - T.parts.steps_top[part];
      if (above >= 0 && above < 20) {
        const i = T.steps.start.findIndex((s, k) => T.steps.part[k] === part && s <= time
          && time <= s + T.steps.length[k]);
        return i < 0 ? null : {kind: "step", i, near: 1};
      }
    }
    const row = rowAt(T, down);
    if (row < 0) return null;
    const [i, near] = spanAt(T, row, time, slack);
    return i < 0 ? null : {kind: "span", i, near};
  },

  hover(event) {
    const hit = event && this.hit(event.offsetX, event.offsetY);
    this.canvas.style.cursor = hit ? "pointer" : "default";
    this.hovered = hit && hit.kind === "span" ? hit.i : null;
    this.draw();
    this.card.hidden = !hit;
    if (!hit) return;
    const [head, rows] = this.describe(hit.kind, hit.i, hit.near);
    const swatch = element("i");
    swatch.style.background = hit.kind === "span" ? this.fills[this.T.key[hit.i]]
      : hit.kind === "sync" ? WAIT : this.tones.edge;
    this.card.replaceChildren(element("div", {class: "name"}, swatch, head),
      ...rows.map(([name, text]) => element("div", {}, element("span", {}, name), element("em", {}, text))));
    const [w, h] = [this.card.offsetWidth, this.card.offsetHeight];
    const x = event.offsetX + 16 + w > this.width ? event.offsetX - 12 - w : event.offsetX + 16;
    const y = Math.min(event.offsetY + OVERVIEW + 14, this.high + OVERVIEW - h + 40);
    this.card.style.left = `${Math.max(2, x)}px`;
    this.card.style.top = `${y}px`;
  },
});
