"""The kernel table: against counting one nanosecond at a time."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.trace import Span, Timeline, breakdown, union_ns
from kit.trace.kernels import (
    WrongTimes,
    after_steps_fraction,
    charged_ns,
    distinct_kernels,
    kernel_table,
    wrong_times,
)

runs = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20), st.sampled_from("ab"), st.integers(-1, 1)),
    max_size=9,
)


def timeline(found: list[tuple[int, int, str, int]]) -> Timeline:
    return Timeline.of(
        [
            Span(f"device/0 thread {i}", name, "kernel", a, a + n, segment, i)
            for i, (a, n, name, segment) in enumerate(found)
        ]
    )


@given(runs)
def test_rows_match_counting_one_nanosecond_at_a_time(found: list[tuple[int, int, str, int]]):
    t = timeline(found)
    rows = {(r.name, r.segment): r for r in kernel_table(t)}
    assert set(rows) == {(name, segment) for *_, name, segment in found}
    for key, row in rows.items():
        mine = [(a, a + n) for a, n, *rest in found if tuple(rest) == key]
        assert row.count == len(mine)
        assert row.mean_us == pytest.approx(sum(b - a for a, b in mine) / len(mine) / 1e3)
        instants = {i for a, b in mine for i in range(a, b)}
        assert row.total_ms == pytest.approx(len(instants) / 1e6)
        part = Fraction(0)
        for i in instants:
            part += Fraction(
                sum(a <= i < b for a, b in mine), sum(a <= i < a + n for a, n, *_ in found)
            )
        assert row.charged_ms == pytest.approx(float(part) / 1e6)
    busy = union_ns(t.intervals(kind="kernel"))
    assert sum(r.charged_ms for r in rows.values()) == pytest.approx(busy / 1e6)
    assert sum(r.share for r in rows.values()) == pytest.approx(1.0 if busy else 0.0)


@given(runs, st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=3))
def test_only_what_runs_in_a_step_is_charged(
    found: list[tuple[int, int, str, int]], steps: list[tuple[int, int]]
):
    """A trace of 28 ms of kernels a step, 16 ms of them in its steps of 16 ms, said 28."""
    spans = [Span("host/main", f"step {i}", "step", a, a + n) for i, (a, n) in enumerate(steps)]
    t = Timeline.of([*timeline(found).spans, *spans])
    inside = {i for a, n in steps for i in range(a, a + n)}
    rows = kernel_table(t)
    busy = {i for a, n, *_ in found for i in range(a, a + n)} & inside
    assert sum(row.charged_ms for row in rows) == pytest.approx(len(busy) / 1e6)
    started = [a for a, n, *_ in found if inside & set(range(a, a + max(n, 1)))]
    assert sum(row.count for row in rows) == len(started)


@given(st.lists(st.tuples(st.integers(-9, 2), st.sampled_from("ab"), st.integers(-1, 2))))
def test_each_kernel_is_known_once_however_often_it_was_launched(
    found: list[tuple[int, str, int]],
):
    t = Timeline.of(
        Span("device/0", name, "kernel", i, i + 1, segment, node)
        for i, (segment, name, node) in enumerate(found)
    )
    keys, group = distinct_kernels(t, np.arange(len(t)))
    known = [(segment, t.names[name], node) for segment, name, node in keys.tolist()]
    assert len(set(known)) == len(known)
    assert [known[i] for i in group] == [(max(s, -1), name, node) for s, name, node in found]


def test_what_had_most_of_the_time_comes_first():
    rows = kernel_table(timeline([(0, 5, "a", 0), (5, 20, "b", 0), (30, 5, "a", 0)]))
    assert [(r.name, r.count, r.share) for r in rows] == [("b", 1, 2 / 3), ("a", 2, 1 / 3)]


def test_equal_names_in_two_segments_are_two_kernels():
    assert len(kernel_table(timeline([(0, 5, "a", 0), (5, 5, "a", 1)]))) == 2


def test_without_kernels_there_is_no_row():
    assert kernel_table(Timeline.of([Span("host/main", "step 0", "step", 0, 9)])) == ()


def test_what_communicates_is_charged_where_nothing_computes():
    spans = [
        Span("device/0 stream 7", "gemm", "kernel", 0, 60),
        Span("device/0 stream 7", "relu", "kernel", 40, 60),
        Span("device/0 stream 20", "ncclKernel", "communication", 50, 90),
    ]
    t = Timeline.of([*spans, Span("host/main", "step 0", "step", 0, 100)])
    charged = {row.name: row.charged_ms * 1e6 for row in kernel_table(t)}
    assert charged == pytest.approx({"gemm": 50, "relu": 10, "ncclKernel": 30})
    rows = {row.category: row.exposed_ms * 1e6 for row in breakdown(t)}
    assert rows["device busy"] == pytest.approx(60)
    assert rows["communication"] == pytest.approx(30)


def test_kernels_side_by_side_share_the_time():
    assert charged_ns(np.array([[0, 10], [5, 10], [20, 20]])).tolist() == [7.5, 2.5, 0]


def test_what_the_device_does_behind_the_last_step_is_a_part_of_what_the_steps_launched() -> None:
    """Where nobody says which call launched a kernel, as in a profile of jax."""
    step = Span("host/main", "step 0", "step", 100, 200)
    kernels = [Span("device/0", "k", "kernel", a, b) for a, b in ((50, 90), (150, 190), (190, 250))]
    assert after_steps_fraction(Timeline.of([step, *kernels])) == 0.5
    later = Span("host/main", "eval", "dispatch", 220, 225)
    evaluated = Span("device/0", "k", "kernel", 260, 500)
    assert after_steps_fraction(Timeline.of([step, *kernels, later, evaluated])) == 0.5
    assert after_steps_fraction(Timeline.of(kernels)) == 0
    assert after_steps_fraction(Timeline.of([step])) == 0
    ops = [Span("device/0 torch cpu", "aten::mm", "kernel", 210, 240)]
    assert after_steps_fraction(Timeline.of([step, *ops])) == 0
    sent = [Span("device/0 collectives", "gloo:all_reduce", "communication", 210, 900)]
    assert after_steps_fraction(Timeline.of([step, *sent])) == 0  # no device is behind


def _on_stream(times: list[tuple[int, int]], *, launches: list[int] | None = None) -> Timeline:
    """A step of 10 ms with kernels on one stream; us."""
    kernels = [
        Span("device/0 stream 7", "gemm", "kernel", a * 1000, b * 1000, -2 - i)
        for i, (a, b) in zip(launches or range(len(times)), times, strict=True)
    ]
    return Timeline.of([Span("host/main", "step 0", "step", 0, 10_000_000), *kernels])


@pytest.mark.parametrize(
    ("times", "launches", "notes", "is_doubted"),
    [
        ([(0, 100), (100, 200), (200, 300)], None, 0, False),
        ([(0, 290), (100, 200), (200, 300)], None, 0, False),  # by less than clocks may differ
        ([(0, 500), (100, 200), (200, 300)], None, 1, False),  # 5 % of the step
        ([(0, 5000), (100, 200), (200, 300)], None, 1, True),
        ([(0, 5000), (100, 200), (200, 300)], [1, 1, 1], 0, False),  # of one CUDA graph
        ([(0, 5000)], None, 0, False),
    ],
)
def test_a_kernel_that_ends_after_a_later_one_of_its_stream_has_a_wrong_length(
    times: list[tuple[int, int]], launches: list[int] | None, notes: int, is_doubted: bool
) -> None:
    found = wrong_times(_on_stream(times, launches=launches))
    assert (len(found.notes), bool(found.doubt)) == (notes, is_doubted)


def test_other_streams_and_collectives_may_go_on_beside_a_kernel() -> None:
    spans = [
        Span("device/0 stream 7", "gemm", "kernel", 0, 9_000_000, -2),
        Span("device/0 stream 8", "gemm", "kernel", 100, 200, -3),
        Span("device/1 stream 7", "gemm", "kernel", 100, 200, -4),
        Span("device/0 stream 7", "nccl", "communication", 100, 200, -5),
        Span("device/0 torch cpu", "aten::mm", "kernel", 0, 9_000_000, -6),
        Span("device/0 torch cpu", "aten::mm", "kernel", 100, 200, -7),
        Span("host/main", "step 0", "step", 0, 10_000_000),
    ]
    assert wrong_times(Timeline.of(spans)) == WrongTimes((), "")


def test_one_of_many_kernels_before_its_launch_is_no_difference_of_clocks() -> None:
    spans = [Span("host/main", "step 0", "step", 0, 100_000)]
    for i in range(200):
        late = 500 if i else 500 - 60_000
        spans.append(Span("host/main", "launch", "dispatch", i * 400, i * 400 + 100, -2 - i))
        spans.append(Span("device/0 stream 7", "k", "kernel", i * 400 + late, i * 400 + late + 9,
                          -2 - i))  # fmt: skip
    found = wrong_times(Timeline.of(spans))
    assert found.notes[0].startswith("1 of 200 kernels begin before the call")
    assert not found.doubt


@pytest.mark.parametrize("late_ns", [-10_000, 0, 20_000])
@pytest.mark.parametrize("busy_ns", [5_000, 58_000])
def test_a_wait_that_ends_before_its_copy_tells_that_the_devices_clock_is_late(
    late_ns: int, busy_ns: int
) -> None:
    """A step that waits for Python was "dependency-bound", by a clock 0.3 ms late."""
    spans = [Span("host/main", "step", "step", 0, 600_000)]
    for n in range(10):
        at, end, place = 60_000 * n, 60_000 * n + 55_000, -2 - 2 * n
        spans += [
            Span("host/main", "cudaLaunchKernel", "dispatch", at, at + 1_000, place),
            Span("device/0 stream 7", "k", "kernel", at + 2_000, at + busy_ns, place),
            Span("host/main", "cudaMemcpyAsync", "dispatch", at + 40_000, at + 42_000, place - 1),
            Span("host/main", "item", "wait", at + 43_000, end),
            Span("device/0 stream 8", "Memcpy DtoH (Device -> Pinned)", "kernel",
                 end + late_ns - 1_000, end + late_ns, place - 1),
        ]  # fmt: skip
    found = wrong_times(Timeline.of(spans))
    said = "10 of 10 waits for a copy end before it has, by up to 20 µs"
    assert any(note.startswith(said) for note in found.notes) == (late_ns > 0)
    assert ("clocks" in found.doubt) == (late_ns > 0 and busy_ns == 5_000)
    other = [replace(span, name="stream") if span.kind == "wait" else span for span in spans]
    assert wrong_times(Timeline.of(other)) == WrongTimes((), "")  # may wait for another stream


def test_a_read_waits_for_its_own_copy_and_not_for_one_that_goes_on_beside_it() -> None:
    """A checkpoint's copy to pinned memory passed for the one that .item() waits for."""
    spans = [Span("host/main", "step", "step", 0, 1_000_000)]
    for n in range(5):
        at, place = 200_000 * n, -2 - 2 * n
        spans += [
            Span("host/main", "cudaMemcpyAsync", "dispatch", at, at + 1_000, place),
            Span("device/0 stream 20", "Memcpy DtoH (Device -> Pinned)", "kernel",
                 at + 2_000, at + 150_000, place),
            Span("host/main", "cudaMemcpyAsync", "dispatch", at + 3_000, at + 30_000, place - 1),
            Span("host/main", "item", "wait", at + 3_000, at + 34_000),
            Span("device/0 stream 7", "Memcpy DtoH (Device -> Pageable)", "kernel",
                 at + 20_000, at + 29_000, place - 1),
        ]  # fmt: skip
    assert wrong_times(Timeline.of(spans)) == WrongTimes((), "")


@pytest.mark.parametrize("ahead_ns", [100_000, 3_000])
def test_a_late_clock_counts_where_a_gap_could_have_another_cause(ahead_ns: int) -> None:
    """A device that is always given work ahead lost its verdict by a clock 2 us late."""
    spans = [Span("host/main", "step", "step", 0, 200_000)]
    for n in range(20):  # 8 us of work, 2 us of gap
        at, place = 10_000 * n, -2 - 2 * n
        call = at - ahead_ns
        spans += [
            Span("host/main", "cudaLaunchKernel", "dispatch", call - 1_000, call, place),
            Span("device/0 stream 7", "k", "kernel", at, at + 8_000, place),
        ]
    spans += [
        Span("host/main", "cudaMemcpyAsync", "dispatch", 60_000, 199_000, -100),
        Span("host/main", "item", "wait", 60_000, 199_000),
        Span("device/0 stream 7", "Memcpy DtoH (Device -> Pageable)", "kernel",
             200_000, 201_000, -100),
    ]  # fmt: skip
    found = wrong_times(Timeline.of(spans))
    assert found.notes[0].startswith("1 of 1 wait for a copy")
    assert ("clocks" in found.doubt) == (ahead_ns == 3_000)
