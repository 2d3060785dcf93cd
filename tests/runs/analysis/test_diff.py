"""The diff of two runs: aligned by structure, additive, and the same for every text."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import SettingsError
from kit.ir import Aval, Graph, Node, Segment
from kit.runs.analysis.diff import diff_runs, kernel_kind
from kit.runs.analysis.headline import headline_differences
from kit.runs.analysis.sentence import change_sentence
from kit.runs.analysis.story import best_of
from kit.runs.change import StepTimes
from kit.runs.compiles import Compile
from kit.runs.conditions import Conditions
from kit.runs.labels import IMPORTED, TIME, WATCHED, has_other_samples
from kit.runs.run import KNOWN_FRACTION, Fused, Run
from kit.runs.settings import Settings
from kit.runs.sources import Snippet
from kit.trace import Span, SyncPoint, Timeline, union_ns
from kit.widgets.compare.data import comparison_rows, fastest_text
from kit.widgets.numbers.run_diff import run_diff_html
from kit.workloads import mlp
from tests.factories import HOSTILE, empty_run, make_run, one_span_run

MS = 1_000_000
F32 = Aval((4,), "float32")


def graph(*ops: str) -> Graph:
    nodes = [Node("parameter", (), (), (F32,))]
    for i, op in enumerate(ops):
        nodes.append(Node(f"aten.{op}.default", ((i, 0),), (), (F32,), f"train.py:{i}"))
    return Graph(tuple(nodes)).check()


def run_of(
    g: Graph, *kernels: tuple[str, int, int, int], noise: float = 0.0, **changes: object
) -> Run:
    """A run of five traced steps of 100 ms; kernels are (name, start, stop, node) in ms.

    Args:
        noise: how much longer or shorter kernels are in one step than in the next, as a fraction.
    """
    spans = []
    for step in range(5):
        at, longer = 100 * step, 1 + noise * (step % 3 - 1)
        spans.append(Span("host/main", f"step {step}", "step", at * MS, (at + 100) * MS))
        spans.append(Span("device/0 s", "step", "device step", at * MS, (at + 100) * MS))
        for n, a, b, i in kernels:
            start, length = (at + a) * MS, round((b - a) * longer * MS)
            spans.append(Span("device/0 k", n, "kernel", start, start + length, 0, i))
    segment = Segment(0, tuple(range(1, len(g))), (), (), "mark_step")
    timeline = Timeline.of(spans)
    run = Run(Settings(), (1.0,), (100 * MS,) * 5, timeline, graphs=(g,), segments=(segment,))
    return replace(run, **changes)  # type: ignore[arg-type]


def test_an_op_that_takes_longer_got_slower() -> None:
    old = run_of(graph("mm", "relu"), ("dot.3", 0, 10, 1), ("relu.1", 10, 12, 2))
    new = run_of(graph("mm", "relu"), ("dot.7", 0, 30, 1), ("relu.2", 30, 32, 2))
    found = diff_runs(old, new)
    (slower,) = found.slower
    assert (slower.op, slower.site, slower.old, slower.new) == (
        "aten.mm.default",
        "train.py:0",
        10,
        30,
    )
    assert (found.kernels[0].name, found.kernels[0].ms, found.kernels[0].kind) == (
        "dot",
        20,
        "both",
    )
    assert found.kernels[0].note == "mm.default"
    assert found.appeared == found.vanished == ()


def test_an_op_that_one_run_has_appeared_or_vanished_with_its_kernel() -> None:
    old = run_of(graph("mm", "relu"), ("dot", 0, 10, 1), ("relu", 10, 12, 2))
    new = run_of(
        graph("mm", "relu", "neg"), ("dot", 0, 10, 1), ("relu", 10, 12, 2), ("neg", 12, 15, 3)
    )
    found = diff_runs(old, new)
    assert [(n.op, n.new) for n in found.appeared] == [("aten.neg.default", 3)]
    assert [(k.name, k.kind, k.ms) for k in found.kernels if k.ms] == [("neg", "appeared", 3)]
    back = diff_runs(new, old)
    assert [n.op for n in back.vanished] == ["aten.neg.default"]
    assert [(k.name, k.kind, k.ms) for k in back.kernels if k.ms] == [("neg", "vanished", -3)]


def test_kernels_are_known_by_what_they_compute_and_not_by_their_number() -> None:
    ops = graph("mm", "relu", "neg")
    old = run_of(
        ops, ("fusion.1", 0, 10, 1), ("fusion.2", 10, 15, 2), fused=(Fused(0, "fusion.2", (2, 3)),)
    )
    new = run_of(
        ops, ("fusion.2", 0, 10, 1), ("fusion.1", 10, 15, 2), fused=(Fused(0, "fusion.1", (2, 3)),)
    )
    assert [k.ms for k in diff_runs(old, new).kernels] == [0, 0]
    assert {n.op: n.old for n in diff_runs(old, new).nodes} == {
        "aten.mm.default": 10,
        "aten.relu.default": 2.5,
        "aten.neg.default": 2.5,
    }


def test_idle_time_and_waits_are_compared_by_line() -> None:
    syncs = tuple(SyncPoint(100 * i * MS, 20 * MS, "item", "train.py:7") for i in range(5))
    g = graph("mm")
    t = run_of(g, ("dot", 0, 20, 1)).timeline
    waits = run_of(g, timeline=Timeline.of(t.spans, syncs), sync_points=syncs)
    found = diff_runs(waits, run_of(g, ("dot", 0, 20, 1)))
    assert [(c.name, c.old, c.kind) for c in found.syncs] == [
        ("item at train.py:7", 20, "vanished")
    ]
    assert found.syncs[0].is_changed
    assert ("sync point at train.py:7", -20) in [(c.name, c.ms) for c in found.idle]


def test_a_sync_point_that_came_is_named_also_where_times_are_not_judged() -> None:
    syncs = tuple(SyncPoint(100 * i * MS, 20 * MS, "item", "train.py:7") for i in range(5))
    old = run_of(graph("mm"), ("dot", 0, 20, 1))
    new = replace(old, timeline=Timeline.of(old.timeline.spans, syncs), sync_points=syncs)
    came = "sync points a step: 0 -> 1; only now: item at train.py:7"
    busy = replace(new, conditions=Conditions(cores=2, others=1))
    for found in (diff_runs(old, new), diff_runs(old, busy)):
        assert came in found.text()
        assert "sync points a step" in found.to_markdown()
        assert "item at train.py:7" in run_diff_html(found)
    assert "beyond the spread" not in run_diff_html(diff_runs(old, busy))
    assert "not compared: the step's line says why" in diff_runs(old, busy).text()
    assert "beyond the spread" not in diff_runs(old, busy).text()
    assert "sync points a step: 1 -> 0; only before: item" in diff_runs(new, old).text()
    assert "sync points a step" not in diff_runs(new, new).text()


def test_settings_and_segments_are_compared() -> None:
    found = diff_runs(make_run(Settings()), make_run(Settings(bulk_forward=1, batch_size=2)))
    assert found.settings == (("bulk_forward", 15, 1), ("batch_size", 8, 2))
    assert found.segments[0] < found.segments[1]


def test_a_number_that_stands_for_a_word_is_that_word() -> None:
    found = diff_runs(make_run(Settings(steps=3, warmup=1)), make_run(Settings(bulk_forward=10**6)))
    words = {name: new for name, _, new in found.settings}
    assert words == {"bulk_forward": "unlimited", "steps": "enough", "warmup": "steady"}
    assert "warmup: 1 -> 'steady'" in found.text()


def test_what_differs_by_less_than_its_spread_is_neither_slower_nor_in_the_text() -> None:
    old = run_of(graph("mm", "relu"), ("dot", 0, 10, 1), ("relu", 60, 61, 2), noise=0.3)
    new = run_of(graph("mm", "relu"), ("dot", 0, 11, 1), ("relu", 60, 62, 2), noise=0.3)
    found = diff_runs(old, new)
    assert found.slower == ()
    assert [k.ms for k in found.kernels] == pytest.approx([0.94, 0.94])  # one doubled, of 100 ms
    assert not any(k.is_changed for k in found.kernels)
    assert "slower" not in found.text()
    assert "2 rows without a change beyond the spread" in found.text()
    assert "**" not in found.to_markdown()


def test_a_row_that_the_spread_may_hide_a_change_of_is_not_said_to_be_without_one() -> None:
    old = run_of(graph("mm", "relu"), ("dot", 0, 20, 1), ("relu", 60, 61, 2), noise=0.6)
    new = run_of(graph("mm", "relu"), ("dot", 0, 24, 1), ("relu", 60, 61, 2), noise=0.6)
    text = diff_runs(old, new).text()
    assert "whose spread may hide a change: the largest" in text
    assert "the largest dot, maybe 3.5 ms ±" in text


def test_of_unchanged_reruns_hardly_a_row_is_called_changed() -> None:
    found = [
        diff_runs(make_run(seed=i, steps=3), make_run(seed=i + 50, steps=3)) for i in range(10)
    ]
    rows = [row for d in found for part in (*d.sections, ("", d.nodes)) for row in part[1]]
    assert len(rows) > 500
    assert sum(row.is_changed for row in rows) <= 0.01 * len(rows)


def test_one_traced_step_says_nothing_of_its_spread() -> None:
    step = [Span("host/main", "step 0", "step", 0, 100 * MS)]
    kernels = [Span("device/0 k", "dot", "kernel", 0, ms * MS, 0, 1) for ms in (10, 90)]
    old, new = (run_of(graph("mm"), timeline=Timeline.of([*step, k])) for k in kernels)
    found = diff_runs(old, new)
    assert found.kernels[0].ms == 80
    assert not found.kernels[0].is_changed
    assert "1 row with too few steps to know the spread" in found.text()
    assert "without a change" not in found.text()


def test_of_another_programs_trace_nothing_is_said_that_only_the_kit_knows() -> None:
    trace = replace(make_run(Settings(mode="torch")), environment={IMPORTED: "torch.profiler"})
    trace = replace(trace, segments=(), graphs=(), compiles=())
    run = make_run(Settings(batch_size=2))
    for text in (diff_runs(trace, trace).text(), diff_runs(run, trace).text()):
        assert not [word for word in ("segments", "compiles", "mode:", "sample") if word in text]
    assert not has_other_samples(run, trace)
    rows = comparison_rows([run, make_run(Settings(batch_size=4)), trace])
    assert [math.isnan(row.sample_ms) for row in rows] == [False, False, True]
    assert fastest_text(rows).count("sample") == 0
    assert StepTimes([run, trace]).difference(0, 1).new == pytest.approx(trace.step_ms)
    assert best_of([trace]) == 0


def test_idle_time_of_several_devices_is_their_mean_and_says_so() -> None:
    def run(idle: int) -> Run:
        spans = []
        for step in range(5):
            at = 100 * step * MS
            spans.append(Span("host/main", f"step {step}", "step", at, at + 100 * MS))
            spans += [Span(f"device/{d} k", "dot", "kernel", at, at + (100 - idle) * MS, 0, 1)
                      for d in (0, 1)]  # fmt: skip
        return run_of(graph("mm"), timeline=Timeline.of(spans))

    found = diff_runs(run(20), run(60))
    assert (sum(c.old for c in found.idle), sum(c.new for c in found.idle)) == (20, 60)
    assert "Why the device was idle (mean of 2 devices)" in found.text()


def test_a_line_is_found_again_after_an_edit_above_it() -> None:
    def run(first: int, ms: int) -> Run:
        g = graph("mm")
        g = Graph((g.nodes[0], replace(g.nodes[1], site=f"train.py:{first + 1}")))
        source = Snippet("train.py", first, ("def step():", "    y = x @ w"))
        return run_of(g, ("dot", 0, ms, 1), sources=(source,))

    found = diff_runs(run(3, 10), run(8, 40))
    assert [(c.name, c.ms, c.is_changed) for c in found.lines] == [
        ("train.py: y = x @ w", 30, True)
    ]


def test_repeated_runs_are_surer_than_a_pair() -> None:
    pair = diff_runs(make_run(), make_run(seed=1))
    many = diff_runs([make_run(seed=i) for i in range(5)], [make_run(seed=i) for i in range(5, 10)])
    assert pair.step.difference is not None
    assert many.step.difference is not None
    assert many.step.difference.spread < pair.step.difference.spread
    with pytest.raises(SettingsError, match="a run is needed here, or several"):
        diff_runs([], make_run())


def test_slower_than_a_bar_is_beyond_the_bar_and_the_spread() -> None:
    def run(*times: float) -> Run:
        return run_of(graph("mm"), step_times_ns=tuple(round(t * MS) for t in times))

    still = run(*[100, 101, 100, 99, 100] * 2)
    assert diff_runs(still, run(*[120, 121, 120, 119, 120] * 2)).slower_than(0.05)
    assert not diff_runs(still, run(*[120, 121, 120, 119, 120] * 2)).slower_than(0.25)
    assert not diff_runs(still, run(*[80, 160, 120, 90, 190] * 2)).slower_than(0.05)
    assert not diff_runs(still, run(*[101, 102, 101, 100, 101] * 2)).slower_than(0.0)


def test_versions_that_differ_and_fresh_compiles_are_said() -> None:
    fresh = Compile(4, 0, "forward", "shape", "the shape of x changed", 3)
    old = run_of(graph("mm"), environment={"jax": "0.10", "measured at": "noon"})
    new = run_of(
        graph("mm"), environment={"jax": "0.11", "measured at": "night"}, compiles=(fresh,)
    )
    text = diff_runs(old, new).text()
    assert "jax: 0.10 -> 0.11" in text
    assert "noon ->" not in text.split("\n", 1)[1]
    assert "compiles: 0 -> 1" in text
    assert "compiled only now: the shape of x changed" in text


def test_a_repeat_that_found_its_programs_does_not_say_that_the_other_side_recompiled() -> None:
    made = Compile(4, 0, "forward", "shape", "the shape of x changed", 3)
    first, again = run_of(graph("mm"), compiles=(made,)), run_of(graph("mm"))
    assert "compile" not in diff_runs([again, first, again], [first, again, again]).text()


@pytest.mark.parametrize("make", [make_run, empty_run, one_span_run])
def test_a_run_does_not_differ_from_itself(make: object) -> None:
    run = make()  # type: ignore[operator]
    found = diff_runs(run, run)
    assert found.settings == found.slower == found.appeared == found.vanished == ()
    parts = (*found.breakdown, *found.idle, *found.syncs, *found.kernels)
    assert all(c.ms == 0 and c.kind == "both" for c in parts)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 60), st.integers(1, 60))
@settings(max_examples=40)
def test_changes_add_up_to_that_of_the_busy_time(a: int, b: int, n: int, m: int) -> None:
    old, new = make_run(kernels=n, seed=a), make_run(Settings(mode="lazy"), kernels=m, seed=b)
    busy = [union_ns(run.timeline.intervals(kind="kernel")) / 3 / 1e6 for run in (old, new)]
    found = diff_runs(old, new)
    assert sum(k.ms for k in found.kernels) == pytest.approx(busy[1] - busy[0])
    assert sum(x.ms for x in found.nodes) == pytest.approx(busy[1] - busy[0])


def test_text_is_short_and_on_lines_of_its_own_whatever_a_program_calls_things() -> None:
    evil = make_run(hostile=True)
    text = str(diff_runs(evil, make_run(Settings(mode="lazy"), hostile=True, seed=1)))
    assert "mode: 'bulked' -> 'lazy'" in text
    assert "\x1b" not in text
    assert HOSTILE not in text
    assert len(text) < 20_000


def test_a_kernels_kind_is_its_name_without_its_number() -> None:
    assert kernel_kind("add_fusion.12") == "add_fusion"
    assert kernel_kind("dot.3.1") == "dot"
    assert kernel_kind("loop_1.x") == "loop_1.x"


def test_native_and_recorded_runs_are_compared_by_their_steps() -> None:
    found = diff_runs(make_run(Settings(mode="torch")), make_run())
    assert not math.isnan(found.step.ms)
    assert all(n.left < 0 for n in found.nodes)


def test_two_real_runs_of_other_bulk_sizes_compute_the_same_nodes() -> None:
    settings = kit.Settings(steps=1, warmup=1)
    old, new = (kit.run(mlp, settings.replace(mode=m)) for m in ("lazy", "bulked"))
    found = kit.diff_runs(old, new)
    assert found.appeared == found.vanished == ()
    assert found.segments[0] == 1 < found.segments[1]
    assert found.settings == (("mode", "lazy", "bulked"),)
    assert sum(not math.isnan(n.old) and not math.isnan(n.new) for n in found.nodes) > 20


def test_a_trace_is_called_by_what_wrote_it_and_not_by_a_mode() -> None:
    run = replace(make_run(), environment={IMPORTED: "jax profile"})
    assert diff_runs(run, run).labels[0].endswith("jax profile)")


def test_a_run_with_a_step_of_no_length_is_compared_as_any_other():
    run = make_run()
    spans = [s if s.kind != "step" else replace(s, stop_ns=s.start_ns) for s in run.timeline.spans]
    none = replace(run, timeline=Timeline.of(spans, origin="profiled"))
    first = next(i for i, s in enumerate(spans) if s.kind == "step")
    spans[first] = run.timeline.spans[first]
    one = replace(run, timeline=Timeline.of(spans, origin="profiled"))
    for odd in (none, one):
        assert "What changed" in run_diff_html(diff_runs(run, odd))
        assert diff_runs(odd, run).to_markdown()


def test_two_files_of_one_name_are_told_apart_by_their_folders() -> None:
    """A pull request said: ### train (lazy) -> train (lazy)."""
    old, new = (
        replace(make_run(Settings(mode="lazy")), file=f"{folder}/train.kitrun")
        for folder in ("before", "now")
    )
    assert diff_runs(old, new).labels == ("train (before, lazy)", "train (now, lazy)")
    assert diff_runs(old, make_run()).labels == ("train (lazy)", "synthetic (bulked)")


def with_lost_kernels(run: Run) -> Run:
    """The same run, of which the profiler has lost every second kernel."""
    kept = [s for i, s in enumerate(s for s in run.timeline.spans) if s.kind != "kernel" or i % 2]
    odd = [replace(s, node=-1) if s.kind == "kernel" and i % 3 == 0 else s
           for i, s in enumerate(kept)]  # fmt: skip
    return replace(run, timeline=Timeline.of(odd, run.timeline.syncs, "profiled"))


def test_parts_of_a_run_that_lost_kernels_are_not_called_changed() -> None:
    """It said "the device is busy 40% instead of 80%" of a trace with half of the kernels."""
    old = make_run()
    new = with_lost_kernels(old)
    assert "could be matched" in new.doubt
    found = headline_differences(old, new)
    busy = found["device_busy_fraction"]
    assert busy.new < 0.8 * busy.old
    assert (busy.kind, busy.doubt) == ("unclear", new.doubt)
    assert not found["step_ms"].doubt
    assert not found["sync_wait_ms"].doubt
    assert "busy" not in change_sentence(found)
    diff = diff_runs(old, new)
    assert not any(row.is_changed for row in (*diff.breakdown, *diff.idle, *diff.kernels))
    assert not diff.slower
    assert all(not row.difference.doubt for row in diff.syncs)
    for text in (diff.text(), diff.to_markdown(), run_diff_html(diff)):
        assert "rows not judged: only 65% of the kernels" in text


def test_waits_that_only_a_trace_saw_are_as_doubtful_as_the_trace() -> None:
    native = make_run(Settings(mode="torch"))
    doubtful = replace(native, metrics={KNOWN_FRACTION: 0.5})
    assert headline_differences(native, doubtful)["sync_wait_ms"].doubt == doubtful.doubt != ""


def test_parts_of_several_disturbed_runs_are_not_called_unchanged() -> None:
    """By turns, the steps of disturbed runs can be judged; the parts are of one pair of them."""
    busy = Conditions(cores=2, others=1.0)
    sides = [
        [replace(make_run(), conditions=busy, environment={TIME: f"{2 * i + k}"}) for i in range(3)]
        for k in (0, 1)
    ]
    diff = diff_runs(*sides)
    assert not diff.doubt
    said = f"9 rows not judged: {sides[0][0].doubt}"
    assert f"  {said}" in diff.text()
    assert f"Where the traced step went: {said}." in diff.to_markdown()
    assert f"Where the traced step went: {said}." in run_diff_html(diff)
    for text in (diff.text(), diff.to_markdown(), run_diff_html(diff)):
        assert "without a change" not in text


def test_what_a_watched_run_was_not_told_is_not_compared() -> None:
    watched = replace(make_run(Settings(steps=3)), environment={WATCHED: "train.py:3"})
    built = make_run(Settings(batch_size=16, dtype="bfloat16", mode="lazy"))
    assert diff_runs(watched, built).settings == (("mode", "bulked", "lazy"),)


def test_the_markdown_says_whether_it_is_a_step_or_a_sample() -> None:
    one, other = make_run(Settings(batch_size=8)), make_run(Settings(batch_size=16))
    assert "| sample |" in diff_runs(one, other).to_markdown()
    assert "| step |" in diff_runs(one, one).to_markdown()


def test_a_page_says_where_too_few_steps_were_traced() -> None:
    step = [Span("host/main", "step 0", "step", 0, 100 * MS)]
    kernels = [Span("device/0 k", "dot", "kernel", 0, ms * MS, 0, 1) for ms in (10, 90)]
    old, new = (run_of(graph("mm"), timeline=Timeline.of([*step, k])) for k in kernels)
    page = run_diff_html(diff_runs(old, new))
    assert "1 row with too few steps to know the spread" in page
    assert "without a change beyond the spread" not in page


def test_what_one_side_cannot_know_has_not_vanished_from_it() -> None:
    """A trace without stacks had lost its lines and its sleeps, "surely", and a run its nodes."""
    run = run_of(graph("mm", "relu"), ("dot", 0, 10, 1), ("relu", 60, 61, 2), noise=0.01)
    spans = run.timeline.spans
    asleep = [Span("host/main", "train.py:5", "elsewhere", s.start_ns + 70 * MS,
                   s.start_ns + 90 * MS) for s in spans if s.kind == "step"]  # fmt: skip
    spans += [replace(s, name="forward", kind="record") for s in spans if s.kind == "step"]
    seen = replace(run, timeline=Timeline.of([*spans, *asleep]))
    blind = replace(run, timeline=Timeline.of(spans), graphs=(), segments=(),
                    environment={IMPORTED: "torch.profiler"})  # fmt: skip
    for a, b in ((seen, blind), (blind, seen)):
        found = diff_runs(a, b)
        assert found.nodes == found.lines == ()
        assert {row.name for row in found.kernels} == {"dot", "relu"}
        assert not any(row.is_changed for _, rows in found.sections for row in rows)
        assert "lines are not compared" in found.text()
        assert "own code are one: only one of the two tells them apart" in found.to_markdown()
    assert diff_runs(seen, seen).notes == ()
    untraced = replace(run, timeline=Timeline.of([]), graphs=(), segments=())
    for a, b in ((run, untraced), (untraced, run)):
        found = diff_runs(a, b)
        assert found.nodes == found.kernels == found.idle == ()
        assert "only one of the two has traced one" in found.text()
