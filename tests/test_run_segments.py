"""Costs of segments: against time counted nanosecond by nanosecond, and on a real run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.ir import Aval, Graph, Node, Segment
from kit.run import Run, Settings
from kit.run_segments import segment_costs
from kit.trace import Span, Timeline
from kit.workloads import mlp
from tests.factories import empty_run, make_run

F = Aval((4,), "float32")
KINDS = {"kernel": "device/0", "dispatch": "host/worker", "wait": "host/main"}
END = 60


@st.composite
def spans(draw: Any) -> Span:
    kind = draw(st.sampled_from(sorted(KINDS)))
    start = draw(st.integers(0, END - 1))
    stop = draw(st.integers(start, END))
    segment, node = draw(st.integers(-1, 2)), draw(st.integers(-1, 5))
    return Span(KINDS[kind], kind, kind, start, stop, segment, node)


def run_of(found: list[Span], steps: int) -> Run:
    nodes = tuple(Node("aten.add.Tensor", (), (), (F,)) for _ in range(6))
    cut = tuple(
        Segment(k, (2 * k, 2 * k + 1), ((0, 0),) * k, ((2 * k, 0),), "size") for k in range(3)
    )
    marks = [Span("host/main", "step", "step", 0, END) for _ in range(steps)]
    return Run(Settings(), (), (), Timeline.of([*found, *marks]), graphs=(Graph(nodes),),
               segments=cut)  # fmt: skip


@given(st.lists(spans(), max_size=12), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_costs_equal_a_count_of_every_nanosecond(found: list[Span], steps: int) -> None:
    costs = segment_costs(run_of(found, steps))

    def busy(ns: int, kind: str, segment: int | None) -> bool:
        return any(
            s.kind == kind and s.start_ns <= ns < s.stop_ns and segment in (None, s.segment)
            for s in found
        )

    for cost in costs:
        k = cost.index
        kernel = [busy(ns, "kernel", k) for ns in range(END)]
        dispatch = [busy(ns, "dispatch", k) for ns in range(END)]
        wait = [busy(ns, "wait", None) for ns in range(END)]
        assert cost.device_ns == sum(kernel) / steps
        pairs = list(zip(kernel, dispatch, wait, strict=True))
        assert cost.host_ns == sum(d and not k for k, d, _ in pairs) / steps
        assert cost.wait_ns == sum(k and w for k, _, w in pairs) / steps
        assert cost.kernels == sum(s.kind == "kernel" and s.segment == k for s in found) / steps
        assert (cost.ops, cost.bytes_in, cost.bytes_out) == (2, 16 * k, 16)
        named = {s.node for s in found if s.kind == "kernel" and s.segment == k}
        assert cost.fused == 2 - (2 * k in named) - (2 * k + 1 in named)


def test_a_gap_is_from_the_end_of_everything_before_to_the_first_kernel() -> None:
    def kernel(segment: int, start: int, stop: int) -> Span:
        return Span("device/0", "k", "kernel", start, stop, segment)

    found = [kernel(0, 0, 10), kernel(1, 14, 20), kernel(1, 22, 23), kernel(2, 20, 40),
             kernel(0, 47, 50)]  # fmt: skip
    zero, one, two = segment_costs(run_of(found, 1))
    assert (zero.gap_ns, two.gap_ns) == (7, 0)
    assert one.gap_ns == 4 + 0  # it begins twice: segment 2 has begun in between
    assert math.isnan(segment_costs(run_of([kernel(0, 0, 9)], 1))[1].gap_ns)


def test_a_run_without_segments_has_no_rows() -> None:
    assert segment_costs(empty_run()) == ()
    assert segment_costs(replace(make_run(), segments=())) == ()


@pytest.mark.parametrize("segment_mode", ["fuse", "launch"])
def test_a_real_run_accounts_for_its_kernels(segment_mode: str) -> None:
    run = kit.run(mlp, kit.Settings(steps=2, warmup=2, bulk_forward=5, segment_mode=segment_mode))
    costs = segment_costs(run)
    assert [c.index for c in costs] == [s.index for s in run.segments]
    assert all(c.is_cached and c.bytes_in > 0 and c.bytes_out > 0 for c in costs)
    assert sum(c.device_ns > 0 for c in costs) >= 0.8 * len(costs)
    assert sum(c.host_ns > 0 for c in costs) >= 0.8 * len(costs)
    if segment_mode == "fuse":
        assert sum(c.fused for c in costs) > 0
