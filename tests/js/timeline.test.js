// What the timeline asks of its columns and of its viewport, counted by hand.
import assert from "node:assert/strict";
import test from "node:test";

import {busiest, dustOf, levelOfDetail} from "../../kit/widgets/timeline/js/data/detail.js";
import {intersection, rangeMetrics, union} from "../../kit/widgets/timeline/js/data/metrics.js";
import {isPaleOn} from "../../kit/widgets/base/js/colors.js";
import {wrapped} from "../../kit/widgets/base/js/wrap.js";
import {arrange, everything} from "../../kit/widgets/timeline/js/data/arrange.js";
import {ghostOf} from "../../kit/widgets/timeline/js/data/ghost.js";
import {gapsBetween, idlePixels} from "../../kit/widgets/timeline/js/data/idle.js";
import {namesIn} from "../../kit/widgets/timeline/js/data/names.js";
import {hitAt} from "../../kit/widgets/timeline/js/data/picking.js";
import {inRange} from "../../kit/widgets/timeline/js/data/table.js";
import {describe, inOneLine} from "../../kit/widgets/timeline/js/describe.js";
import {saidOf} from "../../kit/widgets/timeline/js/legend.js";
import {rowsOf} from "../../kit/widgets/timeline/js/measure.js";
import {COLUMNS, noteOf} from "../../kit/widgets/timeline/js/names.js";
import {clipApart, clipText, ticksOf} from "../../kit/widgets/timeline/js/paint/axis.js";
import {paintPath} from "../../kit/widgets/timeline/js/paint/idle.js";
import {paintLanes} from "../../kit/widgets/timeline/js/paint/lanes.js";
import {Viewport} from "../../kit/widgets/timeline/js/viewport.js";
import {tableOf} from "./tables.js";

const kernels = (/** @type {number[][]} */ ...spans) => spans.map((span) => [...span, "kernel"]);

test("a range holds every span that reaches into it, also in a crowded row", () => {
  assert.deepEqual(inRange(tableOf([kernels([0, 10], [20, 30], [40, 50])]), 0, 25, 45), [1, 3]);
  assert.deepEqual(inRange(tableOf([kernels([0, 100], [20, 30], [40, 50])]), 0, 60, 70), [0, 3]);
  assert.deepEqual(inRange(tableOf([kernels([0, 10])]), 0, 50, 60), [1, 1]);
});

test("wide spans are bars, narrow ones are counted in the pixel where they begin", () => {
  const table = tableOf([kernels([0, 1], [1, 2], [50, 90])]), dust = dustOf(10);
  assert.deepEqual(levelOfDetail(table, 0, 0, 100, 10, dust), [2]);
  assert.deepEqual([...dust.count], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
  assert.ok(Math.abs(dust.busy[0] - 0.2) < 1e-9);
});

test("the overview shows kernels as the device's, also in a lane that begins with a collective", () => {
  const table = tableOf([[[0, 10, "communication"], [20, 40, "kernel"]], [[0, 20, "dispatch"]]]);
  const {host, device} = busiest(table, 4, 0, 40);
  assert.deepEqual([host, device].map((bins) => [...bins].map(Math.round)), [[1, 1, 0, 0], [0, 0, 1, 1]]);
});

test("blocks of spans in one pixel are counted as one by one", () => {
  const spans = kernels(...Array.from({length: 64}, (_, i) => [i * 2, i * 2 + 1 + (i % 2)]));
  const dust = dustOf(4), lit = new Uint8Array([1]), slow = dustOf(4);
  levelOfDetail(tableOf([spans]), 0, -1000, 1000, 4, dust);
  levelOfDetail(tableOf([spans]), 0, -1000, 1000, 4, slow, lit); // what is lit is never counted by blocks
  assert.deepEqual([...dust.count], [...slow.count]);
  assert.deepEqual([...dust.busy].map((x) => x.toFixed(9)), [...slow.busy].map((x) => x.toFixed(9)));
});

test("two runs with one axis show the same range of time, and all of the longer one", () => {
  const view = new Viewport(() => {});
  view.resize(1000);
  view.take({end: 600, axis: 1000, bottom: 100});
  assert.deepEqual([view.shownFrom, view.shownTo], [-5, 1005 - 1e-13]);
  view.show(100, 200);
  view.take({end: 1000, axis: 1000, bottom: 100}, true);
  assert.deepEqual([view.shownFrom, view.shownTo], [100, 200]);
  view.take({end: 50, axis: 1000, bottom: 100}, true);
  assert.deepEqual([view.shownFrom, view.shownTo], [100, 200]); // where nothing is any more
  view.fit();
  assert.ok(view.shownTo < 51 && view.shownTo > 50);
  view.take({end: 70, axis: 0, bottom: 100});
  assert.ok(view.shownTo > 70 && view.shownTo < 71); // an axis of its own
});

test("the run before lies under rows of the same lane, as far as these go", () => {
  const lanes = (/** @type {string[]} */ ...names) => ({"lanes.label": [names], "lanes.group": [names.map(() => "host")]});
  const steps = {"steps.start": [[5]], "steps.length": [[9]], "steps.part": [[0]]};
  const now = tableOf([kernels([0, 9]), kernels([0, 9])], {...lanes("main", "worker"), "steps.start": [[2]],
    "steps.length": [[9]], "steps.part": [[0]]});
  const under = tableOf([kernels([0, 9]), kernels([0, 9]), kernels([3, 4])], {...lanes("worker", "loader", "main"), ...steps});
  const {rows, missing, shift} = ghostOf(now, under, "the run before");
  assert.deepEqual([[...rows], missing, shift], [[2, 0], 1, -3]);
});

test("lanes without a kind or a word that is asked for are left out, and others move up", () => {
  const table = tableOf([[[0, 1, "plan"]], [[2, 3, "kernel"]], [[4, 5, "wait"]]], {"keys.lane": [[0, 1, 2]],
    "gaps.start": [[3]], "gaps.length": [[1]], "gaps.part": [[0]], "gaps.cause": [[0]], "gaps.device": [[""]]});
  const some = (/** @type {any} */ filter) => arrange(table, {...everything(), ...filter});
  assert.deepEqual(some({}).rows.top, [40, 60, 80]);
  const noPlans = some({hidden: new Set(["plan"])});
  assert.deepEqual(noPlans.rows.top.slice(1), [40, 60]);
  assert.ok(noPlans.rows.top[0] < -1e6);
  assert.deepEqual([noPlans.leftOut, noPlans.bottom, [...noPlans.hidden]], [1, 180, [1, 0, 0]]);
  assert.equal(hitAt(noPlans, 2.5, 45, 10)?.i, 1);
  const named = some({text: "LANE 2"});
  assert.deepEqual([named.rows.top[2], named.leftOut], [40, 2]);
  const idle = some({showsIdle: true});
  assert.deepEqual(idle.idle.map(({part, group, top}) => ({part, group, top})), [{part: 0, group: "", top: 100}]);
  assert.equal(idle.bottom, 224);
  assert.equal(arrange(table, everything(), () => 5).rows.height[0], 11);
});

test("lanes are left out by name, and those that stand first are above all groups, in their order", () => {
  const table = tableOf([[[0, 1, "a"]], [[2, 3, "b"]], [[4, 5, "c"]]], {"keys.lane": [[0, 1, 2]],
    "lanes.group": [["host", "host", "device/0"]], "lanes.label": [["main", "worker", "kernels"]],
    "lanes.top": [[57, 77, 114]], "lanes.bottom": [[72, 92, 129]], "rows.top": [[57, 77, 114]],
    "headings.text": [["host", "device/0"]], "headings.top": [[40, 97]], "headings.part": [[0, 0]]});
  const some = (/** @type {any} */ filter) => arrange(table, {...everything(), ...filter});
  const tops = (/** @type {any} */ made) => [made.rows.top, made.headings.top];
  assert.deepEqual(tops(some({})), [[57, 77, 114], [40, 97]]); // as they were laid out
  const first = some({top: ["device/0 kernels", "host worker"]});
  assert.deepEqual(tops(first)[0], [97, 60, 40]);
  assert.deepEqual(first.lanes.label, ["main", "host worker", "device/0 kernels"]);
  assert.equal(first.headings.top[0], 80);
  assert.ok(first.headings.top[1] < -1e6); // nothing is left in its group
  assert.equal(first.bottom, table.bottom - 17);
  const less = some({off: new Set(["host main"]), top: ["host main", "no such lane"]});
  assert.deepEqual([less.rows.top.slice(1), less.leftOut], [[57, 94], 1]);
});

/** Rows of random spans; those of one row do not overlap unless it is crowded.
 * @param {number} seed */
function randomRows(seed) {
  let state = seed;
  const random = (/** @type {number} */ n) => { state = (state * 1103515245 + 12345) % 2147483648; return state % n; };
  return Array.from({length: 3}, () => Array.from({length: 12}, () => [random(90), random(40), `kind ${random(4)}`])
    .map(([at, length, kind]) => [at, Number(at) + Number(length), kind])
    .sort((a, b) => Number(a[0]) - Number(b[0]) || Number(b[1]) - Number(a[1])));
}

test("what a range holds by name equals counting each nanosecond", () => {
  for (let seed = 1; seed <= 60; seed++) {
    const rows = randomRows(seed), from = seed % 50, to = from + 5 + seed % 60;
    const kinds = [...new Set(rows.flat().map(([, , kind]) => kind))];
    // Two rows are one lane of the program, the third is another.
    const keys = kinds.flatMap((kind) => [[kind, "a"], [kind, "b"]]);
    const table = tableOf(rows, {"keys.kind": [keys.map(([kind]) => kind)], "keys.name": [keys.map(([kind]) => kind)],
      "keys.where": [keys.map(([, where]) => where)], "keys.lane": [keys.map(() => 0)],
      "spans.key": [rows.flatMap((row, r) => row.map(([, , kind]) => 2 * kinds.indexOf(kind) + (r < 2 ? 0 : 1)))]});
    /** @type {Record<string, number[]>} */
    const wanted = {};
    for (const lane of [rows.slice(0, 2), rows.slice(2)]) {
      const spans = lane.flat();
      spans.forEach(([start, stop, kind], i) => {
        if (start >= to || (stop <= from && start < from)) return;
        const inside = spans.filter(([s, e], j) => i !== j && s >= start && e <= stop
          && (e - s < stop - start || (e - s === stop - start && j > i)));
        const row = (wanted[kind] ??= [0, 0, 0]);
        row[0] += 1;
        for (let ns = Math.max(start, from); ns < Math.min(stop, to); ns++) {
          row[1] += 1;
          if (!inside.some(([s, e]) => s <= ns && ns < e)) row[2] += 1;
        }
      });
    }
    const found = namesIn(table, from, to) ?? [];
    const shown = Object.fromEntries(found.map(({name, count, total, self}) => [name, [count, total, self]]));
    assert.deepEqual(shown, wanted);
    assert.deepEqual(found.map(({total}) => total), found.map(({total}) => total).sort((a, b) => b - a));
  }
});

test("joined spans have no name of their own, and what is hidden is not counted", () => {
  const table = tableOf([[[0, 10, "kernel"], [20, 40, "kernel"], [50, 60, "wait"]]], {"spans.count": [[1, 7, 1]]});
  assert.deepEqual((namesIn(table, 5, 100) ?? []).map(({name, count, total}) => [name, count, total]),
    [["(several names, joined)", 7, 20], ["wait name", 1, 10], ["kernel name", 1, 5]]);
  const texts = (/** @type {any} */ row) => COLUMNS.map(([, , text]) => text(row));
  const [joined, , cut] = namesIn(table, 5, 100) ?? [];
  assert.deepEqual(texts(joined), ["(several names, joined)", "(any)", "at most 7", "at most 20 ns",
    "at most 20 ns", "at most 3 ns"]);
  assert.deepEqual(texts(cut), ["kernel name", "kernel", "1", "5 ns", "5 ns", "10 ns"]); // the mean is of whole spans
  assert.match(noteOf(table, [joined], 95), /joined.*pauses/);
  const filtered = arrange(table, {...everything(), hidden: new Set(["kernel"])});
  assert.deepEqual((namesIn(filtered, 0, 100) ?? []).map(({name}) => name), ["wait name"]);
  assert.deepEqual(namesIn(arrange(table, {...everything(), text: "no such lane"}), 0, 100), []);
});

test("how much ran inside is not known where a joined bar reaches over a span", () => {
  const rows = [[[0, 100, "forward"], [200, 300, "update"]], [[90, 120, "kernel"]]];
  const table = tableOf(rows, {"spans.count": [[1, 1, 5]]});
  const selfs = Object.fromEntries((namesIn(table, 0, 400) ?? []).map(({name, self}) => [name, self]));
  assert.deepEqual(selfs, {"forward name": null, "update name": 100, "(several names, joined)": 30});
});

/** A row of causes: a gap of `length` at each multiple of `every`. @param {number} many
 * @param {number} every @param {number} length @param {(i: number) => number} cause */
function idleRowOf(many, every, length, cause) {
  const each = (/** @type {(i: number) => any} */ value) => [Array.from({length: many}, (_, i) => value(i))];
  const table = tableOf([kernels([0, many * every])], {"gaps.start": each((i) => i * every),
    "gaps.length": each(() => length), "gaps.part": each(() => 0), "gaps.cause": each(cause), "gaps.device": each(() => "")});
  return {table, gaps: arrange(table, {...everything(), showsIdle: true}).idle[0].gaps};
}

test("short gaps fill as much of a pixel as they are of its time, not all of it", () => {
  const {table, gaps} = idleRowOf(50_000, 100, 10, (i) => (i % 3 ? 1 : 0));
  const {wide, filled, causes} = idlePixels(gaps, table.gaps.cause, 0, 5_000_000, 1000);
  assert.deepEqual(wide, []);
  for (const part of filled) assert.ok(Math.abs(part - 0.1) < 0.01, `${part}`);
  assert.deepEqual([...new Set(causes)], [1]); // two of three are of this cause
});

test("of many gaps only those in view are looked at, and wide ones are bars", () => {
  const {table, gaps} = idleRowOf(50_000, 100, 10, () => 0);
  assert.deepEqual(gapsBetween(gaps, 205, 395), [2, 4]);
  assert.deepEqual(gapsBetween(gaps, 211, 299), [3, 3]);
  const {wide, filled} = idlePixels(gaps, table.gaps.cause, 205, 395, 100);
  assert.deepEqual([wide, [...filled].some(Boolean)], [[2, 3], false]);
  const slow = Array.from({length: 40}, (_, p) => intersection(
    table.gaps.start.map((/** @type {number} */ at) => [at, at + 10]), [[p * 50, p * 50 + 50]])
    .reduce((sum, [start, stop]) => sum + stop - start, 0) / 50);
  const fast = idlePixels(gaps, table.gaps.cause, 0, 2000, 40).filled;
  assert.deepEqual([...fast].map((x) => x.toFixed(9)), slow.map((x) => x.toFixed(9)));
});

test("lanes whose names do not fit are cut where they differ", () => {
  const cut = (/** @type {string[]} */ ...names) => clipApart(names, names.map(() => 80)); // 13 characters
  assert.deepEqual(cut("main", "dataloader worker"), ["main", "dataloader w…"]);
  assert.deepEqual(cut("dataloader worker 1", "dataloader worker 2"), ["dataload…er 1", "dataload…er 2"]);
  assert.deepEqual(cut("the same name twice", "the same name twice"), ["the same nam…", "the same nam…"]);
  const [a, b, c] = cut("pool of threads 17 for reading files", "pool of threads 18 for reading files", "main");
  assert.deepEqual([a, b, c], ["…17 for read…", "…18 for read…", "main"]);
  assert.deepEqual(clipApart(["host a", "host b"], [10, 10]), ["", ""]);
});

test("sets of time are joined and cut", () => {
  assert.deepEqual(union([[5, 9], [0, 2], [1, 6]]), [[0, 9]]);
  assert.deepEqual(intersection([[0, 4], [6, 9]], [[3, 7]]), [[3, 4], [6, 7]]);
});

test("of very many devices a range names the first, and how busy the others are", () => {
  const table = tableOf(Array.from({length: 300}, (_, lane) => kernels([0, 10 + lane % 50])));
  const rows = rowsOf(table, 0, 100, 0, "").filter(([name]) => name.endsWith("busy"));
  assert.equal(rows.length, 9);
  assert.deepEqual(rows[8], ["292 more devices busy", "10% to 59% each"]);
});

test("a range is measured: busy devices, hidden recording, waits, idle time", () => {
  const table = tableOf([[[0, 50, "record"], [20, 30, "wait"]], kernels([10, 40], [60, 80])],
    {"syncs.at": [[20]], "syncs.wait": [[10]], "syncs.part": [[0]], "syncs.cause": [["item"]],
      "gaps.start": [[40]], "gaps.length": [[20]], "gaps.part": [[0]], "gaps.cause": [[0]]});
  const found = rangeMetrics(table, 5, 65);
  assert.deepEqual(found.devices, [["lane 1", 35]]);
  assert.deepEqual([found.recording, found.hidden], [35, 20]);
  assert.deepEqual([found.waits, found.waited], [1, 10]);
  assert.deepEqual(found.idle, [["late dispatch", 20]]);
  assert.deepEqual(rowsOf(table, 5, 65, 0, ""), [["lane 1 busy", "58%, 35 ns"],
    ["recording hidden", "57% of 35 ns"], ["sync points", "1, 10 ns waited"], ["idle: late dispatch", "20 ns"]]);
  const two = {...table, gaps: {start: [0, 0], length: [9, 9], part: [0, 0], cause: [0, 0], device: ["device/0", "device/1"]}};
  assert.deepEqual(rowsOf(two, 0, 9, 0, "").at(-1), ["idle, all devices: late dispatch", "18 ns"]);
});

test("where torch computes in the calls themselves, no recording is hidden", () => {
  const spans = [[[0, 50, "record"]], kernels([0, 49])];
  const native = tableOf(spans, {"keys.where": [["host/main", "device/0 torch cpu"]]});
  assert.ok(Number.isNaN(rangeMetrics(native, 0, 50).hidden));
  assert.deepEqual(rowsOf(native, 0, 50, 0, "").map(([name]) => name), ["lane 1 busy", "sync points"]);
  assert.equal(rangeMetrics(tableOf(spans), 0, 50).hidden, 49);
});

test("what is shown stays inside of what there is, whatever is asked", () => {
  let changes = 0;
  const view = new Viewport(() => { changes += 1; });
  view.take({end: 1000, bottom: 900});
  view.resize(1110);
  const [low, high] = view.whole();
  view.show(-5000, -4000);
  assert.equal(view.shownFrom, low);
  view.show(400, 401);
  assert.equal(view.length, 20); // the least that is shown
  view.showAll();
  assert.deepEqual([view.shownFrom, view.shownTo], [low, high]);
  view.zoom(0.5, 300);
  assert.ok(Math.abs(view.time(view.x(300)) - 300) < 1e-9);
  view.scrollTo(10_000);
  assert.equal(view.scroll, view.lanesHeight - view.height);
  view.reveal(990, 995, 0, 20);
  assert.equal(view.scroll, 0);
  assert.ok(view.shownTo >= 995 && changes > 0);
});

test("a run that is a small part of a shared axis opens fitted, one that is not shows all of it", () => {
  const view = new Viewport(() => {}), long = {end: 9000, axis: 9000, bottom: 100}, short = {...long, end: 1000};
  const shows = (/** @type {number} */ end) =>
    assert.deepEqual([view.shownFrom, view.shownTo], [-end * 0.005, end * 1.005]);
  view.take(short);
  shows(1000);
  assert.ok(view.isAsOpened);
  view.take(long, true);
  shows(9000);
  view.take({...long, end: 3000}, true);
  shows(9000);
  view.take(short, true);
  shows(1000);
  view.showAll();
  view.take({...short, end: 1100}, true); // who asked for all of the axis keeps it
  shows(9000);
  view.show(100, 200);
  view.take(long, true);
  assert.deepEqual([view.shownFrom, view.shownTo], [100, 200]);
});

test("ticks are round numbers in one unit, texts are cut to their width", () => {
  const {ticks, write} = ticksOf(0, 2_500_000, 5);
  assert.deepEqual(ticks, [0, 500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000]);
  assert.deepEqual(ticks.slice(0, 2).map(write), ["0.0 ms", "0.5 ms"]);
  assert.equal(clipText("convolution", 40), "convo…");
  assert.equal(clipText("convolution", 12), "");
});

test("a span is described by what is known of it", () => {
  const table = tableOf([kernels([1500, 4000])]);
  assert.equal(inOneLine(describe(table, "span", 0)),
    "kernel name  ·  kind kernel  ·  took 2.5 µs  ·  began at 1.5 µs  ·  lane host/main");
  assert.match(describe(table, "span", 0, 12).head, /^12 spans here, the longest is/);
});

test("a saved picture has its notes, the kinds that are shown, and what is not", () => {
  const table = tableOf([[[0, 10, "forward"]], [[2, 5, "wait"]]], {title: ["a run"], note: ["joined"],
    "colors.label": [["wait (sync)", "forward"]]});
  const ghost = {name: "the run before", missing: 0}, filter = everything();
  assert.deepEqual(saidOf(table, filter, /** @type {any} */ (ghost), false), {title: "a run", notes: ["joined"],
    keys: [["#dd5a3c", "wait (sync)"], ["#5674d8", "forward"], ["", "pale line under a bar: the run before"]]});
  filter.hidden.add("wait");
  const {notes, keys} = saidOf(arrange(table, filter), filter, null, false);
  assert.deepEqual([notes[1], keys], ["Not shown: wait (sync), 1 lane.", [["#5674d8", "forward"]]]);
});

test("texts are broken between words", () => {
  assert.deepEqual(wrapped("a bb ccc  dddddddd e", 4, (text) => text.length), ["a bb", "ccc", "dddddddd", "e"]);
  assert.deepEqual(wrapped("", 4, (text) => text.length), []);
});

test("the names of lanes are held to the room left of the plot, however wide their letters are", () => {
  const table = tableOf([[[0, 10, "kernel"]]], {"lanes.label": [["stream 18(MMMMMMMMMMMMMMMMMMMMM)"]]});
  const texts = [], ctx = contextOf({fillText: (...given) => texts.push(given)});
  const view = {gutter: 90, right: 400, width: 410, height: 200, lanesHeight: 0, y: (down) => down};
  paintLanes(ctx, {table, view, tones: {}});
  const lane = texts.find(([text]) => text.startsWith("stream"));
  for (const [, x, , room] of texts) assert.ok(x + room <= view.gutter);
  assert.ok(lane);
});

test("the critical path has a gap where its lane is hidden", () => {
  const table = tableOf([[[0, 10, "forward"], [30, 40, "forward"]], [[10, 30, "kernel"]]], {
    "lanes.label": [["main", "stream"]], "path.row": [[0, -1, 1, 0]], "path.start": [[0, 10, 12, 30]],
    "path.length": [[10, 2, 18, 10]]});
  const drawn = (/** @type {any} */ shown) => {
    const parts = [], ctx = contextOf({moveTo: (x) => parts.push([x]), lineTo: (x) => parts.at(-1).push(x)});
    paintPath(ctx, {table: shown, view: {x: (ns) => ns, y: (down) => down}, tones: {}, showsPath: true});
    return parts;
  };
  assert.deepEqual(drawn(table), [[0, 10, 12, 30, 30, 40]]);
  assert.deepEqual(drawn(arrange(table, {...everything(), text: "main"})), [[0, 10], [30, 40]]);
});

test("only colours that are hardly seen on their ground have an edge", () => {
  assert.deepEqual(["#f0e28c", "#dfe8d3", "#f5b12e", "#587080"].map((color) => isPaleOn(color, "#ffffff")),
    [true, true, false, false]);
  assert.equal(isPaleOn("#f0e28c", "#111111"), false);
});

/** A canvas that only tells what it is asked to. @param {any} asked */
function contextOf(asked) {
  return new Proxy(asked, {get: (target, name) => target[name] ?? (() => {})});
}
