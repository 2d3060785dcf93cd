// The timelines of a comparison: the keys that move them and lead along their bars, and which of
// their texts have room.
import {Card, led, rowsOf} from "./card.js";
import {isForPlot, makeStop, takeKeys} from "../../base/js/keys.js";
import {fitLegends, titleIn, widthOf} from "../../base/js/fit.js";
import {headLines, linesOf, place} from "./rows.js";

const ZOOM = 1.4, MOVE = 0.15; // of one key, as in a timeline of one run
const LETTER = 6; // pixels, of a step's name
const LINE = 25.5; // letters' heights that a line of a title is wide at most
const [SMALL, LARGE] = [8.5, 11]; // pixels, of its letters
const LEFT = 2; // pixels from the frame to a strip's title
const TICK = 80, MOST_TICKS = 6; // pixels of one tick's text
const HELP = "Timelines of the runs. Left and right move, plus and minus zoom, 0 shows all; full "
  + "stop and comma: next and previous bar, up and down: another row, Escape: none. The table has "
  + "every number.";

/** @typedef {{title: string, heads: string[][][], notes: string[]}} Said what the figure says */

/**
 * The range that a key asks for, within the whole one; null of a key without a meaning.
 * @param {string} key
 * @param {[number, number]} shown
 * @param {[number, number]} whole
 * @returns {[number, number] | null}
 */
export function pressed(key, [from, to], whole) {
  const width = to - from, middle = (from + to) / 2;
  const zoomed = (/** @type {number} */ by) => [middle - width / 2 * by, middle + width / 2 * by];
  const moved = (/** @type {number} */ by) => [from + by * width, to + by * width];
  const [left, right] = moved(-MOVE), [later, end] = moved(MOVE);
  const closer = zoomed(1 / ZOOM), wider = zoomed(ZOOM);
  const asked = /** @type {Record<string, number[]>} */ ({
    ArrowLeft: [left, right], a: [left, right], ArrowRight: [later, end], d: [later, end],
    "+": closer, "=": closer, w: closer, "-": wider, _: wider, s: wider, 0: whole, Home: whole,
  });
  return Object.hasOwn(asked, key) ? within(asked[key], whole) : null;
}

/** @param {number[]} range @param {[number, number]} whole @returns {[number, number]} */
function within([from, to], [first, last]) {
  const width = Math.min(to - from, last - first);
  const start = Math.min(Math.max(from, first), last - width);
  return [start, start + width];
}

/**
 * Which texts fit into their steps: 1, or 0 of those that would lie over the next one.
 * @param {string[]} texts
 * @param {number[]} room of each, milliseconds
 * @param {number} scale pixels of a millisecond
 */
export function seen(texts, room, scale) {
  return texts.map((text, i) => (text.length * LETTER <= room[i] * scale ? 1 : 0));
}

/**
 * What fits into a width: how large the letters of titles are, and how many ticks the axis has.
 * @param {number} width pixels
 * @returns {[number, number]}
 */
export function fitting(width) {
  const letters = Math.min(Math.max(width / LINE, SMALL), LARGE);
  return [letters, Math.min(Math.max(Math.floor(width / TICK), 2), MOST_TICKS)];
}

/**
 * Let the titles of a figure have the lines that they take, and make it as high as it is then.
 * @param {any} figure
 * @param {Record<string, any>} sources
 * @param {Said} said
 * @param {import("./rows.js").Sizes} px
 */
function fitLines(figure, sources, said, px) {
  fitLegends(figure);
  const quietly = {sync: false}; // another page of the same kernel may have another width
  const {title, inner_width, min_border_right} = figure, room = inner_width - LEFT;
  title.setv({text: titleIn(title, said.title, inner_width + min_border_right)}, quietly);
  const [letters, ticks] = fitting(inner_width), size = `${letters.toFixed(1)}px`;
  figure.select_one("axis").ticker.setv({desired_num_ticks: ticks}, quietly);
  const titles = figure.select_one("titles"), note = figure.select_one("note");
  titles.setv({text_font_size: {value: size}}, quietly);
  const wide = (/** @type {string} */ text) => widthOf(text, `bold ${size} ${title.text_font}`);
  const small = (/** @type {string} */ text) => widthOf(text, `${note.text_font_size} ${note.text_font}`);
  const lines = linesOf(said.notes, room, small);
  note.setv({text: lines.join("\n")}, quietly);
  const heads = said.heads.map((head, i) => headLines(i, head, room, wide));
  const {items, ncols} = figure.select_one("keys");
  const rows = place(figure, sources, heads, px), keys = px.keys * Math.ceil(items.length / ncols);
  const height = px.bare + rows + px.note * (lines.length - 1) + keys;
  requestAnimationFrame(() => figure.setv({height}, quietly));
}

/**
 * Let a figure take keys, and its texts follow its width and its zoom; once for each element of it.
 * @param {any} view bokeh's view of the figure
 * @param {Record<string, any>} sources
 * @param {Said} said
 * @param {string} red the colour of waits
 * @param {import("./rows.js").Sizes} px
 */
export function prepare(view, sources, said, red, px) {
  const {el: host, model: figure} = view, range = figure.x_range, {texts} = sources;
  const fit = () => {
    const {text, room, alpha} = texts.data;
    const now = seen(text, room, figure.inner_width / (range.end - range.start));
    if (now.every((value, i) => value === alpha[i])) return;
    now.forEach((value, i) => { alpha[i] = value; });
    texts.change.emit();
  };
  fit();
  fitLines(figure, sources, said, px);
  if (host.kitHasKeys) return;
  host.kitHasKeys = true;
  for (const part of ["start", "end"]) range.properties[part].change.connect(fit);
  makeStop(host, HELP);
  const whole = /** @type {[number, number]} */ ([range.reset_start ?? range.start, range.reset_end ?? range.end]);
  const show = (/** @type {number[]} */ [from, to]) => { range.setv({start: from, end: to}); };
  const rows = () => rowsOf(sources.bars.data, sources.syncs.data, red);
  const lead = leader(view, rows, (/** @type {number} */ at) => {
    const half = (range.end - range.start) / 2;
    if (at < range.start || at > range.end) show(within([at - half, at + half], whole));
  });
  takeKeys([host], (event) => {
    if (!isForPlot(event, host)) return false;
    const asked = pressed(event.key, [range.start, range.end], whole);
    if (asked) show(asked);
    return asked !== null || lead(event.key);
  });
}

/**
 * What leads from bar to bar: true of a key that it knows.
 * @param {any} view
 * @param {() => import("./card.js").Item[][]} rowsNow where the bars are
 * @param {(at: number) => void} reach moves the range to a time that is out of sight
 */
function leader(view, rowsNow, reach) {
  const card = new Card(view), range = view.model.x_range;
  /** @type {import("./card.js").Place | null} */
  let at = null;
  const clear = () => { at = null; card.show(null); };
  view.el.addEventListener("blur", clear);
  for (const part of ["start", "end"]) range.properties[part].change.connect(() => card.place());
  return (/** @type {string} */ key) => {
    if (key === "Escape" && at !== null) {
      clear();
      return true;
    }
    const rows = rowsNow(), next = led(key, rows, at, range.start);
    if (next === null) return false;
    at = next;
    const item = rows[at[0]][at[1]];
    reach((item.from + item.to) / 2);
    card.show(item);
    return true;
  };
}
