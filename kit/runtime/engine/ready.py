"""The operations of one device that may run now."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from typing import Any

from kit.runtime.engine.operations import Operation

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """The operations of one device that may run now, and its threads."""

    def __init__(self) -> None:
        self.ready: deque[Operation] = deque()  # priority 0, in program order
        self.urgent: list[tuple[int, int, Operation]] = []  # a heap of the others
        self.idle: list[Any] = []  # a lock for each thread that sleeps
        self.threads: list[threading.Thread] = []

    def put(self, op: Operation) -> None:
        if op.priority:
            heapq.heappush(self.urgent, (-op.priority, op.number, op))
        else:
            self.ready.append(op)

    def drop(self, op: Operation) -> None:
        """Forget an operation that nobody has taken."""
        self.ready = deque(x for x in self.ready if x is not op)
        self.urgent = [x for x in self.urgent if x[2] is not op]
        heapq.heapify(self.urgent)

    def wake(self) -> None:
        """One more thread may find work."""
        if self.idle and (self.ready or self.urgent):
            self.idle.pop().release()

    def take(self) -> Operation | None:
        """The next one: highest priority first, then first come, first served."""
        urgent = self.urgent
        if urgent and (urgent[0][0] < 0 or not self.ready):
            return heapq.heappop(urgent)[2]
        return self.ready.popleft() if self.ready else None
