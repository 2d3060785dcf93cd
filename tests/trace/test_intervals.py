"""Sets of intervals, held against a count of instants."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.trace.intervals import Ints, common, elapsed, joined, within, without

END = 90
Pairs = list[tuple[int, int]]
PAIRS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda x: (x[0], x[0] + x[1])),
    max_size=8,
)


def _array(pairs: Pairs) -> Ints:
    return np.array(pairs, np.int64).reshape(-1, 2)


def _instants(pairs: Pairs) -> set[int]:
    return {t for start, stop in pairs for t in range(start, stop)}


@settings(max_examples=60, deadline=None)
@given(some=PAIRS, others=PAIRS)
@pytest.mark.parametrize(
    ("found_of", "expected_of"),
    [
        (lambda some, others: joined(np.concatenate([some, others])), set.union),
        (without, set.difference),
        (common, set.intersection),
    ],
    ids=["joined", "without", "common"],
)
def test_it_is_the_set_of_instants_in_order_and_without_overlap(
    some: Pairs,
    others: Pairs,
    found_of: Callable[[Ints, Ints], Ints],
    expected_of: Callable[[set[int], set[int]], set[int]],
) -> None:
    found = found_of(_array(some), _array(others)).tolist()
    assert _instants(found) == expected_of(_instants(some), _instants(others))
    assert all(start < stop for start, stop in found)
    assert all(left[1] <= right[0] for left, right in pairwise(found))


@settings(max_examples=60, deadline=None)
@given(PAIRS, PAIRS)
def test_time_before_an_instant_and_in_a_window_is_a_count(some: Pairs, windows: Pairs) -> None:
    times, inside = joined(_array(some)), _instants(some)
    assert elapsed(times, np.arange(END)).tolist() == [
        len(inside & {*range(t)}) for t in range(END)
    ]
    assert within(times, _array(windows)).tolist() == [
        len(inside & {*range(start, stop)}) for start, stop in windows
    ]
