// Numbers and colours as the pages write them.
import assert from "node:assert/strict";
import test from "node:test";

import {DarkTwins, inkOn, tint} from "../../kit/widgets/base/js/colors.js";
import {keepKeys} from "../../kit/widgets/base/js/keys.js";
import {columnsIn} from "../../kit/widgets/base/js/fit.js";
import {formatAt, formatBytes, formatNs, formatPercent, plural} from "../../kit/widgets/base/js/format.js";
import {cut} from "../../kit/widgets/base/js/wrap.js";

test("a label is cut where its room ends, and not before", () => {
  const wide = (/** @type {string} */ text) => 7 * text.length;
  assert.equal(cut("2 × optimizer state", 200, wide), "2 × optimizer state");
  assert.equal(cut("2 × optimizer state", 70, wide), "2 × optim…");
  assert.equal(cut("2 × optimizer state", 28, wide), "2 ×…");
  assert.equal(cut("2 × optimizer state", -5, wide), "…");
});

test("a legend has as many columns as there is room for its widest keys, and two at least", () => {
  const wide = [50, 90, 50, 90, 70];
  assert.equal(columnsIn(wide, 398), 5); // with 12 pixels between them
  assert.equal(columnsIn(wide, 397), 4);
  assert.equal(columnsIn(wide, 253), 2); // three are 90, 90 and 50 wide
  assert.equal(columnsIn(wide, 10), 2);
});

test("times and sizes have three digits and the unit that reads best", () => {
  assert.deepEqual([850, 12_345, 999_700, 4.56e6, 1.234e9, 5e12].map(formatNs),
    ["850 ns", "12.3 µs", "1 ms", "4.56 ms", "1.23 s", "5,000 s"]);
  assert.deepEqual([64, 1500, 12e6].map(formatBytes), ["64 B", "1.5 kB", "12 MB"]);
  assert.deepEqual([0, 0.004, 0.426, 0.997, 1, 1.002, 12.5].map(formatPercent),
    ["0%", "≈0%", "43%", "≈100%", "100%", "≈100%", "1,250%"]);
  assert.equal(formatAt(1_234_567), "1.234567 ms");
  assert.deepEqual([plural(1, "op"), plural(1200, "op")], ["1 op", "1,200 ops"]);
});

test("a colour is mixed with white, and gets a text that can be read", () => {
  assert.deepEqual([tint("#204060", 0), tint("#204060", 1)], ["#204060", "#ffffff"]);
  assert.deepEqual([inkOn("#ffffff"), inkOn("#204060")], ["#1f2933", "#ffffff"]);
  assert.deepEqual(["#2f9e8f", "#db57ba", "#dd5a3c"].map(inkOn), Array(3).fill("#1f2933"));
});

test("pale colours have dark twins, strong and kept ones stay", () => {
  const twins = new DarkTwins({twins: {ink: "#1f2933", muted: "#66727f", "#1f2933": "#e6eaf0"},
    kept: ["#f0e28c"], ground: "#171b21"});
  assert.equal(twins.of("#ffffff"), "#171b21");
  assert.equal(twins.of("#f0e28c"), "#f0e28c");
  assert.equal(twins.of("#5674d8"), "#5674d8");
  assert.notEqual(twins.of("#eaeef3"), "#eaeef3");
  assert.equal(twins.of("transparent"), "transparent");
  assert.equal(twins.inkOn("#ffffff"), "#e6eaf0");
  const before = twins.of("#eaeef3");
  twins.standOn("#111111"); // another dark theme
  assert.equal(twins.of("#ffffff"), "#111111");
  assert.notEqual(twins.of("#eaeef3"), before);
});

test("what is pressed in a view is no command of a notebook, but for those with Ctrl", (context) => {
  context.mock.timers.enable({apis: ["setTimeout"]});
  const keptOf = (/** @type {Record<string, any>} */ key, isInView = true, isText = false) => {
    const marks = new Map(), inner = {matches: () => isText};
    const target = {closest: () => isInView, setAttribute: (/** @type {string} */ name) => marks.set(name, true),
      removeAttribute: (/** @type {string} */ name) => marks.delete(name)};
    keepKeys(/** @type {any} */ ({target, composedPath: () => [inner], ...key}));
    const isKept = marks.has("data-lm-suppress-shortcuts");
    context.mock.timers.tick(1);
    assert.equal(marks.size, 0); // the next key is asked anew
    return isKept;
  };
  assert.deepEqual([{key: "m"}, {key: "ArrowDown"}, {key: "s", ctrlKey: true}, {key: "s", metaKey: true}]
    .map((key) => keptOf(key)), [true, true, false, false]);
  assert.equal(keptOf({key: "a", ctrlKey: true}, true, true), true); // all of a text, not all cells
  assert.equal(keptOf({key: "m"}, false), false);
});
