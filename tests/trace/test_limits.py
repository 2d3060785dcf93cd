"""What limits a step: one partition of its time, against counting one nanosecond at a time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TimelineError
from kit.trace import (
    Span,
    SyncPoint,
    Timeline,
    breakdown,
    headline,
    idle_gaps,
    limit_shares,
    limited_by,
)
from kit.trace.devices import TORCH_CPU
from kit.trace.kinds import CAUSES
from kit.trace.limits import BUSY

END = 1_000_000
STEP = Span("host/main", "step 0", "step", 0, END)


def kernel(start: int, stop: int, segment: int = -1, device: int = 0) -> Span:
    return Span(f"device/{device}", "k", "kernel", start, stop, segment)


def host(kind: str, start: int, stop: int, name: str = "forward") -> Span:
    return Span("host/main", name, kind, start, stop)


def sync(at: int, wait: int) -> SyncPoint:
    return SyncPoint(at, wait, "item", "train.py:7")


@pytest.mark.parametrize(("spans", "syncs", "what", "share"), [
    ([kernel(0, 900_000)], [], "device", 0.9),
    ([kernel(0, 300_000), host("record", 0, END)], [], "recording", 0.7),
    ([kernel(0, 300_000), host("record", 0, END)], [sync(0, 300_000)], "recording", 0.4),
    ([kernel(0, 500_000), host("record", 0, END)], [sync(0, 500_000)], "sync", 0.5),
    ([kernel(0, 300_000), host("input", 300_000, END, "next batch")], [], "input", 0.7),
    ([kernel(0, 300_000), Span("host/loader", "next batch", "input", 300_000, END),
      host("record", 400_000, END)], [], "recording", 0.6),
    ([kernel(0, 300_000), Span("host/worker", "d", "dispatch", 200_000, END)], [], "dispatch", 0.7),
    ([host("compile", 0, END, "c")], [], "compile", 1.0),
    ([kernel(0, 300_000), Span("device/0 reduction", "bucket 0", "reduction", 100_000, 900_000),
      host("record", 0, END)], [], "reduction", 0.6),
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


def test_a_kernel_that_waits_for_the_one_before_it_is_no_work_of_the_device() -> None:
    issued = [Span("host/worker", "d", "dispatch", 0, 10, segment=n) for n in (1, 2)]
    t = Timeline.of([STEP, *issued, kernel(0, 360_000, 1), kernel(900_000, END, 2)])
    limit = limited_by(t)
    assert headline(t).device_busy_fraction == pytest.approx(0.46)
    assert (limit.what, limit.share) == ("dependency", pytest.approx(0.54))


def test_pauses_between_the_kernels_of_one_program_are_no_work_of_the_device() -> None:
    t = Timeline.of([STEP, kernel(0, 300_000, 1), kernel(700_000, END, 1)])
    assert str(limited_by(t)) == "program-bound (40% of the step)"


def test_what_another_device_works_at_is_work_of_the_devices() -> None:
    t = Timeline.of(
        [STEP, kernel(0, 500_000), kernel(500_000, 900_000, device=1), host("input", 0, END)]
    )
    assert str(limited_by(t)) == "device-bound (90% of the step)"
    assert limit_shares(t)["input"] == pytest.approx(0.1)


@pytest.mark.parametrize(("busy", "what"), [(0.52, "device"), (0.5, "recording")])
def test_where_nothing_can_run_beside_it_a_device_limits_what_it_takes_most_of(
    busy: float, what: str
) -> None:
    """Native torch on a CPU: each op computes in its call, and no Python can be hidden under it."""
    ops = Span(TORCH_CPU, "aten::mm", "kernel", 0, round(busy * END))
    spans = [STEP, ops, host("record", 0, END)]
    assert limited_by(Timeline.of(spans)).what == what
    assert limited_by(Timeline.of([*spans, kernel(0, 10)])).what == "recording"  # a GPU, too


_KINDS = st.sampled_from(["record", "input", "dispatch", "compile", "wait", "ahead"])
_AT, _LONG = st.integers(0, 99), st.integers(1, 40)


@given(
    st.lists(st.tuples(_AT, _LONG, st.integers(-1, 2), st.integers(0, 1)), min_size=1, max_size=6),
    st.lists(st.tuples(_KINDS, _AT, _LONG, st.integers(-1, 2)), max_size=6),
    st.lists(st.tuples(_AT, st.integers(0, 30)), max_size=4),
)
def test_the_shares_are_counted_and_agree_with_the_numbers_beside_them(
    kernels: list[tuple[int, int, int, int]],
    hosts: list[tuple[str, int, int, int]],
    waits: list[tuple[int, int]],
) -> None:
    steps = [host("step", 60 * i, 60 * i + 60, f"step {i}") for i in range(2)]
    spans = [kernel(a, a + n, segment, device) for a, n, segment, device in kernels]
    spans += [Span("host/main", "x", kind, a, a + n, segment) for kind, a, n, segment in hosts]
    t = Timeline.of([*steps, *spans], [sync(a, n) for a, n in waits])
    shares, limit = limit_shares(t), limited_by(t)

    busy = {i for a, n, _, _ in kernels for i in range(a, a + n) if i < 120}
    devices = len({device for *_, device in kernels})
    limit_of = {row.name: row.limit for row in CAUSES}
    counted: Counter[str] = Counter()
    for gap in idle_gaps(t):
        alone = sum(i not in busy for i in range(gap.start_ns, gap.stop_ns))
        counted[limit_of[gap.cause]] += alone
    assert shares["device"] == pytest.approx(len(busy) / 120)
    assert {name: x for name, x in shares.items() if x and name != "device"} == pytest.approx(
        {name: n / devices / 120 for name, n in counted.items() if n}
    )
    assert sum(shares.values()) == pytest.approx(1)

    assert shares["device"] == pytest.approx(headline(t).device_busy_fraction)
    rows = {row.category: row.share for row in breakdown(t)}
    assert shares["device"] == pytest.approx(rows["device busy"])
    assert limit.share == shares[limit.what]
    assert (limit.what == "device") == (shares["device"] >= BUSY)
    assert limit.what == "device" or limit.share == max(
        x for name, x in shares.items() if name != "device"
    )
