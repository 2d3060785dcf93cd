// The grid of a report: which run is shown for a setting, and what the page says of it.
import assert from "node:assert/strict";
import test from "node:test";

import {missingText, movedText, nearest, sweepLines} from "../../kit/reports/js/grid.js";
import {apart, lookOf, reasons, spreads, sweptAxes, textsIn, ticksIn} from "../../kit/reports/js/sweep.js";
import {readAddress, writeAddress} from "../../kit/reports/js/link.js";
import {readLooked, writeLooked} from "../../kit/widgets/base/js/link.js";
import {numbersIn} from "../../kit/widgets/base/js/listing.js";

const axes = [{name: "batch", label: "batch size", number: true, values: ["4", "8", "16"]},
  {name: "loss_scaling", label: "loss scaling", number: false, values: ["none", "dynamic"]}];
const cells = [[0, 0, 10], [1, 0, 12], [2, 0, 14], [0, 1, 20], [2, 1, null]]
  .map(([batch, mode, step]) => ({at: [batch, mode], step, low: step && step - 1, high: step && step + 1}));

test("the nearest run has as many of the settings as can be", () => {
  assert.equal(nearest(cells, [1, 0]), 1);
  assert.deepEqual(cells[nearest(cells, [1, 1])].at, [1, 0]);
  assert.equal(missingText(axes, cells[1], [1, 0]), "");
  assert.equal(missingText(axes, cells[1], [1, 1]), "Not recorded: batch size 8; loss scaling dynamic. "
    + "Showing the nearest that was: batch size 8; loss scaling none. ");
});

test("what was moved is named with its values before and after", () => {
  assert.equal(movedText(axes, [0, 0], [2, 1]), "batch size 4 → 16; loss scaling none → dynamic");
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

test("an axis along which one run alone was measured has no chart", () => {
  const number = {name: "prefetch", label: "prefetch", number: true, values: ["0", "2"]};
  const more = cells.map((cell) => ({...cell, at: [...cell.at, cell.at[0] === 2 ? 1 : 0]}));
  const index = {axes: [...axes, number], cells: more, first: 0, parts: [], models: {}};
  const names = (/** @type {number} */ i) => sweptAxes(index, more[i]).map(({axis}) => axis.name);
  assert.deepEqual(names(0), ["batch"]);
  assert.deepEqual(names(2), []);
});

test("a band lies between neighbours of known spread only", () => {
  const point = (/** @type {number} */ place, spread = 1) => ({place, ms: 10, low: 10 - spread, high: 10 + spread, doubt: ""});
  const [a, b, ring, c, d] = [point(0), point(1), point(2, 0), point(3), point(4)];
  assert.deepEqual(spreads([a, b, ring, c, d]), [[a, b], [c, d]]);
  assert.deepEqual(spreads([a, ring, d]), []);
  assert.deepEqual(spreads([a]), []);
});

test("no two lines of a chart look the same", () => {
  const looks = Array.from({length: 60}, (_, n) => JSON.stringify(lookOf(n)));
  assert.equal(new Set(looks).size, 60);
});

const NOTHING = {shown: null, range: null, nodes: [], sites: [], label: "", open: []};

test("a line of a chart stands at the number that is written at it", () => {
  const found = [137, 104.9, 1, 0.034, 0.001, 12_345, 61_000].map(ticksIn);
  assert.deepEqual(found, [[0, 50, 100], [0, 50, 100], [0, 0.5, 1], [0, 0.01, 0.02, 0.03], [0, 0.0005, 0.001],
    [0, 5000, 10_000], [0, 20_000, 40_000, 60_000]]);
});

test("what is written at the lines of a chart differs, has a unit, and has room", () => {
  assert.deepEqual(textsIn(137).texts, ["0 ms", "50 ms", "100 ms"]);
  assert.deepEqual(textsIn(129_600).texts, ["0 s", "50 s", "100 s"]);
  const {texts, left} = textsIn(11_664_000);
  assert.deepEqual(texts, ["0 s", "5,000 s", "10,000 s"]);
  assert.ok(left > "10,000 s".length * 6.6);
});

test("what made a run of a sweep doubtful is said with its settings", () => {
  const busy = cells.map((cell, i) => (i === 3 ? {...cell, doubt: "a busy machine"} : cell));
  const index = {axes, cells: busy, first: 0, parts: [], models: {}};
  assert.deepEqual(reasons(axes, 0, 1, sweepLines(index, 0, 1, [0, 0])),
    ["batch size 4; loss scaling dynamic: a busy machine"]);
  assert.deepEqual(reasons(axes, 0, -1, sweepLines(index, 0, -1, [0, 1])), ["batch size 4: a busy machine"]);
  assert.deepEqual(reasons(axes, 0, -1, sweepLines(index, 0, -1, [0, 0])), []);
});

test("texts under an axis that would touch are left out, but never the last", () => {
  const every = (/** @type {number} */ px) => (/** @type {number} */ n) => n * px;
  assert.deepEqual(apart(["1", "2", "4"], every(20)), [0, 1, 2]);
  assert.deepEqual(apart(["32", "64", "128", "256"], every(18)), [1, 3]);
  assert.deepEqual(apart(["100,000", "unlimited"], every(5)), [1]);
});

test("an address says all that is looked at, and reads back", () => {
  const index = {axes, cells, first: 0, beside: 1, parts: [], models: {}};
  const looked = {shown: [-5, 100], range: [10, 20], nodes: [1, 2, 3, 9], sites: ["a b.py:1", "c&d=#.py:2"],
    label: "kernel %1 ü", open: ["forward/a", "forward"]};
  const text = writeAddress(axes, {at: [2, 1], beside: 3, looked});
  assert.deepEqual(readAddress(index, text), {at: [2, 1], beside: 3, looked: {...looked, open: ["forward", "forward/a"]}});
  assert.deepEqual(readAddress(index, ""), {at: [0, 0], beside: 1, looked: NOTHING});
  assert.equal(writeAddress(axes, {at: [0, 0], beside: -1, looked: NOTHING}), "#set.batch=4&set.loss_scaling=none");
});

test("a setting that an address does not have is none of an empty name", () => {
  const named = [{name: "variant", label: "variant", number: false, values: ["mine", ""]}];
  const index = {axes: named, cells: [{at: [0], step: 1}, {at: [1], step: 1}], first: 0, parts: [], models: {}};
  assert.deepEqual(readAddress(index, "").at, [0]);
  assert.deepEqual(readAddress(index, "#set.variant=").at, [1]);
});

test("of an address that is too long the settings are kept", () => {
  const index = {axes, cells, first: 0, beside: 1, parts: [], models: {}};
  const nodes = Array.from({length: 6000}, (_, i) => 2 * i);
  const looked = {...NOTHING, range: [10, 20]};
  const short = writeAddress(axes, {at: [2, 1], beside: 3, looked}), long = `${short}&nodes=${nodes.join(".")}`;
  assert.ok(long.length > 20_000);
  assert.equal(writeAddress(axes, {at: [2, 1], beside: 3, looked: {...looked, nodes}}), short); // nor is it written
  assert.deepEqual(readAddress(index, long), {at: [2, 1], beside: 3, looked: {...NOTHING, range: [10, 20]}});
});

test("an address of a stranger asks for nothing that the report does not have", () => {
  const index = {axes, cells, first: 0, parts: [], models: {}};
  for (const text of ["#set.batch=99&set.nothing=1&beside=77&shown=5_1&range=1_x&nodes=1-99999999",
    "#set.batch=__proto__&__proto__=1&constructor=2&beside=-1&nodes=a.b&shown=1e9_2e9&range=_",
    `#sites=${"x".repeat(500)}&open=${"y".repeat(500)}`, `#label=${"z".repeat(30_000)}`, "#%E0%A4%A&&&==="]) {
    assert.deepEqual(readAddress(index, text), {at: [0, 0], beside: -1, looked: NOTHING});
  }
});

test("the nodes of a row are numbers and ranges", () => {
  assert.deepEqual(numbersIn("3,7-9"), [3, 7, 8, 9]);
  assert.deepEqual(numbersIn(""), []);
});

test("what a link says is never more than what is read of it", () => {
  const looked = {shown: null, range: [1, 2], nodes: Array.from({length: 9000}, (_, i) => 2 * i),
    sites: ["a.py:1", "y".repeat(401)], label: "ü".repeat(500), open: Array.from({length: 300}, (_, i) => `${i}${"ö".repeat(60)}`)};
  const written = writeLooked(looked), text = String(new URLSearchParams(written));
  assert.ok(text.length < 20_000);
  const {rest, ...read} = readLooked(text);
  assert.deepEqual([writeLooked(read), rest.size], [written, 0]);
  assert.deepEqual([read.range, read.sites, read.label.length], [[1, 2], ["a.py:1"], 400]);
});
