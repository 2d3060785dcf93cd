// The address of a report's view: its settings and what is looked at, in the part after the #.
import {copyField} from "../../widgets/base/js/copy.js";
import {readLooked, writeLooked} from "../../widgets/base/js/link.js";

const REST = 150; // milliseconds: the address follows once nothing changes any more

/** @typedef {import("../../widgets/base/js/link.js").Looked} Looked */

/**
 * @param {import("./grid.js").Axis[]} axes
 * @param {{at: number[], beside: number, looked: Looked}} view
 */
export function writeAddress(axes, {at, beside, looked}) {
  const settings = axes.map(({name, values}, k) => [`set.${name}`, values[at[k]]]);
  const pairs = [...settings, ...(beside >= 0 ? [["beside", String(beside)]] : []),
    ...Object.entries(writeLooked(looked))];
  return `#${new URLSearchParams(pairs)}`;
}

/**
 * What an address asks for; a setting that the report does not have stays as on opening.
 * @param {import("./grid.js").Index} index
 * @param {string} text
 */
export function readAddress({axes, cells, first, beside}, text) {
  const {rest, ...looked} = readLooked(text);
  const at = axes.map(({name, values}, k) => {
    const asked = rest.get(`set.${name}`);
    const found = asked === undefined ? -1 : values.indexOf(asked);
    return found >= 0 ? found : cells[first].at[k];
  });
  const given = rest.get("beside") ?? "";
  const isRun = /^\d{1,6}$/.test(given) && Number(given) < cells.length;
  return {at, beside: isRun ? Number(given) : beside ?? -1, looked};
}

/** Keeps the address of the page in step with what is shown, and hears when another one is opened. */
export class Address {
  /** @param {{write: () => string, open: (text: string) => void}} act */
  constructor(act) {
    this.act = act;
    this.timer = 0;
    this.known = location.hash; // the last that was written or opened
    window.addEventListener("hashchange", () => this.follow());
  }

  /** Open an address that someone has entered. @returns {boolean} whether there is one */
  follow() {
    if (location.hash === this.known) return false;
    this.known = location.hash;
    this.act.open(this.known);
    return true;
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => { if (!this.follow()) this.write(); }, REST);
  }

  /** @returns {string} the address of what is shown now */
  write() {
    clearTimeout(this.timer);
    const written = this.act.write();
    try {
      history.replaceState(null, "", written);
      this.known = location.hash;
    } catch {
      // in a frame without an address of its own: the link is still right for the file itself
    }
    return location.href.split("#")[0] + written;
  }

  /** Copy the address; where a page may not, show it to be copied by hand.
   * @param {any} button @param {any} field */
  async copy(button, field) {
    field.value = this.write();
    field.hidden = false; // what is hidden cannot be copied
    field.hidden = await copyField(field, button);
  }
}
