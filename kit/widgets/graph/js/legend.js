// What the colours of a graph mean.
import {tint} from "../../base/js/colors.js";
import {formatBytes, formatNs} from "../../base/js/format.js";
import {CHANGES} from "./scene.js";

/**
 * `color`: of its swatch, "" for none; `stops`: colours along a swatch that goes from 0 to the most, each
 * with the share of the most that it stands for.
 * @typedef {{color: string, text: string, stops?: [number, string][]}} Key
 */

const STOPS = [0, 1 / 16, 1 / 4, 9 / 16, 1]; // between them the root is nearly a line

/** The fill of a box that has a share of the most; by its root, so that small shares differ, too.
 * @param {string} color of the most @param {number} share @returns {string} */
export function shade(color, share) {
  return tint(color, 1 - 0.9 * Math.sqrt(share));
}

/** @param {Pick<import("./columns.js").Picture, "scene" | "colorBy" | "most">} picture @returns {Key[]} */
export function keysOf({scene, colorBy, most}) {
  const {theme, rows, strings} = scene;
  const key = (/** @type {string} */ color, /** @type {string} */ text) => ({color, text});
  const ramp = (/** @type {string} */ color, /** @type {string} */ text) =>
    ({color: shade(color, 1), text,
      stops: STOPS.map((share) => /** @type {[number, string]} */ ([share, shade(color, share)]))});
  const keys = /** @type {Record<string, () => Key[]>} */ ({
    phase: () => Object.entries(theme.phases).map(([name, color]) => key(tint(String(color), 0.45), name)),
    segment: () => [key("#dfe4ea", "in several segments"), key("", "other colours: one segment")],
    dtype: () => [...new Set([...rows.dtype].filter(Boolean))].slice(0, 8)
      .map((id) => key(tint(theme.dtypes[strings[id]] || theme.faint, 0.35), strings[id])),
    change: () => CHANGES.slice(1).map((name) =>
      key(tint(theme.changes[name], 0.3), name === "rewired" ? "rewired (reads other values)" : name)),
    time: () => [ramp(theme.ramps.time, `${formatNs(most.time)} on the device`)],
    memory: () => [ramp(theme.ramps.memory, `${formatBytes(most.bytes)} of results`)],
  });
  return keys[colorBy]();
}
