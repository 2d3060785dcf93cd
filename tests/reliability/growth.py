"""What a process holds: memory, threads, open files, sockets, processes; and whether that grows."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from dataclasses import astuple, dataclass, fields
from statistics import median

import psutil

__all__ = ["Held", "alive", "grown"]

MAY_GROW_MB = 40.0  # between the second and the last third of the looks: allocators keep pages


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds at one time."""

    memory_mb: float
    threads: int
    files: int
    sockets: int
    processes: int

    @classmethod
    def now(cls) -> Held:
        """Once everything that is free has been given back."""
        _collect()
        with contextlib.suppress(OSError, AttributeError):  # glibc's only
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        process = psutil.Process()
        return cls(
            process.memory_info().rss / 1e6,
            threading.active_count(),
            process.num_fds(),
            len(process.net_connections()),
            len(process.children(recursive=True)),
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_mb:.0f} MB, {self.threads} threads, {self.files} files, "
            f"{self.sockets} sockets, {self.processes} processes"
        )


def alive(kind: type) -> int:
    """How many objects of a class, or of one made from it, the process holds."""
    _collect()
    return sum(issubclass(type(item), kind) for item in gc.get_objects())


def _collect() -> None:
    """Free what nobody holds; a tensor's two halves, torch's and Python's, take a round each."""
    for _ in range(5):
        if not gc.collect():
            break


def grown(looks: list[Held]) -> list[str]:
    """What has grown from the second third of the looks to the last, in words.

    The first third is left out: caches fill, and programs are compiled.
    """
    third = len(looks) // 3
    if not third:
        return []
    middle, last = looks[-2 * third : -third], looks[-third:]
    found = []
    for field, before, after in zip(fields(Held), _medians(middle), _medians(last), strict=True):
        if after - before > (MAY_GROW_MB if field.name == "memory_mb" else 0.5):
            found.append(f"{field.name}: {before:.0f} -> {after:.0f}")
    return found


def _medians(looks: list[Held]) -> list[float]:
    return [median(values) for values in zip(*map(astuple, looks), strict=True)]
