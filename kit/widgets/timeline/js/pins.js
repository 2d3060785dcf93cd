// The list of pins under a timeline: what somebody wrote, at which time; a click goes there.
import {element, refill} from "../../base/js/dom.js";
import {formatAt} from "../../base/js/format.js";

export class Pins {
  /** @param {HTMLElement} root @param {(at: number) => void} go */
  constructor(root, go) {
    this.root = root;
    this.go = go;
  }

  /** @param {import("./data/table.js").Table} table */
  show({pins, parts}) {
    const {at = [], text = [], part = []} = pins;
    this.root.hidden = !at.length;
    refill(this.root, ...Array.from(at, (time, i) => {
      const of = parts.label[part[i]];
      const go = element("button", {type: "button", title: "show that time", "data-act": `go ${i}`,
        onclick: () => this.go(Number(time))}, formatAt(Number(time)));
      return element("div", {}, go, element("span", {}, of ? `${text[i]} (${of})` : text[i]));
    }));
  }
}
