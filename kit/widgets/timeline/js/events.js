// What the mouse and the keyboard do to a timeline.
import {nameOf} from "./data/arrange.js";
import {hitAt, laneAt} from "./data/picking.js";
import {AXIS, OVERVIEW} from "./paint/tones.js";

const ZOOM = 1.4, MOVE = 0.15, SCROLL = 40; // of one key
const CLICK = 4; // pixels: a pointer that moves less does not drag

/** @typedef {import("./plot.js").TimelinePlot} Plot */

export class Events {
  /** @param {Plot} plot */
  constructor(plot) {
    this.plot = plot;
    /** @type {{x: number, y: number, shownFrom: number, shownTo: number, scroll: number,
     *   isMark: boolean, from: number, isMoved: boolean} | null} */
    this.drag = null;
    const {canvas, over, search} = plot.frame;
    const react = {
      pointerdown: (/** @type {PointerEvent} */ event) => this.down(event),
      pointermove: (/** @type {PointerEvent} */ event) => this.moved(event),
      pointerup: (/** @type {PointerEvent} */ event) => this.up(event),
      pointercancel: () => { this.drag = null; },
      pointerleave: () => this.hover(null),
      dblclick: (/** @type {PointerEvent} */ event) => {
        const hit = this.hit(event);
        if (hit?.kind === "span") plot.zoomToSpan(hit.i);
      },
      keydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    };
    for (const [name, act] of Object.entries(react)) canvas.addEventListener(name, act);
    canvas.addEventListener("wheel", (/** @type {WheelEvent} */ event) => this.wheel(event), {passive: false});
    search.addEventListener("input", () => plot.finder.find());
    search.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.searchKey(event));
    over.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
      over.setPointerCapture(event.pointerId);
      this.aim(event);
    });
    over.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => this.aim(event));
  }

  /** What is under the pointer. @param {MouseEvent} event */
  hit({offsetX: x, offsetY: y}) {
    const {table, view} = this.plot;
    if (x < view.gutter || x > view.right || y < AXIS) return null;
    return hitAt(table, view.time(x), view.down(y), view.scale);
  }

  /** @param {PointerEvent} event */
  down(event) {
    if (event.button !== 0) return;
    const {view, frame: {canvas}} = this.plot;
    canvas.focus({preventScroll: true});
    canvas.setPointerCapture(event.pointerId);
    this.drag = {x: event.offsetX, y: event.offsetY, shownFrom: view.shownFrom, shownTo: view.shownTo,
      scroll: view.scroll, isMark: event.shiftKey, from: view.time(event.offsetX), isMoved: false};
    if (event.pointerType === "mouse") event.preventDefault(); // no selecting of text while dragging
  }

  /** @param {PointerEvent} event */
  moved(event) {
    const {plot, drag} = this;
    if (!drag) {
      this.hover(event);
      return;
    }
    const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
    if (!drag.isMoved && Math.hypot(dx, dy) < CLICK) return;
    drag.isMoved = true;
    plot.frame.card.hidden = true;
    if (drag.isMark) {
      plot.measure.set([drag.from, plot.view.time(event.offsetX)], false);
      return;
    }
    const by = dx / plot.view.scale;
    plot.view.show(drag.shownFrom - by, drag.shownTo - by);
    plot.view.scrollTo(drag.scroll - dy);
  }

  /** @param {PointerEvent} event */
  up(event) {
    const {plot, drag} = this;
    this.drag = null;
    if (!drag) return;
    if (drag.isMoved) {
      if (drag.isMark) plot.measure.set(plot.measure.range);
      return;
    }
    const hit = this.hit(event), {steps} = plot.table;
    if (hit === null) plot.choose("", -1);
    else if (hit.kind === "step") plot.measure.set([steps.start[hit.i], steps.start[hit.i] + steps.length[hit.i]]);
    else if (hit.kind === "gap") {
      const {gaps} = plot.table;
      plot.measure.set([gaps.start[hit.i], gaps.start[hit.i] + gaps.length[hit.i]]);
    } else plot.choose(hit.kind, hit.i);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    const {view, frame} = this.plot;
    const scale = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const dx = event.deltaX * scale, dy = event.deltaY * scale;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      view.zoom(Math.exp(Math.max(-1, Math.min(1, dy * 0.004))), view.time(event.offsetX));
    } else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) {
      event.preventDefault();
      view.moveBy((dx || dy) / view.scale);
    } else if (frame.root.getRootNode().activeElement === frame.canvas) {
      const was = view.scroll;
      view.scrollTo(was + dy);
      if (view.scroll !== was) event.preventDefault(); // at the end, the page scrolls on
    }
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const {plot} = this, {view} = plot;
    const act = /** @type {Record<string, () => void>} */ ({
      w: () => view.zoom(1 / ZOOM), s: () => view.zoom(ZOOM), "+": () => view.zoom(1 / ZOOM),
      "=": () => view.zoom(1 / ZOOM), "-": () => view.zoom(ZOOM),
      a: () => view.move(-MOVE), d: () => view.move(MOVE),
      ArrowLeft: () => view.move(-MOVE), ArrowRight: () => view.move(MOVE),
      ArrowUp: () => view.scrollTo(view.scroll - SCROLL), ArrowDown: () => view.scrollTo(view.scroll + SCROLL),
      0: () => view.showAll(), Home: () => view.showAll(),
      ".": () => plot.step(1), ",": () => plot.step(-1),
      f: () => { if (plot.pick?.kind === "span") plot.zoomToSpan(plot.pick.i); },
      m: () => plot.measureChoice(),
      "/": () => plot.frame.search.focus(),
      "?": () => plot.frame.toggleHelp(),
      Escape: () => (plot.frame.help.hidden ? plot.clear() : plot.frame.toggleHelp()),
    })[event.key];
    if (!act) return; // Tab and other keys without a meaning here go on to the page
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** @param {KeyboardEvent} event */
  searchKey(event) {
    const {finder, frame} = this.plot;
    event.stopPropagation();
    if (event.isComposing) return; // Enter ends a composed word, Escape takes it back
    if (event.key === "Enter") {
      event.preventDefault();
      finder.next(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      finder.clear();
      frame.canvas.focus({preventScroll: true});
    }
  }

  /** Show what the pointer in the overview points at. @param {PointerEvent} event */
  aim(event) {
    if (event.buttons !== 1) return;
    const {view} = this.plot, [low, high] = view.whole();
    const part = (event.offsetX - view.gutter) / (view.right - view.gutter);
    const middle = low + (high - low) * part;
    view.show(middle - view.length / 2, middle + view.length / 2);
  }

  /** The whole name of the lane whose name, maybe cut, is under the pointer. @param {PointerEvent} event */
  nameUnder({offsetX: x, offsetY: y}) {
    const {table, view, read} = this.plot;
    const lane = x < view.gutter && y > AXIS ? laneAt(table, view.down(y)) : -1;
    return lane < 0 ? "" : nameOf(read, lane);
  }

  /** @param {PointerEvent | null} event */
  hover(event) {
    const {plot} = this, {frame, view} = plot;
    frame.canvas.title = event ? this.nameUnder(event) : "";
    const hit = event && this.hit(event);
    frame.canvas.style.cursor = hit ? "pointer" : "default";
    plot.hovered = hit?.kind === "span" ? hit.i : null;
    plot.draw();
    if (!event || !hit) {
      frame.card.hidden = true;
      return;
    }
    const place = {x: event.offsetX, y: event.offsetY + OVERVIEW, width: view.width,
      bottom: view.height + OVERVIEW};
    frame.showCard(plot.describe(hit.kind, hit.i, hit.near), plot.colorOf(hit.kind, hit.i), place);
  }
}
