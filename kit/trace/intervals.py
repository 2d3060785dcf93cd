"""Sets of intervals: their union, what two have in common, how long they last.

A set is an array of starts and stops, one interval a row. Shape: (n, 2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ints", "Mask", "Numbers", "common", "covered", "distinct", "elapsed", "joined",
           "within", "without"]  # fmt: skip

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int32]  # of spans, gaps or sync points: a timeline has fewer than 2**31


def distinct(times: Ints) -> Ints:
    """Each time once, in order: much faster than numpy's `unique`, which hashes first.

    Most times come as a few sets that are in order: a stable sort only merges these.
    """
    times = np.sort(times, axis=None, kind="stable")
    kept = np.ones(len(times), dtype=bool)
    kept[1:] = times[1:] != times[:-1]
    return times[kept]


def covered(*sets: Ints) -> tuple[Ints, list[Mask]]:
    """Time cut at every edge of some sets of intervals: the edges, and for each set which of the
    cells between them it covers."""
    edges = distinct(np.concatenate([s.reshape(-1) for s in sets]))
    masks = []
    for s in sets:
        opened = np.bincount(np.searchsorted(edges, s[:, 0]), minlength=len(edges))
        closed = np.bincount(np.searchsorted(edges, s[:, 1]), minlength=len(edges))
        masks.append(np.cumsum(opened - closed)[:-1] > 0)
    return edges, masks


def joined(times: Ints) -> Ints:
    """The union of intervals: in order, none touches another."""
    times = times[times[:, 1] > times[:, 0]]
    if not len(times):
        return np.zeros((0, 2), np.int64)
    times = times[np.argsort(times[:, 0], kind="stable")]
    latest = np.maximum.accumulate(times[:, 1])
    first = np.flatnonzero(np.append(True, times[1:, 0] > latest[:-1]))
    return np.stack([times[first, 0], latest[np.append(first[1:] - 1, len(times) - 1)]], axis=1)


def without(these: Ints, others: Ints) -> Ints:
    """The time of some intervals that is in none of the others: in order, without overlap."""
    edges, (wanted, unwanted) = covered(these, others)
    left: Ints = np.stack([edges[:-1], edges[1:]], axis=1)[wanted & ~unwanted]
    return left


def common(these: Ints, others: Ints) -> Ints:
    """The time that is in some of these and some of the others: in order, without overlap."""
    edges, (wanted, needed) = covered(these, others)
    both: Ints = np.stack([edges[:-1], edges[1:]], axis=1)[wanted & needed]
    return both


def elapsed(times: Ints, at: Ints) -> Ints:
    """How long disjoint intervals in order have lasted before each instant. Shape: at's."""
    if not len(times):
        return np.zeros(len(at), np.int64)
    passed = np.append(0, np.cumsum(times[:, 1] - times[:, 0]))
    i = np.searchsorted(times[:, 0], at, "right")
    last = np.maximum(i - 1, 0)
    part = np.minimum(at, times[last, 1]) - times[last, 0]
    return np.where(i > 0, passed[last] + part, 0)


def within(times: Ints, windows: Ints) -> Ints:
    """How long disjoint intervals in order last inside of each window. Shape: (windows,)."""
    return elapsed(times, windows[:, 1]) - elapsed(times, windows[:, 0])
