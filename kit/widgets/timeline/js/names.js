// The table under a timeline: what the range that is measured holds, by name.
import {element, refill} from "../../base/js/dom.js";
import {formatCount, formatNs, plural} from "../../base/js/format.js";
import {MOST, namesIn} from "./data/names.js";

const REST = 80; // milliseconds: while a range is dragged, nothing is summed up
const ROWS = 200; // that are shown

/** @typedef {import("./data/names.js").Named} Named */

/** @type {[string, (row: Named) => number | string, (row: Named) => string][]} */
export const COLUMNS = [
  ["name", (row) => row.name, (row) => row.name], ["kind", (row) => row.kind, (row) => row.kind],
  ["count", (row) => -row.count, (row) => bound(row) + formatCount(row.count)],
  ["total", (row) => -row.total, (row) => bound(row) + formatNs(row.total)],
  ["self", (row) => -(row.self ?? -1), (row) => (row.self === null ? "not known" : bound(row) + formatNs(row.self))],
  ["mean", (row) => -row.whole / row.count, (row) => bound(row) + formatNs(row.whole / row.count)],
];

/** Joined bars cover pauses, too. @param {Named} row */
function bound({isJoined}) {
  return isJoined ? "at most " : "";
}

export class Names {
  /** @param {HTMLElement} root @param {(text: string) => void} find looks for a text in the timeline */
  constructor(root, find) {
    this.root = root;
    this.find = find;
    this.by = 3; // the column that the rows are sorted by
    this.timer = 0;
  }

  /** @param {import("./data/table.js").Table | null} table @param {number[] | null} range */
  show(table, range) {
    clearTimeout(this.timer);
    this.root.hidden = range === null;
    if (range === null || table === null) return;
    this.timer = window.setTimeout(() => this.draw(table, range[0], range[1]), REST);
  }

  /** @param {import("./data/table.js").Table} table @param {number} from @param {number} to */
  draw(table, from, to) {
    refill(this.root, ...table.parts.label.flatMap((/** @type {string} */ label,
      /** @type {number} */ part) => {
      const found = namesIn(table, from, to, part);
      const head = label ? [element("div", {class: "part"}, label)] : [];
      if (found === null) return [...head, `More than ${formatCount(MOST)} spans: mark a shorter range.`];
      const said = noteOf(table, found, to - from);
      return [...head, element("div", {class: "note"}, said), this.tableOf(found, () => this.draw(table, from, to))];
    }));
  }

  /** @param {Named[]} found @param {() => void} again */
  tableOf(found, again) {
    const order = COLUMNS[this.by][1];
    const rows = [...found].sort((a, b) => (order(a) < order(b) ? -1 : order(a) > order(b) ? 1 : 0));
    const heads = COLUMNS.map(([name], n) => element("th", {scope: "col",
      "aria-sort": n === this.by ? (n < 2 ? "ascending" : "descending") : "none"},
    element("button", {type: "button", onclick: () => { this.by = n; again(); }}, name)));
    const body = rows.slice(0, ROWS).map((row) => element("tr", {}, ...COLUMNS.map(([, , text], n) => {
      if (n > 0) return element("td", {}, text(row));
      if (row.isJoined) return element("th", {scope: "row"}, row.name); // no search finds these names
      return element("th", {scope: "row"}, element("button", {type: "button", title: "find it in the timeline",
        onclick: () => this.find(`"${row.name}"`)}, row.name));
    })));
    const more = rows.length > ROWS ? [element("div", {class: "note"},
      `Not shown: ${plural(rows.length - ROWS, "name")}. Sort by another column.`)] : [];
    return element("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": "spans of the range by name"},
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body)), ...more);
  }
}

/** @param {import("./data/table.js").Table} table @param {Named[]} found @param {number} length of the range */
export function noteOf(table, found, length) {
  const shown = table.leftOut || table.hidden.length ? ", of the lanes and kinds that are shown" : "";
  const joined = found.some(({isJoined}) => isJoined)
    ? " Short spans are joined in this picture: their times hold the pauses between them." : "";
  return `${plural(found.length, "name")} in ${formatNs(length)}${shown}. Total and self: inside of the range; `
    + `self: without what ran inside, on the same lane; mean: of whole spans.${joined}`;
}
