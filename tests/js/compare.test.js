// The timelines of a comparison: what keys do, and which texts are seen.
import assert from "node:assert/strict";
import test from "node:test";

import {led, rowsOf} from "../../kit/widgets/compare/js/card.js";
import {headLines, linesOf, place} from "../../kit/widgets/compare/js/rows.js";
import {fitting, pressed, seen} from "../../kit/widgets/compare/js/strips.js";

const WHOLE = /** @type {[number, number]} */ ([0, 100]);

test("keys move and zoom the range, and never leave the whole", () => {
  assert.deepEqual(pressed("ArrowRight", [0, 20], WHOLE), [3, 23]);
  assert.deepEqual(pressed("ArrowLeft", [1, 21], WHOLE), [0, 20]);
  assert.deepEqual(pressed("ArrowRight", [79, 99], WHOLE), [80, 100]);
  const [from, to] = pressed("+", WHOLE, WHOLE) ?? [];
  assert.ok(from > 0 && to < 100 && Math.abs(from + to - 100) < 1e-9);
  assert.deepEqual(pressed("-", [2, 98], WHOLE), WHOLE);
  assert.deepEqual(pressed("0", [2, 3], WHOLE), WHOLE);
  assert.equal(pressed("Tab", WHOLE, WHOLE), null);
  assert.equal(pressed("constructor", WHOLE, WHOLE), null);
});

test("a text is seen where it fits into its step", () => {
  assert.deepEqual(seen(["step 0", "step 0"], [1, 10], 5), [0, 1]);
});

test("titles have small letters and the axis few ticks where there is little room", () => {
  assert.deepEqual(fitting(860), [11, 6]);
  assert.deepEqual(fitting(255), [10, 3]);
  assert.deepEqual(fitting(100), [8.5, 2]);
});

const BARS = {left_ms: [5, 0, 3], right_ms: [6, 1, 9], top: [1, 1, 4], bottom: [2, 2, 5], color: ["a", "b", "c"],
  name: ["late", "early", "below"], kind: ["kernel", "kernel", "wait"], duration: ["1 ms", "1 ms", "6 ms"],
  start: ["5 ms", "0 ns", "3 ms"], lane: ["x", "x", "y"], run: [1, 1, 2]};
const SYNCS = {x: [2], right: [4], top: [1], bottom: [2], cause: ["item"], site: ["train.py:9"], via: ["-"],
  duration: ["2 ms"], run: [1]};

test("bars and sync points are in rows from above, each in the order of time", () => {
  const rows = rowsOf(BARS, SYNCS, "red");
  assert.deepEqual(rows.map((row) => row.map(({head}) => head)),
    [["sync point: item"], ["early", "late"], ["below"]]);
  assert.deepEqual(rows[0][0].rows, [["waited", "2 ms"], ["line", "train.py:9"], ["through", "-"], ["run", "1"]]);
  assert.deepEqual(rowsOf({}, {}, "red"), []);
});

test("full stop and comma lead along a row, up and down to what is nearest in another one", () => {
  const rows = rowsOf(BARS, SYNCS, "red");
  assert.deepEqual(led(".", rows, null, 0), [0, 0]);
  assert.deepEqual(led(".", rows, [1, 0], 0), [1, 1]);
  assert.deepEqual(led(".", rows, [1, 1], 0), [1, 1]);
  assert.deepEqual(led(",", rows, [1, 0], 0), [1, 0]);
  assert.deepEqual(led("ArrowUp", rows, [2, 0], 0), [1, 1]);
  assert.deepEqual(led("ArrowDown", rows, [1, 0], 0), [2, 0]);
  assert.deepEqual(led("ArrowDown", rows, [2, 0], 0), [2, 0]);
  assert.equal(led("x", rows, [1, 0], 0), null);
  assert.equal(led(".", [], null, 0), null);
});

const letters = (/** @type {string} */ text) => text.length;

test("a line ends between two parts, and in a part only where that is longer than a line", () => {
  assert.deepEqual(linesOf(["lazy", "batch size 8"], 40, letters), ["lazy · batch size 8"]);
  assert.deepEqual(linesOf(["lazy", "batch size 8", "b"], 12, letters), ["lazy", "batch size 8", "b"]);
  assert.deepEqual(linesOf(["9 ms a step (1 ms to 90 ms)", "3% hidden"], 18, letters),
    ["9 ms a step (1 ms", "to 90 ms)", "3% hidden"]); // no line ends between a number and its word
  assert.deepEqual(linesOf([], 18, letters), []);
});

test("a title has one line where it has room, else some of its settings and some of its numbers", () => {
  const head = [["lazy", "batch size 8"], ["9 ms a step"]];
  assert.deepEqual(headLines(1, head, 40, letters), ["2  lazy · batch size 8 · 9 ms a step"]);
  assert.deepEqual(headLines(1, head, 30, letters), ["2  lazy · batch size 8", "   9 ms a step"]);
});

/** A source of bokeh as far as `place` needs one. @param {Record<string, any>} data */
function source(data) {
  return {data, change: {emit: () => {}}, setv(/** @type {any} */ change) { Object.assign(this, change); }};
}

test("strips stand below the lines of their titles, in each width as if it were the first", () => {
  const model = () => ({setv(/** @type {any} */ change) { Object.assign(this, change); }});
  const figure = {left: [{ticker: {...model(), ticks: [1.5, 3.5]}}], y_range: {...model(), start: 4}};
  const rows = () => ({top: [1, 3], bottom: [2, 4], run: [1, 2]});
  const sources = {bars: source(rows()), syncs: source({}), tracks: source(rows()),
    steps: source({...rows(), under: [1.2, 3.2]}), texts: source({y: [1.1, 3.1], run: [1, 2]}),
    titles: source({y: [0.5, 2.5], text: ["1", "2"]})};
  const px = {bare: 0, row: 10, title: 1, note: 0, keys: 0};
  const lie = () => [sources.bars.data.top, sources.steps.data.under, sources.texts.data.y,
    figure.left[0].ticker.ticks, figure.y_range.start, sources.titles.data];
  const first = structuredClone(lie());
  assert.equal(place(figure, sources, [["a", "b", "c"], ["d", "e"]], px), 30);
  assert.deepEqual(lie(), [[3, 6], [3.2, 6.2], [3.1, 6.1], [3.5, 6.5], 7,
    {y: [0.5, 1.5, 2.5, 4.5, 5.5], text: ["a", "b", "c", "d", "e"]}]);
  assert.equal(place(figure, sources, [["1"], ["2"]], px), 0);
  assert.deepEqual(lie(), first);
});
