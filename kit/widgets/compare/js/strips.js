// The timelines of a comparison: the keys that move them, and which of their texts have room.
import {isForPlot, makeStop, takeKeys} from "../../base/js/keys.js";

const ZOOM = 1.4, MOVE = 0.15; // of one key, as in a timeline of one run
const LETTER = 6; // pixels, of a step's name
const HELP = "Timelines of the runs. Left and right move, plus and minus zoom, 0 shows all; "
  + "the table has every number.";

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
 * Let a figure take keys, and its texts follow its width and its zoom; once for each element of it.
 * @param {any} figure
 * @param {any} texts the source of the steps' names
 * @param {any} host the element of the figure
 */
export function prepare(figure, texts, host) {
  const range = figure.x_range;
  const fit = () => {
    const {text, room, alpha} = texts.data;
    const now = seen(text, room, figure.inner_width / (range.end - range.start));
    if (now.every((value, i) => value === alpha[i])) return;
    now.forEach((value, i) => { alpha[i] = value; });
    texts.change.emit();
  };
  fit();
  if (host.kitHasKeys) return;
  host.kitHasKeys = true;
  for (const part of ["start", "end"]) range.properties[part].change.connect(fit);
  makeStop(host, HELP);
  const whole = /** @type {[number, number]} */ ([range.reset_start ?? range.start, range.reset_end ?? range.end]);
  takeKeys([host], (event) => {
    const asked = isForPlot(event, host) ? pressed(event.key, [range.start, range.end], whole) : null;
    if (asked) range.setv({start: asked[0], end: asked[1]});
    return asked !== null;
  });
}
