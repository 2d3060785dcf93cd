"""What a sync point costs: against counting one nanosecond at a time."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.trace import Span, SyncPoint, Timeline, idle_after, limit_shares, sync_table

END = 1_000_000


def kernel(start: int, stop: int) -> Span:
    return Span("device/0", "k", "kernel", start, stop)


def host(kind: str, start: int, stop: int, name: str = "forward") -> Span:
    return Span("host/main", name, kind, start, stop)


STEP = host("step", 0, END, "step 0")


def sync(at: int, wait: int, site: str = "train.py:7") -> SyncPoint:
    return SyncPoint(at, wait, "item", site)


def test_idle_time_after_a_wait_is_charged_to_it() -> None:
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(700_000, END)], [sync(50_000, 360_000)])
    assert idle_after(t) == (290_000,)


def test_so_are_later_gaps_until_the_next_wait() -> None:
    kernels = [kernel(0, 400_000), kernel(500_000, 600_000), kernel(700_000, END)]
    t = Timeline.of([STEP, *kernels], [sync(0, 400_000), sync(650_000, 350_000)])
    assert idle_after(t) == (150_000, 0)


def test_a_wait_is_charged_no_more_than_it_lasted() -> None:
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(700_000, END)], [sync(390_000, 10_000)])
    assert idle_after(t) == (10_000,)


def test_what_a_short_wait_leaves_over_is_that_of_a_longer_one_before_it() -> None:
    syncs = [sync(100_000, 300_000), sync(400_000, 5, "train.py:8")]
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(650_000, END)], syncs)
    assert idle_after(t) == (249_990, 5)


def test_a_wait_under_which_the_device_has_more_to_do_costs_it_nothing() -> None:
    t = Timeline.of([STEP, kernel(0, 600_000), kernel(600_000, END)], [sync(10, 300_000)])
    assert idle_after(t) == (0,)


def test_gaps_inside_a_program_are_its_own_and_those_between_two_runs_of_it_are_not() -> None:
    def part(start: int, stop: int) -> Span:
        return Span("device/0", "k", "kernel", start, stop, segment=0)

    def band(start: int, stop: int, name: str) -> Span:
        return Span("device steps", name, "device step", start, stop)

    kernels = [part(0, 300_000), part(320_000, 400_000), part(500_000, END)]
    one = Timeline.of([STEP, *kernels, band(0, END, "step 0")], [sync(0, 250_000)])
    assert idle_after(one) == (0,)
    bands = [band(0, 400_000, "step 0"), band(500_000, END, "step 1")]
    assert idle_after(Timeline.of([STEP, *kernels, *bands], [sync(0, 250_000)])) == (100_000,)


def reads_at_the_end(steps: int) -> Timeline:
    """Steps of 30 ms: the host records for 20 ms, then the device works while the host waits."""
    spans, syncs = [], []
    for i in range(steps):
        at = 30_000_000 * i
        spans += [host("step", at, at + 30_000_000, f"step {i}")]
        spans += [host("record", at, at + 20_000_000), kernel(at + 20_000_000, at + 29_900_000)]
        syncs += [sync(at + 20_000_000, 9_900_000)]
    return Timeline.of(spans, syncs)


@pytest.mark.parametrize("steps", [1, 2, 20])
def test_a_read_at_the_end_of_a_step_costs_the_same_however_many_steps_are_traced(
    steps: int,
) -> None:
    t = reads_at_the_end(steps)
    (row,) = sync_table(t.syncs, steps=steps, timeline=t)
    assert row.idle_ms_per_step == pytest.approx(9.9)
    assert limit_shares(t)["sync"] == pytest.approx(9.9 / 30)


def test_a_place_that_does_not_wait_in_each_step_has_not_waited_before_the_trace() -> None:
    t = reads_at_the_end(2)
    once = replace(t, syncs=t.syncs[1:])
    assert idle_after(once) == (100_000,)
    other = replace(t, syncs=(replace(t.syncs[0], site="train.py:8"), t.syncs[1]))
    assert idle_after(other) == (9_900_000, 100_000)


def test_without_kernels_nothing_is_known_of_the_device() -> None:
    t = Timeline.of([STEP, host("wait", 0, 100, "item")], [sync(0, 100)])
    assert idle_after(t) == (0,)
    assert math.isnan(sync_table(t.syncs, steps=1, timeline=t)[0].idle_ms_per_step)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)), max_size=8),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), max_size=5),
    st.integers(0, 20),
)
def test_idle_times_match_handing_out_one_unit_of_time_after_another(
    kernels: list[tuple[int, int]], waits: list[tuple[int, int]], pause: int
) -> None:
    """What is idle in a pause between two steps is in no step, and no wait's."""
    each = 70 + pause
    end = each + 70
    steps = [host("step", each * i, each * i + 70, f"step {i}") for i in range(2)]
    t = Timeline.of(
        [*steps, *(kernel(a, a + n) for a, n in kernels)], [sync(a, n) for a, n in waits]
    )
    busy = {i for a, n in kernels for i in range(a, a + n)} | {*range(70, each)}
    left = [s.wait_ns for s in t.syncs]
    expected = [0] * len(left)
    for k, s in enumerate(t.syncs):
        until = t.syncs[k + 1].at_ns if k + 1 < len(t.syncs) else end
        for instant in range(s.at_ns + s.wait_ns, until):
            same = [t.syncs[j].at_ns // each == s.at_ns // each for j in range(k + 1)]
            free = [j for j in range(k + 1) if left[j] and same[j]]
            if kernels and instant not in busy and instant < end and free:
                expected[free[-1]] += 1
                left[free[-1]] -= 1
    if {s.at_ns // each for s in t.syncs if s.at_ns < end} == {0, 1}:  # all steps wait: go around
        for instant in range(t.syncs[0].at_ns):
            free = [j for j in range(len(left)) if left[j] and t.syncs[j].at_ns >= each]
            if kernels and instant not in busy and free:
                expected[free[-1]] += 1
                left[free[-1]] -= 1
    assert list(idle_after(t)) == expected


def test_thousands_of_waits_in_one_step_are_charged_in_one_pass() -> None:
    """As of a loop over `.item()`: each has less left than the device is idle."""
    many = range(0, 1_000_000, 200)
    spans = [STEP, *(kernel(at, at + 10) for at in many)]
    t = Timeline.of(spans, [sync(at, 10) for at in many])
    begun = time.process_time()
    assert idle_after(t) == (10,) * len(many)
    assert time.process_time() - begun < 1


def test_a_table_has_the_mean_idle_time_of_a_place_times_how_often_it_waits() -> None:
    syncs = [sync(0, 400_000), sync(600_000, 200_000)]
    t = Timeline.of([STEP, kernel(0, 400_000), kernel(700_000, 800_000)], syncs)
    row = sync_table([sync(0, 50)] * 6, steps=3, timeline=t)[0]
    assert row.count_per_step == 2
    assert row.idle_ms_per_step == pytest.approx(2 * (0.2 + 0.2) / 2)
