"""What is active when: questions that gaps and paths ask of many spans at once.

Spans are sorted once, and a running maximum of their ends answers for any number of times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kit.trace.intervals import Ints, Mask, Numbers
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import Timeline

__all__ = [
    "LOADER",
    "NONE",
    "Active",
    "Gaps",
    "Kernels",
    "Pieces",
    "by_segment",
    "grouped",
    "hull",
    "launches",
    "named",
    "paired",
    "steps_of",
]

LOADER = "host/loader"  # its work is ahead of the step, which does not wait for it
NONE = -1


def named(timeline: Timeline, is_one: Callable[[str], object]) -> Mask:
    """The spans whose name is one of those."""
    found = np.array([bool(is_one(name)) for name in timeline.names], dtype=bool)
    return found[timeline.name] if len(found) else np.zeros(len(timeline), dtype=bool)


@dataclass(frozen=True)
class Gaps:
    """Gaps in order of time. `before` and `after`: the kernels around each, -1 at an end."""

    start: Ints
    stop: Ints
    before: Ints  # the kernel that had ended last
    after: Ints
    is_program: Mask  # both belong to one issue of one segment


class Kernels:
    """Some kernels by their start, and for each the latest end up to it."""

    def __init__(self, timeline: Timeline, spans: Ints) -> None:
        self.timeline = timeline
        self.ids = spans[np.argsort(timeline.start_ns[spans], kind="stable")]
        self.start: Ints = timeline.start_ns[self.ids]
        self.latest, last = _latest(timeline.stop_ns[self.ids])
        self.last = self.ids[last]

    def gaps(self, low: int, high: int) -> Gaps:
        """Where no kernel runs, between `low` and `high`."""
        segment = self.timeline.segment
        begun = np.sort(self.timeline.intervals(kind="device step")[:, 0])
        steps = np.searchsorted(begun, self.start[1:], "right")
        inside = (segment[self.last[:-1]] == segment[self.ids[1:]]) & (
            segment[self.ids[1:]] != NONE
        )
        inside &= steps == np.searchsorted(begun, self.latest[:-1])
        start = np.append(low, self.latest).clip(low, high)
        stop = np.append(self.start, high).clip(low, high)
        kept = stop > start
        edge = [False] if len(self.ids) else []
        return Gaps(
            start[kept],
            stop[kept],
            np.append(NONE, self.last)[kept],
            np.append(self.ids, NONE)[kept],
            np.concatenate([[False], inside, edge])[kept].astype(bool),
        )


@dataclass(frozen=True)
class Pieces:
    """Stretches of time that do not overlap, in order, each with whose it is."""

    start: Ints
    stop: Ints
    owner: Ints | Numbers

    def at(self, times: Ints) -> Numbers:
        """The owner at each time, -1 where there is none."""
        if not len(self.start):
            return np.full(len(times), NONE, np.int32)
        i = np.searchsorted(self.start, times, "right") - 1
        is_one = (i >= 0) & (times < self.stop[i])
        return np.where(is_one, self.owner[i], NONE).astype(np.int32)

    def firsts(self, *columns: Ints | Mask) -> Ints:
        """The first of each run of pieces that touch, of one owner and with equal values."""
        new = np.ones(len(self.start), dtype=bool)
        new[1:] = self.start[1:] != self.stop[:-1]
        for column in (self.owner, *columns):
            new[1:] |= column[1:] != column[:-1]
        return np.flatnonzero(new)

    def lasting(self, *columns: Ints | Mask) -> Ints:
        """For each piece how long its run lasts; see `firsts`."""
        first = self.firsts(*columns)
        ends = np.append(first[1:], len(self.start))[: len(first)]
        lasts: Ints = np.repeat(self.stop[ends - 1] - self.start[first], ends - first)
        return lasts


class Active:
    """Which of some spans is active at a time: of several, the one that ends last."""

    def __init__(self, timeline: Timeline, spans: Ints) -> None:
        self.ids = spans[np.argsort(timeline.start_ns[spans], kind="stable")]
        self.start, self.stop = timeline.start_ns[self.ids], timeline.stop_ns[self.ids]
        self._latest, self._last = _latest(self.stop)

    @classmethod
    def of(cls, timeline: Timeline, kinds: tuple[str, ...], among: Mask | None = None) -> Active:
        """Of the spans of these kinds, a loader's left out."""
        mask = timeline.where(kind=kinds) & ~timeline.where(lane=LOADER)
        return cls(timeline, np.flatnonzero(mask if among is None else mask & among))

    def at(self, times: Ints) -> Numbers:
        """The span's index at each time, -1 where none is active."""
        if not len(self.ids):
            return np.full(len(times), NONE, np.int32)
        i = np.searchsorted(self.start, times, "right") - 1
        is_one = (i >= 0) & (times < self._latest[i])
        return np.where(is_one, self.ids[self._last[i]], NONE).astype(np.int32)


def _latest(stop: Ints) -> tuple[Ints, Ints]:
    """Of stops in order of their starts: the latest up to each, and which one that is."""
    latest = np.maximum.accumulate(stop)
    return latest, np.maximum.accumulate(np.where(stop == latest, np.arange(len(stop)), 0))


def launches(timeline: Timeline, kernels: Ints) -> tuple[Ints, Ints]:
    """For each kernel the start of the dispatch that launched it, and that span; -1 if unknown.

    It is the last dispatch of the kernel's segment before the kernel. A file that says which call
    launched what has a number below -1 for each call. Where it names neither and has as many
    dispatches as kernels, they are paired in order, as a stream runs them.
    """
    ids = np.flatnonzero(timeline.where(kind="dispatch") & (timeline.segment != NONE))
    wanted = timeline.segment[kernels].astype(np.int64)
    span = _in_order(timeline)[kernels]
    if len(ids):
        starts = np.sort(timeline.start_ns[ids])
        width = len(ids) + 1
        rank = np.searchsorted(starts, timeline.start_ns[ids], "right")
        keys = timeline.segment[ids].astype(np.int64) * width + rank
        order = np.argsort(keys, kind="stable")
        keys, ids = keys[order], ids[order]
        begun = np.searchsorted(starts, timeline.start_ns[kernels], "right")
        found = np.searchsorted(keys, wanted * width + begun, "right")
        last = ids[np.maximum(found - 1, 0)]
        is_one = (found > 0) & (timeline.segment[last] == wanted) & (wanted != NONE)
        span = np.where(is_one, last, span)
    span = np.where(kernels >= 0, span, NONE)
    return np.where(span >= 0, timeline.start_ns[span], NONE), span


def paired(timeline: Timeline, kernels: Ints, calls: Ints | None = None) -> tuple[Ints, Ints]:
    """Those of some kernels for which the file numbers what launched them, and the call of each.

    Args:
        calls: those that may be; by default all that have a number.
    """
    if calls is None:
        calls = np.flatnonzero(timeline.where(kind="dispatch") & (timeline.segment < NONE))
    numbers, first = np.unique(timeline.segment[calls], return_index=True)
    known = kernels[np.isin(timeline.segment[kernels], numbers)]
    return known, calls[first[np.searchsorted(numbers, timeline.segment[known])]]


def _in_order(timeline: Timeline) -> Ints:
    """Kernel -> dispatch, for kernels without a segment; -1 for every other span."""
    partner = np.full(len(timeline), NONE, dtype=np.int64)
    kernels, dispatches = (
        np.flatnonzero(timeline.where(kind=kind) & (timeline.segment == NONE))
        for kind in (ON_DEVICE, "dispatch")
    )
    start = timeline.start_ns
    if len(kernels) and len(kernels) == len(dispatches):
        kernels, dispatches = (
            x[np.argsort(start[x], kind="stable")] for x in (kernels, dispatches)
        )
        if np.all(start[dispatches] <= start[kernels]):
            partner[kernels] = dispatches
    return partner


def grouped(keys: Ints, values: Ints) -> tuple[list[int], Ints, Ints]:
    """Each key once, in order; where its values begin among all; the values in that order."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    return found.tolist(), first, values[order]


def by_segment(timeline: Timeline, spans: Ints) -> dict[int, Ints]:
    """Segment -> those of some spans that are of it, in the order in which they are given."""
    segments, first, spans = grouped(timeline.segment[spans].astype(np.int64), spans)
    parts = np.split(spans, first[1:])  # one, which is empty, if there is no span
    return dict(zip(segments, parts, strict=False))


def hull(timeline: Timeline) -> tuple[int, int]:
    """From the first start to the last stop of the steps; without steps, of everything."""
    steps = timeline.intervals(kind="step")
    if len(steps):
        return int(steps[:, 0].min()), int(steps[:, 1].max())
    return timeline.begin_ns, int(timeline.stop_ns.max())


def steps_of(timeline: Timeline) -> Pieces:
    """The union of the steps, or all of the timeline."""
    steps = timeline.intervals(kind="step")
    if not len(steps):
        steps = np.array([hull(timeline)], dtype=np.int64)
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    latest = np.maximum.accumulate(steps[:, 1])
    stop = np.append(np.minimum(latest[:-1], steps[1:, 0]), latest[-1])
    start = np.append(steps[0, 0], np.maximum(steps[1:, 0], steps[:-1, 0]))
    return Pieces(start, np.maximum(stop, start), np.arange(len(start)))
