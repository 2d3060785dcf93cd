"""Each step cut into forward, backward and update, by what the host did."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kit.trace import host
from kit.trace.intervals import Ints

__all__ = ["inside", "outermost", "phases"]

_NEVER = np.iinfo(np.int64).max


def phases(steps: Ints, engine: Ints, ops: Ints, updates: Ints) -> Iterator[tuple[str, int, int]]:
    """(phase, its start, its stop) for each part of each step, without gaps.

    Shape:
        steps, engine (runs of autograd's functions), updates (the optimizer's work): (n, 2);
        ops, starts of ops that are no part of a backward pass: (n,)
    Units:
        nanoseconds
    """
    engine = engine[np.argsort(engine[:, 0], kind="stable")]
    updates = updates[np.argsort(updates[:, 0], kind="stable")]
    ops = np.sort(ops)
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    ends = np.minimum(steps[:, 1], np.append(steps[1:, 0], _NEVER))  # where steps overlap
    for begin, end in zip(steps[:, 0].tolist(), ends.tolist(), strict=True):
        passes = _passes(_within(engine, begin, end), ops)
        yield from host.phases((begin, end), passes, _within(updates, begin, end))


def inside(
    events: NDArray[np.intp], around: NDArray[np.intp], times: tuple[Ints, Ints, Ints]
) -> NDArray[np.bool_]:
    """Which of some events began inside of the latest of some others, on its thread.

    Args:
        times: thread, start and stop of each event of the file.
    """
    thread, start, stop = times
    if not len(around):
        return np.zeros(len(events), np.bool_)
    both = np.concatenate([around, events])
    is_around = np.arange(len(both)) < len(around)
    order = np.lexsort((~is_around, start[both], thread[both]))
    latest = np.maximum.accumulate(np.where(is_around[order], np.arange(len(both)), -1))
    one, other = both[order], both[order[latest]]
    is_inside = (latest >= 0) & (thread[one] == thread[other])
    found = np.zeros(len(both), np.bool_)
    found[order] = is_inside & (start[one] < stop[other])
    return found[len(around) :]


def outermost(events: NDArray[np.intp], times: tuple[Ints, Ints, Ints]) -> NDArray[np.intp]:
    """Those of some events that begin inside of no other one of them on its thread.

    Args:
        times: thread, start and stop of each event of the file.
    """
    thread, start, stop = (column[events] for column in times)
    order = np.lexsort((-stop, start, thread))
    kept: list[int] = []
    of, latest = -1, 0
    for i in order.tolist():
        if thread[i] != of or start[i] >= latest:
            of, latest = int(thread[i]), int(stop[i])
            kept.append(i)
    return events[kept]


def _within(intervals: Ints, begin: int, end: int) -> list[tuple[int, int]]:
    """Those that start in the step."""
    low = np.searchsorted(intervals[:, 0], begin, "left")
    high = np.searchsorted(intervals[:, 0], end, "left")
    return [(start, stop) for start, stop in intervals[low:high].tolist()]


def _passes(engine: list[tuple[int, int]], ops: Ints) -> list[tuple[int, int]]:
    """The backward passes: runs of the autograd engine with no other op between them."""
    if not engine:
        return []
    starts = np.array([e[0] for e in engine], np.int64)
    before = np.searchsorted(ops, starts, "left").tolist()
    passes: list[tuple[int, int]] = []
    for i, (start, stop) in enumerate(engine):
        if i and before[i] == before[i - 1]:
            passes[-1] = (passes[-1][0], max(passes[-1][1], stop))
        else:
            passes.append((start, stop))
    return passes
