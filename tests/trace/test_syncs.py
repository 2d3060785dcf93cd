"""What a sync point costs, and what limits a step: against counting one nanosecond at a time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TimelineError
from kit.trace import Span, SyncPoint, Timeline, idle_after, limited_by, sync_table

END = 1_000_000


def kernel(start: int, stop: int) -> Span:
    return Span("device/0", "k", "kernel", start, stop)


def host(kind: str, start: int, stop: int, name: str = "forward") -> Span:
    return Span("host/main", name, kind, start, stop)


STEP = host("step", 0, END, "step 0")


def sync(at: int, wait: int, site: str = "train.py:7") -> SyncPoint:
    return SyncPoint(at, wait, "item", site)


def test_the_gap_in_which_a_wait_ends_is_its_idle_time() -> None:
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(700_000, END)], [sync(100_000, 310_000)])
    assert idle_after(t) == (300_000,)


def test_the_device_may_go_idle_just_after_the_host_is_told() -> None:
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(700_000, END)], [sync(100_000, 290_000)])
    assert idle_after(t) == (300_000,)


def test_a_gap_is_charged_to_the_first_wait_that_ends_in_it() -> None:
    syncs = [sync(100_000, 310_000), sync(420_000, 5, "train.py:8")]
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(700_000, END)], syncs)
    assert idle_after(t) == (300_000, 0)


def test_a_wait_under_which_the_device_has_more_to_do_costs_it_nothing() -> None:
    t = Timeline.of([STEP, kernel(0, 600_000), kernel(600_000, END)], [sync(10, 300_000)])
    assert idle_after(t) == (0,)


def test_idle_until_the_end_of_the_steps_counts() -> None:
    t = Timeline.of([STEP, kernel(0, 400_000)], [sync(100_000, 310_000)])
    assert idle_after(t) == (600_000,)


def test_without_kernels_nothing_is_known_of_the_device() -> None:
    t = Timeline.of([STEP, host("wait", 0, 100, "item")], [sync(0, 100)])
    assert idle_after(t) == (0,)
    assert math.isnan(sync_table(t.syncs, steps=1, timeline=t)[0].idle_ms_per_step)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)), max_size=8),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), max_size=6),
)
def test_idle_times_are_gaps_between_kernels_and_each_is_charged_once(
    kernels: list[tuple[int, int]], waits: list[tuple[int, int]]
) -> None:
    scale = 1_000_000  # far more than the lateness that is forgiven
    spans = [kernel(a * scale, (a + n) * scale) for a, n in kernels]
    steps = [host("step", 0, 140 * scale, "step 0")]
    t = Timeline.of([*steps, *spans], [sync(a * scale, n * scale) for a, n in waits])
    busy = {i for a, n in kernels for i in range(a, a + n)}
    first = min((a for a, _ in kernels), default=0)
    idle = [i for i in range(first, 140) if i not in busy]
    gaps: dict[int, set[int]] = {}  # last unit of a gap -> the gap
    for i in idle:
        gap = gaps.pop(i - 1, set()) | {i}
        gaps[i] = gap
    free = [sorted(gap) for gap in gaps.values()] if kernels else []
    expected = []
    for s in t.syncs:
        end = (s.at_ns + s.wait_ns) // scale
        fits = [gap for gap in free if gap[0] <= end <= gap[-1]]
        if fits:
            free.remove(fits[0])
        expected.append(len(fits[0]) * scale if fits else 0)
    assert list(idle_after(t)) == expected


def test_a_table_has_the_mean_idle_time_of_a_place_times_how_often_it_waits() -> None:
    syncs = [sync(100_000, 310_000), sync(700_000, 110_000)]
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(700_000, 800_000)], syncs)
    row = sync_table([sync(0, 50)] * 6, steps=3, timeline=t)[0]
    assert row.count_per_step == 2
    assert row.idle_ms_per_step == pytest.approx(2 * (0.3 + 0.2) / 2)


@pytest.mark.parametrize(("spans", "syncs", "what", "share"), [
    ([kernel(0, 900_000)], [], "device", 0.9),
    ([kernel(0, 300_000), host("record", 0, END)], [], "recording", 0.7),
    ([kernel(0, 300_000), host("record", 0, END)], [sync(0, 300_000)], "sync", 0.7),
    ([kernel(0, 300_000), host("input", 300_000, END, "next batch")], [], "input", 0.7),
    ([kernel(0, 300_000), Span("host/loader", "next batch", "input", 300_000, END),
      host("record", 400_000, END)], [], "recording", 0.6),
    ([kernel(0, 300_000), Span("host/worker", "d", "dispatch", 200_000, END)], [], "dispatch", 0.7),
    ([host("compile", 0, END, "c")], [], "compile", 1.0),
])  # fmt: skip
def test_what_limits_a_step(
    spans: list[Span], syncs: list[SyncPoint], what: str, share: float
) -> None:
    limit = limited_by(Timeline.of([STEP, *spans], syncs))
    assert limit.what == what
    assert limit.share == pytest.approx(share)
    assert str(limit) == f"{what}-bound ({share:.0%} of the step)"


def test_what_limits_a_step_needs_a_step() -> None:
    with pytest.raises(TimelineError, match="traced steps only"):
        limited_by(Timeline.of([kernel(0, 5)]))
