"""The simulation of lanes: by hand, and against an event loop that looks at each nanosecond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TimelineError
from kit.trace.simulate import Work, simulate


def times(*work: Work) -> list[tuple[int, int]]:
    return [(s.start_ns, s.stop_ns) for s in simulate(work)]


def work(lane: str, ns: int, after: tuple[int, ...] = (), lock: str = "") -> Work:
    return Work(lane, f"{ns} ns", "record", ns, after, lock)


def test_a_lane_does_its_work_in_order():
    assert times(work("host", 3), work("host", 4)) == [(0, 3), (3, 7)]


def test_two_lanes_work_side_by_side():
    assert times(work("host", 3), work("device", 4)) == [(0, 3), (0, 4)]


def test_work_begins_when_all_that_it_comes_after_has_ended():
    assert times(work("a", 3), work("b", 5), work("c", 1, (0, 1)))[2] == (5, 6)


def test_a_lock_is_held_by_one_at_a_time():
    spans = times(work("host", 4, lock="gil"), work("worker", 2, lock="gil"))
    assert spans == [(0, 4), (4, 6)]


def test_a_lock_goes_to_whoever_asked_first():
    spans = times(
        work("host", 4, lock="gil"),
        work("host", 4, lock="gil"),
        work("starter", 1),
        work("worker", 2, (2,), "gil"),
    )
    assert spans[3] == (4, 6)  # it has waited since 1
    assert spans[1] == (6, 10)


def test_nothing_to_do_takes_no_time():
    assert simulate([]) == []


def test_spans_keep_lane_name_kind_and_segment():
    (span,) = simulate([Work("device/0", "gemm", "kernel", 7, segment=3)])
    assert (span.lane, span.name, span.kind, span.segment) == ("device/0", "gemm", "kernel", 3)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([work("host", -1)], id="negative"),
        pytest.param([work("host", 1, (0,))], id="after itself"),
        pytest.param([work("host", 1), work("host", 1, (-1,))], id="after what is not there"),
        pytest.param([work("host", 1, (1,)), work("host", 1)], id="after what comes later"),
    ],
)
def test_impossible_work_is_refused(wrong: list[Work]):
    with pytest.raises(TimelineError, match="come after earlier work"):
        simulate(wrong)


@st.composite
def programs(draw: st.DrawFn) -> list[Work]:
    made: list[Work] = []
    for i in range(draw(st.integers(0, 12))):
        before = st.lists(st.integers(0, i - 1), max_size=3, unique=True) if i else st.just([])
        made.append(
            work(
                draw(st.sampled_from(["host", "worker", "device", "loader"])),
                draw(st.integers(0, 6)),
                tuple(draw(before)),
                draw(st.sampled_from(["", "", "gil", "bus"])),
            )
        )
    return made


def brute_force(program: list[Work]) -> list[tuple[int, int]]:
    """Look at each nanosecond: start what can start, whoever has asked longest first."""
    start: dict[int, int] = {}
    asked: dict[int, int] = {}

    def ended(i: int, now: int) -> bool:
        return i in start and start[i] + program[i].ns <= now

    def next_one(now: int) -> int | None:
        for i, w in enumerate(program):
            mine = [j for j in range(i) if program[j].lane == w.lane]
            if i not in start and all(ended(j, now) for j in (*w.after, *mine)):
                asked.setdefault(i, now)
        able = [
            i
            for i in asked
            if i not in start
            and not any(
                j in start and not ended(j, now) and program[j].lock == program[i].lock != ""
                for j in range(len(program))
            )
        ]
        return min(able, key=lambda i: (asked[i], i), default=None)

    for now in range(sum(w.ns for w in program) + 1):
        while (i := next_one(now)) is not None:
            start[i] = now
    return [(start[i], start[i] + w.ns) for i, w in enumerate(program)]


@given(programs())
def test_it_agrees_with_looking_at_each_nanosecond(program: list[Work]):
    assert times(*program) == brute_force(program)


@given(programs())
def test_it_takes_no_longer_than_doing_one_thing_after_the_other(program: list[Work]):
    last = max((stop for _, stop in times(*program)), default=0)
    assert last <= sum(w.ns for w in program)
