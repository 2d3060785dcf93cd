// What is picked, found, lit and stepped to in a timeline, counted by hand.
import assert from "node:assert/strict";
import test from "node:test";

import {arrowsOf} from "../../kit/widgets/timeline/js/data/launches.js";
import {arrange, everything} from "../../kit/widgets/timeline/js/data/arrange.js";
import {hitAt} from "../../kit/widgets/timeline/js/data/picking.js";
import {matching, searchTimeline, selectionOf} from "../../kit/widgets/timeline/js/data/search.js";
import {firstShown, isShown, neighbour} from "../../kit/widgets/timeline/js/data/shown.js";
import {describe} from "../../kit/widgets/timeline/js/describe.js";
import {inWords} from "../../kit/widgets/timeline/js/finder.js";
import {causesOf} from "../../kit/widgets/timeline/js/legend.js";
import {syncsShown} from "../../kit/widgets/timeline/js/paint/marks.js";
import {askFor, tellPick} from "../../kit/widgets/timeline/js/wishes.js";
import {tableOf} from "./tables.js";

const kernels = (/** @type {number[][]} */ ...spans) => spans.map((span) => [...span, "kernel"]);

test("a gap is picked in its row of causes", () => {
  const table = tableOf([kernels([0, 10], [30, 40])], {"gaps.start": [[10]], "gaps.length": [[20]],
    "gaps.part": [[0]], "gaps.cause": [[0]], "gaps.device": [[""]]});
  const idle = arrange(table, {...everything(), showsIdle: true});
  assert.deepEqual(hitAt(idle, 15, idle.idle[0].top + 4, 1), {kind: "gap", i: 0, near: 1});
  assert.equal(hitAt(idle, 35, idle.idle[0].top + 4, 1), null);
  assert.match(describe(idle, "gap", 0).head, /was idle: late dispatch/);
  assert.deepEqual([causesOf(table), causesOf(idle)], [[], [["#dd5a3c", "idle: late dispatch"]]]);
});

test("what is hidden is neither stepped to nor found", () => {
  const table = tableOf([[[0, 1, "plan"], [2, 3, "kernel"], [4, 5, "plan"], [6, 7, "kernel"]], [[0, 9, "wait"]]],
    {"keys.lane": [[0, 0, 1]]});
  assert.equal(neighbour(table, 1, 1), 2);
  assert.equal(firstShown(table, 4, 9), 2);
  const some = arrange(table, {...everything(), hidden: new Set(["plan"]), text: "lane 0"});
  assert.deepEqual([neighbour(some, 1, 1), neighbour(some, 1, -1), neighbour(some, 3, 1)], [3, -1, -1]);
  assert.deepEqual([firstShown(some, 4, 9), firstShown(some, 7, 9)], [3, 1]);
  assert.deepEqual([0, 1, 4].map((i) => isShown(some, {kind: "span", i})), [false, true, false]);
  assert.deepEqual([...searchTimeline(some, "name").hits], [1, 3]);
  assert.equal(inWords(searchTimeline(some, "plan"), -1, true), "nothing found in what is shown");
  assert.equal(firstShown(arrange(table, {...everything(), text: "no such lane"}), 0, 9), -1);
});

test("steps go from row to row as these stand, also where a lane was put first", () => {
  const table = tableOf([[[0, 1, "plan"]], [[2, 3, "kernel"], [4, 5, "kernel"]], [[0, 9, "wait"]]], {"keys.lane": [[0, 1, 2]]});
  const some = arrange(table, {...everything(), top: ["lane 2"], off: new Set(["lane 0"])});
  assert.deepEqual([neighbour(some, 3, 1), neighbour(some, 1, 1), neighbour(some, 2, 1)], [1, 2, -1]);
  assert.deepEqual([neighbour(some, 1, -1), neighbour(some, 3, -1)], [3, -1]);
  assert.equal(firstShown(some, 0, 9), 3);
});

test("the pointer picks the span under it, the nearest, or nothing", () => {
  const table = tableOf([kernels([0, 100], [200, 300])]);
  assert.deepEqual(hitAt(table, 50, 45, 1), {kind: "span", i: 0, near: 1});
  assert.deepEqual(hitAt(table, 198, 45, 1), {kind: "span", i: 1, near: 1});
  assert.equal(hitAt(table, 150, 45, 1), null);
  assert.equal(hitAt(table, 50, 59, 1), null); // between two rows
});

test("sync points and steps are picked in their strips", () => {
  const table = tableOf([kernels([0, 100])], {"syncs.at": [[50]], "syncs.part": [[0]],
    "steps.start": [[10]], "steps.length": [[80]], "steps.part": [[0]]});
  assert.deepEqual(hitAt(table, 53, 30, 1), {kind: "sync", i: 0, near: 1});
  assert.equal(hitAt(table, 60, 30, 1), null);
  assert.deepEqual(hitAt(table, 30, 10, 1), {kind: "step", i: 0, near: 1});
});

test("of sync points on top of each other the longest is shown and picked, with their number", () => {
  const table = tableOf([kernels([0, 100])], {"syncs.at": [[50, 51, 52, 60, 61]], "syncs.part": [[0, 0, 0, 0, 1]],
    "syncs.wait": [[3, 900, 5, 7, 8]], "syncs.cause": [["item", "print", "item", "item", "item"]],
    "syncs.site": [["", "a.py:1", "", "", ""]], "syncs.via": [["", "", "", "", ""]]});
  assert.deepEqual(hitAt(table, 50, 30, 1), {kind: "sync", i: 1, near: 3});
  assert.deepEqual(hitAt(table, 50, 30, 10), {kind: "sync", i: 0, near: 1}); // zoomed in
  assert.deepEqual(describe(table, "sync", 1, 3), {head: "3 sync points here, the longest is print",
    rows: [["waited", "900 ns"], ["line", "a.py:1"], ["began at", "51 ns"], ["zoom in", "to see each of them"]]});
  assert.equal(describe(table, "sync", 1).head, "sync point: print");
  const view = {x: (/** @type {number} */ time) => time, gutter: 0, width: 200};
  const shown = (/** @type {any} */ pick, /** @type {any} */ flags = null) =>
    syncsShown({table, view, flags, pick}).map(({i, x, many}) => [i, x, many]);
  assert.deepEqual(shown(null), [[1, 50, 3], [3, 60, 1], [4, 61, 1]]);
  assert.deepEqual(shown({kind: "sync", i: 0}), [[0, 50, 1], [3, 60, 1], [4, 61, 1]]);
  assert.deepEqual(shown(null, {marks: [0, 0, 1, 0, 0]}), [[1, 50, 2], [2, 52, 1], [3, 60, 1], [4, 61, 1]]);
});

test("a search wants every word, and lists spans of all rows by start", () => {
  const table = tableOf([kernels([5, 9], [30, 40]), [[0, 2, "wait"], [10, 12, "kernel"]]]);
  const found = searchTimeline(table, "KERNEL main");
  assert.deepEqual([...found.hits].map((i) => table.start[i]), [5, 10, 30]);
  assert.equal(searchTimeline(table, "kernel loader").hits.length, 0);
});

test("a name in quotation marks is found as a whole", () => {
  const table = tableOf([[[0, 1, "a"], [2, 3, "b"], [4, 5, "a"]]], {"keys.name": [["segment 1", "segment 12: 1 op"]],
    "syncs.at": [[7]], "syncs.cause": [["segment 1"]], "syncs.site": [[""]], "syncs.via": [[""]]});
  const many = (/** @type {string} */ text) => {
    const {hits, syncs} = searchTimeline(table, text);
    return [hits.length, syncs];
  };
  assert.deepEqual(many("segment 1"), [3, 1]);
  assert.deepEqual(many('"segment 1"'), [2, 0]);
  assert.deepEqual(many('"'), [0, 0]);
});

test("a selection lights up its kernels and the host's work for their segments", () => {
  const table = tableOf([[[0, 1, "dispatch"], [2, 3, "kernel"], [4, 5, "wait"]]],
    {"keys.nodes": [["", "3 4", ""]], "keys.segment": [[7, 7, 8]]});
  assert.deepEqual([...matching(table, {nodes: new Set([4]), sites: new Set()}).lit], [1, 1, 0]);
  assert.deepEqual([...matching(table, {nodes: new Set([9]), sites: new Set()}).lit], [0, 0, 0]);
});

test("what a device waits in is lit and picked as a kernel is, by its own nodes", () => {
  for (const kind of ["communication", "callback"]) {
    const table = tableOf([[[0, 1, "dispatch"], [2, 3, "kernel"], [4, 5, kind]]],
      {"keys.nodes": [["", "3", "4"]], "keys.segment": [[7, 7, 7]], "spans.segment": [[8, 8, 8]],
        "graph.sites": [["a.py:1"]], "graph.site": [[-1, -1, -1, -1, 0]]});
    const lit = (/** @type {number} */ node) => [...matching(table, {nodes: new Set([node]), sites: new Set()}).lit];
    assert.deepEqual([lit(3), lit(4)], [[1, 1, 0], [1, 0, 1]]);
    assert.deepEqual([...selectionOf(table, "span", 2).nodes], [4]);
  }
});

test("a picked sync point stands for its line and the nodes of that line", () => {
  const table = tableOf([kernels([0, 1])], {"syncs.site": [["a.py:1"]], "syncs.at": [[0]],
    "graph.sites": [["a.py:1", "b.py:2"]], "graph.site": [[1, 0, 0]]});
  const {nodes, sites, label} = selectionOf(table, "sync", 0);
  assert.deepEqual([[...nodes], [...sites], label], [[1, 2], ["a.py:1"], "a.py:1"]);
});

test("a selection lights nothing of a second run, whose nodes are others", () => {
  const table = tableOf([[[0, 1, "dispatch"], [2, 3, "kernel"], [4, 5, "launch"]]],
    {"keys.nodes": [["", "3 4", "3"]], "keys.segment": [[7, 7, 7]], "keys.part": [[0, 1, 1]],
      "syncs.site": [["a.py:1"]], "syncs.at": [[0]], "syncs.part": [[1]], "graph.sites": [["a.py:1"]],
      "graph.site": [[0, 0, 0, 0, 0]]});
  assert.deepEqual([...matching(table, {nodes: new Set([4]), sites: new Set()}).lit], [0, 0, 0]);
  assert.equal(selectionOf(table, "span", 1).nodes.size, 0);
  assert.equal(selectionOf(table, "sync", 0).sites.size, 0);
});

test("what has nodes and no segment is called by its name, and stays lit when it is picked", () => {
  const table = tableOf([[[0, 1, "communication"], [2, 3, "kernel"]]], {"keys.nodes": [["1", "0"]],
    "keys.segment": [[-1, -1]], "graph.sites": [["a.py:1"]], "graph.site": [[-1, 0]]});
  const {nodes, sites, label} = selectionOf(table, "span", 0);
  assert.deepEqual([[...nodes], [...sites], label], [[1], ["a.py:1"], "communication name"]);
  assert.deepEqual([...matching(table, {nodes, sites}).lit], [1, 0]);
  assert.equal(selectionOf(table, "span", 1).label, "kernel kernel name");
});

test("arrows go from a dispatch to the kernels of its segment", () => {
  const table = tableOf([[[0, 2, "dispatch"], [10, 12, "dispatch"]], kernels([3, 9], [13, 20], [21, 22])],
    {"spans.segment": [[1, 1, 1, 1, 1]]});
  assert.deepEqual(arrowsOf(table, 1, 9), [[1, 3], [1, 4]]);
  assert.deepEqual(arrowsOf(table, 2, 9), [[0, 2]]);
});

test("a choice has a greater number than those before it in any copy of the view", (context) => {
  context.mock.timers.enable({apis: ["Date"], now: 1_800_000_000_000});
  const copies = [0, 1].map(() => ({picked: {data: {serial: [0]}}, timeline: {data: {drawing: [3]}}}));
  const serials = [0, 0, 1, 0].map((copy) => {
    context.mock.timers.tick(5);
    tellPick(copies[copy], "span", 7);
    return copies[copy].picked.data.serial[0];
  });
  assert.deepEqual(serials, [...new Set(serials)].sort((a, b) => a - b));
  assert.deepEqual(copies[1].picked.data, {kind: ["span"], index: [7], serial: [serials[2]], drawing: [3]});
});

test("a wish has a new number, also after an offer that has crossed the last one", async () => {
  const offer = {what: [""], text: [""], serial: [0], can: ["pin step"]};
  const asked = {data: offer};
  const serials = [];
  for (const isCrossed of [false, false, true, false]) {
    if (isCrossed) {
      await new Promise((resolve) => setTimeout(resolve, 5)); // as long as no click is
      asked.data = offer;
    }
    askFor({asked, timeline: {data: {drawing: [3]}}}, "unpin", "0");
    assert.deepEqual(asked.data.drawing, [3]);
    serials.push(asked.data.serial[0]);
  }
  assert.deepEqual(serials, [...new Set(serials)].sort((a, b) => a - b));
});
