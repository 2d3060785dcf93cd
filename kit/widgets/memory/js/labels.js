// The bars of what holds the peak: each label ends with "…" where its number begins.
import {cut} from "../../base/js/wrap.js";

const FONT = "11.5px Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif";
const GAP = 10; // pixels, between a label and its number

/**
 * Let the labels follow the width of their figure.
 * @param {any} figure
 * @param {any} source of the bars: `whole` is a label, `text` what is drawn of it, `size` the number
 */
export function fit(figure, source) {
  const ruler = document.createElement("canvas").getContext("2d");
  if (!ruler || !figure.inner_width) return;
  ruler.font = FONT;
  const wide = (/** @type {string} */ text) => ruler.measureText(text).width;
  const {text, whole, size} = source.data;
  const now = whole.map((/** @type {string} */ label, /** @type {number} */ i) =>
    cut(label, figure.inner_width - GAP - wide(size[i]), wide));
  if (now.every((/** @type {string} */ label, /** @type {number} */ i) => label === text[i])) return;
  now.forEach((/** @type {string} */ label, /** @type {number} */ i) => { text[i] = label; });
  source.change.emit();
}
