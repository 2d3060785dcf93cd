// What every page with a view of kit needs once: figures that follow the page's theme, controls
// with names for screen readers, keys for undo and redo. Runs in JupyterLab and in a saved report.
import {DarkTwins, hexOf} from "./colors.js";
import {copyLink, nameControls, undoByKeys} from "./controls.js";
import {FigurePainter, sendNoEchoes, StretchedCanvases} from "./figures.js";
import {keepKeys} from "./keys.js";
import {fitLegends} from "./fit.js";
import {saysDark} from "./theme.js";
import live from "./live.css";
import css from "./page.css";

// What the ground of a page is called, where its theme says so: JupyterLab and reports, VS Code.
const GROUNDS = ["--jp-layout-color0", "--vscode-editor-background"];

/**
 * Prepare the page and return what `window.kitPage` offers to the views in it.
 * @param {{twins: Record<string, string>, kept: string[], ground: string}} colors
 */
export function makePage(colors) {
  const darkMedia = matchMedia("(prefers-color-scheme: dark)");
  const isReport = document.querySelector('meta[name=generator][content="overlap-kit"]') !== null;
  let isPrinting = false;

  function isDark() {
    if (isPrinting) return false; // paper is white
    return saysDark(document.body) ?? (isReport && darkMedia.matches);
  }

  const twins = new DarkTwins(colors);
  const painter = new FigurePainter(twins, isDark), canvases = new StretchedCanvases();

  /** The dark ground of figures is the page's own: one black, not one beside another. */
  function standOnPage() {
    const style = getComputedStyle(document.body);
    const named = GROUNDS.map((name) => style.getPropertyValue(name).trim()).find(Boolean);
    const ground = (named && hexOf(named)) || colors.ground;
    if (ground !== twins.ground) {
      painter.forgetDark();
      twins.standOn(ground);
    }
    document.documentElement.style.setProperty("--kit-ground", ground);
  }

  function paintAll() {
    if (isDark()) standOnPage();
    document.documentElement.dataset.kitTheme = isDark() ? "dark" : "light";
    painter.paintAll();
    window.dispatchEvent(new Event("kit-theme")); // for views that draw without figures
  }

  const print = (/** @type {boolean} */ now) => { isPrinting = now; paintAll(); };

  const style = document.createElement("style");
  style.textContent = css + live;
  document.head.append(style);
  new MutationObserver(paintAll).observe(document.body, {attributes: true,
    attributeFilter: ["data-jp-theme-light", "class"]});
  darkMedia.addEventListener("change", paintAll);
  window.addEventListener("beforeprint", () => print(true));
  // Paper waits for no frame. Bokeh has taken the colours by the next listener, in its promises.
  window.addEventListener("beforeprint", () => painter.paintNow());
  window.addEventListener("afterprint", () => print(false));
  window.addEventListener("keydown", keepKeys, true); // JupyterLab listens at the document
  document.addEventListener("keydown", undoByKeys, true);
  document.addEventListener("click", copyLink);
  let waiting = 0;
  new MutationObserver(() => {
    waiting ||= requestAnimationFrame(() => { waiting = 0; nameControls(); });
  }).observe(document.body, {childList: true, subtree: true});
  nameControls();
  paintAll();
  return {
    isDark, fitLegends, sendNoEchoes,
    paint: (/** @type {any} */ figure, /** @type {any} */ index) => painter.paint(figure, index),
    watch: (/** @type {Iterable<any>} */ views) => canvases.watch(views),
    twin: (/** @type {string} */ color) => (isDark() ? twins.of(color) : color),
  };
}
