// The row of controls above a graph: search, colours, buttons, and a line about what is selected.
import {element, refill} from "../../base/js/dom.js";
import {formatCount, plural} from "../../base/js/format.js";
import css from "./graph.css";
import {keysOf} from "./legend.js";
import {panelOf} from "./panel.js";

export const KEYS_HELP = "Keys: + and − zoom, arrows move, 0 shows all, n and p go from box to box, Enter opens "
  + "or selects, Esc closes, / finds. Shift and a click, or Shift and Enter, select a whole group.";
const HINT = "▸ click opens a group, shift + click selects it · keys + − 0 n p Enter Esc";
const COLOR_BY = ["phase", "segment", "time", "memory", "dtype"];

/** @typedef {import("./graph.js").KitGraph} Graph */

export class Bar {
  /** @param {Graph} graph */
  constructor(graph) {
    this.graph = graph;
    this.select = element("select", {"aria-label": "colour by",
      onchange: () => graph.setColorBy(this.select.value)});
    this.input = element("input", {type: "search", placeholder: "find op, line, module",
      "aria-label": "find in the graph", oninput: () => graph.find(this.input.value)});
    this.found = element("output", {"aria-live": "polite"});
    this.line = element("div", {class: "kit-graph-line", "aria-live": "polite"});
    this.at = element("div", {class: "kit-graph-at", "aria-live": "polite"}); // the ring, for ears
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act) =>
      element("button", {type: "button", title: label, "aria-label": label,
        onclick: () => { if (graph.scene) act(); }}, text);
    // Where a row is too short, a group goes to the next one whole.
    const group = (/** @type {(Node | string)[]} */ ...parts) => element("span", {class: "kit-graph-group"}, ...parts);
    this.panel = element("div", {class: "kit-graph-panel", hidden: "", role: "region", "aria-label": "the picked op"});
    this.root = element("div", {class: "kit-graph-bar", role: "toolbar", "aria-label": "graph"},
      element("style", {}, css),
      group(this.input, button("↑", "previous found", () => graph.nextHit(-1)),
        button("↓", "next found", () => graph.nextHit(1)), this.found,
        element("label", {}, "colour by", this.select)),
      group(button("−", "zoom out", () => graph.zoom(0.8)), button("+", "zoom in", () => graph.zoom(1.25)),
        button("all", "show all of the graph", () => graph.showAll()),
        button("collapse", "collapse all groups", () => graph.setOpen([])),
        button("SVG", "save the picture as SVG", () => graph.saveSvg()),
        button("DOT", "save the visible boxes as DOT", () => graph.saveDot())),
      this.line, this.at, this.panel);
    /** @type {[import("./columns.js").Picture, number] | null} */
    this.said = null;
    const weak = new WeakRef(this); // a cell that ran again leaves no old bar behind
    window.addEventListener("kit-theme", function recolor() {
      const bar = weak.deref();
      if (bar?.said) bar.say(...bar.said);
      else if (!bar) window.removeEventListener("kit-theme", recolor);
    });
  }

  /** Offer what the scene has. */
  offer() {
    const {scene, colorBy} = this.graph;
    const names = scene?.hasChanges ? [...COLOR_BY, "change"] : COLOR_BY;
    this.select.replaceChildren(...names.map((name) =>
      element("option", {value: name, selected: name === colorBy}, name)));
    this.root.style.display = scene?.count ? "" : "none";
  }

  clearSearch() {
    this.input.value = "";
    this.graph.find("");
  }

  /** Say what is found, what is selected and what cannot be seen.
   * @param {import("./columns.js").Picture} picture @param {number} dropped boxes that are not drawn */
  say(picture, dropped) {
    this.said = [picture, dropped];
    const {search, sides, chosen, colorBy} = this.graph;
    const position = search.at >= 0 ? `${formatCount(search.at + 1)} of ` : "";
    this.found.textContent = search.hits.length ? `${position}${formatCount(search.hits.length)}`
      : search.query.trim() ? "none" : "";
    if (this.select.value !== colorBy) this.select.value = colorBy;
    const parts = chosen.size ? this.selectionLine(picture)
      : [legendOf(picture), element("span", {class: "kit-graph-hint", title: KEYS_HELP}, HINT)];
    if (sides.length) {
      parts.push(element("b", {style: "font-weight:600"}, `more ${sides.join(" and ")}: drag, or press “all”`));
    }
    if (dropped) parts.push(`not drawn: ${plural(dropped, "small box", "small boxes")}; zoom in`);
    refill(this.line, ...parts);
    this.at.textContent = this.cursorLine(picture);
    this.showPanel(picture.scene);
  }

  /** The box that the keyboard is at, in words. @param {import("./columns.js").Picture} picture */
  cursorLine({scene, placed, cursor}) {
    if (cursor < 0) return "";
    return [scene.text("label", cursor), scene.text("sub", cursor), placed.frames.has(cursor) ? "open" : ""]
      .filter(Boolean).join(", ");
  }

  /** What is known of the one op that is picked, over the half without its box.
   * @param {import("./scene.js").Scene} scene */
  showPanel(scene) {
    const {chosen} = this.graph, row = chosen.size === 1 ? [...chosen][0] : -1;
    this.panel.hidden = row < 0;
    if (row < 0) return;
    const [x, , w] = this.graph.rectAround(row), {left, right} = this.graph.camera.window;
    this.panel.classList.toggle("kit-graph-left", x + w / 2 > (left + right) / 2);
    refill(this.panel, element("button", {type: "button", "aria-label": "close", title: "select nothing (Esc)",
      onclick: () => this.graph.unpick()}, "×"), element("b", {}, scene.text("label", row)),
    element("dl", {}, ...panelOf(scene, row).flatMap(([name, text]) =>
      [element("dt", {}, name), element("dd", {}, text)])));
  }

  /** @param {import("./columns.js").Picture} picture @returns {any[]} */
  selectionLine({placed}) {
    const {graph} = this, {chosen, path, pathName} = graph;
    const hidden = [...chosen].filter((i) => placed.owner[i] !== i).length;
    const button = (/** @type {string} */ text, /** @type {string} */ title, /** @type {() => void} */ act,
      /** @type {Record<string, string>} */ more = {}) =>
      element("button", {type: "button", title, onclick: act, ...more}, text);
    const parts = [element("b", {style: "color:var(--kit-ink, #1f2933)"}, graph.chosenLabel || "selected"),
      `${plural(chosen.size, "op")}${hidden ? `, ${formatCount(hidden)} in closed groups` : ""}`,
      button("show in graph", "open the groups around it and go there",
        () => graph.reveal([...chosen].slice(0, 200)))];
    for (const name of ["inputs", "outputs"]) {
      parts.push(button(`path to ${name}`, `everything on the way to the ${name}`, () => graph.trace(name),
        {"aria-pressed": String(pathName === name)}));
    }
    parts.push(button("clear", "select nothing (Esc)", () => graph.unpick()));
    if (pathName) parts.push(`${plural(path.size, "op")} on the way to its ${pathName}`);
    return parts;
  }
}

/** What the colours mean. @param {import("./columns.js").Picture} picture */
function legendOf(picture) {
  const twin = (/** @type {string} */ color) => window.kitPage?.twin(color) ?? color;
  const keys = keysOf(picture).map(({color, text, stops}) => {
    if (!color) return text;
    if (!stops) return element("span", {class: "kit-graph-key"}, element("i", {style: `background:${twin(color)}`}), text);
    const places = stops.map(([at, shade]) => `${twin(shade)} ${100 * at}%`).join();
    return element("span", {class: "kit-graph-key"}, "0", element("i", {class: "kit-graph-ramp",
      style: `background:linear-gradient(90deg,${places})`}), text);
  });
  return element("span", {style: "display:inline-flex;gap:10px;flex-wrap:wrap"}, ...keys);
}
