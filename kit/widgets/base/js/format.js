// Numbers as people read them; `format_ns` and `format_bytes` of kit write the same.

const TIMES = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]];
const SIZES = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];

/** A number in the middle of two that can be shown becomes the even one, as in Python, not the larger.
 * Of three digits only an eighth is ever exactly in the middle: 12.35 is a little less than it says.
 * @param {number} x @param {(x: number) => string} write rounds to the nearest */
function evenly(x, write) {
  const shown = write(x);
  return (8 * x) % 1 === 0 && /[13579]$/.test(shown) ? write(x * (1 - 1e-12)) : shown;
}

/** @param {number} x @returns {number} */
function rounded(x) {
  return Number(evenly(x, (value) => String(Math.round(value))));
}

/** @param {number} x @returns {string} with three digits that count, or all of a larger number */
function threeDigits(x) {
  if (Math.abs(x) >= 99.95) return rounded(x).toLocaleString("en");
  return String(Number(evenly(x, (value) => value.toPrecision(3))));
}

/** @param {number} value @param {any[][]} units @param {string} smallest @returns {string} */
function withUnit(value, units, smallest) {
  for (const [scale, unit] of units) {
    if (Math.abs(value) >= scale * 0.9995) return `${threeDigits(value / scale)} ${unit}`;
  }
  return `${rounded(value)} ${smallest}`;
}

/** @param {number} ns @returns {string} */
export function formatNs(ns) {
  return withUnit(ns, TIMES, "ns");
}

/** Writes times along an axis: all in one unit, with the digits in which neighbours differ.
 * @param {number} largest nanoseconds @param {number} step from one to the next
 * @returns {(ns: number) => string} */
export function writerOf(largest, step) {
  const [scale, unit] = TIMES.find(([size]) => largest >= Number(size) * 0.9995) ?? [1, "ns"];
  const digits = Math.max(0, Math.ceil(Math.log10(Number(scale) / step) - 1e-9));
  const format = new Intl.NumberFormat("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  return (ns) => `${format.format(ns / Number(scale))} ${unit}`;
}

/** @param {number} size @returns {string} */
export function formatBytes(size) {
  return withUnit(size, SIZES, "B");
}

/** @param {number} ns @returns {string} a time to the nanosecond, so that neighbours differ */
export function formatAt(ns) {
  for (const [scale, unit, digits] of [[1e9, "s", 9], [1e6, "ms", 6], [1e3, "µs", 3]]) {
    if (Math.abs(ns) < Number(scale)) continue;
    const options = {maximumFractionDigits: Number(digits)};
    return `${(ns / Number(scale)).toLocaleString("en", options)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

/** @param {number} n @returns {string} */
export function formatCount(n) {
  return n.toLocaleString("en");
}

/** "43%"; "≈0%" and "≈100%" of what rounds to these and is not, as `format_percent` of kit writes.
 * @param {number} fraction @returns {string} */
export function formatPercent(fraction) {
  const shown = rounded(100 * fraction);
  const isEdge = (shown === 0 || shown === 100) && Math.abs(100 * fraction - shown) > 1e-7;
  return `${isEdge ? "≈" : ""}${shown.toLocaleString("en")}%`;
}

/** "1 op", "2 ops". @param {number} n @param {string} word @param {string} [words] of several */
export function plural(n, word, words = `${word}s`) {
  return `${formatCount(n)} ${n === 1 ? word : words}`;
}
