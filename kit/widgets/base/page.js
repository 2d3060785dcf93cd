// What every page with a view of kit needs once: figures that follow the page's theme, controls
// with names for screen readers, keys for undo and redo. Runs in JupyterLab and in a saved report.
// TWINS, KEPT, DARK_GROUND and PAGE_CSS are put before this text.
window.kitPage ??= (() => {
  const figures = new Set();
  const painted = new WeakMap(); // model -> {property: [light, dark]}
  const lab = () => document.body.dataset.jpThemeLight;
  const isReport = () => document.querySelector('meta[name=generator][content="overlap-kit"]') !== null;
  const darkMedia = matchMedia("(prefers-color-scheme: dark)");
  let isPrinting = false;

  function isDark() {
    if (isPrinting) return false; // paper is white
    if (lab() !== undefined) return lab() === "false";
    if (document.body.classList.contains("vscode-dark")) return true;
    return isReport() && darkMedia.matches;
  }

  const parse = (c) => [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16) / 255);
  const hex = (rgb) => "#" + rgb.map((x) => Math.round(x * 255).toString(16).padStart(2, "0")).join("");
  const light = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b;
  const cache = new Map();

  // Pale colours, mostly kinds mixed with white, become the same mixed with the dark ground. What has
  // more of its own colour stays, and so can the dark text that stands on it.
  function dark(color) {
    if (typeof color !== "string" || !/^#[0-9a-f]{6}$/i.test(color)) return color;
    let found = cache.get(color);
    if (found === undefined) {
      const ground = parse(DARK_GROUND);
      const depth = parse(color).map((x) => 1 - x); // how far from white, in each channel
      const most = Math.max(...depth);
      const hue = depth.map((x) => (most > 0 ? 1 - x / most : 1));
      const part = 0.1 + most * 0.75;
      found = TWINS[color] ?? (KEPT.includes(color) || most > 0.26 ? color
        : hex(ground.map((g, i) => g + (hue[i] * 0.6 + 0.25 - g) * part)));
      cache.set(color, found);
    }
    return found;
  }

  const inkOn = (fill) => (!/^#[0-9a-f]{6}$/i.test(fill) || light(parse(dark(fill))) < 0.55
    ? dark(TWINS.ink) : TWINS.ink);

  // Columns of colours stay as they are in the source; what reads them gets the dark twins.
  const twins = {compute: dark, v_compute: (xs) => Array.from(xs, dark)};
  const inks = (source) => ({compute: dark, v_compute: (xs) => {
    const fills = source.data.color;
    return Array.from(xs, (x, i) => (fills ? inkOn(fills[i]) : dark(x)));
  }});

  // Of texts in other columns only the muted ones stand on the ground, and not on a fill.
  const note = (x) => (x === TWINS.muted ? dark(x) : x);
  const notes = {compute: note, v_compute: (xs) => Array.from(xs, note)};

  function darkSpec(name, spec, source) {
    if (typeof spec === "string") return dark(spec);
    if (spec === null || typeof spec !== "object") return spec;
    if (typeof spec.value === "string") return {...spec, value: dark(spec.value)};
    if (typeof spec.field !== "string" || spec.transform) return spec;
    if (name !== "text_color") return {...spec, transform: twins};
    return {...spec, transform: spec.field === "ink" && source ? inks(source) : notes};
  }

  const same = (a, b) => a === b || (a && b && typeof a === "object" && typeof b === "object"
    && a.value === b.value && a.field === b.field && Boolean(a.transform) === Boolean(b.transform));

  function paintModel(model, toDark, source) {
    const kept = painted.get(model) ?? {};
    const changes = {};
    for (const prop of Object.values(model.properties)) {
      const name = prop.attr;
      if (!name.endsWith("color") || prop.is_unset) continue;
      const now = prop.get_value();
      if (kept[name] === undefined || !same(now, kept[name][1])) {
        kept[name] = [now, darkSpec(name, now, source)]; // as the kernel has it
      }
      const next = kept[name][toDark ? 1 : 0];
      if (!same(now, next)) changes[name] = next;
    }
    painted.set(model, kept);
    // Not `setv`: jupyter_bokeh sends what that changes to the kernel, which need not know.
    const asked = Object.entries(changes).map(([name, value]) => [model.properties[name], value]);
    if (asked.length) model._setv(new Map(asked), {});
  }

  function paint(figure) {
    figures.add(figure);
    const toDark = isDark(), sources = new Map();
    for (const {glyph, data_source} of figure.renderers) sources.set(glyph, data_source);
    for (const model of figure.references()) paintModel(model, toDark, sources.get(model));
  }

  function paintAll() {
    document.documentElement.dataset.kitTheme = isDark() ? "dark" : "light";
    for (const figure of figures) {
      if (figure.document === null) figures.delete(figure);
      else paint(figure);
    }
    window.dispatchEvent(new Event("kit-theme")); // for who draws without figures
  }

  // A control's name is the text beside it; ipywidgets joins the two for few kinds only.
  function nameControls() {
    for (const box of document.querySelectorAll(".kit-labelled:not([data-kit-named])")) {
      const label = box.querySelector(".kit-label")?.textContent;
      const parts = box.querySelectorAll("[role=slider], .noUi-handle, select, input, .jupyter-widget-toggle-buttons, .widget-toggle-buttons");
      if (!label || !parts.length) continue;
      box.dataset.kitNamed = "1";
      for (const part of parts) {
        part.setAttribute("aria-label", label);
        if (part.matches(".widget-toggle-buttons, .jupyter-widget-toggle-buttons")) nameChoices(part);
      }
      const readout = box.querySelector(".widget-readout");
      const handle = box.querySelector(".noUi-handle");
      if (readout && handle) {
        readout.contentEditable = "false"; // to type into it has no effect; Tab need not stop there
        follow(handle, readout);
      }
    }
    for (const line of document.querySelectorAll(".kit-announce:not([role])")) {
      line.setAttribute("role", "status");
      line.setAttribute("aria-live", "polite");
    }
    for (const bar of document.querySelectorAll(".kit-explorer .progress:not([role])")) {
      bar.setAttribute("role", "progressbar");
      bar.setAttribute("aria-label", "progress of the run");
    }
  }

  function follow(handle, readout) {
    const say = () => {
      if (handle.getAttribute("aria-valuetext") !== readout.textContent) {
        handle.setAttribute("aria-valuetext", readout.textContent);
      }
    };
    say();
    new MutationObserver(say).observe(readout, {childList: true, characterData: true, subtree: true});
    new MutationObserver(say).observe(handle, {attributes: true, attributeFilter: ["aria-valuetext"]});
  }

  function nameChoices(group) {
    group.setAttribute("role", "group");
    const say = () => group.querySelectorAll("button").forEach((button) => {
      const pressed = String(button.classList.contains("mod-active"));
      if (button.getAttribute("aria-pressed") !== pressed) button.setAttribute("aria-pressed", pressed);
    });
    say();
    new MutationObserver(say).observe(group, {attributes: true, attributeFilter: ["class"], subtree: true});
  }

  function onKey(event) {
    const root = event.target instanceof Element ? event.target.closest(".kit-explorer") : null;
    if (!root || !(event.ctrlKey || event.metaKey) || event.altKey) return;
    if (event.target.matches("input[type=text], textarea")) return; // has an undo of its own
    const key = event.key.toLowerCase();
    const which = key === "y" || (key === "z" && event.shiftKey) ? ".kit-redo" : key === "z" ? ".kit-undo" : "";
    if (!which) return;
    event.preventDefault();
    event.stopPropagation();
    root.querySelector(which)?.click();
  }

  const style = document.createElement("style");
  style.textContent = PAGE_CSS;
  document.head.append(style);
  new MutationObserver(paintAll).observe(document.body, {attributes: true,
    attributeFilter: ["data-jp-theme-light", "class"]});
  darkMedia.addEventListener("change", paintAll);
  window.addEventListener("beforeprint", () => { isPrinting = true; paintAll(); });
  window.addEventListener("afterprint", () => { isPrinting = false; paintAll(); });
  document.addEventListener("keydown", onKey, true);
  let waiting = 0;
  new MutationObserver(() => {
    waiting ||= requestAnimationFrame(() => { waiting = 0; nameControls(); });
  }).observe(document.body, {childList: true, subtree: true});
  nameControls();
  paintAll();
  return {paint, isDark, twin: (color) => (isDark() ? dark(color) : color)};
})();
