"""The memory maps of this process, of which each program in memory holds many.

XLA's CPU backend gives each function of a program maps of its own: a step of a 2-layer encoder, as
one program, holds 580 (jax 0.10.2). Linux gives a process 65,530, unless `vm.max_map_count` says
otherwise. The program after that fails, and leaves what ends the process with the next error in
C++, wherever that is. A count of programs alone is no bound, and the limit is that of the process:
so are the maps, whichever cache holds the programs.
"""

from __future__ import annotations

import threading
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from kit.errors import but_of_handlers

__all__ = ["Maps", "count_maps", "maps_of_process"]

_MOST = 0.75  # of the limit; a large program may need a tenth of it at once
_PAUSE = 100  # times as long as a look takes: so long no other is taken
_MAPS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")


class Programs(Protocol):
    """A cache of programs."""

    def drop_half(self) -> int:
        """Drop the half that was used least recently; gives how many those were."""


class Maps:
    """Keeps the maps of this process below their limit, by dropping programs.

    Attributes:
        limit: how many maps this process may have; infinite where nothing says it.
    """

    def __init__(self) -> None:
        self.limit = _read_limit()
        self._caches: WeakSet[Programs] = WeakSet()
        self._lock = threading.Lock()
        self._next_look = 0.0
        self._has_warned = False

    def watch(self, programs: Programs) -> None:
        """One more cache of this process."""
        with self._lock:
            self._caches.add(programs)

    def make_room(self) -> None:
        """A program was added: drop the older half of all, if the maps come near their limit.

        A look at the maps takes up to 50 ms: in a hundred times as long there is one look. In five
        seconds a process compiles programs of some 3,000 maps, and a sixth of that in each of them.
        """
        if time.monotonic() < self._next_look or not self._lock.acquire(blocking=False):
            return
        try:
            start = time.monotonic()
            used = count_maps()
            stop = time.monotonic()
            self._next_look = stop + _PAUSE * (stop - start)
            if used > _MOST * self.limit:
                self._next_look = stop
                dropped = sum([programs.drop_half() for programs in self._caches])
                self._warn(used, dropped)
        finally:
            self._lock.release()

    def _warn(self, used: int, dropped: int) -> None:
        if dropped == 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"this process holds {used:,} memory maps, hardly any of them for programs of kit. "
                f"At {self.limit:,} XLA ends it. Drop what holds other compiled programs "
                "(jax.clear_caches()), or raise the limit: sysctl -w vm.max_map_count=1048576",
                stacklevel=2,
            )


@cache
def maps_of_process() -> Maps:
    """One for the process, as the limit is."""
    return Maps()


def count_maps() -> int:
    """How many memory maps this process has; 0 where the system does not say."""
    try:
        with _MAPS.open("rb", buffering=0) as lines:
            return sum(part.count(b"\n") for part in iter(lambda: lines.read(1 << 16), b""))
    except but_of_handlers(OSError):
        return 0


def _read_limit() -> float:
    try:
        return float(_LIMIT.read_text(encoding="ascii"))
    except but_of_handlers(OSError, ValueError):
        return float("inf")
