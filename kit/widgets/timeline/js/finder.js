// The search of a timeline: what its field finds, and going from hit to hit.
import {formatCount, plural} from "../../base/js/format.js";
import {searchTimeline} from "./data/search.js";

export class Finder {
  /**
   * @param {HTMLInputElement} input
   * @param {HTMLElement} output says how many there are
   * @param {{changed: () => void, go: (kind: "span" | "sync", i: number) => void}} act
   */
  constructor(input, output, act) {
    this.input = input;
    this.output = output;
    this.act = act;
    /** @type {import("./data/table.js").Table | null} */
    this.table = null;
    /** @type {ReturnType<typeof searchTimeline> | null} */
    this.found = null;
    this.at = -1; // position in the hits
  }

  /** @param {import("./data/table.js").Table} table */
  take(table) {
    this.table = table;
    this.find();
  }

  /** @param {string} text is looked for as if it were typed */
  look(text) {
    this.input.value = text;
    this.find();
  }

  clear() {
    this.input.value = "";
    this.find();
  }

  find() {
    const text = this.input.value;
    this.at = -1;
    this.found = this.table === null || text.trim() === "" ? null : searchTimeline(this.table, text);
    this.say();
    this.act.changed();
  }

  /** @param {number} by */
  next(by) {
    if (!this.found) return;
    const {hits, marks} = this.found;
    const syncs = hits.length ? [] : [...marks.keys()].filter((i) => marks[i]);
    const many = hits.length || syncs.length;
    if (many === 0) return;
    this.at = this.at < 0 ? (by > 0 ? 0 : many - 1) : (this.at + by + many) % many;
    this.say();
    if (hits.length) this.act.go("span", hits[this.at]);
    else this.act.go("sync", syncs[this.at]);
  }

  say() {
    const isPart = this.table !== null && (this.table.leftOut > 0 || this.table.hidden.length > 0);
    this.output.textContent = this.found === null ? "" : inWords(this.found, this.at, isPart);
  }
}

/** @param {{hits: Uint32Array, syncs: number}} found @param {number} at
 * @param {boolean} [isPart] some lanes or kinds are hidden @returns {string} */
export function inWords({hits, syncs}, at, isPart = false) {
  const many = hits.length || syncs;
  if (many === 0) return isPart ? "nothing found in what is shown" : "nothing found";
  const position = at < 0 ? "" : `${formatCount(at + 1)} of `;
  return `${position}${hits.length ? formatCount(many) : plural(many, "sync point")}`;
}
