// The grid of a report: which run is shown for a setting, and what the page says of it.
import assert from "node:assert/strict";
import test from "node:test";

import {missingText, movedText, nearest, sweepLines} from "../../kit/reports/js/grid.js";
import {numbersIn} from "../../kit/widgets/base/js/listing.js";

const axes = [{name: "batch", label: "batch size", number: true, values: ["4", "8", "16"]},
  {name: "loss_scaling", label: "loss scaling", number: false, values: ["none", "dynamic"]}];
const cells = [[0, 0, 10], [1, 0, 12], [2, 0, 14], [0, 1, 20], [2, 1, null]]
  .map(([batch, mode, step]) => ({at: [batch, mode], step, low: step && step - 1, high: step && step + 1}));

test("the nearest run has as many of the settings as can be", () => {
  assert.equal(nearest(cells, [1, 0]), 1);
  assert.deepEqual(cells[nearest(cells, [1, 1])].at, [1, 0]);
  assert.equal(missingText(axes, cells[1], [1, 0]), "");
  assert.equal(missingText(axes, cells[1], [1, 1]), "Not recorded: batch size 8, loss scaling dynamic. "
    + "Showing the nearest that was: batch size 8, loss scaling none. ");
});

test("what was moved is named with its values before and after", () => {
  assert.equal(movedText(axes, [0, 0], [2, 1]), "batch size 4 → 16, loss scaling none → dynamic");
  assert.equal(movedText(axes, [1, 1], [1, 1]), "");
});

test("a sweep has a line for each mode, and leaves out what was not measured", () => {
  const index = {axes, cells, first: 0, parts: [], models: {}};
  const point = (/** @type {number} */ place, /** @type {number} */ ms, doubt = "") =>
    ({place, ms, low: ms - 1, high: ms + 1, doubt});
  assert.deepEqual(sweepLines(index, 0, 1, [0, 0]),
    [[point(0, 10), point(1, 12), point(2, 14)], [point(0, 20)]]);
  assert.deepEqual(sweepLines(index, 0, -1, [0, 1]), [[point(0, 20)]]);
  const bare = [{at: [0, 0], step: 5, low: null, high: null}];
  assert.deepEqual(sweepLines({...index, cells: bare}, 0, -1, [0, 0]),
    [[{place: 0, ms: 5, low: 5, high: 5, doubt: ""}]]);
  const busy = cells.map((cell) => ({...cell, doubt: "a busy machine"}));
  assert.deepEqual(sweepLines({...index, cells: busy}, 0, -1, [0, 1]), [[point(0, 20, "a busy machine")]]);
});

test("the nodes of a row are numbers and ranges", () => {
  assert.deepEqual(numbersIn("3,7-9"), [3, 7, 8, 9]);
  assert.deepEqual(numbersIn(""), []);
});
