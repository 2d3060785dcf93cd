"""Clocks that disagree are set by collectives: made ends with known offsets, and what is proven."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.trace.ranks.clocks import ENOUGH, EXCHANGED_NS, SAME_HOST_NS, align

EPOCH = 1_790_857_026_000_000_000
OFFSETS = st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=5)


def _made(offsets: list[int], jitter: int, count: int, seed: int):
    """Starts and stops of collectives: a rank's clock shows the true time plus its offset."""
    rng = np.random.default_rng(seed)
    shape = (count, len(offsets))
    begin = EPOCH + np.arange(count)[:, None] * 10_000_000 + rng.integers(0, 4_000_000, shape)
    end = begin.max(axis=1, keepdims=True) + 500_000 + rng.integers(0, jitter + 1, shape)
    shift = np.array(offsets, np.int64)
    return begin + shift, end + shift


@settings(max_examples=40, deadline=None)
@given(OFFSETS, st.integers(0, 5_000), st.integers(1, 30), st.integers(0, 99))
def test_known_offsets_are_found_within_what_ends_differ_by(offsets, jitter, count, seed):
    start, stop = _made(offsets, jitter, count, seed)
    clocks = align(list(range(len(offsets))), start, stop, np.ones(start.shape, bool))
    for offset, clock in zip(offsets, clocks, strict=True):
        wrong = abs(clock.offset_ns - (offsets[0] - offset))
        assert wrong <= jitter
        assert count >= 5 or wrong <= clock.error_ns  # of few collectives the error is proven


@settings(max_examples=40, deadline=None)
@given(OFFSETS, st.integers(5, 30), st.integers(0, 99))
def test_the_stated_error_holds_nine_of_ten_ends(offsets, count, seed):
    start, stop = _made(offsets, 8_000, count, seed)
    clocks = align(list(range(len(offsets))), start, stop, np.ones(start.shape, bool))
    for r, clock in enumerate(clocks[1:], start=1):
        apart = np.abs(stop[:, r] + clock.offset_ns - stop[:, 0])
        assert sum(d <= clock.error_ns for d in apart.tolist()) >= math.floor(0.9 * count)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), max_size=40), st.integers(0, 99))
def test_ranks_that_share_enough_are_set_as_if_there_were_no_others(seen, seed):
    rows = np.array(seen, bool).reshape(-1, 6)
    start, stop = _made([0, 5, 70_000, -900, 3, 10**9], 5_000, len(rows), seed)
    clocks = align(list(range(6)), start, stop, rows)
    first = next(r for r, clock in enumerate(clocks) if clock.how == "the reference")
    reached = {first}
    for _ in range(6):
        reached |= {r for row in rows if row[[*reached]].any() for r in np.flatnonzero(row)}
    assert {r for r, clock in enumerate(clocks) if clock.is_known} == reached
    for r in reached - {first}:
        both = rows[:, first] & rows[:, r]
        if both.sum() >= ENOUGH:
            pair = np.ix_(both, [first, r])
            alone = align([first, r], start[pair], stop[pair], np.ones((both.sum(), 2), bool))
            assert clocks[r] == alone[1]


def test_ranks_without_a_common_collective_are_set_through_a_third():
    start, stop = _made([0, 500, -70_000], 0, 12, 1)
    seen = np.ones(start.shape, bool)
    seen[:6, 2] = False  # rank 1 has all, rank 0 the first, rank 2 the last
    seen[6:, 0] = False
    clocks = align([0, 1, 2], start, stop, seen)
    assert [c.offset_ns for c in clocks] == [500, 0, 70_500]
    assert clocks[1].how == "the reference"
    assert clocks[2].how == "6 collectives with rank 1"


def test_a_rank_that_shares_no_collective_has_no_known_clock():
    start, stop = _made([0, 5, 9], 0, 6, 2)
    seen = np.ones(start.shape, bool)
    seen[:, 2] = False
    clocks = align([0, 1, 2], start, stop, seen)
    assert clocks[1].is_known
    assert not clocks[2].is_known
    assert "no collective" in clocks[2].how


def test_a_clock_that_runs_faster_has_a_larger_error():
    start, stop = _made([0, 0], 100, 20, 3)
    drift = (np.arange(20) * 50_000)[:, None] * np.array([0, 1])
    steady, drifting = (
        align([0, 1], start + d, stop + d, np.ones(start.shape, bool))[1] for d in (0, drift)
    )
    assert steady.error_ns <= 100
    assert 400_000 <= drifting.error_ns <= 500_000


def _noisy(offset: int, noise: int, count: int = 12):
    """Two ranks, the second's clock on by `offset`, whose ends differ by up to `noise`."""
    begin, end = _made([0, offset], 0, count, 4)
    end += np.random.default_rng(4).integers(0, noise + 1, end.shape)
    return begin, end, np.ones(begin.shape, bool)


def test_ranks_of_one_host_have_its_clock_however_their_collectives_end():
    """As of gloo on a busy machine: the host's clock is surer than what ends tell."""
    made = _noisy(0, 80_000_000)
    apart = align([0, 1], *made)[1]
    assert apart.error_ns > 10_000_000
    for hosts in (["a", "b"], ["", ""], ["localhost", "localhost"]):
        assert align([0, 1], *made, hosts)[1] == apart
    one = align([0, 1], *made, ["vm", "vm"])[1]
    assert (one.offset_ns, one.error_ns) == (0, SAME_HOST_NS)
    assert one.how == "the clock of host 'vm', as rank 0"


def test_a_host_is_not_believed_if_collectives_say_otherwise():
    for offset, noise in ((3_000_000, 50_000), (-400_000_000, 80_000_000)):
        made = _noisy(offset, noise)
        alone, named = align([0, 1], *made)[1], align([0, 1], *made, ["vm", "vm"])[1]
        assert (named.offset_ns, named.error_ns) == (alone.offset_ns, alone.error_ns)
        assert named.how.endswith("both files name host 'vm', whose clocks disagree")


def test_what_ends_tell_better_than_the_host_is_taken():
    made = _noisy(0, 4_000)
    assert align([0, 1], *made, ["vm", "vm"])[1] == align([0, 1], *made)[1]


def test_one_collective_that_is_matched_wrongly_does_not_shake_the_host():
    begin, end, seen = _noisy(0, 80_000_000)
    begin[3], end[3] = begin[3] + [0, 10**10], end[3] + [0, 10**10]
    assert align([0, 1], begin, end, seen, ["vm", "vm"])[1].error_ns == SAME_HOST_NS


def test_ranks_of_one_host_need_no_collective():
    start, stop = _made([0, 5, 9], 0, 6, 2)
    seen = np.ones(start.shape, bool)
    seen[:, 2] = False
    one, _, two = align([0, 1, 2], start, stop, seen, ["a", "b", "a"])
    assert two.how == "the clock of host 'a', as rank 0"
    assert (two.offset_ns, two.error_ns) == (one.offset_ns, SAME_HOST_NS)


def test_of_an_all_to_all_the_rank_that_comes_last_ends_first() -> None:
    """As in an export of two GPUs with one clock: ends agreed on 22 us, and said ± 20 us."""
    start, stop = _made([0, 0], 3_000, 30, 5)
    stop[:, 1] -= 22_000
    exchanged = np.ones(30, bool)
    seen = np.ones(start.shape, bool)
    clock = align([0, 1], start, stop, seen, (), exchanged)[1]
    assert abs(clock.offset_ns) <= clock.error_ns < EXCHANGED_NS + 4_000
    stop[:ENOUGH, 1] += 22_000  # all-reduces, which end everywhere at a time
    exchanged[:ENOUGH] = False
    clock = align([0, 1], start, stop, seen, (), exchanged)[1]
    assert abs(clock.offset_ns) <= 3_000
    assert clock.error_ns <= 6_000
    assert clock.how == f"{ENOUGH} collectives with rank 0"
