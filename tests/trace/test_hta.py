"""HTA's numbers: against counting; `benchmarks/peers/hta_agreement.py` compares with HTA itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.trace import Span, Timeline, hta_launches, hta_overlap, hta_queue

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
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


@pytest.mark.parametrize(("name", "queued", "launched"), [
    ("cudaLaunchKernelExC", 1, 1), ("cudaMemsetAsync", 1, 1), ("cuLaunchKernelEx", 1, 0),
    ("hipLaunchKernel", 1, 0), ("hipExtModuleLaunchKernel", 1, 0), ("hipMemcpyAsync", 1, 0),
    ("hipModuleLaunchKernel", 0, 0), ("cudaGraphLaunch", 0, 0),
])  # fmt: skip
def test_calls_that_count_are_those_of_htas_source(name: str, queued: int, launched: int) -> None:
    """Its queue takes those of the driver and of AMD, too, its times of launches do not."""
    call, kernel = Span("host/main", name, "dispatch", 0, 5, -7), Span("device/0", "k", "kernel",
                                                                       9, 12, -7)  # fmt: skip
    timeline = Timeline.of([call, kernel])
    assert len(hta_queue(timeline)) == queued
    assert len(hta_launches(timeline).call_ns) == launched


@pytest.mark.parametrize(("file", "longest"), [("mi250", 1), ("mi300_bert", 2), ("b200_vllm", 2)])
def test_the_longest_queue_of_a_published_trace_is_that_of_hta(file: str, longest: int) -> None:
    """As HTA 0.5.0 gives it."""
    timeline = kit.open_trace(PUBLISHED / f"{file}.json.gz").timeline
    assert [series[:, 1].max() for series in hta_queue(timeline).values()] == [longest]


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
