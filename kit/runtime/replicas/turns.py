"""Turns of recording: threads that record at the same time are slower than one by one."""

from __future__ import annotations

import contextlib
import threading
from _thread import allocate_lock
from collections.abc import Callable, Iterator

__all__ = ["Turns"]

STANDSTILL_S = 0.005  # a replica that has recorded nothing for so long has something else to do


class Turns:
    """One replica's thread records at a time; while a thread waits, the next one records.

    Torch lets go of the GIL in every op, so threads that record at the same time hand the GIL to
    and fro with each op, and take three to six times as long. A turn is a courtesy, no lock: when
    no op has been recorded for a while, the thread that has the turn is busy elsewhere and the next
    goes ahead.
    """

    def __init__(self) -> None:
        self._progress: Callable[[], int] = int
        self._lock = allocate_lock()
        self._holder = 0  # the thread that has the turn
        self._switched: dict[int, Callable[[bool], object]] = {}  # by thread that takes part

    def watch(self, progress: Callable[[], int]) -> None:
        """From now on `progress()` says how many ops all replicas have recorded."""
        self._progress = progress

    @contextlib.contextmanager
    def part(self, switched: Callable[[bool], object] = bool) -> Iterator[None]:
        """In the block this thread records when it is its turn.

        Args:
            switched: told true when this thread begins to record, false when it stops.
        """
        thread = threading.get_ident()
        self._switched[thread] = switched
        try:
            self._take(switched)
            yield
        finally:
            self._switched.pop(thread, None)
            self._give(switched)

    @contextlib.contextmanager
    def while_waiting(self) -> Iterator[None]:
        """In the block this thread waits for something, and others record."""
        switched = self._switched.get(threading.get_ident())
        if switched is None:
            yield
            return
        self._give(switched)
        try:
            yield
        finally:
            self._take(switched)

    def _take(self, switched: Callable[[bool], object]) -> None:
        while True:
            before = self._progress()
            if self._lock.acquire(timeout=STANDSTILL_S):
                self._holder = threading.get_ident()
                break
            if self._progress() == before:  # perhaps this thread is what the others wait for
                break
        switched(True)

    def _give(self, switched: Callable[[bool], object]) -> None:
        if self._holder == threading.get_ident():
            self._holder = 0
            self._lock.release()
        switched(False)
