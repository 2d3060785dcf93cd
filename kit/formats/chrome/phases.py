"""Each step cut into forward, backward and update: the rules of `kit.measure.native.events`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

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
        inside = _within(updates, begin, end)
        marks = list(_marks((begin, end), _passes(_within(engine, begin, end), ops), inside))
        for (name, start), (_, stop) in pairwise([*marks, ("", end)]):
            if stop > start:
                yield name, start, stop


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


def _within(intervals: Ints, begin: int, end: int) -> list[list[int]]:
    """Those that start in the step."""
    low = np.searchsorted(intervals[:, 0], begin, "left")
    high = np.searchsorted(intervals[:, 0], end, "left")
    found: list[list[int]] = intervals[low:high].tolist()
    return found


def _passes(engine: list[list[int]], ops: Ints) -> list[tuple[int, int]]:
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


def _marks(
    step: tuple[int, int], passes: list[tuple[int, int]], updates: list[list[int]]
) -> Iterator[tuple[str, int]]:
    """(phase, its start), in order. After a backward pass comes the update, if an optimizer is at
    work before the next pass; else, as with accumulated gradients, forward again.
    """
    yield "forward", step[0]
    if not passes and updates:
        yield "update", updates[0][0]
    for i, (start, stop) in enumerate(passes):
        is_last = i == len(passes) - 1
        end = step[1] if is_last else passes[i + 1][0]
        stop = min(stop, end)
        first, last = (bisect_left(updates, [at]) for at in (stop, end))
        work = [u[1] for u in updates[first:last]]
        yield "backward", start
        if work or is_last:
            yield "update", stop
        if not is_last:
            yield "forward", max(work, default=stop)
