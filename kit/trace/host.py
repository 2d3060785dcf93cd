"""What the host does from one time to the next, for the critical path."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import numpy as np

from kit.trace.active import NONE, Active, Mask, distinct
from kit.trace.queue import blocked
from kit.trace.timeline import Timeline

__all__ = ["Host"]

PART = 0.1  # of all launches: so much makes a thread a part of the host


class Host:
    """What the host does, as atoms between `times`: one kind each, a wait or work.

    The host is the main thread, with each thread of a foreign trace that launches a good part of
    the kernels: while autograd's thread launches them, the main one waits for it.
    """

    def __init__(self, timeline: Timeline, low: int, high: int) -> None:
        self.on = _on_host(timeline)
        self.timeline = timeline
        kinds = (
            ("wait", ("wait", "ahead"), self.on),
            ("wait", ("dispatch",), self.on & blocked(timeline)),
            ("compile", ("lower", "compile"), self.on),
            ("input", ("input",), self.on),
            ("host waits elsewhere", ("elsewhere",), self.on),
            ("dispatch", ("dispatch",), self.on),
            ("host recording", ("record", "plan"), self.on),
        )
        active = [Active.of(timeline, of, among) for _, of, among in kinds]
        edges = [np.array([low, high])] + [x for a in active for x in (a.start, a.stop)]
        times = distinct(np.concatenate(edges))
        self.times = times[(times >= low) & (times <= high)]
        by = [a.at(self.times[:-1]) for a in active]
        held = [spans >= 0 for spans in by]
        first = np.argmax([*held, np.ones(len(self.times) - 1, dtype=bool)], axis=0)
        names = [*(name for name, *_ in kinds), "host other"]
        self.kinds = [names[i] for i in first.tolist()]
        spans = np.array([*by, np.full(len(self.times) - 1, NONE)])
        self.spans = spans[first, np.arange(len(first))].tolist()
        self.cuts = timeline.intervals(kind="plan")
        self._sync_starts = [s.at_ns for s in timeline.syncs]
        ends = (s.at_ns + s.wait_ns for s in timeline.syncs)
        self._latest_ends = list(accumulate(ends, max))  # up to each, of all before it

    def site(self, at: int) -> str:
        """The line of the sync point whose wait ends at this time or goes on."""
        syncs = self.timeline.syncs
        i = bisect_left(self._sync_starts, at) - 1
        while i >= 0 and at <= self._latest_ends[i]:
            if at <= syncs[i].at_ns + syncs[i].wait_ns:
                return syncs[i].site
            i -= 1
        return ""


def _on_host(timeline: Timeline) -> Mask:
    """The spans of the threads that are the host."""
    steps = np.flatnonzero(timeline.where(kind="step"))
    calls = timeline.lane[timeline.where(kind="dispatch") & (timeline.segment < NONE)]
    lanes, count = np.unique(calls, return_counts=True)
    many = lanes[count >= PART * count.sum()] if len(lanes) else lanes
    found: Mask = np.isin(timeline.lane, [timeline.lane[steps[0]], *many.tolist()])
    return found
