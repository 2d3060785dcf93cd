// A timeline on a canvas over the bokeh figure that carries its columns. What to draw is asked of
// data/ for each frame, so any zoom is exact.
import {download} from "../../base/js/dom.js";
import {arrange, everything, hiddenKeys} from "./data/arrange.js";
import {ghostOf} from "./data/ghost.js";
import {arrowsOf} from "./data/launches.js";
import {matching, spansOf} from "./data/search.js";
import {firstShown, isShown, neighbour} from "./data/shown.js";
import {colorOfKind, readTimeline} from "./data/table.js";
import {describe, inOneLine} from "./describe.js";
import {Events} from "./events.js";
import {Finder} from "./finder.js";
import {Frame} from "./frame.js";
import {Legend, pathInWords, saidOf} from "./legend.js";
import {Measure} from "./measure.js";
import {Names} from "./names.js";
import {ghostLine} from "./paint/ghost.js";
import {Pins} from "./pins.js";
import {Painter} from "./paint/painter.js";
import {fillsOf} from "./paint/picture.js";
import {isDark, tone, tonesNow} from "./paint/tones.js";
import {Viewport} from "./viewport.js";
import {tellPick} from "./wishes.js";

const REST = 150; // milliseconds: what is shown is told once it rests
const MOST_ARROWS = 200; // of one dispatch

/** Holds what is drawn, chosen and highlighted; the parts draw it and listen. */
export class TimelinePlot {
  /**
   * @param {any} view the view of the bokeh figure
   * @param {Record<string, any>} models those of `timeline_js_args`
   */
  constructor(view, models) {
    this.models = models;
    this.filter = everything();
    this.showsPath = false;
    this.frame = new Frame({zoom: (factor) => this.view.zoom(factor), showAll: () => this.view.showAll(),
      fit: () => this.view.fit(), save: () => this.save()});
    this.view = new Viewport(() => this.moved());
    this.painter = new Painter(this.frame.canvas, this.frame.over);
    this.finder = new Finder(this.frame.search, this.frame.hits, {changed: () => this.draw(),
      go: (kind, i) => this.go(kind, i)});
    this.legend = new Legend(this.frame.legend, this.choices());
    this.measure = new Measure(this.frame.range, models, {changed: () => this.draw(),
      names: new Names(this.frame.names, (text) => this.finder.look(text)),
      zoomTo: (from, to) => this.view.show(from, to)});
    this.pins = new Pins(this.frame.pins, models, (at) => this.goTo(at));
    this.read = readTimeline(models.timeline.data); // with all of its lanes
    this.table = this.read;
    /** @type {import("./data/ghost.js").Ghost | null} */
    this.ghost = null;
    /** @type {{kind: string, i: number} | null} */
    this.pick = null; // a span or a sync point
    /** @type {number[][]} */
    this.arrows = [];
    /** @type {import("./data/search.js").Flags | null} */
    this.lit = null; // what another view selected
    /** @type {number | null} */
    this.hovered = null;
    this.tones = tonesNow();
    this.colors = this.fills();
    this.waitingFrame = 0;
    this.telling = 0;
    this.mount(view);
    this.events = new Events(this);
    this.follow();
    this.reset();
    this.highlight();
    this.measure.obey();
    if (models.shown.data.start.length) this.obeyShown();
  }

  /** @param {any} view */
  mount(view) {
    const {root} = this.frame;
    // What bokeh drew lies under ours: neither the Tab key nor a screen reader should find it.
    for (const child of view.shadow_el.children) child.inert = true;
    view.shadow_el.append(root);
    new ResizeObserver(() => this.resize()).observe(root);
  }

  /** React to changes of the sources and of the page's theme. */
  follow() {
    const react = {timeline: () => this.load(), ghost: () => this.rearrange(),
      shown: () => this.obeyShown(), lit: () => this.highlight(),
      marked: () => this.measure.obey(), reply: () => this.measure.show(), asked: () => this.offer()};
    for (const [name, act] of Object.entries(react)) this.models[name].properties.data.change.connect(act);
    const weak = new WeakRef(this); // a cell that ran again leaves no old plot behind
    window.addEventListener("kit-theme", function dress() {
      const plot = weak.deref();
      if (plot) {
        plot.dress();
        plot.paint(); // at once: paper waits for no frame
      } else window.removeEventListener("kit-theme", dress);
    });
  }

  /** The kernel offers other things to do. */
  offer() {
    this.measure.show();
    this.pins.show(this.table);
  }

  load() {
    const before = this.read;
    this.read = readTimeline(this.models.timeline.data);
    this.reset(before.axis > 0 && this.read.axis > 0);
  }

  /** Place the lanes as the filter and the run before want it. */
  arrange() {
    const {data} = this.models.ghost;
    this.ghost = null;
    if (data["spans.key"] && this.read.n) {
      const before = readTimeline(data), {hidden} = this.filter;
      if (hidden.size) before.hidden = hiddenKeys(before, hidden);
      this.ghost = ghostOf(this.read, before, String(data.name[0]));
    }
    const rows = this.ghost?.rows;
    this.table = arrange(this.read, this.filter, (row) =>
      (rows && rows[row] >= 0 ? ghostLine(this.read.rows.height[row]) : 0));
    this.view.bottom = this.table.bottom;
    this.frame.label(this.table);
    this.legend.show(this.table, this.filter, this.ghost, this.showsPath);
    this.legend.list(this.read, this.filter);
    this.colors = this.fills();
  }

  /** Other lanes are shown of the same run; what is hidden is no longer chosen. */
  rearrange() {
    this.arrange();
    this.hovered = null;
    this.frame.card.hidden = true; // it may be of a span that is no longer under the pointer
    this.finder.take(this.table);
    if (this.pick && !isShown(this.table, this.pick)) this.choose("", -1);
    this.arrows = this.arrowsOfPick();
    this.measure.retake(this.table);
    this.resize();
  }

  /** What the legend asks for. */
  choices() {
    const {filter} = this;
    const {hidden} = filter;
    const then = (/** @type {() => void} */ act) => { act(); this.rearrange(); };
    return {
      kind: (/** @type {string} */ kind) => then(() => { if (!hidden.delete(kind)) hidden.add(kind); }),
      lanes: (/** @type {string} */ text) => then(() => { filter.text = text; }),
      idle: () => then(() => { filter.showsIdle = !filter.showsIdle; }),
      path: () => then(() => {
        this.showsPath = !this.showsPath;
        this.say();
      }),
      lane: (/** @type {string} */ name) => then(() => { if (!filter.off.delete(name)) filter.off.add(name); }),
      top: (/** @type {string} */ name) => then(() => {
        filter.top = filter.top.includes(name) ? filter.top.filter((x) => x !== name) : [...filter.top, name];
      }),
      all: () => then(() => {
        hidden.clear();
        filter.off.clear();
        filter.top = [];
        filter.text = "";
        this.legend.clear();
      }),
    };
  }

  fills() {
    return {...fillsOf(this.table), ghostFills: this.ghost ? fillsOf(this.ghost.table).fills : [],
      causes: Array.from(this.table.colors.cause_color ?? [], tone)};
  }

  /** Show the table; choices that pointed into another one are dropped.
   * @param {boolean} [isShared] it has the axis of the one before, which stays as it is */
  reset(isShared = false) {
    this.arrange();
    this.frame.card.hidden = true;
    this.pins.show(this.table);
    this.pick = this.lit = this.hovered = null;
    this.arrows = [];
    this.say();
    this.view.take(this.table, isShared);
    this.finder.take(this.table);
    this.measure.take(this.table);
    this.dress();
    this.resize();
  }

  /** Take the colours of the page's theme. */
  dress() {
    this.tones = tonesNow();
    this.colors = this.fills();
    this.legend.show(this.table, this.filter, this.ghost, this.showsPath);
    this.frame.dress(this.tones, isDark());
    this.painter.overview.reset();
    this.draw();
  }

  resize() {
    const {root} = this.frame, {figure} = this.models;
    if (!(root.clientWidth > 0)) return;
    this.view.resize(root.clientWidth);
    this.painter.resize(this.view.width, this.view.height);
    const wanted = Math.ceil(root.offsetHeight);
    if (Math.abs(figure.height - wanted) > 1) figure.setv({height: wanted}, {sync: false});
    this.paint(); // at once: a canvas that got a new size is empty
  }

  /** Another range of time is shown; others are told once it rests. */
  moved() {
    this.draw();
    clearTimeout(this.telling);
    this.telling = window.setTimeout(() => {
      const {view, models: {shown}} = this;
      const [start, stop] = view.isAsOpened ? [[], []] : [[view.shownFrom], [view.shownTo]];
      if (String(start) !== String(shown.data.start) || String(stop) !== String(shown.data.stop)) {
        shown.data = {start, stop};
      }
    }, REST);
  }

  /** Show the range that the page, the kernel or another copy of the figure has set. */
  obeyShown() {
    const {start = [], stop = []} = this.models.shown.data, {view} = this;
    if (start.length === 0) {
      if (!view.isAsOpened) view.show(...view.opening());
    } else if (start[0] !== view.shownFrom || stop[0] !== view.shownTo) view.show(start[0], stop[0]);
  }

  /** Paint with the next frame of the page. */
  draw() {
    this.waitingFrame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    if (this.waitingFrame) cancelAnimationFrame(this.waitingFrame);
    this.waitingFrame = 0;
    if (this.view.width > 0) this.painter.paint(this.picture());
  }

  /** @returns {import("./paint/picture.js").Picture} */
  picture() {
    const {table, view, tones, colors, pick, hovered, arrows, ghost} = this;
    return {table, view, ghost, showsPath: this.isPathDrawn, tones, ...colors, wait: colorOfKind(table, "wait"),
      pick, hovered, arrows, flags: this.finder.found || this.lit, mark: this.measure.range};
  }

  get isPathDrawn() {
    return this.showsPath && this.table.path.start?.length > 0;
  }

  /** Say what is chosen; without a choice, how long the critical path is that is drawn. */
  say() {
    const {pick, table} = this;
    if (pick) this.frame.say(inOneLine(this.describe(/** @type {"span" | "sync"} */ (pick.kind), pick.i)));
    else this.frame.say(this.isPathDrawn ? pathInWords(table) : "");
  }

  /** From a chosen dispatch to its kernels, or from a chosen kernel's dispatch to it, where both are shown. */
  arrowsOfPick() {
    const {table, pick} = this;
    if (pick?.kind !== "span") return [];
    return arrowsOf(table, pick.i, MOST_ARROWS).filter((pair) => pair.every((i) => isShown(table, {kind: "span", i})));
  }

  save() {
    const {table, filter, ghost, isPathDrawn} = this;
    this.painter.picture(saidOf(table, filter, ghost, isPathDrawn), this.tones)
      .toBlob((blob) => { if (blob) download("timeline.png", blob); });
  }

  /**
   * @param {"span" | "sync" | "step" | "gap"} kind
   * @param {number} i
   * @param {number} [near]
   */
  describe(kind, i, near = 1) {
    return describe(this.table, kind, i, near);
  }

  /** The colour that stands for a thing. @param {string} kind @param {number} i */
  colorOf(kind, i) {
    if (kind === "gap") return this.colors.causes[this.table.gaps.cause[i]];
    if (kind === "span") return this.colors.fills[this.table.key[i]];
    return kind === "sync" ? colorOfKind(this.table, "wait") : this.tones.edge;
  }

  /**
   * @param {"span" | "sync" | ""} kind
   * @param {number} i -1 for nothing
   * @param {boolean} [tell] let the other views know
   */
  choose(kind, i, tell = true) {
    const isAny = kind !== "" && i >= 0;
    this.pick = isAny ? {kind, i} : null;
    this.arrows = this.arrowsOfPick();
    this.say();
    if (tell) tellPick(this.models, isAny ? kind : "", isAny ? i : -1);
    this.draw();
  }

  /** Choose a thing and show it. @param {"span" | "sync"} kind @param {number} i */
  go(kind, i) {
    this.choose(kind, i);
    if (kind === "span") this.view.revealSpan(this.table, i);
    else this.view.revealSync(this.table, i);
  }

  /** Go to the next span that is shown; without a choice, to the first one on the screen.
   * @param {number} by */
  step(by) {
    const {table, view, pick} = this;
    const i = pick?.kind === "span" ? neighbour(table, pick.i, by) : firstShown(table, view.shownFrom, view.shownTo);
    if (i >= 0) this.go("span", i);
  }

  /** Show a time without another zoom. @param {number} at */
  goTo(at) {
    const half = this.view.length / 2;
    this.view.show(at - half, at + half);
  }

  /** @param {number} i */
  zoomToSpan(i) {
    this.view.zoomTo(this.table.start[i], this.table.stop[i]);
  }

  /** Measure what is chosen; without a choice, all that is shown. */
  measureChoice() {
    const {table: {start, stop, syncs, end}, view, pick} = this;
    if (pick?.kind === "span") this.measure.set([start[pick.i], stop[pick.i]]);
    else if (pick) this.measure.set([syncs.at[pick.i], syncs.at[pick.i] + syncs.wait[pick.i]]);
    else this.measure.set([Math.max(view.shownFrom, 0), Math.min(view.shownTo, end)]);
  }

  clear() {
    this.frame.help.hidden = true;
    this.finder.clear();
    this.measure.set(null);
    this.choose("", -1);
  }

  /** Light up what another view selected: `lit` has {nodes: "1 2", sites: "a.py:1\\nb.py:2", label}. */
  highlight() {
    const {nodes = [""], sites = [""]} = this.models.lit.data;
    const selection = {nodes: new Set((nodes[0] || "").split(" ").filter(Boolean).map(Number)),
      sites: new Set(/** @type {string[]} */ ((sites[0] || "").split("\n").filter(Boolean)))};
    this.lit = selection.nodes.size + selection.sites.size > 0 ? matching(this.table, selection) : null;
    const [answered, clicks] = ["lit", "picked"].map((name) => (this.models[name].data.serial ?? [0])[0]);
    const isLate = answered < clicks; // it answers an older choice
    if (this.lit && this.pick && !isLate && !this.isLit(this.pick)) this.choose("", -1, false);
    if (this.lit && this.pick === null) this.revealLit(this.lit);
    this.draw();
  }

  /** @param {{kind: string, i: number}} pick */
  isLit({kind, i}) {
    return Boolean(kind === "span" ? this.lit?.lit[this.table.key[i]] : this.lit?.marks[i]);
  }

  /** Nothing that matches is on the screen: show the first that does.
   * @param {import("./data/search.js").Flags} flags */
  revealLit({lit, marks}) {
    const {table, view} = this, {at, wait} = table.syncs;
    const spans = spansOf(table, lit);
    const syncs = [...marks.keys()].filter((i) => marks[i]);
    const isOn = (/** @type {number} */ from, /** @type {number} */ to) =>
      to >= view.shownFrom && from <= view.shownTo;
    if (spans.some((i) => isOn(table.start[i], table.stop[i]))
        || syncs.some((i) => isOn(at[i], at[i] + wait[i]))) return;
    if (spans.length > 0) view.revealSpan(table, spans[0]);
    else if (syncs.length > 0) view.revealSync(table, syncs[0]);
  }
}
