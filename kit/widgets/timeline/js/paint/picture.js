// What one frame of a timeline is painted from.
import {tone} from "./tones.js";

/**
 * @typedef {object} Picture
 * @property {import("../data/table.js").Table} table
 * @property {import("../viewport.js").Viewport} view
 * @property {import("./tones.js").Tones} tones
 * @property {string} wait the colour of waiting
 * @property {string[]} fills the colour of each key
 * @property {Uint32Array} pixels the same as values of an image, without their alpha
 * @property {import("../data/search.js").Flags | null} flags what is found or highlighted
 * @property {{kind: string, i: number} | null} pick what is chosen
 * @property {number | null} hovered the span under the pointer
 * @property {number[][]} arrows [dispatch, kernel] pairs of what is chosen
 * @property {number[] | null} mark the range that is measured
 * @property {string[]} causes the colour of each cause of idle time
 * @property {boolean} showsPath
 * @property {import("../data/ghost.js").Ghost | null} ghost the run before
 * @property {string[]} ghostFills the colour of each of its keys
 */

/** @typedef {CanvasRenderingContext2D} Context */


/** @param {import("../data/table.js").Table} table @returns {{fills: string[], pixels: Uint32Array}} */
export function fillsOf(table) {
  const fills = Array.from(table.keys.color, tone);
  const pixels = Uint32Array.from(fills, (color) => {
    const c = parseInt(color.slice(1), 16);
    return (c & 255) << 16 | c & 0xff00 | c >> 16;
  });
  return {fills, pixels};
}
