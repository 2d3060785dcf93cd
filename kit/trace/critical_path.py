"""The chain that decides how long the traced steps take: recording, dispatch, kernels, waits.

A chain moves forward in time from the begin of the first step to the end of the last. It may go on

    host       through what the host does next; through a wait only for nothing
    worker     from a cut of the host's to the dispatch of that segment, or to the next on its lane
    device     from a dispatch, once it has begun, to a kernel of its segment; from the host's own
               call to what it launched, if the lane was free by then; from a kernel or a reduction
               to any that begins after its end
    wait       from a kernel that ended while the host waited to the end of the wait

The critical path is the chain with the most work on it. Where the host's own calls launch the
kernels, as in torch's traces, it is the one that leads to the last kernel, and then what the host
still does: a host that runs ahead of the device is not what the step waits for. A call that blocks
because the queue of launches is full is a wait (`kit.trace.host`).

Work is what the host does when it does not wait for the device (a sleep is work: what follows has
to wait for it), what a worker does while no device works, kernels, and reductions. What lies
between two of these is delay: the path covers the steps from end to end, and its work is never more
than they took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kit.trace.active import NONE, Kernels, launches
from kit.trace.host import Host
from kit.trace.intervals import Mask, distinct, elapsed
from kit.trace.kinds import KINDS, ON_DEVICE
from kit.trace.timeline import Timeline

__all__ = ["PATH_KINDS", "PathEdge", "PathRow", "critical_path", "path_table"]

PATH_KINDS = ("host recording", "input", "compile", "host waits elsewhere", "own code",
              "host other", "dispatch", "kernel", "communication", "callback", "reduction",
              "wait", "delay")  # fmt: skip
_START, _HOST, _WORKER, _KERNEL = range(4)  # what a link of the chain comes from
_Link = tuple[int, int]
_Raw = tuple[int, int, str, str, str, int, int, int]


@dataclass(frozen=True, slots=True)
class PathEdge:
    """A part of the path: neighbours of one kind and segment are one, delays between them included.

    Units:
        nanoseconds from the start of the timeline
    """

    kind: str  # one of PATH_KINDS
    start_ns: int
    stop_ns: int
    why: str  # it comes after what is before it: "issued by segment 3", "waited for", ...
    site: str = ""  # of a wait
    segment: int = NONE
    span: int = NONE  # index of its first span, if it has one
    work_ns: int = 0  # at most its length
    count: int = 1  # of what was merged

    @property
    def length_ns(self) -> int:
        """From its start to its end."""
        return self.stop_ns - self.start_ns


def critical_path(timeline: Timeline) -> tuple[PathEdge, ...]:
    """The longest chain through the traced steps; its edges cover them without a gap.

    `sum(e.work_ns for e in path)` is the length that no other chain exceeds. Of equal chains one
    that stays on the host is preferred. The recorder does not say which cut a dispatch came from;
    they are paired in order, as the engine keeps them.

    Returns:
        () if no step was traced.

    Source:
        Critical path analysis of HTA and its edges,
        https://hta.readthedocs.io/en/latest/source/features/lightweight_critical_path_analysis.html
    """
    if not timeline.steps:
        return ()
    search = _Search(timeline)
    search.run()
    return tuple(_merged(search.edges()))


class _Search:
    """Longest chain by dynamic programming, one event after another.

    The value of a host boundary is the most work on a chain that reaches it, that of a worker's
    span the same at its start, and that of a kernel at its end.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        steps = timeline.intervals(kind="step")
        self.low, self.high = int(steps[:, 0].min()), int(steps[:, 1].max())
        self.host = Host(timeline, self.low, self.high)
        work = timeline.where(kind=("lower", "compile", "dispatch"))
        inside = (timeline.start_ns < self.high) & (timeline.stop_ns > self.low)
        self.workers = np.flatnonzero(work & ~self.host.on & inside)
        on_device = timeline.where(kind=(*ON_DEVICE, "reduction"))
        self.kernels = np.flatnonzero(on_device & inside)
        self.w_start, self.w_stop = self._times(self.workers)
        self.k_start, self.k_stop = self._times(self.kernels)
        self.idle = self._idle_before(on_device)
        place = {int(span): i for i, span in enumerate(self.workers)}
        issued = launches(timeline, self.kernels)[1].tolist()
        self.issued_by = [place.get(span, NONE) for span in issued]
        self.called_at = self._calls(issued)
        self.cut_of = self._cuts()
        self.h_value = [0] * len(self.host.times)
        self.h_from: list[_Link] = [(_START, 0)] * len(self.host.times)
        self.w_value = [0] * len(self.workers)
        self.w_from: list[_Link] = [(_START, 0)] * len(self.workers)
        self.k_value = [0] * len(self.kernels)
        self.k_from: list[_Link] = [(_START, 0)] * len(self.kernels)

    def _times(self, spans: NDArray[np.intp]) -> tuple[list[int], list[int]]:
        start, stop = self.timeline.times(spans).clip(self.low, self.high).T
        return start.tolist(), stop.tolist()

    def _idle_before(self, on_device: Mask) -> dict[int, int]:
        """Device idle time from the begin up to each time at which a worker's span may be left."""
        gaps = Kernels(self.timeline, np.flatnonzero(on_device)).gaps(self.low, self.high)
        times = distinct(np.array([*self.w_start, *self.w_stop, *self.k_start], dtype=np.int64))
        idle = elapsed(np.stack([gaps.start, gaps.stop], axis=1), times)
        return dict(zip(times.tolist(), idle.tolist(), strict=True))

    def _calls(self, issued: list[int]) -> list[int]:
        """For each kernel the host boundary at its own call's end, or begin if it is earlier.

        -1 where the lane was still at work when the call had ended: then it waited for the lane.
        """
        times, found = self.host.times, []
        ended = self._ended_before()
        for span, begun, freed in zip(issued, self.k_start, ended, strict=True):
            at = NONE
            if span >= 0 and self.host.on[span]:
                start, stop = int(self.timeline.start_ns[span]), int(self.timeline.stop_ns[span])
                done = stop if stop <= begun else start
                boundary = int(np.searchsorted(times, done, "left"))
                at = boundary if max(self.low, freed) <= done <= begun else NONE
            found.append(at)
        return found

    def _ended_before(self) -> list[int]:
        """For each kernel when its lane had ended what it ran before; `low` if it ran nothing."""
        found = [self.low] * len(self.kernels)
        lanes = self.timeline.lane[self.kernels]
        start, stop = np.array(self.k_start, np.int64), np.array(self.k_stop, np.int64)
        for lane in np.unique(lanes):
            mine = np.flatnonzero(lanes == lane)
            ends = np.sort(stop[mine])
            before = np.searchsorted(ends, start[mine], "right") - 1
            for i, k in zip(mine.tolist(), before.tolist(), strict=True):
                if k >= 0:
                    found[i] = int(ends[k])
        return found

    def _cuts(self) -> list[int]:
        """For each worker's span the host boundary at which its segment was cut; -1 if before."""
        timeline, times = self.timeline, self.host.times
        is_dispatch = [timeline.kind[i] == KINDS.index("dispatch") for i in self.workers]
        cuts = np.sort(self.host.cuts, axis=0)
        starts = np.array([s for s, d in zip(self.w_start, is_dispatch, strict=True) if d])
        late = np.searchsorted(starts, cuts[:, 0], "left") - np.arange(len(cuts))
        ahead = max(int(late.max()), 0) if len(cuts) else 0
        found: list[int] = []
        number = 0
        for start, dispatched in zip(self.w_start, is_dispatch, strict=True):
            i = number - ahead  # a compile belongs to the dispatch after it
            number += dispatched
            if 0 <= i < len(cuts):
                done = cuts[i, 1] if cuts[i, 1] <= start else cuts[i, 0]
                boundary = int(np.searchsorted(times, done, "left"))
                fits = boundary < len(times) and self.low <= done <= start
                found.append(boundary if fits else NONE)
            else:
                found.append(NONE)
        return found

    def work(self, worker: int, until: int) -> int:
        """What a worker's span has done when it is left: time under a busy device is not its."""
        start = self.w_start[worker]
        until = min(self.w_stop[worker], until)
        return self.idle[until] - self.idle[start]

    def run(self) -> None:
        """Give each event its value, in the order of time."""
        best_kernel, recent = NONE, NONE
        best_worker: dict[int, tuple[int, int]] = {}  # lane -> value at its end, the span
        for kind, i in self._events():
            if kind == 0:
                value = self.k_value[i]
                if best_kernel < 0 or value > self.k_value[best_kernel]:
                    best_kernel = i
                if recent < 0 or value > self.k_value[recent]:
                    recent = i
            elif kind == 1:
                value = self.w_value[i] + self.work(i, self.w_stop[i])
                lane = int(self.timeline.lane[self.workers[i]])
                if lane not in best_worker or value > best_worker[lane][0]:
                    best_worker[lane] = value, i
            elif kind == 2:
                self._reach_boundary(i, recent)
                recent = NONE
            elif kind == 3:
                lane = int(self.timeline.lane[self.workers[i]])
                options = []
                if lane in best_worker:
                    value, before = best_worker[lane]
                    options.append((value, (_WORKER, before)))
                if self.cut_of[i] >= 0:
                    options.append((self.h_value[self.cut_of[i]], (_HOST, self.cut_of[i])))
                self.w_value[i], self.w_from[i] = _most(options)
            else:
                self._begin_kernel(i, best_kernel)

    def _reach_boundary(self, i: int, kernel: int) -> None:
        if not i:
            return
        times, is_wait = self.host.times, self.host.kinds[i - 1] == "wait"
        length = 0 if is_wait else int(times[i] - times[i - 1])
        options = [(self.h_value[i - 1] + length, (_HOST, i - 1))]
        if is_wait and kernel >= 0:
            options.append((self.k_value[kernel], (_KERNEL, kernel)))
        self.h_value[i], self.h_from[i] = _most(options)

    def _begin_kernel(self, i: int, before: int) -> None:
        options = []
        worker = self.issued_by[i]
        if worker >= 0:
            value = self.w_value[worker] + self.work(worker, self.k_start[i])
            options.append((value, (_WORKER, worker)))
        if self.called_at[i] >= 0:
            options.append((self.h_value[self.called_at[i]], (_HOST, self.called_at[i])))
        if before >= 0:
            options.append((self.k_value[before], (_KERNEL, before)))
        value, self.k_from[i] = _most(options)
        self.k_value[i] = value + self.k_stop[i] - self.k_start[i]

    def _events(self) -> Iterator[tuple[int, int]]:
        """(what, which) in the order of time; at one time ends come first, kernels begin last."""
        columns = (self.k_stop, self.w_stop, self.host.times, self.w_start, self.k_start)
        time = np.concatenate([np.asarray(c, dtype=np.int64) for c in columns])
        what = np.repeat(np.arange(5), [len(c) for c in columns])
        which = np.concatenate([np.arange(len(c)) for c in columns])
        # what takes no time ends after it began, or its end would come before it has a value
        rank = what.copy()
        for end, begin, last in ((0, 4, 6), (1, 3, 5)):
            instant = time[what == end] == time[what == begin]
            rank[np.flatnonzero(what == end)[instant]] = last
        order = np.lexsort((which, rank, time))
        return zip(what[order].tolist(), which[order].tolist(), strict=True)

    def edges(self) -> list[_Raw]:
        """The path from its start to its end, before merging."""
        last = len(self.host.times) - 1
        link: _Link = (_HOST, last)
        if self.k_value and max(self.k_value) > self.h_value[last]:
            link = (_KERNEL, int(np.argmax(self.k_value)))
        found: list[_Raw] = []
        later = self.high
        if any(at >= 0 for at in self.called_at):
            ends = list(zip(self.k_stop, self.k_value, strict=True))
            link, later = (_KERNEL, ends.index(max(ends))), max(self.k_stop)
            found += self._after(later)
        while link[0] != _START:
            link, later = self._step_back(link, later, found)
        if later > self.low:
            found.append((self.low, later, "delay", "issued before the steps", "", NONE, NONE, 0))
        return found[::-1]

    def _after(self, end: int) -> Iterator[_Raw]:
        """What the host does after the last kernel, the last of it first."""
        for i in range(len(self.host.times) - 1, 0, -1):
            at, since = int(self.host.times[i]), max(int(self.host.times[i - 1]), end)
            if since >= at:
                return
            kind = self.host.kinds[i - 1]
            site = self.host.site(at) if kind == "wait" else ""
            work = 0 if kind == "wait" else at - since
            why = "the device has nothing left"
            yield since, at, kind, why, site, NONE, self.host.spans[i - 1], work

    def _step_back(self, link: _Link, later: int, found: list[_Raw]) -> tuple[_Link, int]:
        """Add the edges of one link, the last one first; the link before it, and when it begins."""
        what, i = link
        if what == _HOST:
            return self._host_back(i, later, found)
        starts, stops, spans, come = (
            (self.w_start, self.w_stop, self.workers, self.w_from[i])
            if what == _WORKER
            else (self.k_start, self.k_stop, self.kernels, self.k_from[i])
        )
        start, stop, span = starts[i], min(stops[i], later), int(spans[i])
        if stop < later:
            reason = "the steps end" if not found else "not begun yet"
            found.append((stop, later, "delay", reason, "", NONE, NONE, 0))
        kind, work = KINDS[self.timeline.kind[span]], stop - start
        if what == _WORKER:
            is_dispatch = self.timeline.kind[span] == KINDS.index("dispatch")
            kind, work = "dispatch" if is_dispatch else "compile", self.work(i, stop)
        segment = int(self.timeline.segment[span])
        if stop > start:
            found.append((start, stop, kind, self._why(come, what), "", segment, span, work))
        return come, start

    def _host_back(self, i: int, later: int, found: list[_Raw]) -> tuple[_Link, int]:
        at = int(self.host.times[i])
        if at < later:
            found.append((at, later, "delay", "handed over", "", NONE, NONE, 0))
        if not i:
            return (_START, 0), at
        come, kind, span = self.h_from[i], self.host.kinds[i - 1], self.host.spans[i - 1]
        since = int(self.host.times[i - 1])
        if come[0] == _KERNEL:
            since = self.k_stop[come[1]]
        work = 0 if kind == "wait" else at - since
        is_ahead = span >= 0 and self.timeline.kind[span] == KINDS.index("ahead")
        site = self.host.site(at) if kind == "wait" else ""
        why = "recorded before"
        if kind == "wait":
            why = "the device had to catch up" if is_ahead else f"waited for at {site or 'no line'}"
            if span >= 0 and self.timeline.kind[span] == KINDS.index("dispatch"):
                why = "the call returned when the device had caught up"
        if at > since:
            found.append((since, at, kind, why, site, NONE, span, work))
        return come, since

    def _why(self, come: _Link, what: int) -> str:
        before, i = come
        if before == _WORKER:
            number = int(self.timeline.segment[self.workers[i]])
            segment = f"segment {number}" if number >= 0 else "its call"
            return f"issued by {segment}" if what == _KERNEL else f"runs after {segment}"
        if before == _KERNEL:
            return f"runs after {self.timeline.names[self.timeline.name[self.kernels[i]]][:80]}"
        if before == _HOST:
            return "launched by its call" if what == _KERNEL else "recorded before"
        return "issued before the steps"


@dataclass(frozen=True, slots=True)
class PathRow:
    """All edges of a path of one kind, and of one line if they are waits.

    Units:
        milliseconds of all traced steps together; shares of them, which add up to 1
    """

    kind: str
    site: str
    count: int
    total_ms: float
    work_ms: float
    share: float


def path_table(path: Iterable[PathEdge]) -> tuple[PathRow, ...]:
    """A path's edges gathered by kind and line; the longest comes first."""
    groups: dict[tuple[str, str], list[PathEdge]] = {}
    for edge in path:
        groups.setdefault((edge.kind, edge.site), []).append(edge)
    whole = sum(e.length_ns for edges in groups.values() for e in edges)
    rows = [
        PathRow(kind, site, len(edges), (total := sum(e.length_ns for e in edges)) / 1e6,
                sum(e.work_ns for e in edges) / 1e6, total / whole)
        for (kind, site), edges in groups.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda r: (-r.total_ms, r.kind, r.site)))


def _most(options: list[tuple[int, _Link]]) -> tuple[int, _Link]:
    """The option of the greatest value, the first of equals; without any, a chain begins here."""
    return max(options, key=lambda option: option[0], default=(0, (_START, 0)))


def _merged(raw: list[_Raw]) -> Iterator[PathEdge]:
    """Neighbours of one kind and segment are one edge; a delay between them goes into it."""
    kept: list[PathEdge] = []
    for start, stop, kind, why, site, segment, span, work in raw:
        edge = PathEdge(kind, start, stop, why, site, segment, span, work)
        behind = 2 if len(kept) > 1 and kept[-1].kind == "delay" else 1
        if (
            kept
            and kept[-behind].kind == kind
            and kind != "delay"
            and (kept[-behind].segment == segment and kept[-behind].site == site)
        ):
            first = kept[-behind]
            kept[-behind:] = [
                replace(first, stop_ns=stop, work_ns=first.work_ns + work, count=first.count + 1)
            ]
        else:
            kept.append(edge)
    yield from kept
