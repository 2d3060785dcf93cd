"""What a range of time holds: how busy, how overlapped, what waited, why the devices were idle.

`rangeMetrics` in js/data/metrics.js says the same in a page; a test holds the two together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kit.errors import TimelineError
from kit.trace import KINDS, Timeline, idle_gaps, union_ns
from kit.trace.active import LOADER
from kit.trace.devices import TORCH_CPU
from kit.trace.kinds import AWAY
from kit.trace.timeline import COLUMNS
from kit.widgets.timeline.lanes import group_of

__all__ = ["EXACT_KERNELS", "RangeMetrics", "around", "range_metrics"]

EXACT_KERNELS = 50_000


@dataclass(frozen=True, slots=True)
class RangeMetrics:
    """Numbers of the time between two instants, whatever steps it covers.

    Units:
        nanoseconds
    """

    length_ns: int
    busy_ns: dict[str, int]  # device -> time in which one of its lanes ran a kernel
    recording_ns: int  # the host recorded: not waiting, not copying
    hidden_ns: float  # of that, while a device was busy; nan where torch computed in the calls
    waits: int  # sync points whose wait reaches into the range
    waited_ns: int
    idle_ns: dict[str, int]  # cause -> idle time of all devices, the longest first


def range_metrics(timeline: Timeline, start_ns: int, stop_ns: int) -> RangeMetrics:
    """What lies between two times, both counted from the first span's start.

    Causes are those of `kit.trace.idle_gaps`, found on the whole timeline and then cut; with more
    than `EXACT_KERNELS` kernels, on the steps that the range touches and one more on each side.

    Raises:
        TimelineError: the range ends before it begins.
    """
    if stop_ns < start_ns:
        raise TimelineError(f"a range ends at {stop_ns} ns, before it begins at {start_ns} ns")
    begin_ns = timeline.begin_ns
    low, high = start_ns + begin_ns, stop_ns + begin_ns
    kernel = timeline.where(kind="kernel")
    host = ~timeline.where(lane=LOADER)
    devices: dict[str, list[int]] = {}
    for i, lane in enumerate(timeline.lanes):
        group, label = group_of(lane)
        devices.setdefault(group or label, []).append(i)
    pieces = {
        name: _clip(timeline, kernel & np.isin(timeline.lane, lanes), low, high)
        for name, lanes in devices.items()
    }
    busy = _clip(timeline, kernel, low, high)
    can_hide = not (kernel & timeline.where(lane=TORCH_CPU)).any()  # as in kit/trace/metrics.py
    record = _clip(timeline, host & timeline.where(kind="record"), low, high)
    kinds = [KINDS.index(kind) for kind in AWAY]
    away = _clip(timeline, host & np.isin(timeline.kind, kinds), low, high)
    waits = [
        (max(s.at_ns, low), min(s.at_ns + s.wait_ns, high))
        for s in timeline.syncs
        if s.at_ns < high and (s.at_ns + s.wait_ns > low or s.at_ns >= low)
    ]
    idle: dict[str, int] = {}
    kernels = np.count_nonzero(kernel)
    for gap in idle_gaps(timeline if kernels <= EXACT_KERNELS else around(timeline, low, high)):
        ns = min(gap.stop_ns, high) - max(gap.start_ns, low)
        if ns > 0:
            idle[gap.cause] = idle.get(gap.cause, 0) + ns
    recorded = _alone(record, away)
    return RangeMetrics(
        length_ns=stop_ns - start_ns,
        busy_ns={name: union_ns(x) for name, x in pieces.items() if len(x)},
        recording_ns=recorded,
        hidden_ns=recorded - _alone(record, np.concatenate([away, busy])) if can_hide else math.nan,
        waits=len(waits),
        waited_ns=sum(b - a for a, b in waits),
        idle_ns=dict(sorted(idle.items(), key=lambda item: (-item[1], item[0]))),
    )


def around(timeline: Timeline, low: int, high: int) -> Timeline:
    """The steps that reach into a range, one more on each side, and all spans in them.

    Without steps: the range, and as much time before and after it.
    """
    steps = timeline.intervals(kind="step")
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    start, stop = timeline.start_ns, timeline.stop_ns
    if len(steps):
        first = max(int(np.searchsorted(steps[:, 0], low, "right")) - 2, 0)
        last = min(int(np.searchsorted(steps[:, 0], high, "left")) + 1, len(steps))
        begin, end = int(steps[first, 0]), int(steps[first : max(last, first + 1), 1].max())
    else:
        begin, end = 2 * low - high, 2 * high - low
    kept = (start < end) & (stop > begin)
    kept &= (timeline.kind != KINDS.index("step")) | ((start >= begin) & (stop <= end))
    columns = {name: getattr(timeline, name)[kept] for name in COLUMNS}
    syncs = tuple(s for s in timeline.syncs if begin <= s.at_ns < end)
    return replace(timeline, syncs=syncs, **columns)


def _clip(timeline: Timeline, mask: NDArray[np.bool_], low: int, high: int) -> NDArray[np.int64]:
    """The parts in the range of the spans that reach into it. Shape: (n, 2)."""
    start, stop = timeline.start_ns[mask], timeline.stop_ns[mask]
    inside = (start < high) & (stop > low)
    return np.stack([start[inside].clip(low), stop[inside].clip(max=high)], axis=1)


def _alone(these: NDArray[np.int64], others: NDArray[np.int64]) -> int:
    """The time of these without the others."""
    return union_ns(np.concatenate([these, others])) - union_ns(others)
