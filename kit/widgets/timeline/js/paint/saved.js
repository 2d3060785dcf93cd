// A timeline as a picture to send: what the page says around its canvases stands in it, too.
import {wrapped} from "../../../base/js/wrap.js";
import {FONT, tone} from "./tones.js";

const SIDE = 8, LINE = 17, GAP = 18, SWATCH = 11; // pixels
const TITLE = `600 14px ${FONT}`, TEXT = `12px ${FONT}`;

/**
 * `keys`: [colour, what it stands for]; without a colour it is only said.
 * @typedef {{title: string, notes: string[], keys: string[][]}} Said
 * @typedef {{x: number, row: number, color: string, text: string}} Placed
 */

/**
 * The canvases one below the other, under the title and over the notes and the key.
 * @param {HTMLCanvasElement[]} canvases
 * @param {number} ratio pixels of a canvas for each pixel of the page
 * @param {Said} said
 * @param {import("./tones.js").Tones} tones
 */
export function savedPicture(canvases, ratio, {title, notes, keys}, tones) {
  const picture = document.createElement("canvas"), width = canvases[0].width / ratio;
  const ctx = /** @type {CanvasRenderingContext2D} */ (picture.getContext("2d"));
  const wide = (/** @type {string} */ text) => ctx.measureText(text).width;
  ctx.font = TITLE;
  const heads = wrapped(title, width - 2 * SIDE, wide);
  ctx.font = TEXT;
  const lines = notes.flatMap((note) => wrapped(note, width - 2 * SIDE, wide));
  const placed = placedKeys(keys, width - 2 * SIDE, wide), rows = placed.length && placed[placed.length - 1].row + 1;
  const top = heads.length * LINE + 2 * SIDE, high = canvases.map((canvas) => canvas.height / ratio);
  const foot = top + high.reduce((sum, h) => sum + h, 0) + SIDE;
  picture.width = canvases[0].width;
  picture.height = Math.round((foot + (rows + lines.length) * LINE + SIDE) * ratio);
  ctx.scale(ratio, ratio);
  ctx.fillStyle = tones.ground;
  ctx.fillRect(0, 0, width, picture.height);
  ctx.textBaseline = "middle";
  const write = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y) => {
    ctx.fillText(text, SIDE + x, y + LINE / 2);
  };
  ctx.font = TITLE;
  ctx.fillStyle = tones.ink;
  heads.forEach((text, n) => write(text, 0, SIDE + n * LINE));
  canvases.forEach((canvas, n) =>
    ctx.drawImage(canvas, 0, top + (n ? high[n - 1] : 0), width, high[n]));
  ctx.font = TEXT;
  for (const {x, row, color, text} of placed) {
    const y = foot + row * LINE;
    ctx.fillStyle = color ? tone(color) : tones.ink;
    if (color) ctx.fillRect(SIDE + x, y + (LINE - SWATCH) / 2, SWATCH, SWATCH);
    ctx.fillStyle = tones.ink;
    write(text, x + (color ? SWATCH + 5 : 0), y);
  }
  ctx.fillStyle = tones.muted;
  lines.forEach((text, n) => write(text, 0, foot + (rows + n) * LINE));
  return picture;
}

/** Where each key stands, as many in a row as have room. @param {string[][]} keys @param {number} room
 * @param {(text: string) => number} wide @returns {Placed[]} */
function placedKeys(keys, room, wide) {
  let x = 0, row = 0;
  return keys.map(([color, text]) => {
    const width = wide(text) + (color ? SWATCH + 5 : 0);
    if (x > 0 && x + width > room) [x, row] = [0, row + 1];
    const at = {x, row, color, text};
    x += width + GAP;
    return at;
  });
}
