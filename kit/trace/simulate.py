"""A discrete-event simulation of lanes: what would happen when, if each piece of work took so long.

A lane does its work in the order in which it was given. Work begins once its lane is free, all that
it comes after has ended, and its lock is free. A lock goes to the work that was ready first; of two
that were ready at the same time, to the one that was given first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kit.errors import TimelineError
from kit.trace.timeline import Span

__all__ = ["Work", "simulate"]


@dataclass(frozen=True, slots=True)
class Work:
    """Something that a lane will do for `ns` nanoseconds.

    Attributes:
        after: places, in the list of work, of what must have ended before; earlier than its own.
        lock: what it holds meanwhile: no two pieces of work hold one lock at the same time.
    """

    lane: str
    name: str
    kind: str  # one of KINDS
    ns: int
    after: tuple[int, ...] = ()
    lock: str = ""
    segment: int = -1


def simulate(work: Sequence[Work]) -> list[Span]:
    """A span for each piece of work, in the order given; times count from 0.

    Units:
        nanoseconds

    Raises:
        TimelineError: work takes less than no time, or comes after what is not before it.
    """
    starts, stops = _times(work)
    return [
        Span(w.lane, w.name, w.kind, start, stop, w.segment)
        for w, start, stop in zip(work, starts, stops, strict=True)
    ]


def _times(work: Sequence[Work]) -> tuple[list[int], list[int]]:
    """When each piece starts and stops. Always the next is what can begin first."""
    lanes = _by_lane(work)
    starts, stops = [-1] * len(work), [-1] * len(work)  # -1: not known yet
    queues = [iter(places) for places in lanes.values()]
    heads = [next(queue) for queue in queues]  # the next work of each lane; -1: no more
    free = [0] * len(heads)  # since when each lane is
    asked = [_asks(work[i], 0, stops) for i in heads]  # when its head can begin; -1: not known
    held = dict.fromkeys((w.lock for w in work), 0)  # until when each lock is
    for _ in work:
        best = (-1, -1, -1, -1)  # start, when it asked, place, lane
        for lane, i in enumerate(heads):
            when = asked[lane]
            if i >= 0 and when >= 0:
                chance = (max(when, held[work[i].lock]), when, i, lane)
                if best[0] < 0 or chance < best:
                    best = chance
        start, _, done, lane = best
        starts[done], stops[done] = start, start + work[done].ns
        if work[done].lock:
            held[work[done].lock] = stops[done]
        free[lane] = stops[done]
        heads[lane], asked[lane] = next(queues[lane], -1), -1
        for other, i in enumerate(heads):
            if i >= 0 and asked[other] < 0:
                asked[other] = _asks(work[i], free[other], stops)
    return starts, stops


def _by_lane(work: Sequence[Work]) -> dict[str, list[int]]:
    lanes: dict[str, list[int]] = {}
    for i, w in enumerate(work):
        if w.ns < 0 or (w.after and not 0 <= min(w.after) <= max(w.after) < i):
            raise TimelineError(
                f"work {i} ({w.name!r}) takes {w.ns} ns and comes after {w.after}: it must take at "
                "least 0 ns and come after earlier work"
            )
        lanes.setdefault(w.lane, []).append(i)
    return lanes


def _asks(work: Work, free: int, stops: list[int]) -> int:
    """When its lane is free and all that it comes after has ended; -1 if that is not known yet."""
    for i in work.after:
        stop = stops[i]
        if stop < 0:
            return -1
        if stop > free:
            free = stop
    return free
