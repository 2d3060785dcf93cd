// What of a figure follows its width: its title, and how many keys of a legend stand beside each other.
import {cut} from "./wrap.js";

const SQUARE = 17, BETWEEN = 12; // pixels: of a key's colour, and from one key to the next
const LEAST = 2; // columns; more rows leave the figure no height

/** @type {CanvasRenderingContext2D | null} */
let ruler = null;

/** @param {string} text @param {string} font @returns {number} pixels */
export function widthOf(text, font) {
  ruler ??= document.createElement("canvas").getContext("2d");
  if (!ruler) return 0;
  ruler.font = font;
  return ruler.measureText(text).width;
}

/**
 * What of a title has room: in one line, or in two where it has a " - ", each cut at its end.
 * @param {any} title of bokeh
 * @param {string} text
 * @param {number} room pixels
 */
export function titleIn({text_font_style, text_font_size, text_font}, text, room) {
  const wide = (/** @type {string} */ line) => widthOf(line, `${text_font_style} ${text_font_size} ${text_font}`);
  const lines = wide(text) > room ? text.split(" - ") : [text];
  return lines.map((line) => cut(line, room, wide)).join("\n");
}

/**
 * How many columns of keys fit, each as wide as its widest one.
 * @param {number[]} wide pixels of each key
 * @param {number} room pixels
 */
export function columnsIn(wide, room) {
  for (let count = wide.length; count > LEAST; count--) {
    const columns = wide.slice(0, count).map((_, at) => Math.max(...wide.filter((_one, i) => i % count === at)));
    if (columns.reduce((sum, one) => sum + BETWEEN + one) <= room) return count;
  }
  return LEAST;
}

/** Let the legends of a figure follow its width. @param {any} figure of bokeh */
export function fitLegends(figure) {
  if (!figure.inner_width) return;
  for (const legend of figure.below) {
    const names = legend.items?.map((/** @type {any} */ item) => item.label?.value);
    if (!names?.every((/** @type {any} */ name) => typeof name === "string")) continue;
    const font = `${legend.label_text_font_size} ${legend.label_text_font}`;
    const wide = names.map((/** @type {string} */ name) => SQUARE + widthOf(name, font));
    legend.setv({ncols: columnsIn(wide, figure.inner_width)}, {sync: false}); // as a title's text
  }
}
