// The elements of a timeline: its head with search and buttons, two canvases, cards, a legend.
import {closeByEscape, element} from "../../base/js/dom.js";
import css from "./timeline.css";

const KEYS = [["w, s, + and -", "zoom in, zoom out"], ["a, d, left and right", "move"],
  ["up, down", "scroll the lanes"], ["0", "show everything"], [". and ,", "next, previous span of the row"],
  ["f", "zoom to what is selected"], ["m", "measure what is selected, or all that is shown"],
  ["/", 'search, "in quotes" for a whole name; Enter: next, Shift + Enter: previous'], ["Escape", "clear"]];
const QUIET = "Click a bar to select it; Shift and drag to measure a range.";

/** @param {string} text @param {string} label @param {() => void} onclick */
export function button(text, label, onclick) {
  return element("button", {type: "button", title: label, "aria-label": label, onclick}, text);
}

/** What stands around and over the canvas; it knows nothing of spans. */
export class Frame {
  /** @param {{zoom: (factor: number) => void, showAll: () => void, fit: () => void, save: () => void}} act */
  constructor(act) {
    this.title = element("b", {class: "title"});
    this.search = element("input", {type: "search", placeholder: "search spans  ( / )",
      "aria-label": "search spans by name, op, line or lane", spellcheck: "false"});
    this.hits = element("span", {class: "hits", role: "status"});
    this.help = helpCard();
    this.fit = button("fit", "fit this run to the width", act.fit);
    this.helpButton = button("?", "keys", () => this.toggleHelp());
    this.helpButton.setAttribute("aria-expanded", "false");
    const buttons = element("span", {class: "buttons"},
      button("−", "zoom out (s)", () => act.zoom(1.6)),
      button("+", "zoom in (w)", () => act.zoom(1 / 1.6)),
      button("all", "show all of it (0)", act.showAll), this.fit,
      button("PNG", "save the picture as PNG", act.save),
      this.helpButton);
    this.note = element("div", {class: "note"});
    this.over = element("canvas", {class: "over", "aria-hidden": "true"});
    this.canvas = element("canvas", {class: "main", tabindex: "0", role: "application",
      "aria-roledescription": "timeline"});
    this.card = element("div", {class: "card hover", hidden: "", "aria-hidden": "true"});
    this.range = element("div", {class: "card range", hidden: "", role: "status"});
    this.said = element("div", {class: "said", role: "status", "aria-live": "polite"});
    this.legend = element("div", {class: "legend"});
    this.names = element("div", {class: "names", hidden: ""});
    this.pins = element("div", {class: "pins", hidden: "", role: "group", "aria-label": "pinned texts"});
    this.root = element("div", {class: "kit-timeline"}, element("style", {}, css),
      element("div", {class: "head"}, this.title,
        element("span", {class: "find"}, this.search, this.hits), buttons),
      this.note, element("div", {class: "body"}, this.over, this.canvas, this.card, this.range,
        this.help), this.said, this.pins, this.legend, this.names);
    closeByEscape([this.root], this.help, () => this.toggleHelp());
  }

  toggleHelp() {
    this.help.hidden = !this.help.hidden;
    this.helpButton.setAttribute("aria-expanded", String(!this.help.hidden));
  }

  /** @param {import("./data/table.js").Table} table */
  label(table) {
    this.title.textContent = table.title;
    this.note.textContent = table.note;
    this.note.hidden = table.note === "";
    this.fit.hidden = table.axis <= table.end; // the axis ends with the spans
    this.canvas.setAttribute("aria-label", `${table.summary} Keys: w, s zoom; a, d move; ` +
      "full stop, comma: next and previous span; slash: search; 0: everything.");
  }

  /** @param {string} text what is chosen; "" if nothing is */
  say(text) {
    this.said.textContent = text || QUIET;
    this.said.classList.toggle("quiet", !text);
  }

  /** @param {import("./paint/tones.js").Tones} tones @param {boolean} isDark */
  dress(tones, isDark) {
    for (const [name, color] of Object.entries(tones)) this.root.style.setProperty(`--${name}`, color);
    this.root.style.colorScheme = isDark ? "dark" : "light";
  }

  /** @param {import("./describe.js").Description} description @param {string} color
   * @param {{x: number, y: number, width: number, bottom: number}} place of the pointer, in the body */
  showCard({head, rows}, color, {x, y, width, bottom}) {
    const {card} = this;
    const swatch = element("i");
    swatch.style.background = color;
    card.hidden = false;
    card.replaceChildren(element("div", {class: "name"}, swatch, head),
      ...rows.map(([name, text]) => element("div", {}, element("span", {}, name), element("em", {}, text))));
    const left = x + 16 + card.offsetWidth > width ? x - 12 - card.offsetWidth : x + 16;
    card.style.left = `${Math.max(2, left)}px`;
    card.style.top = `${Math.min(y + 14, bottom - card.offsetHeight + 40)}px`;
  }
}

function helpCard() {
  return element("div", {class: "card help", hidden: "", tabindex: "0"},
    ...KEYS.map(([keys, what]) => element("div", {}, element("kbd", {}, keys), ` ${what}`)),
    element("div", {}, element("kbd", {}, "drag, Shift + wheel"), " move; ",
      element("kbd", {}, "Ctrl + wheel"), " zoom"),
    element("div", {}, element("kbd", {}, "Shift + drag"), " measure a range of time"));
}
