"""Where the recording thread waits for something else than the device: a sleep, a file, a lock.

While a trace is on, a second thread looks at the recording one about every millisecond: which
system call it is in, how much processor time it has had, and which line of Python it is at. A
thread that sleeps lets go of Python's lock, so it is seen just then; recording itself pays nothing.
A thread that is ready to run and has no core is not waiting, and one whose innermost line is the
kit's own has a span of its own for that.

A recording thread has spans for what else it waits for. Of a program that torch or jax runs nothing
is known but the looks, so `blocked_of` takes all time off the processor, less what is known.

Only Linux tells of another thread what it waits in; elsewhere nothing is seen.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import FrameType
from typing import Literal

import numpy as np

from kit.errors import EngineError, but_of_handlers, suppressed
from kit.runtime.recording.bulk import NOWHERE, Site
from kit.runtime.recording.sites import (
    format_site,
    is_torchs,
    line_of_frame,
    not_a_librarys,
    passes_on,
)
from kit.threads import in_forked_children, read_stacks, start_thread
from kit.trace import Span
from kit.trace.intervals import Ints, without

__all__ = ["Away", "Look", "blocked_of", "looks", "moved", "waits_of"]

EVERY_S = 0.001
LEAST_NS = 1_000_000  # what is shorter is not worth a span
TOUCH_NS = 100_000  # stretches of one line that are closer are one
LONG_NS = 3_000_000  # between two looks
RAN_NS = 200_000  # to wake and sleep again takes less
LATE_NS = 500_000  # a look that comes or takes so much longer had to wait for Python's lock
SHORT_NS = 100_000  # off the processor between two looks: the looks themselves may do as much
_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")
_ISSUES = re.compile(r"[/\\]torch[/\\](optim|nn|autograd|amp)[/\\]")
_SAVES = os.path.join("torch", "serialization.py")  # a pickle calls other Python of torch's, too
_EVENTS = os.path.join(os.path.dirname(os.__file__), "asyncio", "base_events.py")
# Where jax's Python waits for a device: file -> functions.
_READS = {
    os.path.join("jax", "_src", "array.py"): ("_value",),
    os.path.join("jax", "_src", "api.py"): ("block_until_ready", "try_to_block"),
}
_SWITCHED: dict[float, float] = {}  # how often threads switch while one is looked at -> and before
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a thread at one time."""

    at_ns: int
    cpu_ns: int  # processor time that it has had so far
    waits: bool  # for something that is not Python's lock
    site: Site = NOWHERE  # the user's line; nowhere: as in the kit's own code
    queued_ns: int = 0  # time in which it had no core, so far; -1 where nobody tells
    held_ns: int = 0  # time in which the looks may have held it up, so far
    call: Literal["", "lock", "other"] = ""  # of the system, that it waits in; "": it is ready
    is_late: bool = False  # it had to wait for Python's lock, which a third thread had
    seen_ns: int = -1  # when it was at that line: a while before `at_ns`; -1: then
    is_own: bool = False  # at the user's line itself, or in a library that is not torch
    is_kits: bool = False  # in the kit's own code
    in_lock: bool = False  # in Python's code around a lock of the program's, as a queue's
    in_loader: bool = False  # at a line that torch's DataLoader calls, as a sampler's
    in_read: bool = False  # in jax's code that waits until a device has computed a value
    issues: bool = False  # in torch's Python of an optimizer, a module or a backward pass


def moved(look: Look, by_ns: int) -> Look:
    """The same on another clock."""
    seen_ns = look.seen_ns + by_ns if look.seen_ns != -1 else -1
    return replace(look, at_ns=look.at_ns + by_ns, seen_ns=seen_ns)


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
def _switched_often() -> Iterator[None]:
    """A thread that computes in Python gives its lock away as often as it is looked at.

    By itself it keeps it for 5 ms, in which no look sees it.
    """
    before = sys.getswitchinterval()
    often = min(before, EVERY_S / 2)
    _SWITCHED.setdefault(often, before)
    try:
        sys.setswitchinterval(often)
        yield
    finally:
        _switch_as_before()


def _switch_as_before() -> None:
    """Also in a forked child, whose thread nobody looks at."""
    before = _SWITCHED.get(sys.getswitchinterval())
    _SWITCHED.clear()
    if before is not None:  # else the program has set another one
        sys.setswitchinterval(before)


@contextlib.contextmanager
def looks(*, often: bool = False) -> Iterator[list[Look]]:
    """Look at the thread that enters the block; the list is filled when the block has ended.

    It stays empty where the system does not tell of threads.

    Args:
        often: in one block at a time; a thread that computes in Python is seen each time, too.
    """
    found: list[Look] = []
    if platform.system() != "Linux":
        yield found
        return
    over = threading.Event()
    try:
        try:
            looking = _Looking(over)
        except but_of_handlers(AttributeError, OSError, EngineError):  # no clock, file, or thread
            yield found
            return
        try:
            with _switched_often() if often else contextlib.nullcontext():
                yield found
        finally:
            found += looking.end()
    finally:
        over.set()  # also where an interrupt has taken `looking`, whose thread runs


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
        found.append(part)
    joined = _joined(found, TOUCH_NS)
    return [a for a in joined if a.is_sure and a.stop_ns - a.start_ns >= LEAST_NS]


def blocked_of(looks: Sequence[Look], known: Ints) -> list[Away]:
    """All time off the processor that is not known already, by the lines that waited.

    How long the thread was blocked between two looks is exact: the time that passed, less the
    processor time, less the time without a core. Where in between, a look tells that saw it wait;
    a stretch that no look saw has a line only if both looks saw the same.

    A wait for jax's device, in its read of a value, is left out.

    Args:
        known: what the thread is known to do in these times. A wait for a lock may be for threads
            that compute an op with this one, so it is taken to lie there before anywhere else;
            or for Python's, if the look had to wait for that, too, or the one before it: then it
            is left out, except where both saw it at one of the program's.

    Shape:
        known (n, 2): starts and stops
    """
    if len(looks) < 2 or looks[0].queued_ns < 0:
        return []
    ends = np.array([[looks[0].at_ns, looks[-1].at_ns]], np.int64)
    free = [(start, stop) for start, stop in without(ends, known).tolist() if stop > start]
    # A thread that has no core just now is told of that time when it has one again.
    blocked = np.array([x.at_ns - x.cpu_ns - x.queued_ns for x in looks], np.int64)
    blocked = np.minimum.accumulate(blocked[::-1])[::-1]
    found: list[Away] = []
    first = 0
    for (before, now), off in zip(pairwise(looks), np.diff(blocked).tolist(), strict=True):
        while first < len(free) and free[first][1] <= before.at_ns:
            first += 1
        inside = list(_inside(free, first, before.at_ns, now.at_ns))
        seen = now if now.call else before
        slept = before.call and now.call and before.cpu_ns == now.cpu_ns
        left = off if slept else off - (now.held_ns - before.held_ns)
        if seen.call != "other":
            is_programs = slept and before.in_lock and now.in_lock
            if (before.is_late or now.is_late) and not is_programs:
                continue  # another thread has Python's lock: no line of this one waits
            left -= now.at_ns - before.at_ns - sum(stop - start for start, stop in inside)
        if left < SHORT_NS:
            continue
        site = seen.site if seen.call or before.site == now.site else NOWHERE
        if seen.in_read or (seen.call and seen.is_kits):
            continue
        found += _laid(inside, left, site, is_early=seen is before and bool(seen.call))
    return _joined(found, 1)


def _inside(
    free: Sequence[tuple[int, int]], first: int, start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """The parts of the free stretches, from the first of these on, that lie between two times."""
    for i in range(first, len(free)):
        low, high = free[i]
        if low >= stop:
            return
        yield max(low, start), min(high, stop)


def _laid(
    inside: Sequence[tuple[int, int]], length: int, site: Site, *, is_early: bool
) -> list[Away]:
    """So much time of these stretches: the earliest, or else the latest."""
    found: list[Away] = []
    for start, stop in inside if is_early else reversed(inside):
        part = min(stop - start, length)
        length -= part
        if part:
            found.append(Away(site, *((start, start + part) if is_early else (stop - part, stop))))
    return found if is_early else found[::-1]


def _joined(parts: Sequence[Away], closer_ns: int) -> list[Away]:
    """Neighbours of one line that are closer than this as one."""
    found: list[Away] = []
    for part in parts:
        last = found[-1] if found else None
        if last and last.site == part.site and part.start_ns - last.stop_ns < closer_ns:
            found.pop()
            part = Away(part.site, last.start_ns, part.stop_ns, last.is_sure or part.is_sure)
        found.append(part)
    return found


def _is_between(frame: FrameType | None, around: FrameType | None, path: str) -> bool:
    """Is a frame of this file between these, the second left out?"""
    while frame is not around and frame is not None:
        if frame.f_code.co_filename.endswith(path):
            return True
        frame = frame.f_back
    return False


def _issues(frame: FrameType | None) -> bool:
    """Has torch's Python that issues ops called this frame, with no other library in between?"""
    found = False
    while frame is not None and is_torchs(path := frame.f_code.co_filename):
        found = (found or bool(_ISSUES.search(path))) and not path.endswith(_SAVES)
        frame = frame.f_back
    return found


class _Looking:
    """The second thread, and what it has seen."""

    def __init__(self, over: threading.Event) -> None:
        self._of, self._over = threading.get_ident(), over
        self._clock = time.pthread_getcpuclockid(self._of)  # type: ignore[attr-defined, unused-ignore]
        self._held_ns = 0
        self._own = -1  # the looking thread's schedule
        self._before_ns = time.perf_counter_ns()  # what `_off_ns` said at the look before
        self._ran_ns = time.thread_time_ns()  # of the thread that is looked at, at that look
        self._looks: list[Look] = []
        folder = f"/proc/self/task/{threading.get_native_id()}"
        with contextlib.ExitStack() as undo:
            self._call = os.open(f"{folder}/syscall", os.O_RDONLY)
            undo.callback(os.close, self._call)
            self._schedule = -1
            with contextlib.suppress(FileNotFoundError):  # a Linux that does not count it
                self._schedule = os.open(f"{folder}/schedstat", os.O_RDONLY)
                undo.callback(os.close, self._schedule)
            self._files = undo.pop_all()
        try:
            self._thread = start_thread(self._look_on, "kit: looks")
            self._first = self._at_work()
        except BaseException:
            self._over.set()
            self._files.close()
            raise

    def end(self) -> list[Look]:
        """Look no more; what was seen, from the first moment to the last."""
        last: list[Look] = []
        try:
            with suppressed(OSError):  # the thread that is looked at has ended
                now = self._at_work()
                last.append(replace(now, is_late=self._is_late(now.cpu_ns)))
        finally:
            self._over.set()
        self._thread.join()
        until = last[0].at_ns if last else time.perf_counter_ns()
        between = [x for x in self._looks if self._first.at_ns < x.at_ns < until]
        return [self._first, *between, *last]

    def _at_work(self) -> Look:
        """What the thread sees of itself: a sleep just after or before this is seen whole."""
        cpu_ns = time.clock_gettime_ns(self._clock)  # type: ignore[attr-defined, unused-ignore]
        return Look(time.perf_counter_ns(), cpu_ns, False, NOWHERE, self._queued(), self._held_ns)

    def _look_on(self) -> None:
        # It closes the files itself: an interrupt may end the wait for this thread.
        with self._files, contextlib.suppress(OSError):  # the thread that is looked at has ended
            if self._schedule >= 0:
                self._own = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
                self._files.callback(os.close, self._own)
            while not self._over.is_set():
                time.sleep(EVERY_S)
                self._look(time.perf_counter_ns())

    def _look(self, woken_ns: int) -> None:
        read = os.pread  # type: ignore[attr-defined, unused-ignore]
        clock_ns = time.clock_gettime_ns  # type: ignore[attr-defined, unused-ignore]
        seen_ns = time.perf_counter_ns()  # the thread stays at its line: we have Python's lock
        seen = read_stacks(self._site)  # first: a read lets the thread go on in Python
        site = None if seen is None else seen[0]
        call = read(self._call, 16, 0).split()[0]
        queued = self._queued()
        at, cpu = time.perf_counter_ns(), clock_ns(self._clock)
        is_late = self._is_late(cpu)
        self._before_ns, self._ran_ns = self._off_ns(), cpu
        is_lock = call.isdigit() and int(call) == _FUTEX
        # A lock of the program's own and Python's look alike; Python's is free if we were in time.
        is_pythons = is_lock and is_late and not (seen and seen[3])
        waits = call.isdigit() and site is not None and not is_pythons
        kind: Literal["", "lock", "other"] = "lock" if is_lock else "other"
        is_held = is_lock or not call.isdigit()  # one that sleeps does not ask for Python's lock
        self._held_ns += (at - woken_ns) * is_held
        self._looks.append(
            Look(
                *(at, cpu, waits, site or NOWHERE, queued, self._held_ns),
                kind if call.isdigit() else "",
                is_late,
                seen_ns,
                *(seen[1:] if seen else ()),
            )
        )
        self._held_ns += (time.perf_counter_ns() - at) * is_held

    def _site(self) -> tuple[Site, bool, bool, bool, bool, bool, bool] | None:
        """Where the thread is, and of a look's last fields what is so; None if it has ended."""
        frame = sys._current_frames().get(self._of)
        while frame is not None and passes_on(frame):
            frame = frame.f_back
        if frame is None:
            return None
        around = not_a_librarys(frame)
        path, waits = frame.f_code.co_filename, _is_between(frame, around, _LOADER)
        if _is_between(frame, around, _EVENTS):
            around = None  # asyncio waits for what goes on: the line that has begun it says nothing
        site = line_of_frame(around)
        is_own = bool(site[0]) and not is_torchs(path)
        is_kits = around is not None and not site[0]
        # what torch's DataLoader has called, and no loader's own wait in there
        in_loader = bool(site[0]) and not waits and _is_between(around, None, _LOADER)
        in_read = any(path.endswith(f) and frame.f_code.co_name in n for f, n in _READS.items())
        in_lock = path == threading.__file__
        return site, is_own, is_kits, in_lock, in_loader, in_read, _issues(frame)

    def _is_late(self, cpu_ns: int) -> bool:
        """Has another thread had Python's lock since the look before, and the look waited for it?

        Where the thread that is looked at ran for as long, the lock was its own.
        """
        late_ns = self._off_ns() - self._before_ns - EVERY_S * 1e9
        return late_ns > max(LATE_NS, cpu_ns - self._ran_ns)

    def _off_ns(self) -> int:
        """How long the looking thread slept or waited for Python's lock until now; it had a core.

        Where nobody tells whether it had one, all the time counts.
        """
        if self._own < 0:
            return time.perf_counter_ns()
        ran_ns, queued_ns = self._schedule_of(self._own)
        return time.perf_counter_ns() - ran_ns - queued_ns

    def _queued(self) -> int:
        """How long the thread has had no core; -1 where nobody tells."""
        return -1 if self._schedule < 0 else self._schedule_of(self._schedule)[1]

    @staticmethod
    def _schedule_of(file: int) -> tuple[int, int]:
        """How long a thread has run, and how long it has had no core."""
        ran, queued, _ = os.pread(file, 64, 0).split()  # type: ignore[attr-defined, unused-ignore]
        return int(ran), int(queued)


in_forked_children(_switch_as_before)
