// Colours and sizes of a timeline.

export const FONT = "Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif";
// Pixels: the height of the axis, the margin at the right, the height of the overview.
export const AXIS = 22;
export const RIGHT = 10;
export const OVERVIEW = 34;

const LIGHT = {ink: "#1f2933", muted: "#66727f", line: "#e3e8ee", ground: "#ffffff", edge: "#c3ccd6",
  strip: "#f4f6f8", even: "#eaeef3", odd: "#dde3ea"};

/** @typedef {Record<keyof LIGHT | "accent", string>} Tones */

/** @param {string} color @returns {string} the colour as the page's theme wants it */
export function tone(color) {
  return window.kitPage ? window.kitPage.twin(color) : color;
}

/** @returns {boolean} */
export function isDark() {
  return Boolean(window.kitPage?.isDark());
}

/** @returns {Tones} */
export function tonesNow() {
  const tones = Object.fromEntries(Object.entries(LIGHT).map(([name, color]) => [name, tone(color)]));
  return /** @type {Tones} */ ({...tones, accent: isDark() ? "#6aa9f4" : "#1664c0"});
}
