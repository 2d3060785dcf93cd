// The report's page: controls choose a recorded run, and everything is redrawn from its block.
import {element} from "../../widgets/base/js/dom.js";
import {goToRow, markRows, NOTHING, pickedIn} from "../../widgets/base/js/listing.js";
import {drawGraph, highlightGraph, onGraphPick, openGroups, setOpenGroups} from "../../widgets/graph/js/page.js";
import {drawTimeline, highlightTimeline, onTimelinePick} from "../../widgets/timeline/js/page.js";
import {missingText, movedText, nearest, settingsAt} from "./grid.js";
import {Address, readAddress, writeAddress} from "./link.js";
import {sweepCharts, WIDE} from "./sweep.js";

/** @typedef {import("../../widgets/base/js/listing.js").Selection} Selection */

/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);

/** @param {Selection} selection as `selection_text` in kit/widgets/explorer/linked.py */
function inWords({nodes, sites, label}) {
  const ops = nodes.size ? `${nodes.size.toLocaleString("en")} op${nodes.size > 1 ? "s" : ""}` : "no ops";
  const where = sites.size > 1 ? `on ${sites.size} lines` : sites.size ? `at ${[...sites][0]}` : "";
  return [sites.has(label) || !label ? "" : `${label}:`, ops, where].filter(Boolean).join(" ");
}

/** @param {Selection} a @param {Selection} b */
function isSame(a, b) {
  const isEqual = (/** @type {Set<any>} */ x, /** @type {Set<any>} */ y) =>
    x.size === y.size && [...x].every((e) => y.has(e));
  return isEqual(a.nodes, b.nodes) && isEqual(a.sites, b.sites);
}

/** The packed blocks of a page, one for each run; those that were shown stay unpacked. */
class Blocks {
  constructor() {
    /** @type {Map<number, any>} */
    this.blocks = new Map();
    /** @type {any[]} */
    this.pool = []; // columns that the graphs of several runs share
  }

  /** @param {number} i @returns {Promise<any>} */
  async get(i) {
    if (!this.pool.length) this.pool = await (await unpacked("pool")).json();
    if (!this.blocks.has(i)) this.blocks.set(i, await (await unpacked(`run-${i}`)).json());
    return this.blocks.get(i);
  }

  /** The graph of a run, its columns taken out of the pool. @param {any} state */
  scene(state) {
    const columns = (/** @type {Record<string, number>} */ of) =>
      Object.fromEntries(Object.entries(of).map(([name, n]) => [name, this.pool[n]]));
    return {...state, ...columns(state.parts), rows: columns(state.rows)};
  }
}

/** What the page shows: one run, and one selection in all views. */
class Report {
  /** @param {import("./grid.js").Index} index */
  constructor(index) {
    this.index = index;
    this.blocks = new Blocks();
    this.wanted = [...index.cells[index.first].at];
    this.shown = -1;
    this.beside = index.beside ?? -1; // the run that the shown one is compared with
    this.ticket = 0; // the newest choice wins: an older one that unpacks late is dropped
    this.selected = NOTHING;
    /** @type {(() => void)[]} */
    this.controls = []; // each shows what is wanted
    this.link = new Address({write: () => this.address(), open: (text) => this.open(text)});
  }

  /** The models of a figure, by name. @param {string} which @returns {Record<string, any>} */
  models(which) {
    /** @type {Record<string, any>} */
    const found = {};
    for (const [name, id] of Object.entries(this.index.models[which])) {
      for (const doc of Bokeh.documents) found[name] ??= doc.get_model_by_id(id);
    }
    return found;
  }

  /** The address of what is shown. */
  address() {
    const {marked, shown} = this.models("timeline"), {nodes, sites, label} = this.selected;
    const pair = (/** @type {any} */ {data: {start, stop}}) => (start.length ? [start[0], stop[0]] : null);
    return writeAddress(this.index.axes, {at: this.wanted, beside: this.beside, looked: {shown: pair(shown),
      range: pair(marked), nodes: [...nodes], sites: [...sites], label, open: openGroups(this.models("graph"))}});
  }

  /** Show what an address says. @param {string} text what stands after the # */
  async open(text) {
    const {at, beside, looked} = readAddress(this.index, text), timeline = this.models("timeline");
    this.shown = -1;
    this.beside = beside;
    if (!await this.moveTo(at)) return;
    const columns = (/** @type {number[] | null} */ pair) =>
      (pair ? {start: [pair[0]], stop: [pair[1]]} : {start: [], stop: []});
    if (looked.open.length || openGroups(this.models("graph")).length) {
      setOpenGroups(this.models("graph"), looked.open);
    }
    this.select({nodes: new Set(looked.nodes), sites: new Set(looked.sites), label: looked.label});
    timeline.shown.data = columns(looked.shown);
    timeline.marked.data = columns(looked.range);
  }

  /** @param {Selection} picked */
  select(picked) {
    this.selected = picked;
    this.link.changed();
    highlightTimeline(this.models("timeline"), picked);
    highlightGraph(this.models("graph"), picked);
    for (const part of this.index.parts) markRows(byId(part), picked);
    byId("selected").hidden = !(picked.nodes.size || picked.sites.size);
    byId("selected").firstElementChild.textContent = `selected: ${inWords(picked)}`;
  }

  listen() {
    const select = (/** @type {Selection} */ picked) => this.select(picked);
    onTimelinePick(this.models("timeline"), select);
    onGraphPick(this.models("graph"), select);
    const onRow = (/** @type {Event} */ event) => {
      goToRow(event);
      const picked = pickedIn(event);
      if (picked) select(isSame(picked, this.selected) ? NOTHING : picked);
    };
    for (const part of this.index.parts) {
      for (const kind of ["click", "keydown"]) byId(part).addEventListener(kind, onRow);
    }
    const {marked, shown} = this.models("timeline"), {state} = this.models("graph");
    for (const {properties: {data}} of [marked, shown]) data.change.connect(() => this.link.changed());
    state.properties.tags.change.connect(() => this.link.changed());
    for (const {page} of WIDE) {
      matchMedia(page).addEventListener("change", () => { if (this.shown >= 0) this.drawSweep(); });
    }
    byId("link").addEventListener("click", () => this.link.copy(byId("link"), byId("address")));
    byId("selected").querySelector("button").addEventListener("click", () => select(NOTHING));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.selected !== NOTHING) select(NOTHING);
    });
  }

  /** Show the run that is nearest to the wanted settings.
   * @returns {Promise<boolean>} false if something else is wanted by now, or it cannot be read */
  async show() {
    const {cells, parts} = this.index;
    const mine = ++this.ticket, i = nearest(cells, this.wanted);
    const beside = this.shown >= 0 && this.shown !== i ? this.shown : this.beside;
    const data = await this.blocks.get(i).catch((error) => this.sayDamaged(mine, i, error));
    const under = beside >= 0 && beside !== i ? await this.blocks.get(beside).catch(() => null) : null;
    if (mine !== this.ticket || !data) return false;
    [this.shown, this.beside] = [i, beside];
    for (const part of parts) {
      byId(part).innerHTML = data.views[part]; // made and escaped by kit, never taken from a run as it is
    }
    this.sayStatus(i, data.changes);
    this.select(NOTHING);
    drawTimeline(data.views.timeline, this.models("timeline"),
      under && {payload: under.views.timeline, name: this.besideIs(i)});
    drawGraph(this.models("graph"), data.scene ??= this.blocks.scene(data.views.graph));
    this.drawSweep();
    document.documentElement.dataset.shown = String(i);
    return true;
  }

  drawSweep() {
    byId("sweep").replaceChildren(...sweepCharts(this.index, this.index.cells[this.shown]));
  }

  /** A block of the file cannot be unpacked: what is shown is still of another run.
   * @param {number} mine the choice that asked for it @param {number} i the run @param {unknown} error */
  sayDamaged(mine, i, error) {
    if (mine !== this.ticket) return;
    const {axes, cells} = this.index;
    const name = (/** @type {number} */ n) => settingsAt(axes, cells[n].at) || "the run";
    const still = this.shown >= 0 ? `What you see is still ${name(this.shown)}.` : "What you see is not of it.";
    byId("status").replaceChildren(element("span", {class: "missing", title: String(error)},
      `Damaged: this file's block of ${name(i)} cannot be unpacked. ${still} Write the report again.`));
  }

  /** What changed since the run beside it: in a sentence, and on each card of the headline.
   * @param {number} i the run that is shown now
   * @param {{said?: string, told?: boolean, cards?: Record<string, string>}[]} changes since each other run;
   *   told: something is told from noise */
  sayStatus(i, changes) {
    const {index: {axes, cells, first, beside: best}, beside} = this;
    const missing = missingText(axes, cells[i], this.wanted);
    const change = (beside >= 0 && beside !== i && changes[beside]) || {};
    for (const slot of byId("headline").querySelectorAll("[data-change]")) {
      slot.innerHTML = change.cards?.[slot.dataset.change] ?? ""; // made by kit, like the cards
    }
    const isOpening = i === first && beside === best;
    const where = axes.length && beside >= 0 ? movedText(axes, cells[beside].at, cells[i].at) : "";
    const head = isOpening ? `Beside ${this.index.besideName} (${settingsAt(axes, cells[Math.max(beside, 0)].at)}): `
      : `${where || "Since the run before"}: `;
    byId("status").replaceChildren(...(missing ? [element("span", {class: "missing"}, missing)] : []),
      ...(change.said ? [head, element(change.told ? "b" : "span", {}, change.said), "."] : []),
      ...(isOpening && change.said ? [" ", this.showButton(beside)] : []));
  }

  /** What the run beside this one is called. @param {number} i */
  besideIs(i) {
    const {first, beside, besideName} = this.index;
    return i === first && this.beside === beside ? String(besideName) : "the run before";
  }

  /** A button that moves the controls to another run. @param {number} i */
  showButton(i) {
    return element("button", {type: "button", onclick: () => this.moveTo(this.index.cells[i].at)}, "Show that run");
  }

  /** Set all controls at once. @param {number[]} at */
  moveTo(at) {
    this.wanted = [...at];
    for (const control of this.controls) control();
    return this.show();
  }

  /** @param {import("./grid.js").Axis} axis @param {number} k */
  control(axis, k) {
    const name = element("span", {}, `${axis.label}: `);
    const value = element("output", {}, axis.values[this.wanted[k]]);
    const input = axis.number
      ? element("input", {type: "range", name: axis.name, min: 0, max: axis.values.length - 1, step: 1})
      : element("select", {name: axis.name}, ...axis.values.map((text, n) => new Option(text, String(n))));
    const say = () => {
      value.textContent = axis.values[this.wanted[k]];
      input.setAttribute("aria-valuetext", value.textContent);
    };
    if (axis.number) {
      name.append(value);
      input.setAttribute("aria-label", axis.label); // the <label> belongs to the <output>, its first
    }
    this.controls.push(() => {
      input.value = this.wanted[k];
      if (axis.number) say();
    });
    this.controls[this.controls.length - 1]();
    input.addEventListener("input", () => {
      this.wanted[k] = Number(input.value);
      if (axis.number) say();
      this.show();
    });
    return element("label", {}, name, input);
  }
}

/** Begin as soon as bokeh has made the figures. */
export function startReport() {
  const report = new Report(JSON.parse(byId("index").textContent));
  const start = () => {
    if (!window.Bokeh?.documents.length || !report.models("graph").boxes) {
      setTimeout(start, 20);
      return;
    }
    window.kitReport = report;
    new ResizeObserver(([{target}]) => document.documentElement.style.setProperty("--controls",
      `${/** @type {HTMLElement} */ (target).offsetHeight}px`)).observe(byId("controls"));
    byId("controls").append(...report.index.axes.map((axis, k) => report.control(axis, k)));
    byId("controls").addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
    report.listen();
    report.open(location.hash);
  };
  start();
}
