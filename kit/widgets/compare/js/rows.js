// Where the strips are: a title has as many lines as it takes, and what is below gives it the room.
import {filled} from "../../base/js/wrap.js";

const PLACES = {bars: ["top", "bottom"], steps: ["top", "under", "bottom"], syncs: ["top", "bottom"],
  tracks: ["top", "bottom"], texts: ["y"]}; // the columns that are rows

/** @typedef {{bare: number, row: number, title: number, note: number, keys: number}} Sizes pixels of
 *   the figure without its legend, of a row, of a line of the note and of a row of the legend;
 *   `title`: rows of a line of a strip's title */

/**
 * Lines of parts: one ends between two of them, and in one only where that is longer than a line,
 * never between a number and its word.
 * @param {string[]} parts
 * @param {number} room
 * @param {(text: string) => number} wide
 */
export function linesOf(parts, room, wide) {
  const seen = (/** @type {string} */ line) => line.replace(/ ·$/, "").replaceAll("\u00a0", " ");
  const pieces = parts.flatMap((part, i) => {
    const words = wide(part) <= room ? [part] : part.replace(/(\d) (?=[a-z])/g, "$1\u00a0").split(" ");
    return i < parts.length - 1 ? [...words.slice(0, -1), `${words[words.length - 1]} ·`] : words;
  });
  return filled(pieces, room, (line) => wide(seen(line))).map(seen);
}

/**
 * The lines of a strip's title: one, or some of its settings and some of its numbers.
 * @param {number} at its place among the strips
 * @param {string[][]} head
 * @param {number} room
 * @param {(text: string) => number} wide
 */
export function headLines(at, head, room, wide) {
  const number = `${at + 1}  `, whole = number + head.flat().join(" · ");
  if (wide(whole) <= room) return [whole];
  const left = room - wide(number), lines = head.flatMap((parts) => linesOf(parts, left, wide));
  return lines.map((line, i) => (i ? " ".repeat(number.length) : number) + line);
}

/**
 * Put the strips under titles of these lines. The rows as Python has them, for titles of one line,
 * are kept with the figure.
 * @param {any} figure of bokeh
 * @param {Record<string, any>} sources
 * @param {string[][]} titles the lines of each strip's
 * @param {Sizes} px
 * @returns {number} how many pixels the titles take beyond a line each
 */
export function place(figure, sources, titles, px) {
  const quietly = {sync: false}; // another page of the same kernel may have another width
  const [axis] = figure.left, {ticker} = axis, {y_range: range} = figure;
  const columns = (/** @type {(name: string, key: string) => void} */ each) => {
    for (const [name, keys] of Object.entries(PLACES)) for (const key of keys) each(name, key);
  };
  if (!figure.kitRows) {
    figure.kitRows = {ticks: [...ticker.ticks], start: range.start, y: [...sources.titles.data.y]};
    columns((name, key) => { figure.kitRows[`${name}.${key}`] = [...sources[name].data[key] ?? []]; });
  }
  const rows = figure.kitRows;
  let more = 0; // rows, that the titles up to here take beyond one each
  const before = titles.map(() => 0), after = titles.map((lines, i) => {
    before[i] = more;
    more += (lines.length - 1) * px.title;
    return more;
  });
  columns((name, key) => {
    const {data} = sources[name];
    rows[`${name}.${key}`].forEach((/** @type {number} */ at, /** @type {number} */ i) => {
      data[key][i] = at + after[data.run[i] - 1];
    });
  });
  for (const name of Object.keys(PLACES)) sources[name].change.emit();
  const {run} = sources.tracks.data;
  const ticks = rows.ticks.map((/** @type {number} */ at, /** @type {number} */ i) => at + after[run[i] - 1]);
  ticker.setv({ticks}, quietly);
  const y = titles.flatMap((lines, i) => lines.map((_, k) => rows.y[i] + before[i] + k * px.title));
  sources.titles.setv({data: {y, text: titles.flat()}}, quietly);
  range.setv({start: rows.start + more}, quietly);
  return more * px.row;
}
