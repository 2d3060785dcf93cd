// The keyboard and the pointer of a graph.
import {isForPlot, makeStop, takeKeys} from "../../base/js/keys.js";
import {KEYS_HELP} from "./bar.js";

const ZOOM_IN = 1.25, ZOOM_OUT = 0.8;
const PART = 0.15; // of what is shown: one press of an arrow

/** @typedef {import("./graph.js").KitGraph} Graph */

/**
 * What a key does, if it has a meaning here.
 * @param {Graph} graph
 * @param {string} key
 * @param {boolean} isShift
 * @returns {boolean} true if it has
 */
export function press(graph, key, isShift) {
  const {camera} = graph, [w, h] = camera.size().map((v) => (v / camera.scale()) * PART);
  const act = /** @type {Record<string, () => void>} */ ({
    "+": () => graph.zoom(ZOOM_IN), "=": () => graph.zoom(ZOOM_IN),
    "-": () => graph.zoom(ZOOM_OUT), "_": () => graph.zoom(ZOOM_OUT), 0: () => graph.showAll(),
    ArrowLeft: () => graph.shift(-w, 0), ArrowRight: () => graph.shift(w, 0),
    ArrowUp: () => graph.shift(0, -h), ArrowDown: () => graph.shift(0, h),
    n: () => graph.step(1), p: () => graph.step(-1), Enter: () => graph.enter(isShift),
    Escape: () => graph.escape(), "/": () => graph.bar?.input.focus(),
  });
  if (!Object.hasOwn(act, key) || !graph.scene) return false;
  graph.isByKeys = true;
  act[key]();
  return true;
}

/**
 * Keys of the plot and of its search field.
 * @param {Graph} graph
 * @param {HTMLElement} host the element of the figure
 * @param {import("./bar.js").Bar} bar
 */
export function listen(graph, host, bar) {
  takeKeys([host, bar.root], (event) => (isForPlot(event, host)
    ? press(graph, event.key, event.shiftKey)
    : event.composedPath()[0] === bar.input && searchKey(graph, bar, host, event)));
  host.addEventListener("pointerdown", (event) => { graph.isShift = event.shiftKey; }, true);
  makeStop(host, `IR graph. ${KEYS_HELP}`);
}

/** @param {Graph} graph @param {import("./bar.js").Bar} bar @param {HTMLElement} host
 * @param {KeyboardEvent} event @returns {boolean} */
function searchKey(graph, bar, host, event) {
  if (event.isComposing) return false; // Enter ends a composed word, Escape takes it back
  if (event.key === "Enter") graph.nextHit(event.shiftKey ? -1 : 1);
  else if (event.key === "Escape") {
    bar.clearSearch();
    host.focus();
  } else return false;
  return true;
}
