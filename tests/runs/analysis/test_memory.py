"""Modelled memory: against asking of every value at every node whether it is live."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.errors import GraphError
from kit.ir import Aval, Graph, Node
from kit.ir.graph import is_view
from kit.ir.plan import OpStream, plan
from kit.runs.analysis.memory import memory, memory_by_op, variant_memory
from kit.runs.analysis.nodes import node_ns
from kit.runs.run import Run
from kit.workloads import mlp
from tests.factories import HOSTILE, empty_run, make_run


def run_of(graph: Graph, size: int = 99) -> Run:
    stream = OpStream.of(graph, ())
    return replace(empty_run(), graphs=(graph,), segments=plan(stream, size, size))


def chain(*ops: str, wanted: int = -1) -> Graph:
    """Each op reads the one before it; every value has 40 bytes."""
    aval = Aval((10,), "float32")
    nodes = [Node("input", (), (), (aval,))]
    nodes += [
        Node(f"aten.{op}.default", ((i, 0),), (), (aval,), f"train.py:{i}", scope="m")
        for i, op in enumerate(ops)
    ]
    return Graph(tuple(nodes), ((wanted % len(nodes), 0),)).check()


def test_inside_one_segment_a_value_lives_until_its_last_use() -> None:
    found = memory(run_of(chain("exp", "exp", "exp")))
    assert found.variables == 40
    assert found.live == (80, 120, 120)  # the input, what is made, and what it is made of
    assert found.temporary == (40, 80, 40)
    assert (found.peak, found.peak_node) == (120, 2)
    assert (found.allocations, found.allocated) == (3, 120)


def test_between_segments_a_value_lives_until_its_readers_have_ended() -> None:
    found = memory(run_of(chain("exp", "exp", "exp"), size=2))
    assert found.live == (80, 120, 120)  # the second value until the second segment has ended
    assert found.temporary == (40, 40, 0)
    assert [h.is_kept for h in found.holders] == [True, False, True]


def test_a_view_has_no_memory_and_keeps_what_it_shows() -> None:
    found = memory(run_of(chain("exp", "view", "exp")))
    assert found.allocations == 2
    assert found.live == (80, 80, 120)


def test_the_peak_says_who_holds_it() -> None:
    found = memory(run_of(chain("exp", "exp")))
    assert [(h.op, h.site, h.scope, h.bytes) for h in found.holders] == [
        ("input", "", "", 40),
        ("aten.exp.default", "train.py:0", "m", 40),
        ("aten.exp.default", "train.py:1", "m", 40),
    ]


def test_a_run_without_a_graph_is_an_error() -> None:
    with pytest.raises(GraphError, match="this run has none"):
        memory(empty_run())


def test_hostile_and_imagined_runs_have_memory() -> None:
    assert memory(make_run(hostile=True)).peak > 0
    assert HOSTILE in memory(make_run(hostile=True)).holders[0].site


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes = [Node("parameter", (), (), (Aval((3,), "float32"),))]
    for i in range(1, draw(st.integers(1, 9))):
        op = draw(st.sampled_from(["exp.default", "add.Tensor", "view.default"]))
        inputs = [(draw(st.integers(0, i - 1)), 0) for _ in range(1 + (op == "add.Tensor"))]
        aval = Aval((draw(st.integers(1, 5)),), "float32")
        nodes.append(Node(f"aten.{op}", tuple(inputs), (), (aval,)))
    wanted = draw(st.lists(st.integers(0, len(nodes) - 1), max_size=2))
    return Graph(tuple(nodes), tuple((i, 0) for i in wanted)).check()


@given(graphs(), st.integers(1, 4))
def test_live_bytes_match_asking_of_each_value_at_each_node(graph: Graph, size: int) -> None:
    run = run_of(graph, size)
    found = memory(run)
    home = {i: s for s in run.segments for i in s.nodes}

    def root(i: int) -> int:
        shows_memory = is_view(graph.nodes[i].op)
        return root(graph.nodes[i].inputs[0][0]) if shows_memory else i

    def is_live(i: int, now: int) -> bool:
        if root(i) != i or i > now:
            return False
        if graph.nodes[i].is_variable or i == now:
            return True
        users = [u for u, n in enumerate(graph.nodes) if i in {root(x) for x, _ in n.inputs}]
        later = {home[u].index: home[u] for u in users if home[u] is not home[i]}
        if later:
            return any(now <= s.nodes[-1] for s in later.values())
        is_wanted = i in {root(x) for x, _ in graph.wanted}
        return is_wanted or any(now <= u for u in users)

    for now, live in zip(found.nodes, found.live, strict=True):
        expected = sum(
            graph.nodes[i].avals[0].size_bytes for i in range(len(graph)) if is_live(i, now)
        )
        assert live == expected
    assert found.peak == max(found.live, default=0)
    if found.nodes:
        assert sum(h.bytes for h in found.holders) == found.peak


def test_smaller_segments_keep_more_of_a_real_step() -> None:
    settings = kit.Settings(steps=1, warmup=1)
    lazy, single = (
        kit.memory(kit.run(mlp, settings.replace(mode=m))) for m in ("lazy", "imperative")
    )
    assert lazy.origin == "modelled"
    assert lazy.variables > 0
    assert lazy.allocated == single.allocated
    assert sum(single.temporary) < sum(lazy.temporary)
    for found in (lazy, single):
        assert all(a <= b for a, b in zip(found.temporary, found.live, strict=True))


def test_what_each_op_writes_adds_up_and_views_write_nothing() -> None:
    run = run_of(chain("exp", "view", "exp", "sin"))
    found = memory(run)
    assert found.written == (40, 0, 40, 40)
    assert found.buffers == (1, 0, 1, 1)
    rows = memory_by_op(run)
    assert [(r.op, r.nodes, r.buffers, r.written) for r in rows] == [
        ("aten.exp.default", (1, 3), 2, 80),
        ("aten.sin.default", (4,), 1, 40),
    ]
    assert all(math.isnan(r.device_ns) for r in rows)  # nothing was traced


def test_rows_by_op_and_by_variant_agree_with_the_report_and_the_kernels() -> None:
    run = make_run()
    found, rows, row = memory(run), memory_by_op(run), variant_memory(run)
    assert sum(r.written for r in rows) == found.allocated == row.written
    assert sum(r.buffers for r in rows) == found.allocations == row.buffers
    assert sum(r.written for r in rows if r.phase == "forward") == row.forward_written
    assert sum(r.written for r in rows if r.phase == "backward") == row.backward_written
    assert 0 < row.backward_written < row.written - row.forward_written
    assert 0 < row.forward_ns + row.backward_ns <= row.device_ns
    assert 0 < sum(r.device_ns for r in rows) <= row.device_ns
    assert row.device_ns == pytest.approx(sum(node_ns(run).values()))
    assert (row.peak, row.temporary) == (found.peak, max(found.temporary))
    assert row.step_ms == run.step_ms


def test_a_run_without_a_graph_has_its_time_and_nothing_else() -> None:
    native = make_run(kit.Settings(mode="torch"))
    row = variant_memory(native)
    assert row.step_ms == native.step_ms
    assert math.isnan(row.written)
    assert math.isnan(row.peak)


def test_traced_steps_that_differ_have_the_rows_of_the_first() -> None:
    run = make_run(syncs=0)
    longer = chain("relu", "relu", "relu")
    more = replace(run, graphs=(chain("relu"), longer, *run.graphs), segments=())
    assert variant_memory(more).ops == 1


def test_segments_of_another_graph_are_refused() -> None:
    run = run_of(chain("exp", "exp", "exp"))
    with pytest.raises(GraphError, match="name nodes that its graph does not have"):
        memory(replace(run, graphs=(chain("exp"),)))
