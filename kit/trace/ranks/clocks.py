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

import numpy as np
from numpy.typing import NDArray

from kit.trace.active import Ints, Mask

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

    Ranks that share no collective with the reference are set by one that does: the errors add up.
    Those that share none with any keep the clock of their file, with an error that is not known.

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
    best: dict[int, tuple[float, Clock]] = {}
    added, left = first, set(range(count)) - {first}
    while left:
        for r in left:
            step = _between(start, stop, seen, added, r)
            if step is None:
                continue
            offset, error, shared = step
            whole = error + clocks[added].error_ns
            if r not in best or whole < best[r][0]:
                how = f"{shared:,} collective{'s' * (shared != 1)} with rank {ranks[added]}"
                best[r] = whole, Clock(clocks[added].offset_ns + offset, whole, how)
        reachable = left & best.keys()
        if not reachable:
            break
        added = min(reachable, key=lambda r: best[r][0])
        clocks[added] = best[added][1]
        left.discard(added)
    return clocks


def _between(
    start: Ints, stop: Ints, seen: NDArray[np.bool_], one: int, other: int
) -> tuple[int, float, int] | None:
    """The offset from `other` to `one`, its error, and how many collectives say so."""
    both = seen[:, one] & seen[:, other]
    shared = int(both.sum())
    if not shared:
        return None
    ends = stop[both, one] - stop[both, other]
    offset = round(float(np.median(ends - ends[0]))) + int(ends[0])  # exact for times since 1970
    if shared < ENOUGH:
        low = int((start[both, one] - stop[both, other]).max())
        high = int((stop[both, one] - start[both, other]).min())
        return offset, float(max(offset - low, high - offset, 0)), shared
    agree = np.quantile(np.abs(ends - offset), WITHIN, method="higher")
    return offset, float(agree), shared
