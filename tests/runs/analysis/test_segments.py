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
from kit.runs.analysis.kernels import kernel_table
from kit.runs.analysis.lines import line_costs
from kit.runs.analysis.segments import segment_costs
from kit.runs.run import Run
from kit.runs.settings import Settings
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
    return Run(
        Settings(), (), (), Timeline.of([*found, *marks]), graphs=(Graph(nodes),), segments=cut
    )


def slow_issues(found: list[Span], segment: int, steps: int) -> tuple[list[Span], int, float]:
    """The kernels that count, of how many issues they are, and the mean gap before one."""
    kernels = sorted(
        (s for s in found if s.kind == "kernel"), key=lambda s: (s.start_ns, -s.stop_ns)
    )
    stretches: list[list[Span]] = []
    gaps: list[int | None] = []
    for i, kernel in enumerate(kernels):
        if stretches and stretches[-1][0].segment == kernel.segment:
            stretches[-1].append(kernel)
            continue
        free = max((k.stop_ns for k in kernels[:i]), default=None)
        gaps.append(None if free is None else max(0, kernel.start_ns - free))
        stretches.append([kernel])
    mine = [n for n, group in enumerate(stretches) if group[0].segment == segment]
    known = [gap for n in mine if (gap := gaps[n]) is not None]
    issued = sum(s.kind == "dispatch" and s.segment == segment for s in found) or steps
    if len(mine) > issued + 1:
        return [k for n in mine for k in stretches[n]], issued, sum(known) / issued
    whole = [n for n in mine if 0 < n < len(stretches) - 1] or mine
    gap = sum(known) / len(known) if known else math.nan
    return [k for n in whole for k in stretches[n]], max(len(whole), 1), gap


@given(st.lists(spans(), max_size=14), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_costs_equal_a_count_of_every_nanosecond(found: list[Span], steps: int) -> None:
    costs = segment_costs(run_of(found, steps))
    is_profiled = any(s.kind == "kernel" for s in found)

    def busy(ns: int, among: list[Span]) -> bool:
        return any(s.start_ns <= ns < s.stop_ns for s in among)

    waits = [s for s in found if s.kind == "wait"]
    for cost in costs:
        kernels, dispatches = (
            [s for s in found if s.kind == kind and s.segment == cost.index]
            for kind in ("kernel", "dispatch")
        )
        alone = sum(busy(ns, dispatches) and not busy(ns, kernels) for ns in range(END))
        if any(s.kind == "dispatch" for s in found):
            assert cost.host_ns == alone / max(len(dispatches), 1)
        else:
            assert math.isnan(cost.host_ns)
        assert (cost.ops, cost.bytes_in, cost.bytes_out) == (2, 16 * cost.index, 16)
        if not is_profiled:
            assert math.isnan(cost.device_ns + cost.wait_ns)
            assert math.isnan(cost.gap_ns + cost.kernels)
            assert math.isnan(cost.fused)
            continue
        kept, issues, gap = slow_issues(found, cost.index, steps)
        assert cost.device_ns == sum(busy(ns, kept) for ns in range(END)) / issues
        both = sum(busy(ns, kept) and busy(ns, waits) for ns in range(END))
        assert cost.wait_ns == both / issues
        assert cost.kernels == len(kept) / issues
        assert cost.fused == 2 - len(
            {s.node for s in kernels} & {2 * cost.index, 2 * cost.index + 1}
        )
        assert cost.gap_ns == gap or (math.isnan(cost.gap_ns) and math.isnan(gap))


def test_a_segment_that_the_window_shows_once_is_not_halved() -> None:
    """The device runs half a step behind: two steps of the host show one of segment 0."""

    def issue(segment: int, start: int) -> list[Span]:
        return [
            Span("host/worker", "d", "dispatch", start, start + 8, segment),
            Span("device/0", "k", "kernel", start + 2, start + 7, segment),
        ]

    found = [*issue(2, 0), *issue(0, 10), *issue(1, 20), *issue(2, 30), *issue(1, 45)]
    zero, one, two = segment_costs(run_of(found, 2))
    assert [c.kernels for c in (zero, one, two)] == [1, 1, 1]
    assert [c.device_ns for c in (zero, one, two)] == [5, 5, 5]
    assert [c.host_ns for c in (zero, one, two)] == [3, 3, 3]
    assert (zero.gap_ns, one.gap_ns, two.gap_ns) == (5, (5 + 10) / 2, 5)


def test_an_issue_cut_by_the_edge_of_the_window_does_not_count_beside_whole_ones() -> None:
    times = ((0, 0, 1), (1, 5, 9), (0, 10, 20), (1, 22, 24))
    found = [Span("device/0", "k", "kernel", start, stop, k) for k, start, stop in times]
    zero, one, _ = segment_costs(run_of(found, 2))
    assert (zero.device_ns, one.device_ns) == (10, 4)


def test_a_segment_that_is_the_whole_step_is_issued_once_a_step() -> None:
    """Three steps in a row were one issue, of three times the kernels and their time."""
    steps = [(0, 10), (20, 30), (40, 50)]
    found = [Span("device/0", "device step", "device step", *ends) for ends in steps]
    found += [Span("device/0", "k", "kernel", a, a + 4, 0) for a, _ in steps]
    found += [Span("device/0", "k", "kernel", b - 5, b, 0) for _, b in steps]
    zero, *_ = segment_costs(run_of(found, 3))
    assert (zero.kernels, zero.device_ns, zero.gap_ns) == (2, 9, 10)


def test_of_several_devices_an_issue_costs_what_it_costs_one() -> None:
    """Nobody sees their launches, and no kernel says which step it is of."""
    found = [
        Span(f"device/{device} compute", "forward", "kernel", at, at + 6, 0, 0)
        for device in (0, 1)
        for at in (device, 10 + device, 20 + device)
    ]
    run = replace(run_of(found, 3), metrics={"parallel.devices": 2.0})
    cost = segment_costs(replace(run, segments=run.segments[:1]))[0]
    assert (cost.kernels, cost.device_ns, cost.gap_ns) == (1, 6, 4)
    assert math.isnan(cost.host_ns)


def test_a_gap_is_from_the_end_of_everything_before_to_the_first_kernel() -> None:
    def kernel(segment: int, start: int, stop: int) -> Span:
        return Span("device/0", "k", "kernel", start, stop, segment)

    found = [kernel(0, 0, 10), kernel(1, 14, 20), kernel(1, 22, 23), kernel(2, 20, 40),
             kernel(0, 47, 50)]  # fmt: skip
    zero, one, two = segment_costs(run_of(found, 1))
    assert (zero.gap_ns, two.gap_ns) == (7, 0)
    assert one.gap_ns == (4 + 0) / 2  # it begins twice: segment 2 has begun in between
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


def test_the_tables_of_a_run_show_themselves():
    run = make_run(hostile=True)
    for rows in (segment_costs(run), line_costs(run), kernel_table(run)):
        assert 3 < len(repr(rows).splitlines()) < 35
        assert "Cost(" not in repr(rows)
        html = rows._repr_html_()
        assert html.count("<tr>") >= min(len(rows), 30)
        assert "<script" not in html
        assert rows[:2] == tuple(rows)[:2]
    for rows in (segment_costs(empty_run()), line_costs(empty_run()), kernel_table(empty_run())):
        assert repr(rows).startswith("0 ")
