"""The events of a file that has been read, a row for each, and what is asked of some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.events import Events
from kit.trace.intervals import Ints, Mask

__all__ = ["Columns", "Rows"]

Rows = NDArray[np.intp]  # places of events in the file
_KEPT = ("role", "name", "thread", "link", "node")


@dataclass(frozen=True)
class Columns:
    """What is known of each event, by its place in the file; see `Events` for the columns.

    Units:
        start and stop in nanoseconds from the first event that has a usable time

    Shape:
        (events,)
    """

    role: NDArray[np.int8]
    name: NDArray[np.int32]  # its number among the names
    thread: NDArray[np.int32]
    link: Ints
    node: Ints
    start: Ints
    stop: Ints
    usable: Mask  # the events with a usable time
    names: Sequence[str]

    @classmethod
    def of(cls, events: Events) -> Columns:
        """Of a file that has ended.

        Raises:
            TraceFileError: its times are no microseconds.
        """
        start, stop, usable = events.times()
        role, name, thread, link, node = map(events.column, _KEPT)
        return cls(role, name, thread, link, node, start, stop, usable, events.names)

    def __len__(self) -> int:
        return len(self.role)

    def where(self, *roles: int) -> Rows:
        """The usable events of these roles, in the file's order."""
        return np.flatnonzero(self.usable & self.has(*roles))

    def has(self, *roles: int) -> Mask:
        """Which events are of these roles."""
        found = np.zeros(len(self), np.bool_)
        for one in roles:  # few: faster than np.isin
            found |= self.role == one
        return found

    def times(self, rows: Rows) -> Ints:
        """Starts and stops. Shape: (rows, 2)"""
        return np.stack([self.start[rows], self.stop[rows]], axis=1)

    def named(self, rows: Rows, is_wanted: Callable[[str], object]) -> Rows:
        """Those of some events whose name is wanted."""
        wanted = [i for i, text in enumerate(self.names) if is_wanted(text)]
        return rows[np.isin(self.name[rows], wanted)]

    def inside(self, rows: Rows, around: Rows) -> Mask:
        """Which of some events began inside of the latest of some others, on its thread."""
        if not len(around):
            return np.zeros(len(rows), np.bool_)
        both = np.concatenate([around, rows])
        is_around = np.arange(len(both)) < len(around)
        order = np.lexsort((~is_around, self.start[both], self.thread[both]))
        latest = np.maximum.accumulate(np.where(is_around[order], np.arange(len(both)), -1))
        one, other = both[order], both[order[latest]]
        is_inside = (latest >= 0) & (self.thread[one] == self.thread[other])
        found = np.zeros(len(both), np.bool_)
        found[order] = is_inside & (self.start[one] < self.stop[other])
        return found[len(around) :]

    def outermost(self, rows: Rows) -> Rows:
        """Those of some events that begin inside of no other one of them on its thread."""
        thread, start, stop = (column[rows] for column in (self.thread, self.start, self.stop))
        order = np.lexsort((-stop, start, thread))
        kept: list[int] = []
        of, latest = -1, 0
        for i in order.tolist():
            if thread[i] != of or start[i] >= latest:
                of, latest = int(thread[i]), int(stop[i])
                kept.append(i)
        return rows[kept]
