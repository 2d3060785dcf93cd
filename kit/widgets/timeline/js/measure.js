// The range of time that is measured, and the card that says what it holds.
import {element, refill} from "../../base/js/dom.js";
import {formatNs, formatPercent, plural} from "../../base/js/format.js";
import {rangeMetrics} from "./data/metrics.js";
import {askFor, drawingOf, offered} from "./wishes.js";

const MOST_DEVICES = 8; // with a row each

export class Measure {
  /**
   * @param {HTMLElement} card
   * @param {Record<string, any>} models sources of bokeh: `marked` has the range, `reply` what the
   *   kernel says of it
   * @param {{changed: () => void, zoomTo: (from: number, to: number) => void,
   *   names: import("./names.js").Names}} act
   */
  constructor(card, models, act) {
    this.card = card;
    this.names = act.names;
    this.models = models;
    this.act = act;
    /** @type {import("./data/table.js").Table | null} */
    this.table = null;
    /** @type {[number, number] | null} */
    this.range = null;
    this.field = this.fieldOfPin();
    // One for all drawings: an answer of the kernel must not take what is half typed.
    this.pinning = element("div", {class: "wish"}, this.field,
      element("button", {type: "button", onclick: () => this.pin()}, "pin"));
  }

  /** @param {import("./data/table.js").Table} table */
  take(table) {
    this.table = table;
    this.set(null, false);
  }

  /** Other lanes are shown of the same table. @param {import("./data/table.js").Table} table */
  retake(table) {
    this.table = table;
    this.show();
  }

  /** @param {number[] | null} range @param {boolean} [tell] let the kernel know */
  set(range, tell = true) {
    const [from, to] = range ? [Math.min(...range), Math.max(...range)] : [0, 0];
    this.range = to - from < 1 ? null : [from, to];
    this.field.value = "";
    if (tell) {
      this.models.marked.data = this.range ? {start: [from], stop: [to], drawing: drawingOf(this.models)}
        : {start: [], stop: [], drawing: []};
    }
    this.show();
    this.act.changed();
  }

  /** Take the range that the kernel, or another copy of the figure, has set. */
  obey() {
    const {start = [], stop = [], drawing = []} = this.models.marked.data;
    const isMine = !drawing.length || drawing[0] === drawingOf(this.models)[0];
    const range = start.length && isMine ? [start[0], stop[0]] : null;
    if (String(range) !== String(this.range)) this.set(range, false);
  }

  show() {
    const {card, range, table} = this;
    card.hidden = range === null;
    this.names.show(table, range);
    if (range === null || table === null) return;
    const [from, to] = range;
    const close = element("button", {type: "button", "aria-label": "clear the range",
      onclick: () => this.set(null)}, "×");
    const zoom = element("button", {type: "button", onclick: () => this.act.zoomTo(from, to)}, "zoom to it");
    const {text: [said] = [""], of: [of] = [""]} = this.models.reply.data;
    const told = of === range.map(Math.round).join("|") ? said : of && "idle by cause\tis being asked for";
    const lines = table.parts.label.flatMap((/** @type {string} */ label, /** @type {number} */ part) => {
      const cells = rowsOf(table, from, to, part, part === 0 ? told : "").map(([name, text]) =>
        element("div", {}, element("span", {}, name), text));
      return label ? [element("div", {class: "part"}, label), ...cells] : cells;
    });
    refill(card, element("div", {class: "bar"}, element("b", {}, formatNs(to - from)),
      zoom, close), ...lines, ...this.wishes());
  }

  /** What a kernel does with the range: nobody hears it in a page without one. @returns {HTMLElement[]} */
  wishes() {
    const can = offered(this.models);
    const ask = (/** @type {string} */ what, text = "") => askFor(this.models, what, text);
    const made = [];
    if (can.includes("step")) {
      made.push(element("div", {class: "wish"}, element("button", {type: "button",
        title: "read the trace again with this range as its step", onclick: () => ask("step")}, "use as the step")));
    }
    if (can.includes("pin")) made.push(this.pinning);
    return made;
  }

  /** @returns {HTMLInputElement} */
  fieldOfPin() {
    const field = element("input", {type: "text", maxlength: "1000", placeholder: "text to pin to its begin",
      "aria-label": "text to pin to the begin of the range"});
    for (const event of ["keydown", "keyup"]) {
      field.addEventListener(event, (/** @type {KeyboardEvent} */ pressed) => {
        pressed.stopPropagation();
        const isEnter = pressed.key === "Enter" && !pressed.isComposing; // else it ends a composed word
        if (event === "keydown" && isEnter) this.pin();
      });
    }
    return field;
  }

  pin() {
    const text = this.field.value;
    if (!text.trim()) return;
    this.field.value = "";
    askFor(this.models, "pin", text);
  }
}

/**
 * Rows of [name, text] about a range of one part.
 * @param {import("./data/table.js").Table} table
 * @param {number} from
 * @param {number} to
 * @param {number} part
 * @param {string} told what the kernel says of idle time, where the columns do not have it
 * @returns {string[][]}
 */
export function rowsOf(table, from, to, part, told) {
  const metrics = rangeMetrics(table, from, to, part);
  const percent = (/** @type {number} */ ns, /** @type {number} */ whole) =>
    (whole > 0 ? formatPercent(ns / whole) : "-");
  const most = table.count === null ? "" : "at most "; // joined spans cover the pauses between them
  const rows = metrics.devices.slice(0, MOST_DEVICES).map(([name, ns]) =>
    [`${name} busy`, `${most}${percent(Number(ns), to - from)}, ${formatNs(Number(ns))}`]);
  const rest = metrics.devices.slice(MOST_DEVICES).map(([, ns]) => Number(ns));
  if (rest.length) {
    const [least, longest] = [Math.min(...rest), Math.max(...rest)];
    rows.push([`${plural(rest.length, "more device")} busy`,
      `${most}${percent(least, to - from)} to ${percent(longest, to - from)} each`]);
  }
  const {recording, hidden} = metrics;
  if (recording > 0 && metrics.devices.length && table.count === null && !Number.isNaN(hidden)) {
    rows.push(["recording hidden", `${percent(hidden, recording)} of ${formatNs(recording)}`]);
  }
  rows.push(["sync points", metrics.waits ? `${metrics.waits}, ${formatNs(metrics.waited)} waited` : "none"]);
  const idle = metrics.isOfMany ? "idle, all devices" : "idle";
  for (const [cause, ns] of metrics.idle) rows.push([`${idle}: ${cause}`, formatNs(ns)]);
  if (!metrics.knowsIdle && !table.parts.outline[part]) {
    if (told) rows.push(...told.split("\n").map((line) => line.split("\t")));
    else rows.push(["idle by cause", "too many kernels to say so here"]);
  }
  return rows;
}
