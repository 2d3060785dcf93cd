"""Whose turn it is to record: threads that do it at the same time are slower than one by one."""

from __future__ import annotations

import contextlib
import threading
from _thread import allocate_lock
from collections.abc import Callable, Iterator

__all__ = ["Turns"]

STANDSTILL_S = 0.005  # a replica that has recorded nothing for so long has something else to do


class Turns:
    """One replica's thread records at a time; who waits for something, lets the next one record.

    Torch lets go of the GIL in every op, so threads that record at the same time hand it to and fro
    with each op, and take three to six times as long. It is a courtesy, no lock: when nobody has
    recorded anything for a while, whoever has the turn is busy elsewhere and the next goes ahead.

    Attributes:
        progress: how many ops all of them have recorded.
        switched: told true when the thread that calls begins to record, false when it stops.
    """

    def __init__(self) -> None:
        self.progress: Callable[[], int] = int
        self.switched: Callable[[bool], object] = bool
        self._lock = allocate_lock()
        self._holder = 0  # the thread that has the turn
        self._members: set[int] = set()  # threads that wait for it

    @contextlib.contextmanager
    def part(self) -> Iterator[None]:
        """In the block this thread records when it is its turn."""
        self._members.add(threading.get_ident())
        self._take()
        try:
            yield
        finally:
            self._members.discard(threading.get_ident())
            self._give()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """While this thread waits for something, others record."""
        if threading.get_ident() not in self._members:
            yield
            return
        self._give()
        try:
            yield
        finally:
            self._take()

    def _take(self) -> None:
        while True:
            before = self.progress()
            if self._lock.acquire(timeout=STANDSTILL_S):
                self._holder = threading.get_ident()
                break
            if self.progress() == before:  # it may be this thread that is waited for
                break
        self.switched(True)

    def _give(self) -> None:
        self.switched(False)
        if self._holder == threading.get_ident():
            self._holder = 0
            self._lock.release()
