// What a key brings of the strips: a bar or a sync point, with the card that the pointer has.
import {element} from "../../base/js/dom.js";

const FOCUS = "2px solid #2f6db5";
const CARD = "position:absolute;z-index:20;pointer-events:none;max-width:320px;padding:7px 9px;"
  + "border:1px solid var(--kit-line, #c3ccd6);border-radius:4px;font:12px/1.5 Inter, sans-serif;"
  + "color:var(--kit-ink, #1f2933);background:var(--kit-card, #ffffff);overflow-wrap:anywhere";

/** @typedef {{from: number, to: number, top: number, bottom: number, color: string, head: string,
 *   rows: string[][]}} Item from and to in milliseconds, top and bottom in rows of the figure */
/** @typedef {[number, number]} Place a row, and an item in it */

/**
 * The rows of all strips from above, each with its items in the order of time.
 * @param {Record<string, any>} bars @param {Record<string, any>} syncs columns
 * @param {string} red the colour of waits
 * @returns {Item[][]}
 */
export function rowsOf(bars, syncs, red) {
  /** @type {Map<number, Item[]>} */
  const rows = new Map();
  const add = (/** @type {Item} */ item) => {
    rows.set(item.top, [...rows.get(item.top) ?? [], item]);
  };
  const count = (/** @type {Record<string, any>} */ {run = []}) => [...Array(run.length).keys()];
  for (const i of count(bars)) {
    add({from: bars.left_ms[i], to: bars.right_ms[i], top: bars.top[i], bottom: bars.bottom[i],
      color: bars.color[i], head: bars.name[i], rows: [["kind", bars.kind[i]], ["busy", bars.duration[i]],
        ["began at", bars.start[i]], ["lane", bars.lane[i]], ["run", String(bars.run[i])]]});
  }
  for (const i of count(syncs)) {
    add({from: syncs.x[i], to: syncs.right[i], top: syncs.top[i] - 0.01, bottom: syncs.bottom[i], color: red,
      head: `sync point: ${syncs.cause[i]}`, rows: [["waited", syncs.duration[i]], ["line", syncs.site[i]],
        ["through", syncs.via[i]], ["run", String(syncs.run[i])]]});
  }
  const sorted = [...rows].sort(([a], [b]) => a - b).map(([, items]) => items);
  return sorted.map((items) => items.sort((a, b) => a.from - b.from));
}

/**
 * Where a key leads: full stop and comma along a row, up and down to what is nearest in another one.
 * Without a place, to the first item that is shown.
 * @param {string} key @param {Item[][]} rows @param {Place | null} at @param {number} shown from where
 * @returns {Place | null} null of a key without a meaning, and where there is nothing
 */
export function led(key, rows, at, shown) {
  const along = ({".": 1, ",": -1})[key] ?? 0, across = ({ArrowDown: 1, ArrowUp: -1})[key] ?? 0;
  if (!(along || across) || !rows.length) return null;
  if (at === null) {
    const first = rows[0].findIndex(({to}) => to >= shown);
    return [0, Math.max(first, 0)];
  }
  const [row, i] = at;
  if (along) return [row, Math.min(Math.max(i + along, 0), rows[row].length - 1)];
  const other = Math.min(Math.max(row + across, 0), rows.length - 1);
  if (other === row) return at;
  const middle = (/** @type {Item} */ {from, to}) => (from + to) / 2, here = middle(rows[row][i]);
  const far = rows[other].map((item) => Math.abs(middle(item) - here));
  return [other, far.indexOf(Math.min(...far))];
}

/** The card over a figure, and a frame around what it is of. */
export class Card {
  /** @param {any} view bokeh's view of the figure */
  constructor(view) {
    this.view = view;
    /** @type {Item | null} */
    this.item = null;
    this.frame = element("div", {hidden: true});
    this.card = element("div", {hidden: true, role: "status"});
  }

  /** @param {Item | null} item */
  show(item) {
    this.item = item;
    this.frame.hidden = this.card.hidden = item === null;
    if (item === null) return;
    (this.view.el.shadowRoot ?? this.view.el).append(this.frame, this.card); // bokeh empties it at times
    const swatch = element("span", {style: "display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:7px"});
    swatch.style.background = item.color;
    this.card.style.cssText = CARD;
    this.card.replaceChildren(element("b", {}, swatch, item.head),
      ...item.rows.map(([name, text]) => element("div", {}, `${name}: ${text}`)));
    this.place();
  }

  /** Put both where the item is now. */
  place() {
    const {item, card, view: {frame: {bbox, x_scale, y_scale}, el}} = this;
    if (item === null) return;
    const cut = (/** @type {number} */ x) => Math.min(Math.max(x, bbox.left), bbox.right);
    const left = cut(x_scale.compute(item.from)), right = cut(x_scale.compute(item.to));
    const top = y_scale.compute(item.top), bottom = y_scale.compute(item.bottom);
    this.frame.style.cssText = "position:absolute;pointer-events:none;z-index:19;box-sizing:border-box;"
      + `border:${FOCUS};left:${left - 2}px;top:${top - 2}px;width:${Math.max(right - left, 1) + 4}px;`
      + `height:${bottom - top + 4}px`;
    card.style.left = `${Math.max(2, Math.min(left, el.clientWidth - card.offsetWidth - 2))}px`;
    const below = bottom + 6, isLow = below + card.offsetHeight > el.clientHeight;
    card.style.top = `${isLow ? Math.max(2, top - card.offsetHeight - 6) : below}px`;
  }
}
