// Colours: mixing them, reading on them, and their twins where the page is dark.

const HEX = /^#[0-9a-f]{6}$/i;
const DARK_INK = "#1f2933", LIGHT_INK = "#ffffff", WHITE = "#ffffff";
const LEAST_SEEN = 1.7; // the contrast that a shape has to its ground, if it needs no edge

/** @param {string} color @returns {number[]} red, green and blue, 0 to 255 */
function channels(color) {
  return [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
}

/** @param {number[]} rgb @returns {string} */
function hex(rgb) {
  return "#" + rgb.map((x) => Math.round(x).toString(16).padStart(2, "0")).join("");
}

/** @param {string} color any colour of CSS @returns {string | null} it, as #rrggbb; else null */
export function hexOf(color) {
  if (HEX.test(color)) return color;
  const asked = document.createElement("i");
  asked.style.color = color;
  asked.style.setProperty("forced-color-adjust", "none"); // else it is the text of a reader's own colours
  document.body.append(asked);
  const rgb = getComputedStyle(asked).color.match(/^rgb\((\d+), (\d+), (\d+)\)$/);
  asked.remove();
  return rgb && asked.style.color ? hex(rgb.slice(1).map(Number)) : null;
}

/** @param {string} color @returns {number} 0 to 1, as WCAG defines it */
function luminance(color) {
  const [red, green, blue] = channels(color).map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** @param {string} one @param {string} other @returns {number} 1 to 21 */
function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((x, y) => x - y);
  return (light + 0.05) / (dark + 0.05);
}

/**
 * The colour mixed with white: `tint(c, 0)` is `c`, `tint(c, 1)` is white.
 * @param {string} color
 * @param {number} amount
 * @returns {string}
 */
export function tint(color, amount) {
  return hex(channels(color).map((x) => x + (255 - x) * amount));
}

/** @param {string} color @returns {string} a text colour that can be read on this one */
export function inkOn(color) {
  return contrast(color, DARK_INK) > contrast(color, LIGHT_INK) ? DARK_INK : LIGHT_INK;
}

/** @param {string} color @param {string} ground @returns {boolean} is a shape of it hardly seen there? */
export function isPaleOn(color, ground) {
  return contrast(color, ground) < LEAST_SEEN;
}

/**
 * The twins of colours where the page is dark. Pale colours, mostly kinds mixed with white, become
 * the same mixed with the dark ground. A colour with more of its own hue stays, and so can the dark
 * text that stands on it.
 */
export class DarkTwins {
  /** @param {{twins: Record<string, string>, kept: string[], ground: string}} given */
  constructor({twins, kept, ground}) {
    this.twins = twins;
    this.kept = new Set(kept);
    this.ground = ground;
    /** @type {Map<string, string>} */
    this.known = new Map();
  }

  /** @param {string} ground what white becomes from now on, as #rrggbb */
  standOn(ground) {
    this.ground = ground;
    this.known.clear();
  }

  /** @param {any} color @returns {any} */
  of(color) {
    if (typeof color !== "string" || !HEX.test(color)) return color;
    let found = this.known.get(color);
    if (found === undefined) {
      found = color === WHITE ? this.ground : this.twins[color] ?? this.mixed(color);
      this.known.set(color, found);
    }
    return found;
  }

  /** @param {string} color @returns {string} */
  mixed(color) {
    const depth = channels(color).map((x) => 1 - x / 255); // how far from white, in each channel
    const most = Math.max(...depth);
    if (this.kept.has(color) || most > 0.26) return color;
    const hue = depth.map((x) => (most > 0 ? 1 - x / most : 1));
    const part = 0.1 + most * 0.75;
    const ground = channels(this.ground).map((x) => x / 255);
    return hex(ground.map((g, i) => 255 * (g + (hue[i] * 0.6 + 0.25 - g) * part)));
  }

  /** @param {string} fill @returns {string} the text colour on a fill, once that is dark */
  inkOn(fill) {
    const {ink} = this.twins, pale = this.of(ink), ground = this.of(fill);
    return HEX.test(ground) && contrast(ground, ink) > contrast(ground, pale) ? ink : pale;
  }

  /** @param {any} color @returns {any} of texts in columns only the muted ones stand on the ground */
  ofNote(color) {
    return color === this.twins.muted ? this.of(color) : color;
  }
}
