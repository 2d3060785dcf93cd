"""What each segment of a run cost: the questions of MXNet PR 16716, answered a row a segment."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.ir import Graph, Segment
from kit.runs.given import one_run
from kit.runs.run import Run
from kit.shown import Column, Rows
from kit.text import format_bytes, format_ns, format_number
from kit.trace import Timeline
from kit.trace.active import by_segment
from kit.trace.devices import device_of
from kit.trace.intervals import common
from kit.trace.metrics import union_ns

__all__ = ["SegmentCost", "segment_costs"]

Indices = NDArray[np.intp]
_NONE: Indices = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """What one issue of a segment cost: the mean of all issues in the traced steps.

    Of several devices it is what an issue cost one of them. nan is what cannot be known: all about
    the device, if no kernel was seen at all, and all about the host without a dispatch.

    Units:
        nanoseconds, bytes
    """

    index: int
    phase: str
    cut: str  # why it ended
    ops: int
    kernels: float  # that the profiler saw
    fused: float  # ops that no kernel is named after: part of another's kernel, or nothing to do
    bytes_in: int  # of the values that it reads from outside
    bytes_out: int  # of the values that it returns
    host_ns: float  # a worker was busy with it and no kernel of it ran: what its launch costs
    device_ns: float  # at least one of its kernels ran
    wait_ns: float  # of that, while the host waited at a sync point
    gap_ns: float  # the device had nothing to do before it; nan if it was never seen to begin
    is_cached: bool  # False: it was compiled in that step


class SegmentRows(Rows[SegmentCost]):
    """The rows of `segment_costs`."""

    noun = "segment"
    columns = (
        Column("segment", lambda s: str(s.index)),
        Column("phase", lambda s: s.phase, is_number=False),
        Column("cut by", lambda s: s.cut, is_number=False),
        Column("ops", lambda s: f"{s.ops:,}"),
        Column("kernels", lambda s: format_number(s.kernels)),
        Column("reads", lambda s: format_bytes(s.bytes_in)),
        Column("returns", lambda s: format_bytes(s.bytes_out)),
        Column("host", lambda s: format_ns(s.host_ns)),
        Column("device", lambda s: format_ns(s.device_ns)),
        Column("idle before", lambda s: format_ns(s.gap_ns)),
        Column("program", lambda s: "cached" if s.is_cached else "compiled", is_number=False),
    )


def segment_costs(run: Run) -> tuple[SegmentCost, ...]:
    """A row for each segment of a step; empty for a run without segments.

    A gap is the time from the end of all kernels so far to the segment's first one: the thread's
    "65 ms gaps between bulks".

    The device runs behind the host, so the window of the traced steps begins and ends in the midst
    of a step of the device: it may hold two issues of one segment and one of another. Each cost is
    the mean of the issues that the window holds, without those that its edges cut through. On the
    device an issue is a stretch of kernels of one segment in one step of the device. Where more
    stretches than dispatches show that segments ran side by side, the dispatches are counted
    instead. Of several devices, which nobody profiles, each span is an issue of its own.

    Raises:
        SettingsError: `run` is none.
    """
    if not one_run(run).graphs or not run.segments:
        return SegmentRows()
    seen = _Seen(run.timeline, run.devices)
    costs = (_cost(run.graphs[0], segment, seen) for segment in run.segments)
    return SegmentRows(costs).with_note(run.doubt)


class _Seen:
    """A timeline's spans gathered by segment, and its kernels by stretch."""

    def __init__(self, timeline: Timeline, devices: int) -> None:
        self.times = np.stack([timeline.start_ns, timeline.stop_ns], axis=1)
        self.node = timeline.node
        self.waits = timeline.intervals(kind="wait")
        self.issues = max(timeline.steps, 1) * devices
        names = dict.fromkeys(map(device_of, timeline.lanes))
        place = {name: i for i, name in enumerate(names)}
        self.device = np.array([place[device_of(x)] for x in timeline.lanes])[timeline.lane]
        self.dispatches = by_segment(timeline, _ordered(timeline, "dispatch"))
        kernels = _ordered(timeline, "kernel", "callback")
        kernels = kernels[np.argsort(self.device[kernels], kind="stable")]
        self.kernels = by_segment(timeline, kernels)
        self.stretch = np.full(len(timeline), -1)  # of each kernel; 0 is the first in the window
        self.idle: list[float] = []  # of the device, before each stretch
        if len(kernels):
            owner, starts = timeline.segment[kernels], timeline.start_ns[kernels]
            begun = np.sort(timeline.intervals(kind="device step")[:, 0])
            step = np.searchsorted(begun, starts, "right")
            is_other = np.diff(self.device[kernels]) != 0
            is_next = (owner[1:] != owner[:-1]) | (step[1:] != step[:-1]) | is_other | (devices > 1)
            first = np.flatnonzero(np.concatenate([[True], is_next]))
            self.stretch[kernels] = np.searchsorted(first, np.arange(len(kernels)), "right") - 1
            parts = np.split(timeline.stop_ns[kernels], np.flatnonzero(is_other) + 1)
            free = np.concatenate([np.maximum.accumulate(part) for part in parts])
            waited = np.maximum(starts[first[1:]] - free[first[1:] - 1], 0).astype(float)
            waited[is_other[first[1:] - 1]] = math.nan
            self.idle = [math.nan, *waited.tolist()]

    def by_device(self, kernels: Indices) -> list[NDArray[np.int64]]:
        """The times of some kernels, of each device alone."""
        at = self.device[kernels]
        return [self.times[kernels[at == device]] for device in np.unique(at)]


def _ordered(timeline: Timeline, *kinds: str) -> Indices:
    """The spans of these kinds by their start."""
    chosen = np.flatnonzero(timeline.where(kind=kinds))
    return chosen[np.argsort(timeline.start_ns[chosen], kind="stable")]


def _cost(graph: Graph, segment: Segment, seen: _Seen) -> SegmentCost:
    kernels = seen.kernels.get(segment.index, _NONE)
    dispatch = seen.times[seen.dispatches.get(segment.index, _NONE)]
    kept, issues, gap = _issues(seen, kernels, len(dispatch))
    each = seen.by_device(kept)
    device = sum(map(union_ns, each))
    either = union_ns(np.concatenate([seen.times[kernels], dispatch]))
    launching = either - union_ns(seen.times[kernels])
    named = {*seen.node[kernels].tolist()} & {*segment.nodes}
    known = 1.0 if seen.idle else math.nan
    host_known = 1.0 if seen.dispatches else math.nan
    return SegmentCost(
        index=segment.index,
        phase=segment.phase,
        cut=segment.cut,
        ops=len(segment.nodes),
        kernels=known * len(kept) / issues,
        fused=known * (len(segment.nodes) - len(named)),
        bytes_in=_bytes(graph, segment.reads),
        bytes_out=_bytes(graph, segment.writes),
        host_ns=host_known * launching / max(len(dispatch), 1),
        device_ns=known * device / issues,
        wait_ns=known * sum(_waiting(seen.waits, times) for times in each) / issues,
        gap_ns=gap,
        is_cached=segment.is_cached,
    )


def _issues(seen: _Seen, kernels: Indices, dispatches: int) -> tuple[Indices, int, float]:
    """The kernels to look at, of how many issues they are, and the mean gap before an issue."""
    mine = np.unique(seen.stretch[kernels])
    gaps = [x for s in mine.tolist() if not math.isnan(x := seen.idle[s])]
    issues = dispatches or seen.issues
    if len(mine) > issues + 1:  # side by side with other segments
        return kernels, issues, sum(gaps) / issues
    gap = sum(gaps) / len(gaps) if gaps else math.nan
    whole = mine[(mine > 0) & (mine < len(seen.idle) - 1)]
    if not len(whole):
        return kernels, max(len(mine), 1), gap
    return kernels[np.isin(seen.stretch[kernels], whole)], len(whole), gap


def _waiting(waits: NDArray[np.int64], times: NDArray[np.int64]) -> int:
    """Time in which one of the kernels ran and the host waited."""
    near = waits[(waits[:, 1] > times[:, 0].min()) & (waits[:, 0] < times[:, 1].max())]
    return union_ns(common(times, near))


def _bytes(graph: Graph, values: tuple[tuple[int, int], ...]) -> int:
    return sum(graph.nodes[i].avals[k].size_bytes for i, k in values)
