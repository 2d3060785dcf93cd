// The list of pins under a timeline: what somebody wrote, at which time; a click goes there. With a
// kernel, a button takes a pin of the first run away.
import {element, refill} from "../../base/js/dom.js";
import {formatAt} from "../../base/js/format.js";
import {askFor, offered} from "./wishes.js";

export class Pins {
  /**
   * @param {HTMLElement} root
   * @param {Record<string, any>} models
   * @param {(at: number) => void} go
   */
  constructor(root, models, go) {
    this.root = root;
    this.models = models;
    this.go = go;
    /** @type {unknown} */
    this.asked = null; // the pins of which one is to go: until others come, no second one is asked for
  }

  /** @param {import("./data/table.js").Table} table */
  show({pins, parts}) {
    const {at = [], text = [], part = []} = pins;
    const canRemove = offered(this.models).includes("pin");
    this.root.hidden = !at.length;
    refill(this.root, ...Array.from(at, (time, i) => {
      const of = parts.label[part[i]];
      const go = element("button", {type: "button", title: "show that time", "data-act": `go ${i}`,
        onclick: () => this.go(Number(time))}, formatAt(Number(time)));
      const line = element("div", {}, go, element("span", {}, of ? `${text[i]} (${of})` : text[i]));
      if (canRemove && !part[i]) line.append(this.remover(pins, i, String(text[i])));
      return line;
    }));
  }

  /** A pin is asked for by its place, which is another one once a pin before it is gone.
   * @param {unknown} pins @param {number} i @param {string} text */
  remover(pins, i, text) {
    return element("button", {type: "button", title: "take this pin away",
      "aria-label": `take the pin "${text}" away`, "data-act": `remove ${i}`, disabled: this.asked === pins, onclick: () => {
        if (this.asked === pins) return;
        this.asked = pins;
        askFor(this.models, "unpin", String(i));
      }}, "×");
  }
}
