// The list of pins under a timeline: what somebody wrote, at which time; a click goes there.
import {element, refill} from "../../base/js/dom.js";
import {formatAt} from "../../base/js/format.js";

export class Pins {
  /** @param {HTMLElement} root @param {{go: (at: number) => void, drop: (i: number) => void}} act
   * @param {boolean} isLive a kernel keeps what is changed */
  constructor(root, act, isLive) {
    this.root = root;
    this.act = act;
    this.isLive = isLive;
  }

  /** @param {import("./data/table.js").Table} table */
  show({pins, parts}) {
    const {at = [], text = [], part = []} = pins;
    this.root.hidden = !at.length;
    refill(this.root, ...Array.from(at, (time, i) => {
      const of = parts.label[part[i]];
      const go = element("button", {type: "button", title: "show that time", "data-act": `go ${i}`,
        onclick: () => this.act.go(Number(time))}, formatAt(Number(time)));
      const drop = element("button", {type: "button", "aria-label": `remove the pin: ${text[i]}`, "data-act": `drop ${i}`,
        onclick: () => this.act.drop(i)}, "×");
      return element("div", {}, go, element("span", {}, of ? `${text[i]} (${of})` : text[i]),
        ...(this.isLive && part[i] === 0 ? [drop] : []));
    }));
  }
}
