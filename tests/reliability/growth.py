"""What a process holds: memory, threads, open files, sockets, processes; and whether that grows.

Resident memory alone cannot tell a leak from a heap with holes: what is freed between two blocks in
use stays resident. So of glibc's heap the blocks in use are counted, and judged, by themselves.

The long form, for sessions of all modes: python -m tests.reliability.growth --sessions 200
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
import threading
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from statistics import median
from weakref import WeakSet

import jax
import psutil
from jax.extend.backend import get_backend

from kit.runtime.session.session import Session
from tests.reliability.training import MODES, Training

__all__ = ["Held", "alive", "grown", "sessions"]

# From the second to the last third of the looks, where it is more than half a thing.
MAY_GROW = {
    "memory_mb": 40.0,
    "in_use_mb": 8.0,
    "mapped_mb": 20.0,
    "trimmed_mb": float("inf"),
    "python_blocks": 30_000.0,
    "programs": 10.0,  # of sessions that nobody closed, until the next collection
}


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds at one time.

    Attributes:
        memory_mb: resident, after the heap was trimmed.
        trimmed_mb: resident before, and given back by trimming.
        in_use_mb: blocks of glibc's heap that somebody holds; 0 where there is another heap.
        mapped_mb: of files and shared memory, such as the code of libraries, as far as it was used.
        python_blocks: that Python's own allocator has handed out, wherever.
        arrays: of jax.
        programs: compiled by XLA and not dropped.
    """

    memory_mb: float
    trimmed_mb: float
    in_use_mb: float
    mapped_mb: float
    python_blocks: int
    arrays: int
    programs: int
    threads: int
    files: int
    sockets: int
    processes: int

    @classmethod
    def now(cls) -> Held:
        """Once everything that is free has been given back."""
        _collect()
        process = psutil.Process()
        before = process.memory_info().rss
        in_use = _trim()
        memory = process.memory_info()
        return cls(
            memory.rss / 1e6,
            (before - memory.rss) / 1e6,
            in_use / 1e6,
            getattr(memory, "shared", 0) / 1e6,
            sys.getallocatedblocks(),
            len(jax.live_arrays()),
            len(get_backend().live_executables()),
            threading.active_count(),
            process.num_fds(),
            len(process.net_connections()),
            len(process.children(recursive=True)),
        )

    def __str__(self) -> str:
        return (
            f"{self.memory_mb:.0f} MB ({self.in_use_mb:.0f} in use on the heap, "
            f"{self.mapped_mb:.0f} of files; {self.trimmed_mb:.0f} more were trimmed), "
            f"{self.python_blocks:,} blocks of Python's, {self.arrays} arrays, "
            f"{self.programs} programs, {self.threads} threads, {self.files} files, "
            f"{self.sockets} sockets, {self.processes} processes"
        )


class _HeapInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _trim() -> int:
    """Give free pages back to the system; gives the bytes in use, 0 for a heap that cannot tell."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim(0)
        libc.mallinfo2.restype = _HeapInfo
        info = libc.mallinfo2()
    except (OSError, AttributeError):  # another system, or a glibc before 2.33
        return 0
    return int(info.uordblks + info.hblkhd)


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
        if after - before > MAY_GROW.get(field.name, 0.5):
            found.append(f"{field.name}: {before:.0f} -> {after:.0f}")
    return found


def _medians(looks: list[Held]) -> list[float]:
    return [median(values) for values in zip(*map(astuple, looks), strict=True)]


def sessions(count: int, modes: Sequence[str] = tuple(MODES)) -> list[Held]:
    """Open that many sessions, one after the other, and look at the process 18 times meanwhile.

    Sessions that were there before, such as those of other tests in the process, are not judged.

    Raises:
        AssertionError: a session of these is alive after it was closed.
    """
    opened: WeakSet[Session] = WeakSet()
    looks = [Held.now()]
    for number in range(count):
        mode = modes[number % len(modes)]
        with Training(mode) as training:
            opened.add(training.session)
            for _ in range(3):
                training.step()
        del training
        if len(looks) < 18 * (number + 1) / count:
            looks.append(Held.now())  # has collected what nobody holds
            assert not opened, f"{len(opened)} sessions are held after mode {mode}"
    return looks


def main() -> None:
    """Open sessions, and say what the process holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    looks = sessions(parser.parse_args().sessions)
    for look in looks:
        print(look)
    if more := grown(looks):
        raise SystemExit("it grew: " + ", ".join(more))


if __name__ == "__main__":
    main()
