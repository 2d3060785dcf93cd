// Where in a scene we look: x grows to the right, y downwards, one unit is a pixel at scale 1.

const LEAST = 0.72, MOST = 1.15; // scales at which labels are read easily
const NEARLY = 0.6; // a scale at which labels can be read: better than a graph that is cut
const SMALLEST = 0.002, LARGEST = 4;
const FONTS = /** @type {Record<string, number>} */ ({label: 12.5, sublabel: 10.5, stop: 10});

/** @typedef {{width: number, height: number}} Size */

/** The scale to look with where this one would show all. @param {number} fitted */
export function readable(fitted) {
  return fitted >= NEARLY ? Math.min(MOST, fitted) : LEAST;
}

export class Camera {
  /** @param {any} figure of bokeh */
  constructor(figure) {
    this.figure = figure;
    this.isFitted = false; // a new size shows all of it again
    /** @type {number[] | null} */
    this.looked = null; // the ranges that were set here: their events come later
    this.lastScale = 0;
  }

  /** @returns {[number, number]} */
  size() {
    const {inner_width: w, inner_height: h} = this.figure;
    return [w > 0 ? w : 600, h > 0 ? h : 400];
  }

  /** What can be seen. */
  get window() {
    const {x_range: x, y_range: y} = this.figure;
    return {left: x.start, right: x.end, top: y.end, bottom: y.start};
  }

  scale() {
    const {left, right} = this.window;
    return this.size()[0] / Math.max(right - left, 1e-9);
  }

  /** @param {number} left @param {number} top @param {number} scale */
  look(left, top, scale) {
    const [w, h] = this.size(), {x_range, y_range} = this.figure;
    const set = (/** @type {any} */ range, /** @type {number} */ start, /** @type {number} */ end) =>
      range.setv({start, end, reset_start: start, reset_end: end}, {sync: false});
    this.looked = [left, left + w / scale, top];
    this.isFitted = false;
    set(x_range, left, left + w / scale);
    set(y_range, top + h / scale, top);
    this.lastScale = scale;
    this.rescale();
  }

  /**
   * Show all of it with square pixels, but not smaller than can be read: what does not fit is
   * reached by dragging.
   * @param {Size} placed
   * @param {boolean} [whole] show everything, however small that is
   */
  fit(placed, whole = false) {
    const [w, h] = this.size(), width = placed.width + 24, height = placed.height + 24;
    const fitted = Math.min(w / width, h / height);
    // What is too high may still fit in its width: only its end is out of sight then.
    const scale = whole ? Math.max(SMALLEST, Math.min(MOST, fitted))
      : Math.min(readable(fitted), readable(w / width));
    const [sw, sh] = [w / scale, h / scale];
    this.look((width <= sw ? (width - sw) / 2 : 0) - 12, (height <= sh ? (height - sh) / 2 : 0) - 12, scale);
    this.isFitted = true;
  }

  /** Height of the figure that suits what is drawn. @param {Size} placed */
  heightFor(placed) {
    const scale = readable(this.size()[0] / (placed.width + 24));
    return Math.round(Math.min(Math.max((placed.height + 24) * scale + 74, 200), 720));
  }

  /** @param {number} dx @param {number} dy */
  shift(dx, dy) {
    const {left, top} = this.window;
    this.look(left + dx, top + dy, this.scale());
  }

  /** @param {number} by */
  zoom(by) {
    const [w, h] = this.size(), {left, right, top, bottom} = this.window;
    const scale = Math.min(Math.max(this.scale() * by, SMALLEST), LARGEST);
    this.look((left + right) / 2 - w / scale / 2, (top + bottom) / 2 - h / scale / 2, scale);
  }

  /** Bring a box to the middle; of a larger one its upper left corner. @param {number[]} rect */
  center([x, y, bw, bh]) {
    const [w, h] = this.size();
    const scale = this.scale() < NEARLY - 1e-9 ? LEAST : this.scale();
    const left = bw * scale > w ? x - bw / 2 - 24 : x - w / scale / 2;
    const top = bh * scale > h ? y - bh / 2 - 24 : y - h / scale / 2;
    this.look(left, top, scale);
  }

  /** Text is drawn in units of the plot, so that labels stay inside their boxes. */
  rescale() {
    const scale = this.scale();
    for (const renderer of this.figure.renderers) {
      const size = FONTS[renderer.name];
      if (!size) continue;
      renderer.setv({visible: size * scale > 2.5}, {sync: false}); // smaller is a blot
      renderer.glyph.setv({text_font_size: {value: `${Math.max(1, size * scale).toFixed(2)}px`}}, {sync: false});
    }
  }

  /** The figure has a new size: look at the same place. */
  keep() {
    const {left, top} = this.window;
    this.look(left, top, this.lastScale || this.scale());
  }

  /** The ranges have changed; false if that was done here. @returns {boolean} */
  moved() {
    const {left, right, top} = this.window, now = [left, right, top];
    const {looked} = this;
    if (looked && now.every((v, n) => Math.abs(v - looked[n]) < 1e-6)) return false;
    this.isFitted = false;
    this.rescale();
    this.lastScale = this.scale();
    return true;
  }

  /** Can a part of the box be seen? @param {number[]} rect @param {number} [grow] of the window's size */
  sees([x, y, w, h], grow = 0) {
    const {left, right, top, bottom} = this.window;
    const [mx, my] = [(right - left) * grow, (bottom - top) * grow];
    return x + w / 2 > left - mx && x - w / 2 < right + mx && y + h / 2 > top - my && y - h / 2 < bottom + my;
  }

  /** Can all of the box be seen? @param {number[]} rect */
  holds([x, y, w, h]) {
    const {left, right, top, bottom} = this.window;
    return x - w / 2 >= left && x + w / 2 <= right && y - h / 2 >= top && y + h / 2 <= bottom;
  }

  /** In which directions there is more. @param {Size} placed @returns {string[]} */
  outOfSight({width, height}) {
    const {right, bottom} = this.window, found = [];
    if (width > right + 1) found.push("to the right");
    if (height > bottom + 1) found.push("below");
    return found;
  }
}
