// The timelines of a comparison: what keys do to the range, and which texts are seen.
import assert from "node:assert/strict";
import test from "node:test";

import {pressed, seen} from "../../kit/widgets/compare/js/strips.js";

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
