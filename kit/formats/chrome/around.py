"""What runs on a thread at some time: the op and the Python function around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kit.trace.intervals import Ints, Mask

__all__ = ["Around"]

Kind = tuple[Sequence[int], Mask]


class Around:
    """Finds ops and functions by thread and time.

    Args:
        host: the events of threads, by their numbers.
        columns: thread, start and stop of all events.
        ops, frames: of each event the op, and the function, that it is inside of, -1 for none; and
            which events are ops, and functions.
    """

    def __init__(
        self,
        host: NDArray[np.intp],
        columns: tuple[Ints, Ints, Ints],
        ops: Kind,
        frames: Kind,
    ) -> None:
        thread, start, self._stop = columns
        host = host[np.lexsort((-self._stop[host], start[host], thread[host]))]
        numbers, first = np.unique(thread[host], return_index=True)
        parts = np.split(host, first[1:])
        self._events = dict(zip(numbers.tolist(), parts, strict=True))
        self._starts = {number: start[part] for number, part in self._events.items()}
        self._ops, self._frames = ops, frames

    def at(self, thread: int, time_ns: int) -> tuple[int, int]:
        """The innermost op and the innermost function; -1 for none."""
        if thread not in self._events:
            return -1, -1
        place = int(np.searchsorted(self._starts[thread], time_ns, "right")) - 1
        if place < 0:
            return -1, -1
        before = int(self._events[thread][place])
        return self._open(self._ops, before, time_ns), self._open(self._frames, before, time_ns)

    def _open(self, kind: Kind, event: int, time_ns: int) -> int:
        """Of an event and those around it the innermost of a kind that has not ended."""
        around, is_one = kind
        if not is_one[event]:
            event = around[event]
        while event >= 0 and self._stop[event] <= time_ns:
            event = around[event]
        return event
