// What the colours of a graph mean.
import {tint} from "../../base/js/colors.js";
import {formatBytes, formatNs} from "../../base/js/format.js";
import {CHANGES} from "./scene.js";

/**
 * `color`: of its swatch, "" for none; `from`: the colour of 0, where a swatch goes from one to the other.
 * @typedef {{color: string, text: string, from?: string}} Key
 */

/** @param {Pick<import("./columns.js").Picture, "scene" | "colorBy" | "most">} picture @returns {Key[]} */
export function keysOf({scene, colorBy, most}) {
  const {theme, rows, strings} = scene;
  const key = (/** @type {string} */ color, /** @type {string} */ text) => ({color, text});
  const ramp = (/** @type {string} */ color, /** @type {string} */ text) =>
    ({color: tint(color, 0.1), text, from: "#ffffff"});
  const keys = /** @type {Record<string, () => Key[]>} */ ({
    phase: () => Object.entries(theme.phases).map(([name, color]) => key(tint(String(color), 0.45), name)),
    segment: () => [key("#dfe4ea", "in several segments"), key("", "other colours: one segment")],
    dtype: () => [...new Set([...rows.dtype].filter(Boolean))].slice(0, 8)
      .map((id) => key(tint(theme.dtypes[strings[id]] || theme.faint, 0.35), strings[id])),
    change: () => CHANGES.slice(1).map((name) => key(tint(theme.changes[name], 0.3), name)),
    time: () => [ramp(theme.ramps.time, `${formatNs(most.time)} on the device`)],
    memory: () => [ramp(theme.ramps.memory, `${formatBytes(most.bytes)} of results`)],
  });
  return keys[colorBy]();
}
