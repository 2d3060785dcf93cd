"""The diff of two runs: aligned by structure, additive, and the same for every text."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.ir import Aval, Graph, Node, Segment
from kit.runs.analysis.diff import diff_runs, kernel_kind
from kit.runs.run import Fused, Run
from kit.runs.settings import Settings
from kit.trace import Span, SyncPoint, Timeline, union_ns
from kit.workloads import mlp
from tests.factories import HOSTILE, empty_run, make_run, one_span_run

MS = 1_000_000
F32 = Aval((4,), "float32")


def graph(*ops: str) -> Graph:
    nodes = [Node("parameter", (), (), (F32,))]
    for i, op in enumerate(ops):
        nodes.append(Node(f"aten.{op}.default", ((i, 0),), (), (F32,), f"train.py:{i}"))
    return Graph(tuple(nodes)).check()


def run_of(g: Graph, *kernels: tuple[str, int, int, int], **changes: object) -> Run:
    """A run of one traced step of 100 ms; kernels are (name, start, stop, node) in ms."""
    spans = [Span("host/main", "step 0", "step", 0, 100 * MS)]
    spans += [Span("device/0 k", n, "kernel", a * MS, b * MS, 0, i) for n, a, b, i in kernels]
    segment = Segment(0, tuple(range(1, len(g))), (), (), "mark_step")
    run = Run(Settings(), (1.0,), (100 * MS,), Timeline.of(spans), graphs=(g,), segments=(segment,))
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
    sync = SyncPoint(0, 20 * MS, "item", "train.py:7")
    g = graph("mm")
    t = run_of(g, ("dot", 0, 20, 1)).timeline
    waits = run_of(g, timeline=Timeline.of(t.spans, [sync]), sync_points=(sync,))
    found = diff_runs(waits, run_of(g, ("dot", 0, 20, 1)))
    assert [(c.name, c.old, c.kind) for c in found.syncs] == [
        ("item at train.py:7", 20, "vanished")
    ]
    assert ("sync point at train.py:7", -20) in [(c.name, c.ms) for c in found.idle]


def test_settings_and_segments_are_compared() -> None:
    found = diff_runs(make_run(Settings()), make_run(Settings(bulk_forward=1, batch_size=2)))
    assert found.settings == (("bulk_forward", 15, 1), ("batch_size", 8, 2))
    assert found.segments[0] < found.segments[1]


@pytest.mark.parametrize("make", [make_run, empty_run, one_span_run])
def test_a_run_does_not_differ_from_itself(make: object) -> None:
    run = make()  # type: ignore[operator]
    found = diff_runs(run, run)
    assert found.settings == found.slower == found.appeared == found.vanished == ()
    parts = (*found.breakdown, *found.idle, *found.syncs, *found.kernels)
    assert all(c.ms == 0 and c.kind == "both" for c in parts)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(1, 60), st.integers(1, 60))
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
