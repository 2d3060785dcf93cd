// The keyboard of a view: its keys are its own, and a bokeh figure is one stop for Tab, with a ring.

/** Elements that one writes into. */
export const WRITTEN = "textarea, [contenteditable], "
  + "input:not([type=checkbox], [type=radio], [type=range], [type=button])";

/**
 * What is pressed in a view is no command of the notebook's, as `a` or `d d` are. JupyterLab asks the
 * element that has the focus for this attribute. Keys with Ctrl or Cmd, and those that run the cell, stay
 * JupyterLab's; in a text that one writes, only those that save or run.
 * @param {KeyboardEvent} event on its way down, before JupyterLab looks at it
 */
export function keepKeys(event) {
  const target = /** @type {Element} */ (event.target), inner = /** @type {Element} */ (event.composedPath()[0]);
  if (!target.closest?.(".kit-view")) return;
  const isAccel = event.ctrlKey || event.metaKey, isEnter = event.key === "Enter";
  const isLabs = inner.matches(WRITTEN) ? isAccel && (isEnter || event.key.toLowerCase() === "s")
    : isAccel || (isEnter && (event.shiftKey || event.altKey));
  if (isLabs) return;
  target.setAttribute("data-lm-suppress-shortcuts", "true");
  setTimeout(() => target.removeAttribute("data-lm-suppress-shortcuts"));
}

/**
 * JupyterLab looks at keys while they come down from the document, before any element sees them: so
 * ours are taken at the window, only while one of these parts has the focus, and never with Ctrl or
 * Cmd.
 * @param {HTMLElement[]} parts
 * @param {(event: KeyboardEvent) => boolean} press does what a key means; true if it means something
 */
export function takeKeys(parts, press) {
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !press(event)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  for (const part of parts) {
    part.addEventListener("focusin", () => window.addEventListener("keydown", onKey, true));
    part.addEventListener("focusout", () => window.removeEventListener("keydown", onKey, true));
  }
}

/**
 * Let Tab and a click reach a figure.
 * @param {HTMLElement} host the element of the figure
 * @param {string} label what a screen reader calls it
 */
export function makeStop(host, label) {
  host.addEventListener("pointerdown", () => host.focus({preventScroll: true}), true);
  host.tabIndex = 0;
  const layer = host.shadowRoot?.querySelector(".bk-Canvas")?.shadowRoot?.querySelector(".bk-events");
  layer?.setAttribute("tabindex", "-1"); // bokeh's own stop for Tab: the same keys a second time
  host.style.outlineOffset = "-2px";
  host.setAttribute("role", "application");
  host.setAttribute("aria-label", label);
  const ring = () => { host.style.outline = host.matches(":focus-visible") ? "2px solid #2f6db5" : "none"; };
  host.addEventListener("focus", ring);
  host.addEventListener("blur", () => { host.style.outline = "none"; });
  ring();
}

/** True unless a button of bokeh's toolbar has the focus. @param {KeyboardEvent} event
 * @param {HTMLElement} host */
export function isForPlot(event, host) {
  const path = event.composedPath(), target = /** @type {Element} */ (path[0]);
  return path.includes(host) && !target.closest?.("button, input, [class*=ToolButton]");
}
