// Paints one frame of a timeline: narrow spans as one image for all rows, wide ones as bars.

const MANY_MARKS = 80; // sync points on the screen

function onColor(color) {
  const c = parseInt(color.slice(1), 16);
  return 0.299 * (c >> 16) + 0.587 * (c >> 8 & 255) + 0.114 * (c & 255) > 140 ? TONES.ink : "#ffffff";
}

// The text that fits into so many pixels: all of it, its beginning, or nothing.
function clipText(text, width) {
  const most = Math.floor(width / 6.1);
  return text.length <= most ? text : most < 3 ? "" : `${text.slice(0, most - 1)}…`;
}

// Times of the axis' ticks, and how to write them.
function ticksOf(a, b, most) {
  const rough = (b - a) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough));
  const largest = Math.max(Math.abs(a), Math.abs(b));
  const [scale, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]
    .find(([s]) => largest >= s * 0.9995) || [1, "ns"];
  const digits = Math.max(0, Math.ceil(Math.log10(scale / step) - 1e-9));
  const ticks = [];
  for (let t = Math.ceil(a / step) * step; t <= b; t += step) ticks.push(t + 0); // no "-0"
  const format = new Intl.NumberFormat("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  const tell = (t) => `${format.format(t / scale)} ${unit}`;
  return [ticks, tell];
}

Object.assign(TimelinePlot.prototype, {
  paint() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = null;
    if (!(this.width > 0)) return;
    const ctx = this.canvas.getContext("2d");
    const ratio = this.canvas.width / this.width;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.globalAlpha = 1;
    ctx.fillStyle = this.tones.ground;
    ctx.fillRect(0, 0, this.width, this.high);
    const right = this.width - RIGHT;
    ctx.save();
    ctx.beginPath();
    ctx.rect(this.gutter, AXIS, right - this.gutter, this.high - AXIS);
    ctx.clip();
    this.paintGrid(ctx, right);
    this.paintSteps(ctx);
    this.paintWaits(ctx);
    this.paintRows(ctx, ratio);
    this.paintSyncs(ctx);
    this.paintArrows(ctx);
    if (this.mark) {
      const [from, to] = this.mark.map((t) => this.x(t));
      ctx.fillStyle = this.tones.accent;
      ctx.globalAlpha = 0.12;
      ctx.fillRect(from, AXIS, to - from, this.high);
      ctx.globalAlpha = 1;
      for (const x of [from, to]) ctx.fillRect(x - 0.5, AXIS, 1, this.high);
    }
    if (this.T.message) {
      ctx.fillStyle = this.tones.muted;
      ctx.font = `13px ${FONT}`;
      ctx.textAlign = "center";
      ctx.fillText(this.T.message, (this.gutter + right) / 2, AXIS + 40);
      ctx.textAlign = "left";
    }
    ctx.restore();
    this.paintAxis(ctx);
    this.paintLanes(ctx);
    this.paintOverview();
    if (!this.painted) performance.mark("kit-timeline"); // when the first picture was there
    this.painted = (this.painted || 0) + 1;
  },

  flags() {
    const flags = this.found || this.lit;
    return flags ? [flags.lit, flags.marks] : [null, null];
  },

  paintRows(ctx, ratio) {
    const {T} = this;
    const {top, height} = T.rows;
    const width = Math.max(1, Math.round((this.width - this.gutter - RIGHT) * ratio));
    if (!this.counts || this.counts.count.length !== width) this.counts = dustOf(width);
    const [lit] = this.flags();
    const shown = [];
    for (let r = 0; r < top.length; r++) {
      const y = this.y(top[r]);
      if (y + height[r] > AXIS && y < this.high) shown.push(r);
    }
    const bars = [];
    let image = null, pixels = null;
    const dusty = [];
    shown.forEach((r) => {
      const wide = levelOfDetail(T, r, this.a, this.b, width, this.counts, lit);
      if (wide.length) bars.push([r, wide]);
      const {count, busy, longest, lit: isLit} = this.counts;
      if (!count.some((c) => c > 0)) return;
      if (image === null) {
        if (this.dust.width !== width) this.dust.width = width;
        if (this.dust.height < shown.length) this.dust.height = shown.length;
        image = new ImageData(width, shown.length);
        pixels = new Uint32Array(image.data.buffer);
      }
      const base = dusty.length * width;
      for (let p = 0; p < width; p++) {
        if (count[p] === 0) continue;
        let alpha = 110 + 145 * Math.min(1, busy[p]); // a pixel with anything in it can be seen
        if (lit !== null) alpha = isLit[p] ? 255 : alpha * 0.22;
        pixels[base + p] = this.pixel[T.key[longest[p]]] | (alpha & 255) << 24;
      }
      dusty.push(r);
    });
    if (image) {
      const dust = this.dust.getContext("2d");
      dust.putImageData(image, 0, 0, 0, 0, width, dusty.length);
      ctx.imageSmoothingEnabled = false;
      dusty.forEach((r, k) => ctx.drawImage(this.dust, 0, k, width, 1,
        this.gutter, this.y(top[r]), width / ratio, height[r]));
    }
    for (const [r, wide] of bars) this.paintBars(ctx, r, wide, lit);
    if (this.hovered !== null) this.outline(ctx, this.hovered, this.tones.muted, 1);
    if (this.pick && this.pick.kind === "span") this.outline(ctx, this.pick.i, this.tones.ink, 2);
  },

  box(i) {
    const r = rowOf(this.T, i);
    const left = Math.max(this.x(this.T.start[i]), this.gutter - 4);
    const right = Math.min(this.x(this.T.stop[i]), this.width - RIGHT + 4);
    return [left, this.y(this.T.rows.top[r]), Math.max(right - left, 1.5), this.T.rows.height[r]];
  },

  outline(ctx, i, color, width) {
    const [x, y, w, h] = this.box(i);
    ctx.strokeStyle = color;
    ctx.lineWidth = width;
    ctx.strokeRect(x - width / 2, y - width / 2, w + width, h + width);
  },

  paintBars(ctx, r, wide, lit) {
    const {T} = this;
    const y = this.y(T.rows.top[r]), h = T.rows.height[r];
    const isOutline = T.parts.outline[T.rows.part[r]];
    const right = this.width - RIGHT;
    ctx.font = `11px ${FONT}`;
    ctx.textBaseline = "middle";
    ctx.lineWidth = 1.2;
    let style = "", alpha = 1;
    const texts = [];
    for (const i of wide) {
      const k = T.key[i], color = this.fills[k];
      const from = Math.max(this.x(T.start[i]), this.gutter - 2);
      const to = Math.min(this.x(T.stop[i]), right + 2);
      const isJoined = T.count !== null && T.count[i] > 1;
      const seen = (lit === null || lit[k] ? 1 : 0.2) * (isJoined ? 0.55 : 1);
      if (seen !== alpha) ctx.globalAlpha = alpha = seen;
      if (isOutline) {
        ctx.strokeStyle = color;
        ctx.strokeRect(from + 0.6, y + 0.6, Math.max(to - from - 1.2, 0.6), h - 1.2);
      } else {
        if (color !== style) ctx.fillStyle = style = color;
        ctx.fillRect(from, y, to - from > 5 ? to - from - 0.7 : to - from, h);
      }
      if (to - from <= 24 || h < 13) continue;
      const ink = isOutline || isJoined ? this.tones.ink : onColor(color);
      texts.push([from, to, ink, isJoined ? `${T.count[i].toLocaleString("en")} spans` : T.keys.name[k], seen]);
    }
    texts.slice(0, 300).forEach(([from, to, color, name, seen]) => {
      const left = Math.max(from, this.gutter) + 4;
      const text = clipText(name, to - left - 3);
      if (text === "") return;
      ctx.globalAlpha = seen;
      ctx.fillStyle = color;
      ctx.fillText(text, left, y + h / 2 + 0.5);
    });
    ctx.globalAlpha = 1;
  },

  paintSteps(ctx) {
    const {T} = this;
    ctx.font = `11px ${FONT}`;
    ctx.textBaseline = "middle";
    let drawn = -1;
    for (let i = 0; i < T.steps.start.length; i++) {
      const part = T.steps.part[i];
      const from = this.x(T.steps.start[i]), to = this.x(T.steps.start[i] + T.steps.length[i]);
      if (to < this.gutter || from > this.width || (to - drawn < 1 && to > drawn)) continue;
      drawn = to;
      const top = this.y(T.parts.steps_top[part]);
      ctx.fillStyle = i % 2 ? this.tones.odd : this.tones.even;
      ctx.fillRect(from, top, to - from, 18);
      ctx.fillStyle = this.tones.edge;
      const bottom = this.y(T.parts.bottom[part]);
      if (to - from > 4) for (const x of [from, to]) ctx.fillRect(x - 0.5, top, 1, bottom - top);
      const left = Math.max(from, this.gutter) + 5;
      const text = clipText(`${T.steps.name[i]} · ${formatNs(T.steps.length[i])}`,
        Math.min(to, this.width - RIGHT) - left - 3);
      ctx.fillStyle = this.tones.muted;
      ctx.fillText(text, left, top + 9.5);
    }
  },

  // The time in which the host waited, shaded over all lanes of its part; pixels are shaded once.
  paintWaits(ctx) {
    const {T} = this;
    const {at, wait, part} = T.syncs;
    const [, marks] = this.flags();
    let drawn = -1, last = -1;
    for (let i = 0; i < at.length; i++) {
      if (part[i] !== last) [drawn, last] = [-1, part[i]];
      const from = Math.max(this.x(at[i]), drawn, this.gutter);
      const to = Math.min(this.x(at[i] + wait[i]), this.width);
      if (to - from < 0.4) continue;
      drawn = to;
      const top = this.y(T.parts.syncs_top[part[i]]) + 10;
      ctx.fillStyle = marks && marks[i] ? "rgba(221, 90, 60, 0.22)" : "rgba(221, 90, 60, 0.10)";
      ctx.fillRect(from, top, to - from, this.y(T.parts.bottom[part[i]]) - top);
    }
  },

  paintSyncs(ctx) {
    const {T} = this;
    const {at, wait, part} = T.syncs;
    const [lit, marks] = this.flags();
    ctx.font = `11px ${FONT}`;
    ctx.textBaseline = "middle";
    const shown = [];
    let drawn = -1e9, last = -1, labelled = 0;
    for (let i = 0; i < at.length; i++) {
      if (part[i] !== last) [drawn, last] = [-1e9, part[i]];
      const x = this.x(at[i]);
      const isPick = this.pick && this.pick.kind === "sync" && this.pick.i === i;
      if (x < this.gutter - 6 || x > this.width || (x - drawn < 3 && !isPick && !(marks && marks[i]))) continue;
      drawn = x;
      shown.push([i, x, isPick]);
    }
    const isDense = shown.length > MANY_MARKS; // lines would hide what they are drawn over
    shown.forEach(([i, x, isPick], k) => {
      const top = this.y(T.parts.syncs_top[part[i]]), bottom = this.y(T.parts.bottom[part[i]]);
      ctx.globalAlpha = lit === null || marks[i] ? 1 : 0.3;
      ctx.strokeStyle = ctx.fillStyle = WAIT;
      ctx.lineWidth = isPick ? 2 : 1;
      if (!isDense || isPick || (marks && marks[i])) {
        ctx.setLineDash([4, 3]);
        ctx.beginPath();
        ctx.moveTo(x, top + 14);
        ctx.lineTo(x, bottom);
        ctx.stroke();
        ctx.setLineDash([]);
      }
      const size = isPick ? 7 : isDense ? 3 : 5;
      ctx.beginPath();
      ctx.moveTo(x - size, top + 9 - size);
      ctx.lineTo(x + size, top + 9 - size);
      ctx.lineTo(x, top + 9 + size);
      ctx.fill();
      const text = `${T.syncs.cause[i]} · ${formatNs(T.syncs.wait[i])}`;
      const length = ctx.measureText(text).width + 16;
      const near = (n) => shown[n] && part[shown[n][0]] === part[i] ? shown[n][1] : null;
      const [before, after] = [near(k - 1) ?? this.gutter, near(k + 1) ?? this.width - RIGHT];
      if (after > x + length) ctx.fillText(text, x + 9, top + 9.5);
      else if (near(k + 1) === null && x - length > before + labelled) {
        ctx.textAlign = "right";
        ctx.fillText(text, x - 9, top + 9.5);
        ctx.textAlign = "left";
      }
      labelled = after > x + length ? length : 0;
    });
    ctx.globalAlpha = 1;
  },

  // From a dispatch to the begin of a kernel that it launched: from its end, unless it still went on.
  paintArrows(ctx) {
    if (!this.pick || this.pick.kind !== "span" || !this.arrows) return;
    ctx.strokeStyle = ctx.fillStyle = this.tones.accent;
    ctx.globalAlpha = this.arrows.length > 8 ? 0.55 : 1;
    ctx.lineWidth = 1.5;
    for (const [call, kernel] of this.arrows) {
      const x1 = this.x(this.T.start[kernel]), x0 = Math.min(this.x(this.T.stop[call]), x1);
      const [rc, rk] = [rowOf(this.T, call), rowOf(this.T, kernel)];
      const y0 = this.y(this.T.rows.top[rc] + this.T.rows.height[rc] / 2);
      const isBelow = this.T.rows.top[rk] > this.T.rows.top[rc];
      const y1 = this.y(this.T.rows.top[rk] + (isBelow ? 0 : this.T.rows.height[rk]));
      if (Math.max(x0, x1) < this.gutter || Math.min(x0, x1) > this.width) continue;
      const bend = (y1 - y0) * 0.6;
      ctx.beginPath();
      ctx.moveTo(x0, y0);
      ctx.bezierCurveTo(x0 + Math.min(12, x1 - x0), y0 + bend * 0.6, x1, y1 - bend, x1, y1 - (isBelow ? 5 : -5));
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x1, y1);
      ctx.lineTo(x1 - 3.5, y1 - (isBelow ? 7 : -7));
      ctx.lineTo(x1 + 3.5, y1 - (isBelow ? 7 : -7));
      ctx.fill();
      ctx.beginPath();
      ctx.arc(x0, y0, 2.5, 0, 7);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
  },

  paintGrid(ctx, right) {
    let [ticks, tell] = ticksOf(this.a, this.b, (right - this.gutter) / 110);
    const longest = Math.max(...ticks.map((t) => tell(t).length), 1) * 6.3 + 14;
    if (longest > 110) [ticks, tell] = ticksOf(this.a, this.b, (right - this.gutter) / longest);
    ctx.fillStyle = this.tones.line;
    for (const t of ticks) ctx.fillRect(this.x(t) - 0.5, AXIS, 1, this.high);
    this.ticks = [ticks, tell];
  },

  paintAxis(ctx) {
    const right = this.width - RIGHT;
    ctx.font = `11px ${FONT}`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "center";
    const [ticks, tell] = this.ticks;
    for (const t of ticks) {
      const x = this.x(t);
      const text = tell(t);
      const half = text.length * 3.1;
      ctx.fillStyle = this.tones.muted;
      ctx.fillText(text, Math.min(Math.max(x, this.gutter + half - 4), right - half + 4), AXIS / 2);
    }
    ctx.textAlign = "left";
  },

  paintLanes(ctx) {
    const {T, gutter} = this;
    ctx.save();
    ctx.fillStyle = this.tones.ground;
    ctx.fillRect(0, AXIS, gutter, this.high);
    ctx.fillRect(this.width - RIGHT, AXIS, RIGHT, this.high);
    ctx.beginPath();
    ctx.rect(0, AXIS, this.width - RIGHT, this.high);
    ctx.clip();
    ctx.textBaseline = "middle";
    const write = (text, x, y, color, font = "11px") => {
      ctx.font = `${font} ${FONT}`;
      ctx.fillStyle = color;
      ctx.fillText(clipText(text, gutter - x - 4), x, this.y(y));
    };
    T.parts.label.forEach((label, part) => {
      const top = T.parts.top[part];
      if (label) {
        ctx.fillStyle = this.tones.strip;
        ctx.fillRect(0, this.y(top) + 3, this.width, 19);
        ctx.font = `600 12px ${FONT}`;
        ctx.fillStyle = this.tones.ink;
        ctx.fillText(label, 8, this.y(top) + 13);
      }
      write("steps", 8, T.parts.steps_top[part] + 10, this.tones.muted);
      write("sync points", 8, T.parts.syncs_top[part] + 10, this.tones.muted);
    });
    T.headings.text.forEach((text, i) => {
      const y = T.headings.top[i] + 9;
      write(text, 8, y, this.tones.ink, "600 11px");
      ctx.fillStyle = this.tones.line;
      ctx.fillRect(gutter, this.y(y), this.width, 1);
    });
    T.lanes.label.forEach((label, i) => {
      const y = (T.lanes.top[i] + T.lanes.bottom[i]) / 2;
      write(label, T.lanes.group[i] ? 18 : 8, y, this.tones.ink);
    });
    ctx.restore();
    const most = T.bottom + AXIS + 4;
    if (most > this.high) { // where in the lanes we are
      const h = (this.high - AXIS) * (this.high - AXIS) / (most - AXIS);
      ctx.fillStyle = this.tones.edge;
      ctx.fillRect(this.width - 6, AXIS + (this.high - AXIS - h) * this.scroll / (most - this.high), 4, h);
    }
  },

  // All of the time in one strip: host above, devices below, sync points in red, and what is shown.
  paintOverview() {
    const {T} = this;
    const ctx = this.over.getContext("2d");
    const ratio = this.over.width / this.width;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = this.tones.ground;
    ctx.fillRect(0, 0, this.width, OVERVIEW);
    const wide = this.width - this.gutter - RIGHT;
    const [low, high] = this.whole();
    const x = (t) => this.gutter + (t - low) / (high - low) * wide;
    if (!this.overview || this.overview.length !== Math.round(wide)) {
      this.overview = this.measureOverview(Math.round(wide), low, high);
    }
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(this.overview.image, this.gutter, 2, wide, OVERVIEW - 6);
    ctx.fillStyle = WAIT;
    const tall = T.syncs.at.length > MANY_MARKS ? 4 : OVERVIEW - 6;
    for (let i = 0, drawn = -9; i < T.syncs.at.length; i++) {
      if (T.parts.outline[T.syncs.part[i]]) continue;
      const at = x(T.syncs.at[i]);
      if (at - drawn < 1.5 && at >= drawn) continue;
      drawn = at;
      ctx.fillRect(at - 0.5, 2, 1.4, tall);
    }
    const [from, to] = [x(this.a), x(this.b)];
    ctx.fillStyle = this.tones.ground;
    ctx.globalAlpha = 0.72;
    ctx.fillRect(this.gutter, 2, from - this.gutter, OVERVIEW - 6);
    ctx.fillRect(to, 2, this.gutter + wide - to, OVERVIEW - 6);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = this.tones.accent;
    ctx.lineWidth = 1.2;
    ctx.strokeRect(from, 2, Math.max(to - from, 2), OVERVIEW - 6);
    ctx.fillStyle = this.tones.muted;
    ctx.font = `11px ${FONT}`;
    ctx.textBaseline = "middle";
    ctx.fillText("all of it", 8, OVERVIEW / 2 - 1);
  },

  // The busiest row of host and of devices in each pixel of the whole.
  measureOverview(length, low, high) {
    const {T} = this;
    const found = {length, host: new Float64Array(length), device: new Float64Array(length)};
    const scale = length / (high - low);
    const isKernel = T.keys.kind.map((kind) => kind === "kernel");
    const isBusy = T.keys.kind.map((kind) => !["wait", "ahead", "device step", "reduction"].includes(kind));
    for (let r = 0; r < T.rows.top.length; r++) {
      if (T.parts.outline[T.rows.part[r]] || T.first[r] === T.first[r + 1]) continue;
      const bins = new Float64Array(length);
      for (let i = T.first[r]; i < T.first[r + 1]; i++) {
        if (!isBusy[T.key[i]]) continue;
        const from = Math.max((T.start[i] - low) * scale, 0), to = Math.min((T.stop[i] - low) * scale, length - 1e-9);
        const p = from | 0, q = to | 0;
        if (p === q) bins[p] += to - from;
        else {
          bins[p] += p + 1 - from;
          for (let k = p + 1; k < q; k++) bins[k] += 1;
          bins[q] += to - q;
        }
      }
      const side = isKernel[T.key[T.first[r]]] ? found.device : found.host;
      bins.forEach((v, p) => { if (v > side[p]) side[p] = v; });
    }
    return this.overviewImage(found);
  },

  // Drawn once: a frame only copies it.
  overviewImage(found) {
    const image = document.createElement("canvas");
    [image.width, image.height] = [found.length, OVERVIEW - 6];
    const ctx = image.getContext("2d");
    ctx.fillStyle = this.tones.strip;
    ctx.fillRect(0, 0, found.length, OVERVIEW);
    for (const [bins, top, color] of [[found.host, 2, "#5674d8"], [found.device, 15, this.tones.muted]]) {
      ctx.fillStyle = color;
      bins.forEach((v, p) => {
        if (v <= 0) return;
        ctx.globalAlpha = 0.15 + 0.75 * Math.min(1, v);
        ctx.fillRect(p, top, 1, 11);
      });
    }
    return {length: found.length, image};
  },
});
