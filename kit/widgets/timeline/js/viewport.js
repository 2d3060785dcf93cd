// Which time and which lanes a canvas shows, and where they are on it.
import {rowOf} from "./data/table.js";
import {AXIS, RIGHT} from "./paint/tones.js";

const LEAST = 20; // nanoseconds: no range that is shown is shorter
const FAR = 4; // times the run's own end: an axis that is longer leaves too little to see of it
const LOWEST = 120, HIGHEST = 580; // pixels of the canvas

/** The range of time that is shown, kept inside of what there is. Times are nanoseconds. */
export class Viewport {
  /** @param {() => void} changed called when something else is shown */
  constructor(changed) {
    this.changed = changed;
    this.end = 0; // of all spans, also of the other runs that share the axis
    this.own = 0; // of the spans that are shown
    this.bottom = 0; // of all lanes, in pixels
    this.shownFrom = 0;
    this.shownTo = 1;
    this.scroll = 0; // pixels of the lanes that are above the canvas
    this.width = 0;
    this.height = 0;
    this.gutter = 0; // pixels for the names of the lanes
  }

  /**
   * Show another timeline as it opens, or, if it shares its axis with the one before, the same range.
   * @param {{end: number, axis?: number, bottom: number}} table
   * @param {boolean} [isShared]
   */
  take({end, axis = 0, bottom}, isShared = false) {
    const wasAsOpened = this.isAsOpened, wasAll = this.showsAll && !wasAsOpened;
    this.end = Math.max(end, axis);
    this.own = end;
    this.bottom = bottom;
    if (isShared && !wasAll && !wasAsOpened) {
      this.show(this.shownFrom, this.shownTo);
      return;
    }
    if (!isShared) this.scroll = 0;
    [this.shownFrom, this.shownTo] = isShared && wasAll ? this.whole() : this.opening();
  }

  /** Is shown what nobody has asked for? */
  get isAsOpened() {
    const [low, high] = this.opening();
    return Math.abs(this.shownFrom - low) < 1 && Math.abs(this.shownTo - high) < 1;
  }

  /** Is there nothing that is not shown? */
  get showsAll() {
    const [low, high] = this.whole();
    return this.shownFrom <= low && this.shownTo >= high;
  }

  /** Show all of this run's spans, and no more of the axis than they take. */
  fit() {
    this.show(...this.around(this.own));
  }

  /** @param {number} width */
  resize(width) {
    this.width = width;
    this.gutter = Math.min(170, Math.max(96, Math.round(width * 0.155)));
    this.height = Math.min(Math.max(this.lanesHeight, LOWEST), HIGHEST);
    this.scrollTo(this.scroll);
  }

  /** @returns {[number, number]} a little more than all spans */
  whole() {
    return this.around(this.end);
  }

  /** @returns {[number, number]} all spans, or those of this run where they are a small part of the axis */
  opening() {
    return this.around(this.own && this.end > FAR * this.own ? this.own : this.end);
  }

  /** @param {number} end @returns {[number, number]} */
  around(end) {
    return [-end * 0.005, Math.max(end * 1.005, LEAST)];
  }

  get length() {
    return this.shownTo - this.shownFrom;
  }

  get lanesHeight() {
    return this.bottom + AXIS + 4;
  }

  get right() {
    return this.width - RIGHT;
  }

  /** Pixels of a nanosecond. */
  get scale() {
    return (this.right - this.gutter) / this.length;
  }

  /** @param {number} time */
  x(time) {
    return this.gutter + (time - this.shownFrom) * this.scale;
  }

  /** @param {number} x */
  time(x) {
    return this.shownFrom + (x - this.gutter) / this.scale;
  }

  /** @param {number} down pixels below the top of all lanes */
  y(down) {
    return down - this.scroll + AXIS;
  }

  /** @param {number} y @returns {number} pixels below the top of all lanes */
  down(y) {
    return y + this.scroll - AXIS;
  }

  /** @param {number} from @param {number} to */
  show(from, to) {
    const [low, high] = this.whole();
    const length = Math.min(Math.max(to - from, LEAST), high - low);
    const wanted = to - from === length ? from : (from + to) / 2 - length / 2;
    this.shownFrom = Math.min(Math.max(wanted, low), high - length);
    this.shownTo = this.shownFrom + length;
    this.changed();
  }

  showAll() {
    this.show(...this.whole());
    this.scrollTo(0);
  }

  /** @param {number} factor of the length that is shown @param {number} [time] stays where it is */
  zoom(factor, time = (this.shownFrom + this.shownTo) / 2) {
    const [low, high] = this.whole();
    const length = Math.min(Math.max(this.length * factor, LEAST), high - low);
    const part = (time - this.shownFrom) / this.length;
    this.show(time - part * length, time - part * length + length);
  }

  /** @param {number} part of what is shown */
  move(part) {
    this.moveBy(this.length * part);
  }

  /** @param {number} by */
  moveBy(by) {
    this.show(this.shownFrom + by, this.shownTo + by);
  }

  /** @param {number} y */
  scrollTo(y) {
    const most = Math.max(0, this.lanesHeight - this.height);
    this.scroll = Math.min(Math.max(y, 0), most);
    this.changed();
  }

  /** Show a span at about half of the width. @param {number} from @param {number} to */
  zoomTo(from, to) {
    const length = Math.max(to - from, LEAST / 4);
    this.show((from + to) / 2 - length, (from + to) / 2 + length);
  }

  /**
   * Bring a time and a height into view, moving no more than it needs.
   * @param {number} from
   * @param {number} to
   * @param {number} top
   * @param {number} bottom
   */
  reveal(from, to, top, bottom) {
    const middle = (from + to) / 2;
    if ((to - from) * this.scale < 4 && this.length > LEAST * 4) {
      const length = Math.max((to - from) * 40, this.length / 400, LEAST);
      this.show(middle - length / 2, middle + length / 2);
    } else if (to < this.shownFrom || from > this.shownTo) {
      this.show(middle - this.length / 2, middle + this.length / 2);
    }
    if (top < this.scroll) this.scrollTo(top - 30);
    else if (bottom + AXIS > this.scroll + this.height) this.scrollTo(bottom + AXIS + 30 - this.height);
  }

  /** @param {import("./data/table.js").Table} table @param {number} i */
  revealSpan(table, i) {
    const row = rowOf(table, i), top = table.rows.top[row];
    this.reveal(table.start[i], table.stop[i], top, top + table.rows.height[row]);
  }

  /** @param {import("./data/table.js").Table} table @param {number} i */
  revealSync({parts, syncs}, i) {
    const top = parts.syncs_top[syncs.part[i]];
    this.reveal(syncs.at[i], syncs.at[i] + syncs.wait[i], top, top + 20);
  }
}
