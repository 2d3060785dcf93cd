// Bokeh figures that follow their page: its theme, by dark twins of their colours, and its width.

/** Two specs of a colour that draw the same. @param {any} a @param {any} b */
function isSame(a, b) {
  return a === b || (a && b && typeof a === "object" && typeof b === "object"
    && a.value === b.value && a.field === b.field && Boolean(a.transform) === Boolean(b.transform));
}

const quiet = new WeakSet(); // documents of bokeh that send no echo

/** What a figure was told is no news to the kernel, nor is what scripts set with `sync: false`. Bokeh
 * marks both; jupyter_bokeh 4.1 would send them all the same: megabytes, of which the older may come late.
 * @param {any} document of bokeh */
export function sendNoEchoes(document) {
  if (quiet.has(document)) return;
  quiet.add(document);
  const tell = document._trigger_on_change;
  document._trigger_on_change = (/** @type {any} */ event) => {
    if ((event.events ?? [event]).some((/** @type {any} */ one) => one.sync)) tell.call(document, event);
  };
}

/** The canvases of bokeh in a page. Where the width changes while JupyterLab skips what is out of
 * sight, Chromium does not apply the new size in the shadow root of some: they stay stretched until
 * their styles are set again, which is done once they come into sight. */
export class StretchedCanvases {
  constructor() {
    this.seen = new IntersectionObserver((entries) => {
      for (const {isIntersecting, target} of entries) if (isIntersecting) restyle(target);
    });
  }

  /** @param {Iterable<any>} views of one figure */
  watch(views) {
    for (const {canvas_view} of views) {
      if (!canvas_view) continue;
      this.seen.observe(canvas_view.el);
      scrollBySwipes(canvas_view.events_el);
    }
  }
}

/** A swipe up or down scrolls the page, also over a figure that a drag moves: it may be as high as a phone.
 * @param {HTMLElement} layer of bokeh's that takes the pointer */
function scrollBySwipes(layer) {
  if (getComputedStyle(layer).touchAction !== "auto") layer.style.touchAction = "pan-y";
}

/** @param {Element} host of the shadow root with the canvases */
function restyle(host) {
  const canvas = host.shadowRoot?.querySelector("canvas");
  if (!canvas || Math.abs(canvas.clientWidth - host.clientWidth) <= 1) return;
  for (const style of host.shadowRoot?.querySelectorAll("style") ?? []) style.textContent = String(style.textContent);
}

/** Bokeh clears and fills from half a pixel on: in the first row the ground of before would stay.
 * @param {HTMLCanvasElement} [canvas] */
function wipe(canvas) {
  const context = canvas?.getContext("2d");
  if (!canvas || !context) return;
  context.save();
  context.resetTransform();
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.restore();
}

/** Paints all figures of a page; it keeps what each of them looked like before. */
export class FigurePainter {
  /** @param {import("./colors.js").DarkTwins} twins @param {() => boolean} isDark */
  constructor(twins, isDark) {
    this.twins = twins;
    this.isDark = isDark;
    /** @type {Map<any, any>} */
    this.figures = new Map(); // figure -> the index of bokeh's views that has its views
    this.painted = new WeakMap(); // model -> {property: [light, dark]}
  }

  /** @param {any} figure @param {any} index of bokeh's views @returns {boolean} whether a colour has changed */
  paint(figure, index) {
    this.figures.set(figure, index);
    const toDark = this.isDark(), sources = new Map();
    for (const {glyph, data_source} of figure.renderers) sources.set(glyph, data_source);
    let hasChanged = false;
    for (const model of figure.references()) {
      hasChanged = this.paintModel(model, toDark, sources.get(model)) || hasChanged;
    }
    if (hasChanged) for (const {canvas_view} of index.find(figure)) wipe(canvas_view?.primary.canvas);
    return hasChanged;
  }

  /** Before the dark twins change: all figures are light again, and no twin is kept. */
  forgetDark() {
    const isDark = this.isDark;
    this.isDark = () => false;
    this.paintAll();
    this.isDark = isDark;
    this.painted = new WeakMap();
  }

  paintAll() {
    for (const [figure, index] of this.figures) {
      if (figure.document === null) this.figures.delete(figure);
      else if (this.paint(figure, index)) {
        // A legend in other colours is made anew, and had no height when bokeh laid the figure out.
        requestAnimationFrame(() => { for (const view of index.find(figure)) view.invalidate_layout(); });
      }
    }
  }

  /** Paint at once what is waiting for a frame of the page. */
  paintNow() {
    for (const [figure, index] of this.figures) {
      for (const view of index.find(figure)) {
        view.invalidate_layout();
        view.repaint();
      }
    }
  }

  /** @param {any} model @param {boolean} toDark @param {any} source columns that the model reads */
  paintModel(model, toDark, source) {
    const kept = this.painted.get(model) ?? {};
    /** @type {Record<string, any>} */
    const changes = {};
    for (const prop of Object.values(model.properties)) {
      const name = prop.attr;
      if (!name.endsWith("color") || prop.is_unset) continue;
      const now = prop.get_value();
      if (kept[name] === undefined || !isSame(now, kept[name][1])) {
        kept[name] = [now, this.darkSpec(name, now, source)]; // as the kernel has it
      }
      const next = kept[name][toDark ? 1 : 0];
      if (!isSame(now, next)) changes[name] = next;
    }
    this.painted.set(model, kept);
    // Not `setv`: jupyter_bokeh sends what that changes to the kernel, which need not know.
    const asked = Object.entries(changes).map(([name, value]) => [model.properties[name], value]);
    if (asked.length) model._setv(new Map(/** @type {any} */ (asked)), {});
    return asked.length > 0;
  }

  /** @param {string} name @param {any} spec @param {any} source */
  darkSpec(name, spec, source) {
    if (typeof spec === "string") return this.twins.of(spec);
    if (spec === null || typeof spec !== "object") return spec;
    if (typeof spec.value === "string") return {...spec, value: this.twins.of(spec.value)};
    if (typeof spec.field !== "string" || spec.transform) return spec;
    return {...spec, transform: this.transform(name, spec.field, source)};
  }

  /** Columns of colours stay as they are in the source; a glyph that reads them gets the twins.
   * @param {string} name @param {string} field @param {any} source */
  transform(name, field, source) {
    const {twins} = this;
    const one = (/** @type {any} */ color) => twins.of(color);
    const note = (/** @type {any} */ color) => twins.ofNote(color);
    if (name !== "text_color") return {compute: one, v_compute: (/** @type {any} */ xs) => Array.from(xs, one)};
    if (field !== "ink" || !source) {
      return {compute: note, v_compute: (/** @type {any} */ xs) => Array.from(xs, note)};
    }
    return {compute: one, v_compute: (/** @type {any} */ xs) => {
      const fills = source.data.color;
      return Array.from(xs, (x, i) => (fills ? twins.inkOn(fills[i]) : one(x)));
    }};
  }
}
