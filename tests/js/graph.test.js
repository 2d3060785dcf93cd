// Placing, searching and following a small graph: two phases, a group of two ops in the first.
import assert from "node:assert/strict";
import test from "node:test";

import {hoverOf} from "../../kit/widgets/graph/js/boxes.js";
import {Camera, readable} from "../../kit/widgets/graph/js/camera.js";
import {columnsOf, countsOf, mostOf} from "../../kit/widgets/graph/js/columns.js";
import {readDot} from "../../kit/widgets/graph/js/engine.js";
import {dotOf, svgOf} from "../../kit/widgets/graph/js/export.js";
import {keysOf} from "../../kit/widgets/graph/js/legend.js";
import {panelOf} from "../../kit/widgets/graph/js/panel.js";
import {placeScene, polyline, Stretch} from "../../kit/widgets/graph/js/place.js";
import {opsOf, pathOf, Scene, Search} from "../../kit/widgets/graph/js/scene.js";

const STRINGS = ["", "forward", "forward/layer", "layer", "mul", "add", "a.py:1", "b.py:2", "backward", "float32", "item at a.py:1"];
const id = (/** @type {string} */ text) => STRINGS.indexOf(text);

// rows: 0 forward, 1 layer (2 mul, 3 add), 4 backward (5 mul)
const scene = () => new Scene({
  rows: {parent: [-1, 0, 1, 1, -1, 4], end: [4, 4, 3, 4, 6, 6], kind: [0, 1, 5, 5, 0, 5], node: [-1, -1, 0, 1, -1, 2],
    shape: [0, 1, -1, -1, 2, -1], key: [id("forward"), id("forward/layer"), 0, 0, id("backward"), 0],
    label: ["forward", "layer", "mul", "add", "backward", "mul"].map(id), sub: [0, 0, 9, 9, 0, 9],
    op: [0, 0, id("mul"), id("add"), 0, id("mul")], site: [0, 0, id("a.py:1"), id("b.py:2"), 0, id("a.py:1")],
    scope: [0, 0, 0, 0, 0, 0], dtype: [0, 0, 9, 9, 0, 9], ops: [2, 2, 1, 1, 1, 1], bytes: [8, 8, 4, 4, 4, 4],
    time: [30, 30, 10, 20, 5, 5], low: [0, 0, 0, 0, 1, 1], high: [0, 0, 0, 0, 1, 1], change: [0, 0, 0, 0, 0, 0],
    attrs: [0, 0, 0, 0, 0, 0], makes: [0, 0, 9, 9, 0, 9], reads: [0, 0, 0, 9, 0, 9], kernels: [0, 0, 0, 0, 0, 0],
    shared: [0, 0, 1, 0, 0, 0], stop: [0, 0, 0, id("item at a.py:1"), 0, 0]},
  strings: JSON.stringify(STRINGS), title: "", note: "", message: "", drawn_by: "grid", dots: [],
  shapes: [{boxes: [[50, 20, 100, 40]], edges: [], width: 100, height: 40},
    {boxes: [[50, 20, 100, 40], [50, 100, 100, 40]], edges: [[0, 1, 1, 4, [50, 40, 50, 50, 50, 70, 50, 80]]],
      width: 100, height: 120},
    {boxes: [[50, 20, 100, 40]], edges: [], width: 100, height: 40}],
  sources: [2, 3], targets: [3, 5],
  theme: {phases: {forward: "#5674d8", backward: "#f5b12e"}, faint: "#cccccc", stop: "#dd5a3c", ink: "#000000", path: "#0000ff",
    hit: "#00ff00", focus: "#ff0000"},
});

/** @param {Scene} given @param {string[]} open */
function pictureOf(given, open) {
  const placed = placeScene(given, new Set(open)), drawn = [...placed.rects.keys()];
  const chosen = new Set([2]), counts = (/** @type {Iterable<number>} */ set) => countsOf(given, placed, set);
  return {scene: given, placed, drawn, colorBy: "phase", most: mostOf(given, placed, drawn), chosen,
    path: new Set(/** @type {number[]} */ ([])), marked: counts(chosen), hits: counts([]), onPath: counts([]),
    cursor: -1, hover: (/** @type {number} */ row) => hoverOf(given, row)};
}

test("the key of a change says what rewired means", () => {
  const theme = {changes: {added: "#2f9e8f", changed: "#f5b12e", rewired: "#c3a2ef", removed: "#dd5a3c"}};
  const keys = keysOf(/** @type {any} */ ({scene: {theme, rows: {}, strings: []}, colorBy: "change", most: {}}));
  assert.deepEqual(keys.map((key) => key.text), ["added", "changed", "rewired (reads other values)", "removed"]);
});

test("there is room where a group has grown, and nothing moves before it", () => {
  const stretch = new Stretch([[10, 20, 100], [15, 20, 0]]);
  assert.deepEqual([5, 10, 15, 20, 30].map((x) => stretch.at(x)), [5, 10, 65, 120, 130]);
});

test("a closed group is one box, an open one holds its children", () => {
  const closed = placeScene(scene(), new Set()), open = placeScene(scene(), new Set(["forward/layer"]));
  assert.deepEqual([...closed.rects.keys()], [0, 1, 4, 5]);
  assert.deepEqual([...closed.owner], [0, 1, 1, 1, 4, 5]);
  assert.deepEqual([...open.rects.keys()], [0, 1, 2, 3, 4, 5]);
  const [x, y, w, h] = open.rects.get(1) ?? [];
  for (const row of [2, 3]) {
    const [cx, cy, cw, ch] = open.rects.get(row) ?? [];
    assert.ok(Math.abs(cx - x) + cw / 2 <= w / 2 && Math.abs(cy - y) + ch / 2 <= h / 2);
  }
});

test("a line ends at the border of its boxes, and one goes to the other phase", () => {
  const {edges, rects} = placeScene(scene(), new Set(["forward/layer"]));
  const [inner, crossing] = edges, [, y, , h] = rects.get(2) ?? [];
  assert.deepEqual([inner.from, inner.to, inner.points[1]], [2, 3, y + h / 2]);
  assert.deepEqual([crossing.from, crossing.to, crossing.isCrossing], [3, 5, true]);
  assert.deepEqual(polyline([0, 0, 0, 0, 9, 9, 9, 9], 1), [[0, 9], [0, 9]]);
});

test("a search finds groups by label and ops by line, and goes round", () => {
  const search = new Search(), given = scene();
  search.find(given, "A.PY:1");
  assert.deepEqual(search.hits, [2, 5]);
  assert.deepEqual([search.next(1), search.next(1), search.next(1), search.next(-1)], [2, 5, 2, 5]);
  search.find(given, "a.py:1");
  assert.equal(search.next(-1), 5); // the last one comes before the first
  search.find(given, "%1");
  assert.deepEqual(search.hits, [3]);
  search.find(given, "");
  assert.equal(search.next(1), -1);
});

test("a selection has ops by node, or by line; paths follow the edges both ways", () => {
  const given = scene();
  assert.deepEqual(opsOf(given, {nodes: [1, 2], sites: ["a.py:1"]}), [3, 5]);
  assert.deepEqual(opsOf(given, {nodes: [], sites: ["a.py:1"]}), [2, 5]);
  assert.deepEqual([...pathOf(given, new Set([5]), "inputs")], [3, 2]);
  assert.deepEqual([...pathOf(given, new Set([5]), "outputs")], []);
});

test("a group says how many of its ops are selected, and what it holds", () => {
  const {boxes, marks, bars} = columnsOf(pictureOf(scene(), []));
  const at = boxes.row.indexOf(1);
  assert.deepEqual([boxes.label[at], boxes.sublabel[at]], ["▸ layer", "1 of 2"]);
  assert.equal(boxes.what[at], "2 ops: 1 mul, 1 add");
  assert.deepEqual([marks.x.length, bars.left.length], [1, 2]);
});

test("exports escape labels, and draw open groups as clusters", () => {
  const given = scene();
  given.strings[id("mul")] = '<b>&"';
  const picture = pictureOf(given, ["forward/layer"]);
  assert.ok(svgOf(picture).includes("&#60;b&#62;&#38;&#34;") && !svgOf(picture).includes("<b>"));
  assert.match(dotOf(given, picture.placed), /subgraph cluster_1 \{[^}]*n2 \[label="<b>&\\" float32"\];/);
});

test("an exported picture says what it is, what is left out, and what its colours mean", () => {
  const picture = pictureOf(scene(), []);
  Object.assign(picture.scene, {title: "IR graph of one step - <net>: 3 ops", note: "2 inputs are not drawn"});
  const texts = (/** @type {string} */ svg) => [...svg.matchAll(/<text[^>]*>([^<]*)<\/text>/g)].map(([, text]) => text);
  const said = texts(svgOf(picture));
  for (const text of ["IR graph of one step - &#60;net&#62;: 3 ops", "2 inputs are not drawn", "bar: device time"]) {
    assert.ok(said.includes(text));
  }
  const [, top, , high] = (/viewBox="([^"]*)"/.exec(svgOf(picture)) ?? [])[1].split(" ").map(Number);
  for (const [, y] of svgOf(picture).matchAll(/<text[^>]* y="([^"]*)"/g)) assert.ok(+y > top && +y < top + high);
  assert.deepEqual(keysOf(picture).map(({text}) => text), ["forward", "backward"]);
  picture.scene.theme.ramps = {memory: "#8e44ad"};
  picture.colorBy = "memory";
  assert.ok(texts(svgOf(picture)).includes(`${keysOf(picture)[0].text}`));
  assert.match(svgOf(picture), /fill="url\(#key0\)"/);
  const ramp = keysOf(picture)[0].stops ?? [];
  for (const [share, color] of ramp) { // a box of this share has the colour that stands there in the legend
    picture.scene.rows.bytes[1] = share * picture.most.bytes; // of the closed group
    assert.equal(columnsOf(picture).boxes.color[1], color);
    assert.ok(svgOf(picture).includes(`<stop offset="${share}" stop-color="${color}"/>`));
  }
  assert.equal(ramp.length, 5);
});

test("a graph that nearly fits is shown whole, one that would be too small to read is not", () => {
  assert.deepEqual([2, 0.9, 0.61].map(readable), [1.15, 0.9, 0.61]);
  assert.deepEqual([0.59, 0.01].map(readable), [0.72, 0.72]);
});

test("a box is in sight if a part of it is, and held if all of it is", () => {
  const figure = {inner_width: 600, inner_height: 400, x_range: {start: 0, end: 600}, y_range: {start: 400, end: 0}};
  const camera = new Camera(figure);
  assert.equal(camera.scale(), 1);
  assert.deepEqual([camera.sees([610, 50, 40, 20]), camera.holds([610, 50, 40, 20])], [true, false]);
  assert.deepEqual([camera.sees([700, 50, 40, 20]), camera.sees([700, 50, 40, 20], 0.3)], [false, true]);
  assert.deepEqual(camera.outOfSight({width: 700, height: 300}), ["to the right"]);
});

test("a box that is gone to is seen at the scale of the graph, if its labels can be read", () => {
  const range = () => ({start: 0, end: 0, setv(/** @type {object} */ given) { Object.assign(this, given); }});
  const figure = {inner_width: 600, inner_height: 400, x_range: range(), y_range: range(), renderers: []};
  const camera = new Camera(figure);
  camera.fit({width: 900, height: 300});
  const whole = camera.scale();
  camera.center([450, 150, 40, 20]);
  assert.ok(whole < 0.7);
  assert.equal(camera.scale(), whole);
  camera.fit({width: 900, height: 9000}); // too high, and wide enough to be read: only its end is cut
  assert.deepEqual([camera.scale(), camera.outOfSight({width: 900, height: 9000})], [600 / 924, ["below"]]);
  camera.fit({width: 9000, height: 300}, true);
  camera.center([450, 150, 40, 20]);
  assert.ok(Math.abs(camera.scale() - 0.72) < 1e-9);
});

test("what graphviz answers is turned round, and curves that it left out are kept", () => {
  const answer = {bb: "0,0,100,120", objects: [{name: "n0", pos: "50,100", _gvid: 0}, {name: "n1", pos: "50,20", _gvid: 1}],
    edges: [{tail: 0, head: 1, pos: "e,50,40 50,80 50,70 50,60 50,45"}]};
  const shape = {boxes: [[0, 0, 10, 10], [0, 0, 10, 10]], edges: [[0, 1, 1, 4, []], [1, 0, 1, 4, [7]]]};
  const read = readDot(answer, shape);
  assert.deepEqual(read.boxes, [[50, 20, 10, 10], [50, 100, 10, 10]]);
  assert.deepEqual(read.edges[0][4], [50, 40, 50, 50, 50, 60, 50, 75]);
  assert.deepEqual(read.edges[1][4], [7]);
});

test("a closed group and an op say where the program stops, an open group leaves it to what is inside", () => {
  const closed = columnsOf(pictureOf(scene(), [])).stops, open = columnsOf(pictureOf(scene(), ["forward/layer"])).stops;
  assert.deepEqual([closed.text, open.text], [["stop"], ["stop"]]);
  assert.notDeepEqual([closed.x, closed.y], [open.x, open.y]);
  assert.match(hoverOf(scene(), 1).place, /the program stops in here/);
  assert.match(hoverOf(scene(), 3).place, /item at a.py:1/);
  assert.equal(scene().stopsIn(4), 0);
});

test("a picked op says what is known of it, and nothing of what is not", () => {
  const told = Object.fromEntries(panelOf(scene(), 3));
  assert.deepEqual(told, {op: "%1 = add", makes: "float32", reads: "float32", from: "%0 mul", line: "b.py:2", segment: "0",
    "time a step": "20 ns on the device", stop: "item at a.py:1"});
  const shared = Object.fromEntries(panelOf(scene(), 2)); // whatever its kernels are called
  assert.equal(shared["time a step"], "10 ns on the device, an equal share of its kernels");
});
