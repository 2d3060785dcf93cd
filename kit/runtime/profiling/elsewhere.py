"""Where the recording thread waits for something else than the device: a sleep, a file, a lock.

While a trace is on, a second thread looks at the recording one about every millisecond: which
system call it is in, how much processor time it has had, and which line of Python it is at. A
thread that sleeps lets go of Python's lock, so it is seen just then; recording itself pays nothing.
A thread that is ready to run and has no core is not waiting, and one whose innermost line is the
kit's own has a span of its own for that.

Only Linux tells of another thread what it waits in; elsewhere nothing is seen.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kit.errors import EngineError
from kit.runtime.recording.bulk import Site
from kit.runtime.recording.sites import format_site, line_of_frame
from kit.threads import start_thread
from kit.trace import Span

__all__ = ["Away", "Look", "elsewhere", "waits_of"]

EVERY_S = 0.001
LEAST_NS = 1_000_000  # what is shorter is not worth a span
TOUCH_NS = 100_000  # stretches of one line that are closer are one
LONG_NS = 3_000_000  # between two looks
RAN_NS = 200_000  # to wake and sleep again takes less
LATE_NS = 500_000  # a look that comes so much later had to wait for Python's lock
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a thread at one time."""

    at_ns: int
    cpu_ns: int  # processor time that it has had so far
    waits: bool  # for something that is not Python's lock
    site: Site = ("", 0)  # the user's line; ("", 0): none, or the kit's own code


@dataclass(frozen=True, slots=True)
class Away:
    """A stretch in which a thread waited at a line."""

    site: Site
    start_ns: int
    stop_ns: int
    is_sure: bool = True  # it was off the processor from one look to the next

    @property
    def span(self) -> Span:
        """Itself on the timeline."""
        return Span("host/main", format_site(self.site), "elsewhere", self.start_ns, self.stop_ns)


@contextlib.contextmanager
def elsewhere() -> Iterator[list[Away]]:
    """Look at the thread that enters the block; the list has its waits when the block has ended."""
    found: list[Away] = []
    if sys.platform != "linux":
        yield found
        return
    try:
        looking = _Looking()
    except (AttributeError, OSError, EngineError):  # no such clock, file, or thread
        yield found
        return
    try:
        yield found
    finally:
        found += waits_of(looking.end())


def waits_of(looks: Sequence[Look]) -> list[Away]:
    """The stretches in which the thread waited, each with its line.

    Between two looks it was off the processor for the time that passed less the processor time. If
    it waits at the second look, that is the end of the stretch between them; if it waited only at
    the first, the beginning.
    """
    found: list[Away] = []
    for before, now in pairwise(looks):
        passed, ran = now.at_ns - before.at_ns, now.cpu_ns - before.cpu_ns
        off = max(passed - ran, 0)
        is_same = before.waits and now.waits and before.site == now.site
        if ran > RAN_NS if is_same else passed > LONG_NS:
            continue  # it has run in between, and when is not known
        if now.waits and now.site[0]:
            part = Away(now.site, now.at_ns - off, now.at_ns, off > 0.9 * passed)
        elif before.waits and before.site[0]:
            part = Away(before.site, before.at_ns, before.at_ns + off, False)
        else:
            continue
        if found and found[-1].site == part.site and part.start_ns - found[-1].stop_ns < TOUCH_NS:
            last = found.pop()
            part = Away(part.site, last.start_ns, part.stop_ns, last.is_sure or part.is_sure)
        found.append(part)
    return [a for a in found if a.is_sure and a.stop_ns - a.start_ns >= LEAST_NS]


class _Looking:
    """The second thread, and what it has seen."""

    def __init__(self) -> None:
        assert sys.platform == "linux"
        self._of = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._of)
        self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/syscall", os.O_RDONLY)
        self._end = threading.Event()
        self._looks: list[Look] = []
        try:
            self._thread = start_thread(self._look_on, "kit: looks")
        except EngineError:
            os.close(self._file)
            raise

    def end(self) -> list[Look]:
        """Look no more; what was seen."""
        self._end.set()
        self._thread.join()
        os.close(self._file)
        return self._looks

    def _look_on(self) -> None:
        with contextlib.suppress(OSError):  # the thread that is looked at has ended
            while not self._end.is_set():
                before = time.perf_counter_ns()
                time.sleep(EVERY_S)
                late = time.perf_counter_ns() - before - EVERY_S * 1e9 > LATE_NS
                self._looks.append(self._look(late))

    def _look(self, late: bool) -> Look:
        assert sys.platform == "linux"
        call = os.pread(self._file, 16, 0).split()[0]
        frame = sys._current_frames().get(self._of)
        at, cpu = time.perf_counter_ns(), time.clock_gettime_ns(self._clock)
        if not call.isdigit() or frame is None:  # "running": it runs, or is ready to
            return Look(at, cpu, False)
        # A lock of the program's own and Python's look alike; Python's is free if we were in time.
        waits = int(call) != _FUTEX or not late
        return Look(at, cpu, waits, line_of_frame(frame))
