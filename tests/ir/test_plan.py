"""Planning against a slow policy that is obviously right, and against what the runtime does."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.errors import SettingsError
from kit.ir import Aval, Graph, Node, Segment
from kit.ir.plan import OpStream, plan
from kit.runs.bulk_sizes import UNLIMITED
from kit.workloads import mlp
from tests.smaller import smaller_bert

F = Aval((2,), "float32")
BERT = smaller_bert()


def node(op: str, inputs: list[int], phase: str = "forward") -> Node:
    return Node(op, tuple((i, 0) for i in inputs), (), (F,), phase=phase)


@st.composite
def streams(draw: Any) -> OpStream:
    """Ops of three phases in order, with variables between them, views, calls and forced cuts."""
    nodes: list[Node] = []
    calls, views, forced = set(), set(), {}
    phases = sorted(
        draw(st.lists(st.sampled_from(["0forward", "1backward", "2update"]), max_size=25))
    )
    for name in phases:
        if draw(st.integers(0, 3)) == 0:
            nodes.append(node("parameter", [], name[1:]))
        i = len(nodes)
        values = [(k, output) for k in range(i) for output in range(len(nodes[k].avals))]
        inputs = draw(st.lists(st.sampled_from(values), max_size=3)) if values else []
        outputs = (F,) * draw(st.integers(1, 2))
        nodes.append(Node("aten.add.Tensor", tuple(inputs), (), outputs, phase=name[1:]))
        if draw(st.integers(0, 3)):
            calls.add(i)
        if draw(st.integers(0, 4)) == 0:
            views.add(i)
        if draw(st.integers(0, 7)) == 0:
            forced[i] = "sync"
    wanted = tuple(
        (i, k)
        for i, n in enumerate(nodes)
        for k in range(len(n.avals))
        if draw(st.integers(0, 2)) == 0
    )
    graph = Graph(tuple(nodes), wanted).check()
    return OpStream(graph, frozenset(calls), frozenset(views), forced)


def slow_plan(stream: OpStream, forward: int, backward: int, lazy: bool) -> list[tuple[Any, str]]:
    """For each op ask, from the beginning, whether a segment must end before it."""
    nodes = stream.graph.nodes
    ops = [i for i in range(len(nodes)) if nodes[i].op != "parameter"]
    segments: list[tuple[list[int], str]] = []
    for i in ops:
        if not segments:
            segments.append(([i], ""))
            continue
        held = segments[-1][0]
        limit = {"forward": forward}.get(nodes[held[0]].phase, backward)
        full = len([k for k in held if k not in stream.views]) >= limit
        other = nodes[i].phase != nodes[held[-1]].phase and not lazy
        may = i in stream.calls
        why = stream.forced.get(i) or ("phase" if may and other else "size" if may and full else "")
        if why:
            segments[-1] = (held, why)
            segments.append(([i], ""))
        else:
            held.append(i)
    if segments:
        segments[-1] = (segments[-1][0], stream.end)
    return segments


@given(streams(), st.integers(1, 6), st.integers(1, 6), st.booleans())
@settings(max_examples=100, deadline=None)
def test_plan_equals_the_slow_policy(
    stream: OpStream, forward: int, backward: int, lazy: bool
) -> None:
    made = plan(stream, forward, backward, lazy=lazy)
    assert [(list(s.nodes), s.cut) for s in made] == slow_plan(stream, forward, backward, lazy)
    graph = stream.graph
    for segment in made:
        inside = list(segment.nodes)
        reads: list[tuple[int, int]] = []
        for i in inside:
            for source in graph.nodes[i].inputs:
                if source[0] not in inside and source not in reads:
                    reads.append(source)
        writes = []
        for i in inside:
            for k in range(len(graph.nodes[i].avals)):
                users = [j for j, n in enumerate(graph.nodes) if (i, k) in n.inputs]
                if (i, k) in graph.wanted or any(j not in inside for j in users):
                    writes.append((i, k))
        assert (list(segment.reads), list(segment.writes)) == (reads, writes)
        assert segment.phase == graph.nodes[inside[0]].phase


def test_the_unit_of_pr_14200_is_one_segment_and_was_four() -> None:
    ops = ["conv", "bn", "relu", "conv", "bn", "add", "relu"]
    nodes: list[Node] = [node("input", [])]
    last = 0
    for name in ops:
        weights = []
        if name in ("conv", "bn"):  # variables between the ops: they end nothing, count nothing
            nodes.append(node("parameter", []))
            weights = [len(nodes) - 1]
        nodes.append(node(f"aten.{name}.default", [last, *weights]))
        last = len(nodes) - 1
    graph = Graph(tuple(nodes), ((last, 0),)).check()
    stream = OpStream(graph, frozenset(graph.ops))
    assert len(plan(stream, 15, 15)) == 1
    assert [len(s.nodes) for s in plan(stream, 2, 15)] == [2, 2, 2, 1]
    assert [len(s.nodes) for s in plan(stream, 1, 15)] == [1] * 7


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "3"])
def test_a_wrong_size_is_refused(size: Any) -> None:
    stream = OpStream(Graph(()), frozenset())
    with pytest.raises(SettingsError, match="whole number of at least 1"):
        plan(stream, size, 15)


def test_a_recorded_run_can_be_cut_again() -> None:
    graph = Graph(tuple(node("aten.add.Tensor", []) for _ in range(6)))
    cut = [
        Segment(0, (0, 1), (), (), "size"),
        Segment(1, (2,), (), (), "sync"),
        Segment(2, (3, 4, 5), (), (), "mark_step"),
    ]
    stream = OpStream.of(graph, cut)
    assert [s.nodes for s in plan(stream, 100, 100)] == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "sizes"),
    [
        *((mlp, each) for each in ((1, 1), (2, 7), (15, 15), (50, 20), (UNLIMITED, UNLIMITED))),
        *((BERT, each) for each in ((2, 7), (50, 20))),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_the_plan_is_what_the_runtime_issues(workload: Any, sizes: tuple[int, int]) -> None:
    forward, backward = sizes
    stream = _planned(workload)
    planned = plan(stream, forward, backward)
    run = kit.run(
        workload, kit.Settings(bulk_forward=forward, bulk_backward=backward, steps=1, warmup=2)
    )
    names = {stream.graph.nodes[i].op for i in stream.views}
    graph = run.graphs[0]
    assert _names(stream.graph, planned, lambda i: stream.graph.nodes[i].op in names) == _names(
        graph, run.segments, lambda i: graph.nodes[i].op in names
    )
    # a call that records nothing may end a segment by size where its phase would have
    assert Counter(_reason(s) for s in planned) == Counter(_reason(s) for s in run.segments)


@cache
def _planned(workload: Any) -> OpStream:
    return kit.plan(workload)


def _names(graph: Any, segments: Any, views: Any) -> list[list[str]]:
    """The ops of each segment that count: views are derived again after a cut."""
    return [[graph.nodes[i].op for i in s.nodes if not views(i)] for s in segments]


def _reason(segment: Segment) -> str:
    return "size or phase" if segment.cut in ("size", "phase") else segment.cut


def test_planning_runs_nothing_but_what_the_step_reads() -> None:
    stream = kit.plan(mlp)
    assert stream.notes == ()
    assert len(plan(stream, UNLIMITED, UNLIMITED)) == 3
    assert len(plan(stream, UNLIMITED, UNLIMITED, lazy=True)) == 1
    checked = kit.plan(mlp, kit.Settings(loss_scaling="dynamic, host check"))
    assert "item at small_ops.py:" in checked.notes[0]
    assert "sync" in checked.forced.values()
    with pytest.raises(SettingsError, match="mode 'torch'"):
        kit.plan(mlp, kit.Settings(mode="torch"))
