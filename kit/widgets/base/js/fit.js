// What of a figure follows its width: its title, and how many keys of a legend stand beside each other.
import {cut} from "./wrap.js";

const SQUARE = 17, BETWEEN = 12; // pixels: of a key's colour, and from one key to the next
const LEAST = 2; // columns; more rows leave the figure no height
const wholeTitles = new WeakMap(); // title -> what it said, and what is shown of that

/** @returns {((text: string, font: string) => number) | null} pixels of a text */
function makeRuler() {
  const context = document.createElement("canvas").getContext("2d");
  return context && ((text, font) => {
    context.font = font;
    return context.measureText(text).width;
  });
}

/** @param {any} figure of bokeh */
function fitTitle(figure) {
  const ruler = makeRuler(), {title, inner_width, min_border_right} = figure;
  if (!ruler || !inner_width || !title?.text) return;
  const known = wholeTitles.get(title), whole = known?.shown === title.text ? known.whole : title.text;
  const font = `${title.text_font_style} ${title.text_font_size.value ?? title.text_font_size} ${title.text_font}`;
  const shown = cut(whole, inner_width + (min_border_right ?? 0), (text) => ruler(text, font));
  wholeTitles.set(title, {whole, shown});
  title.setv({text: shown}, {sync: false}); // another page of the same kernel may have another width
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

/** @param {any} figure of bokeh */
export function fitLegends(figure) {
  const ruler = makeRuler();
  if (!ruler || !figure.inner_width) return;
  for (const legend of figure.below) {
    const names = legend.items?.map((/** @type {any} */ item) => item.label?.value);
    if (!names?.every((/** @type {any} */ name) => typeof name === "string")) continue;
    const font = `${legend.label_text_font_size} ${legend.label_text_font}`;
    const wide = names.map((/** @type {string} */ name) => SQUARE + ruler(name, font));
    legend.setv({ncols: columnsIn(wide, figure.inner_width)}, {sync: false}); // as a title's text
  }
}

/** Let the title and the legends of a figure follow its width. @param {any} figure of bokeh */
export function fit(figure) {
  fitTitle(figure);
  fitLegends(figure);
}
