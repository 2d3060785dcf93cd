"""Launches that a file pairs with what they launched: how many are on their way, and which block.

A call of CUDA returns at once, until so many launches are on their way that the queue is full. Then
each call waits until the device has taken one: the host does not compute, it waits. So it does in
a copy that returns when it is done.
"""

from __future__ import annotations

import numpy as np

from kit.trace.active import NONE, Ints, Mask
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import Timeline

__all__ = ["blocked"]

DEEP = 256  # launches on their way: CUDA's queue takes about 1,000
NEARLY = 0.9  # of the most that were on their way
LONG_NS = 20_000  # a launch that does not wait takes 5 to 10 us


def blocked(timeline: Timeline) -> Mask:
    """Which spans are calls that wait for the device.

    The queue of launches is full, or others are on their way and the call returns only when what it
    launched has run, as a copy from memory that is not pinned.
    """
    found = np.zeros(len(timeline), dtype=bool)
    call, done_ns = _launched(timeline)
    if len(call):
        start, stop = timeline.times(call).T
        begun, gone = np.arange(len(call)), np.searchsorted(np.sort(done_ns), start, "right")
        on_way = (begun - gone).clip(0)  # when the call began
        is_full = on_way >= max(NEARLY * int(on_way.max()), DEEP)
        is_last = (on_way > 0) & (done_ns <= stop)
        found[call] = (is_full | is_last) & (stop - start >= LONG_NS)
    return found


def _launched(timeline: Timeline) -> tuple[Ints, Ints]:
    """The calls that have launched something, in order of time, and when the last of it had run."""
    call = np.flatnonzero(timeline.where(kind="dispatch") & (timeline.segment < NONE))
    kernel = np.flatnonzero(timeline.where(kind=ON_DEVICE) & (timeline.segment < NONE))
    numbers, group = np.unique(timeline.segment[kernel], return_inverse=True)
    done_ns = np.zeros(len(numbers), np.int64)
    np.maximum.at(done_ns, group, timeline.stop_ns[kernel])
    call = call[np.isin(timeline.segment[call], numbers)]
    call = call[np.argsort(timeline.start_ns[call], kind="stable")]
    return call, done_ns[np.searchsorted(numbers, timeline.segment[call])]
