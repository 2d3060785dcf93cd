// The timelines of a comparison: what keys do, and which texts are seen.
import assert from "node:assert/strict";
import test from "node:test";

import {led, rowsOf} from "../../kit/widgets/compare/js/card.js";
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
