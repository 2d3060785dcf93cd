"""Where the replicas of a process meet beside their steps: `Common`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from kit.torch.parallel.barrier import Barrier
from kit.torch.parallel.own_step import OwnStepParallel

__all__ = ["Common"]


class Common:
    """What the replicas of a process have in common: where their losses meet, and their batches.

    Each batch is drawn once, by whoever needs it first, and every replica works on its part of it.
    Loaders of their own would draw different ones: random numbers are those of the process.
    """

    def __init__(self, net: OwnStepParallel) -> None:
        self.barrier = Barrier(net.count)
        self._here = len(net.ranks)
        self._sources: dict[int, _Source] = {}
        self._lock = threading.Lock()

    def batches(self, number: int, place: int, own: Iterator[Any]) -> Iterator[Any]:
        """Those of the n-th loader, for the replica at this place, which has made `own` of it."""
        with self._lock:
            source = self._sources.setdefault(number, _Source(own, self._here))
        while True:
            try:
                batch = source.take(place)
            except StopIteration:
                return
            yield batch


class _Source:
    """Batches, and those that some replicas have taken and others have not yet."""

    def __init__(self, batches: Iterator[Any], count: int) -> None:
        self._batches = batches
        self._waiting: list[deque[Any]] = [deque() for _ in range(count)]
        self._error: BaseException | None = None  # after which there are no more
        self._lock = threading.Lock()

    def take(self, place: int) -> Any:
        with self._lock:
            if not self._waiting[place]:
                if self._error is not None:
                    raise self._error
                try:
                    batch = next(self._batches)
                except BaseException as error:
                    self._error = error
                    raise
                for waiting in self._waiting:
                    waiting.append(batch)
            return self._waiting[place].popleft()
