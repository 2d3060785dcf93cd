"""One clock for all ranks, by what they do together.

A collective that gives every rank a result of every rank (all-reduce, all-gather, reduce-scatter,
all-to-all, barrier) cannot end anywhere before all have begun, and it ends everywhere at nearly the
same time. So the offset of a rank's clock is the median difference of such ends. How wrong it may
be is what the collectives themselves disagree by: nine of ten are within the error that is stated.
With fewer than `ENOUGH` collectives the error is what can be proven: the offsets by which no
collective ends before it has begun elsewhere.

NCCL makes an all-to-all of sends and receives, and of those the rank that comes last ends first:
part of what it waits for had been sent before. Where one rank is always last, the ends agree, and
are wrong. So other collectives are taken where there are enough, and else `EXCHANGED_NS` is added.

Ranks whose files name one host have one clock: the offset is 0, and wrong by no more than what
torch's times are. That is believed if their collectives allow it, and taken if it is the surer way.
Names such as "localhost" belong to every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from kit.text import format_count
from kit.trace.intervals import Ints, Mask

__all__ = ["ENOUGH", "EXCHANGED", "EXCHANGED_NS", "SAME_HOST_NS", "TOGETHER", "Clock", "align"]

TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
ENOUGH = 5  # collectives; of fewer the spread says nothing
WITHIN = 0.9  # of the collectives agree within the error
# By how much times of two processes of one host may differ: torch 2.13 stamped 2,400 marks of two
# processes at most 12 us from where the host's clock saw them, on two busy cores.
SAME_HOST_NS = 20_000
# By how much ends of an all-to-all differ, beside what they disagree by: two exports of Nsight
# Systems of two GPUs of one host, whose times are of one clock, had 22 and 10 us in the middle.
EXCHANGED = frozenset({"all_to_all"})
EXCHANGED_NS = 25_000
_EVERYBODYS = ("localhost", "unknown")  # names of hosts begin so that say nothing


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


def align(
    ranks: list[int],
    start: Ints,
    stop: Ints,
    seen: Mask,
    hosts: Sequence[str] = (),
    exchanged: Mask | None = None,
) -> list[Clock]:
    """A clock for each rank, the reference being the one with most collectives.

    Ranks that share fewer than `ENOUGH` collectives with the reference may be set by one that does:
    the errors add up, and the way with the least error is taken. Those that share none with any,
    and no host, keep the clock of their file, with an error that is not known.

    Args:
        ranks: what each column is called.
        start, stop: of each collective on each rank, on the clocks of the files.
        seen: which rank has which collective.
        hosts: the name of the machine of each rank; "" if it is not known.
        exchanged: which collectives are made of sends and receives; by default none.

    Shape:
        start, stop, seen: (collectives, ranks); exchanged: (collectives,)
    """
    exchanged = np.zeros(len(seen), bool) if exchanged is None else exchanged
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
        for r in list(unsure):
            host = hosts[one] if hosts and hosts[one] == hosts[r] else ""
            if not shared[r] and not _is_said(host):
                continue
            both = seen[:, one] & seen[:, r]
            if (both & ~exchanged).sum() >= ENOUGH:
                both &= ~exchanged
            least = EXCHANGED_NS if (both & exchanged).any() else 0
            times = start[both][:, (one, r)], stop[both][:, (one, r)]
            way = _between(*times, least, ranks[one], host)
            error = way.error_ns + clocks[one].error_ns
            if not error >= clocks[r].error_ns:  # also where none is known yet
                clocks[r] = Clock(clocks[one].offset_ns + way.offset_ns, error, way.how)
                heappush(near, (error, r))
            if shared[r] >= ENOUGH:  # no other way is looked for
                unsure.discard(r)
    return clocks


def _is_said(host: str) -> bool:
    """Is this the name of one machine?"""
    return bool(host) and not host.lower().startswith(_EVERYBODYS)


def _between(begin: Ints, end: Ints, least: int, name: int, host: str) -> Clock:
    """The offset from the second of two ranks to the first, whose number is `name`.

    Args:
        least: by how much ends may differ that agree.

    Shape:
        begin, end: of their collectives (collectives, 2)
    """
    same = Clock(0, float(SAME_HOST_NS), f"the clock of host {host!r}, as rank {name}")
    if not len(begin):
        return same
    offset, error = _by_ends(begin, end)
    error += least if len(begin) >= ENOUGH else 0  # of fewer it is proven
    how = f"{format_count(len(begin), 'collective')} with rank {name}"
    if not _is_said(host):
        return Clock(offset, error, how)
    # No collective may end on a rank before it has begun on the other: of those that are matched
    # wrongly there are few.
    fits = (begin.max(axis=1) <= end.min(axis=1) + SAME_HOST_NS).mean() >= WITHIN
    if not fits or abs(offset) > error + SAME_HOST_NS:
        return Clock(offset, error, f"{how}; both files name host {host!r}, whose clocks disagree")
    return same if error > SAME_HOST_NS else Clock(offset, error, how)


def _by_ends(begin: Ints, end: Ints) -> tuple[int, float]:
    """The offset by which ends agree, and its error. Shape: each (collectives, 2)."""
    ends = end[:, 0] - end[:, 1]
    offset = round(float(np.median(ends - ends[0]))) + int(ends[0])  # exact for times since 1970
    if len(ends) < ENOUGH:
        low = int((begin[:, 0] - end[:, 1]).max())
        high = int((end[:, 0] - begin[:, 1]).min())
        return offset, float(max(offset - low, high - offset, 0))
    agree = np.quantile(np.abs(ends - offset), WITHIN, method="higher")
    return offset, float(agree)
