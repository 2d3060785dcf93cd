"""Launches that a file pairs with what they launched: how many are on their way, and which block.

A call of CUDA returns at once, until so many launches are on their way that the queue is full. Then
each call waits until the device has taken one: the host does not compute, it waits. So it does in
a copy that returns when it is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kit.trace.active import NONE, Ints, Mask
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import Timeline

__all__ = ["Launched", "blocked", "launched"]

DEEP = 256  # launches on their way: CUDA's queue takes about 1,000
NEARLY = 0.9  # of the most that were on their way
LONG_NS = 20_000  # a launch that does not wait takes 5 to 10 us


@dataclass(frozen=True)
class Launched:
    """Calls that have launched something, in order of time."""

    call: Ints  # spans of the timeline
    done_ns: Ints  # when the last of what it launched had run
    before: Ints  # launches that were on their way when the call began


def launched(timeline: Timeline) -> Launched:
    """The calls of a file that says what they launched."""
    call = np.flatnonzero(timeline.where(kind="dispatch") & (timeline.segment < NONE))
    kernel = np.flatnonzero(timeline.where(kind=ON_DEVICE) & (timeline.segment < NONE))
    numbers, group = np.unique(timeline.segment[kernel], return_inverse=True)
    done = np.zeros(len(numbers), np.int64)
    np.maximum.at(done, group, timeline.stop_ns[kernel])
    call = call[np.isin(timeline.segment[call], numbers)]
    call = call[np.argsort(timeline.start_ns[call], kind="stable")]
    done = done[np.searchsorted(numbers, timeline.segment[call])]
    begun, finished = np.arange(len(call)), np.sort(done)
    gone = np.searchsorted(finished, timeline.start_ns[call], "right")
    return Launched(call, done, (begun - gone).clip(0))


def blocked(timeline: Timeline) -> Mask:
    """Which spans are calls that wait for the device.

    The queue of launches is full, or others are on their way and the call returns only when what it
    launched has run, as a copy from memory that is not pinned.
    """
    found = np.zeros(len(timeline), dtype=bool)
    calls = launched(timeline)
    if len(calls.call):
        start, stop = timeline.start_ns[calls.call], timeline.stop_ns[calls.call]
        is_full = calls.before >= max(NEARLY * int(calls.before.max()), DEEP)
        is_last = (calls.before > 0) & (calls.done_ns <= stop)
        found[calls.call] = (is_full | is_last) & (stop - start >= LONG_NS)
    return found
