"""While one thread waits for the device, the other threads of a session record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Waits"]

WhileWaiting = Callable[[], contextlib.AbstractContextManager[object]]


class Waits:
    """Lets go of a session's lock for as long as a thread waits.

    Args:
        while_waiting: entered for each wait, beside that.

    Attributes:
        until_ns: the end of the last wait, in `time.perf_counter_ns`.
    """

    def __init__(self, lock: Any, while_waiting: WhileWaiting) -> None:
        self.until_ns = 0
        self._lock = lock
        self._while_waiting = while_waiting

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """In the block this thread waits for the device."""
        with _unlocked(self._lock), self._while_waiting():
            try:
                yield
            finally:
                self.until_ns = time.perf_counter_ns()


@contextlib.contextmanager
def _unlocked(lock: Any) -> Iterator[None]:
    """The lock is free in the block, however many calls of this thread hold it."""
    depth = 0
    while lock._is_owned():  # released as often as it was taken
        lock.release()
        depth += 1
    try:
        yield
    finally:
        for _ in range(depth):
            lock.acquire()
