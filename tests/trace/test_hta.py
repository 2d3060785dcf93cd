"""HTA's numbers: against counting; `benchmarks/peers/hta_agreement.py` compares with HTA itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.trace import Span, Timeline, hta_launches, hta_overlap, hta_queue

NAMES = ("gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)", "relu")
times = st.tuples(st.integers(0, 40), st.integers(1, 15))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Calls with what they launched, on two streams; some kernels have no call."""
    spans = []
    rows = st.tuples(times, st.integers(0, 20), st.integers(1, 20), st.sampled_from(NAMES))
    for i, ((a, n), later, m, name) in enumerate(draw(st.lists(rows, max_size=8))):
        number = -2 - i if draw(st.integers(0, 4)) else -1
        lane = f"device/0 stream {7 + 6 * (name == NAMES[1])}"
        spans.append(Span("host/main", "cudaLaunchKernel", "dispatch", a, a + n, number))
        spans.append(Span(lane, name, "kernel", a + later, a + later + m, number))
    return Timeline.of(spans)


@given(timelines())
def test_overlap_is_counted_one_nanosecond_at_a_time(t: Timeline) -> None:
    kernels = [s for s in t.spans if s.kind == "kernel"]

    def covered(*names: str) -> set[int]:
        return {i for s in kernels if s.name in names for i in range(s.start_ns, s.stop_ns)}

    sent, computed = covered(NAMES[1]), covered(NAMES[0], NAMES[3])
    if sent:
        assert hta_overlap(t) == pytest.approx(len(sent & computed) / len(sent))
    else:
        assert math.isnan(hta_overlap(t))


@given(timelines())
def test_a_queue_holds_what_was_called_and_has_not_begun(t: Timeline) -> None:
    calls = {s.segment: s for s in t.spans if s.kind == "dispatch" and s.segment < -1}
    kernels = [s for s in t.spans if s.kind == "kernel" and s.segment < -1]
    queues = hta_queue(t)
    assert set(queues) == {s.lane for s in kernels}
    for lane, series in queues.items():
        last = dict(series.tolist())  # of several changes at one time the last
        for now, length in last.items():
            mine = [s for s in kernels if s.lane == lane]
            begun = sum(s.start_ns <= now for s in mine)
            assert length == sum(calls[s.segment].start_ns <= now for s in mine) - begun


@given(timelines())
def test_launches_are_those_of_the_file_one_by_one(t: Timeline) -> None:
    calls = {s.segment: s for s in t.spans if s.kind == "dispatch" and s.segment < -1}
    expected = [
        (c.stop_ns - c.start_ns, s.stop_ns - s.start_ns, max(s.start_ns - c.stop_ns, 0))
        for s in t.spans
        if s.kind == "kernel" and s.segment < -1 and (c := calls[s.segment])
    ]
    found = hta_launches(t)
    rows = zip(
        found.call_ns.tolist(), found.kernel_ns.tolist(), found.delay_ns.tolist(), strict=True
    )
    assert sorted(rows) == sorted(expected)


def test_a_timeline_without_calls_has_no_queue() -> None:
    t = Timeline.of([Span("device/0", "k", "kernel", 0, 9)])
    assert hta_queue(t) == {}
    assert len(hta_launches(t).call_ns) == 0
    assert math.isnan(hta_overlap(t))
