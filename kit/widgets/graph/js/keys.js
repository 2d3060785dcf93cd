// The keyboard and the pointer of a graph.
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
 * JupyterLab looks at keys while they come down from the document, before any element sees them: so
 * ours are taken at the window, only while the plot has the focus, and never with Ctrl or Cmd.
 * @param {Graph} graph
 * @param {HTMLElement} host the element of the figure
 * @param {import("./bar.js").Bar} bar
 */
export function listen(graph, host, bar) {
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTaken = isForPlot(event, host) ? press(graph, event.key, event.shiftKey)
      : event.composedPath()[0] === bar.input && searchKey(graph, bar, host, event);
    if (!isTaken) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  for (const part of [host, bar.root]) {
    part.addEventListener("focusin", () => window.addEventListener("keydown", onKey, true));
    part.addEventListener("focusout", () => window.removeEventListener("keydown", onKey, true));
  }
  host.addEventListener("pointerdown", (event) => {
    graph.isShift = event.shiftKey;
    host.focus({preventScroll: true});
  }, true);
  host.tabIndex = 0;
  const layer = host.shadowRoot?.querySelector(".bk-Canvas")?.shadowRoot?.querySelector(".bk-events");
  layer?.setAttribute("tabindex", "-1"); // bokeh's own stop for Tab: the same keys a second time
  host.style.outlineOffset = "-2px";
  host.setAttribute("role", "application");
  host.setAttribute("aria-label", `IR graph. ${KEYS_HELP}`);
  const ring = () => { host.style.outline = host.matches(":focus-visible") ? "2px solid #2f6db5" : "none"; };
  host.addEventListener("focus", ring);
  host.addEventListener("blur", () => { host.style.outline = "none"; });
  ring();
}

/** True unless a button of bokeh's toolbar has the focus. @param {KeyboardEvent} event
 * @param {HTMLElement} host */
function isForPlot(event, host) {
  const path = event.composedPath(), target = /** @type {Element} */ (path[0]);
  return path.includes(host) && !target.closest?.("button, input, [class*=ToolButton]");
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
