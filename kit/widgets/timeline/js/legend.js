// Under a timeline: the kinds of span, each of which a click hides; what else can be shown or left out.
import {closeByEscape, element, refill} from "../../base/js/dom.js";
import {formatNs, plural} from "../../base/js/format.js";
import {legendKind, nameOf} from "./data/arrange.js";
import {tone} from "./paint/tones.js";

/** @typedef {import("./data/table.js").Table} Table */

export class Legend {
  /** @param {HTMLElement} root @param {{kind: (kind: string) => void, lanes: (text: string) => void,
   *   idle: () => void, path: () => void, all: () => void, lane: (name: string) => void,
   *   top: (name: string) => void}} act */
  constructor(root, act) {
    this.kinds = element("span", {class: "kinds"});
    this.act = act;
    this.lanes = element("input", {type: "search", placeholder: "lanes by name", spellcheck: "false",
      "aria-label": "show only lanes with these words in their name",
      oninput: () => act.lanes(this.lanes.value)});
    for (const event of ["keydown", "keyup"]) {
      this.lanes.addEventListener(event, (/** @type {Event} */ pressed) => pressed.stopPropagation());
    }
    this.idle = toggle("why idle", act.idle);
    this.path = toggle("critical path", act.path);
    this.all = element("button", {type: "button", onclick: act.all}, "show all lanes");
    this.listed = element("div", {class: "lanes", hidden: "", role: "group", "aria-label": "lanes"});
    this.chooser = element("button", {type: "button", "aria-expanded": "false",
      title: "hide lanes, or put them first", onclick: () => this.toggleList()}, "lanes …");
    closeByEscape([this.chooser, this.listed], this.listed, () => {
      this.chooser.focus();
      this.toggleList();
    });
    root.append(this.kinds, element("span", {class: "tools"}, this.lanes, this.chooser, this.idle, this.path,
      this.all), this.listed);
  }

  toggleList() {
    this.listed.hidden = !this.listed.hidden;
    this.chooser.setAttribute("aria-expanded", String(!this.listed.hidden));
  }

  /** Each lane with a box that hides it and a button that puts it first.
   * @param {Table} table with all lanes @param {import("./data/arrange.js").Filter} filter */
  list(table, {off, top}) {
    const names = [...new Set(Array.from(table.lanes.label, (_, lane) => nameOf(table, lane)))];
    refill(this.listed, ...names.map((name) => element("div", {},
      element("label", {}, element("input", {type: "checkbox", checked: !off.has(name), "data-act": `show ${name}`,
        onchange: () => this.act.lane(name)}), name),
      element("button", {type: "button", "aria-pressed": String(top.includes(name)), "data-act": `top ${name}`,
        "aria-label": `put first: ${name}`, onclick: () => this.act.top(name)}, "put first"))));
  }

  /** @param {Table} table @param {import("./data/arrange.js").Filter} filter
   * @param {import("./data/ghost.js").Ghost | null} ghost @param {boolean} showsPath */
  show(table, filter, ghost, showsPath) {
    refill(this.kinds, ...kindsOf(table).map(([kind, color, label]) => {
      const swatch = element("i");
      swatch.style.background = color;
      return element("button", {type: "button", "aria-pressed": String(!filter.hidden.has(kind)),
        "data-act": kind, title: "hide or show", onclick: () => this.act.kind(kind)}, swatch, label);
    }), ...causesOf(table).map(([color, label]) => {
      const swatch = element("i");
      swatch.style.backgroundColor = tone(color);
      return element("span", {class: "idle"}, swatch, label);
    }), ...(ghost ? [ghostLegend(ghost)] : []));
    press(this.idle, filter.showsIdle, table.gaps.start.length ? "" : "no idle time is known here");
    press(this.path, showsPath, table.path.start?.length ? ""
      : "not known here: no step was traced, or there are very many spans");
    this.all.hidden = !(table.leftOut || filter.hidden.size || filter.top.length);
    this.all.textContent = table.leftOut ? `show all (${plural(table.leftOut, "lane")} hidden)`
      : filter.hidden.size ? "show all kinds" : "lanes in their own order";
  }

  clear() {
    this.lanes.value = "";
  }
}

/** @param {string} text @param {() => void} onclick */
function toggle(text, onclick) {
  return element("button", {type: "button", "aria-pressed": "false", onclick}, text);
}

/** @param {any} button @param {boolean} isOn @param {string} why it cannot be pressed; "" if it can */
function press(button, isOn, why) {
  button.setAttribute("aria-pressed", String(isOn));
  button.disabled = why !== "";
  button.title = why;
}

/** @param {import("./data/ghost.js").Ghost} ghost */
function ghostLegend(ghost) {
  return element("span", {class: "ghost"}, element("i"), ghostInWords(ghost));
}

/** @param {import("./data/ghost.js").Ghost} ghost */
function ghostInWords({name, missing}) {
  const lost = missing ? `; ${missing} of its lanes ${missing === 1 ? "is" : "are"} not here` : "";
  return `pale line under a bar: ${name}${lost}`;
}

/**
 * All that is said of what is drawn, for a picture that stands without the page.
 * @param {Table} table
 * @param {import("./data/arrange.js").Filter} filter
 * @param {import("./data/ghost.js").Ghost | null} ghost
 * @param {boolean} showsPath
 * @returns {import("./paint/saved.js").Said}
 */
export function saidOf(table, filter, ghost, showsPath) {
  const [shown, hidden] = [false, true].map((is) => kindsOf(table).filter(([kind]) => filter.hidden.has(kind) === is));
  const keys = [...shown.map(([, color, label]) => [color, label]), ...causesOf(table),
    ...(ghost ? [["", ghostInWords(ghost)]] : [])];
  const left = [...hidden.map(([, , label]) => label), ...(table.leftOut ? [plural(table.leftOut, "lane")] : [])];
  const notes = [table.note, showsPath ? pathInWords(table) : "", left.length ? `Not shown: ${left.join(", ")}.` : ""];
  return {title: table.title, notes: notes.filter(Boolean), keys};
}

/** The causes of idle time, while rows say it: [colour, label]. @param {Table} table @returns {string[][]} */
export function causesOf({colors, gaps, idle}) {
  const causes = idle.length ? [...new Set(Array.from(gaps.cause, Number))] : [];
  return causes.map((cause) => [colors.cause_color[cause], `idle: ${colors.causes[cause]}`]);
}

/** The kinds of span that there are: [kind, colour, label]. @param {Table} table @returns {string[][]} */
function kindsOf(table) {
  const {keys, colors, syncs} = table;
  const kinds = new Set(Array.from(keys.kind, (_, k) => legendKind(table, k)));
  if (syncs.at.length > 0) kinds.add("wait");
  return colors.kind.flatMap((/** @type {string} */ kind, /** @type {number} */ i) =>
    (kinds.has(kind) ? [[kind, colors.color[i], colors.label[i]]] : []));
}

/** @param {Table} table @returns {string} how long the critical path is, and of what */
export function pathInWords({path}) {
  const work = new Map();
  Array.from(path.kind, (kind, i) => work.set(kind, (work.get(kind) ?? 0) + Number(path.work[i])));
  const parts = [...work].filter(([, ns]) => ns > 0).sort((a, b) => b[1] - a[1]);
  const whole = parts.reduce((sum, [, ns]) => sum + ns, 0);
  return `Critical path, the longest chain of work that waits for each other: ${formatNs(whole)}: `
    + parts.map(([kind, ns]) => `${kind} ${formatNs(ns)}`).join(", ");
}
