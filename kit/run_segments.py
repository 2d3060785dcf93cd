"""What each segment of a run cost: the questions of MXNet PR 16716, answered a row a segment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kit.ir import Graph
from kit.trace import KINDS, Timeline
from kit.trace.metrics import union_ns

if TYPE_CHECKING:
    from kit.run import Run

__all__ = ["SegmentCost", "segment_costs"]

Intervals = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentCost:
    """One segment in the mean traced step. Times in nanoseconds."""

    index: int
    phase: str
    cut: str  # why it ended
    ops: int
    kernels: float  # that the profiler saw
    fused: int  # ops that no kernel is named after: part of another's kernel, or nothing to do
    bytes_in: int  # of the values that it reads from outside
    bytes_out: int  # of the values that it returns
    host_ns: float  # a worker was busy with it and no kernel of it ran: what its launch costs
    device_ns: float  # at least one of its kernels ran
    wait_ns: float  # of that, while the host waited at a sync point
    gap_ns: float  # the device had nothing to do before it; nan if it was never seen to begin
    is_cached: bool  # False: it was compiled in that step


def segment_costs(run: Run) -> tuple[SegmentCost, ...]:
    """A row for each segment of a step; empty for a run without segments.

    A gap is the time from the end of all kernels so far to the segment's first one: the thread's
    "65 ms gaps between bulks".
    """
    if not run.graphs or not run.segments:
        return ()
    graph, timeline = run.graphs[0], run.timeline
    steps = max(int(np.count_nonzero(timeline.where(kind="step"))), 1)
    waits = timeline.intervals(kind="wait")
    gaps = _gaps(timeline)
    rows = []
    for segment in run.segments:
        kernels = _spans(timeline, "kernel", segment.index)
        dispatch = _spans(timeline, "dispatch", segment.index)
        device = union_ns(kernels)
        either = union_ns(np.concatenate([kernels, dispatch]))
        # the time in both is that of each, less that in at least one
        waiting = device + union_ns(waits) - union_ns(np.concatenate([kernels, waits]))
        ops = len(segment.nodes)
        of_kernels = timeline.node[
            timeline.where(kind="kernel") & (timeline.segment == segment.index)
        ]
        found = gaps.get(segment.index)
        rows.append(
            SegmentCost(
                index=segment.index,
                phase=segment.phase,
                cut=segment.cut,
                ops=ops,
                kernels=len(kernels) / steps,
                fused=ops - len(set(of_kernels.tolist()) & set(segment.nodes)),
                bytes_in=_bytes(graph, segment.reads),
                bytes_out=_bytes(graph, segment.writes),
                host_ns=(either - device) / steps,
                device_ns=device / steps,
                wait_ns=waiting / steps,
                gap_ns=math.nan if found is None else sum(found) / steps,
                is_cached=segment.is_cached,
            )
        )
    return tuple(rows)


def _spans(timeline: Timeline, kind: str, segment: int) -> Intervals:
    chosen = timeline.where(kind=kind) & (timeline.segment == segment)
    return np.stack([timeline.start_ns[chosen], timeline.stop_ns[chosen]], axis=1)


def _gaps(timeline: Timeline) -> dict[int, list[int]]:
    """Segment -> how long the device was idle before each time that it began."""
    kernel = timeline.kind == KINDS.index("kernel")
    order = np.argsort(timeline.start_ns[kernel], kind="stable")
    columns = (timeline.start_ns, timeline.stop_ns, timeline.segment)
    starts, stops, segments = (column[kernel][order].tolist() for column in columns)
    found: dict[int, list[int]] = {}
    free: int | None = None  # when the last kernel so far ends
    current = -1
    for start, stop, segment in zip(starts, stops, segments, strict=True):
        if segment != current:
            if free is not None:
                found.setdefault(segment, []).append(max(0, start - free))
            current = segment
        free = stop if free is None else max(free, stop)
    return found


def _bytes(graph: Graph, values: tuple[tuple[int, int], ...]) -> int:
    return sum(graph.nodes[i].avals[k].size_bytes for i, k in values)
