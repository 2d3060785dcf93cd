// A view's stored page in a notebook: a frame as high as what is in it, in the notebook's theme.
import {saysDark} from "./theme.js";

// What the texts of views are coloured by.
const COLORS = ["--jp-ui-font-color1", "--jp-ui-font-color2", "--jp-layout-color0", "--jp-layout-color1",
  "--jp-layout-color2", "--jp-border-color2", "--jp-error-color1", "--jp-brand-color1",
  "--jp-mirror-editor-string-color"];

/**
 * Have a frame follow what is in it and around it; nothing where it has gone, or may not be looked into.
 * @param {HTMLIFrameElement} frame that has loaded
 */
export function follow(frame) {
  const page = frame.contentDocument?.body;
  if (!page) return;
  const fit = () => {
    const high = page.offsetHeight; // none while the frame is hidden
    if (high) frame.style.height = `${high + 8}px`;
  };
  new ResizeObserver(fit).observe(page); // figures come later, parts are unfolded
  dress(page, frame);
  new MutationObserver(() => dress(page, frame)).observe(document.body, {attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"]});
  if (document.body.className.includes("vscode-")) page.addEventListener("wheel", (event) => handOn(event, frame));
}

/**
 * Give a page the colours around its frame, where a theme is named.
 * @param {HTMLElement} page
 * @param {HTMLElement} frame
 */
function dress(page, frame) {
  const isDark = saysDark(document.body);
  if (isDark === null) return;
  const root = page.ownerDocument.documentElement, own = getComputedStyle(frame);
  for (const name of COLORS) root.style.setProperty(name, own.getPropertyValue(name));
  root.style.colorScheme = isDark ? "dark" : "light";
  page.dataset.jpThemeLight = String(!isDark); // figures look here
}

/**
 * VS Code scrolls by the wheel events of its own page alone: over a frame a notebook stood still.
 * @param {WheelEvent} event that nothing inside takes
 * @param {HTMLElement} frame
 */
function handOn(event, frame) {
  const takes = (/** @type {EventTarget} */ at) => at instanceof Object && "scrollHeight" in at
    && /auto|scroll/.test(getComputedStyle(/** @type {Element} */ (at)).overflowY)
    && Number(at.scrollHeight) > /** @type {Element} */ (at).clientHeight;
  if (!event.defaultPrevented && !event.composedPath().some(takes)) frame.dispatchEvent(new WheelEvent("wheel", event));
}
