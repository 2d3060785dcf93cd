// Legends below figures: as many keys beside each other as their figure has room for.

const SQUARE = 17, BETWEEN = 12; // pixels: of a key's colour, and from one key to the next
export const LEAST = 2; // columns, as in Python until it is drawn; more rows leave the figure no height

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
  const ruler = document.createElement("canvas").getContext("2d");
  if (!ruler || !figure.inner_width) return;
  for (const legend of figure.below) {
    const names = legend.items?.map((/** @type {any} */ item) => item.label?.value);
    if (!names?.every((/** @type {any} */ name) => typeof name === "string")) continue;
    ruler.font = `${legend.label_text_font_size} ${legend.label_text_font}`;
    const wide = names.map((/** @type {string} */ name) => SQUARE + ruler.measureText(name).width);
    // Another page of the same kernel may have another width.
    legend.setv({ncols: columnsIn(wide, figure.inner_width)}, {sync: false});
  }
}
