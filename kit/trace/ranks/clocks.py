"""One clock for all ranks, by what they do together.

A collective that gives every rank a result of every rank (all-reduce, all-gather, reduce-scatter,
all-to-all, barrier) cannot end anywhere before all have begun, and it ends everywhere at nearly the
same time. So the offset of a rank's clock is the median difference of such ends. How wrong it may
be is what the collectives themselves disagree by: nine of ten are within the error that is stated.
With fewer than `ENOUGH` collectives the error is what can be proven: the offsets by which no
collective ends before it has begun elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from kit.text import format_count
from kit.trace.intervals import Ints, Mask

__all__ = ["ENOUGH", "TOGETHER", "Clock", "align"]

TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
ENOUGH = 5  # collectives; of fewer the spread says nothing
WITHIN = 0.9  # of the collectives agree within the error


@dataclass(frozen=True, slots=True)
class Clock:
    """How a rank's clock is set.

    Units:
        nanoseconds
    """

    offset_ns: int  # add it to a time of this rank to get that of the reference
    error_ns: float  # nan if not known
    how: str  # for people: "the reference", "12 collectives with rank 0"

    @property
    def is_known(self) -> bool:
        """Can times of this rank be compared with those of others?"""
        return not math.isnan(self.error_ns)


def align(ranks: list[int], start: Ints, stop: Ints, seen: Mask) -> list[Clock]:
    """A clock for each rank, the reference being the one with most collectives.

    Ranks that share fewer than `ENOUGH` collectives with the reference may be set by one that does:
    the errors add up, and the way with the least error is taken. Those that share none with any
    keep the clock of their file, with an error that is not known.

    Args:
        ranks: what each column is called.
        start, stop: of each collective on each rank, on the clocks of the files.
        seen: which rank has which collective.

    Shape:
        start, stop, seen: (collectives, ranks)
    """
    count = seen.shape[1]
    clocks = [Clock(0, math.nan, "the file's clock: no collective with another rank")] * count
    if not count:
        return []
    first = int(seen.sum(axis=0).argmax())
    clocks[first] = Clock(0, 0.0, "the reference")
    near = [(0.0, first)]  # a heap of ranks with a clock, by its error
    unsure, left = set(range(count)) - {first}, set(range(count))
    while near and unsure:
        one = heappop(near)[1]
        if one not in left:
            continue
        left.discard(one)
        unsure.discard(one)
        shared = seen[seen[:, one]].sum(axis=0).tolist()
        for r in [r for r in unsure if shared[r]]:
            offset, error = _between(start, stop, seen, one, r)
            error += clocks[one].error_ns
            if not error >= clocks[r].error_ns:  # also where none is known yet
                how = f"{format_count(shared[r], 'collective')} with rank {ranks[one]}"
                clocks[r] = Clock(clocks[one].offset_ns + offset, error, how)
                heappush(near, (error, r))
            if shared[r] >= ENOUGH:  # no other way is looked for
                unsure.discard(r)
    return clocks


def _between(start: Ints, stop: Ints, seen: Mask, one: int, other: int) -> tuple[int, float]:
    """The offset from `other` to `one`, and its error, of ranks that share a collective."""
    both = seen[:, one] & seen[:, other]
    ends = stop[both, one] - stop[both, other]
    offset = round(float(np.median(ends - ends[0]))) + int(ends[0])  # exact for times since 1970
    if len(ends) < ENOUGH:
        low = int((start[both, one] - stop[both, other]).max())
        high = int((stop[both, one] - start[both, other]).min())
        return offset, float(max(offset - low, high - offset, 0))
    agree = np.quantile(np.abs(ends - offset), WITHIN, method="higher")
    return offset, float(agree)
