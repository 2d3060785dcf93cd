"""Tools around torch itself: the clock of a GPU, and the profiler."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch

from kit.errors import SettingsError
from kit.measure.native.kineto import given_back, let_go, quiet
from kit.measure.native.loaders import loaders_noted
from kit.measure.native.others import is_profiling, others_wait
from kit.runtime.profiling.clocks import DayClock
from kit.runtime.profiling.elsewhere import Look, looks, moved
from kit.runtime.session.interrupts import postponed
from kit.threads import in_forked_children
from kit.torch.tensors.private import private

__all__ = ["DeviceClock", "Profiler"]

# Who profiles: one at a time in the process. A second thread's start ends the process in Kineto.
_PROFILES: dict[str, Profiler] = {}
_GAVE_WAY = (
    "no step was traced: the program began a profiler of torch's own meanwhile, which takes one "
    "thread of a process at a time"
)


class DeviceClock:
    """Step times by the GPU: a host that runs ahead of it would time its own launches only.

    Args:
        index: of the GPU; None: torch's current one.
    """

    def __init__(self, index: int | None = None) -> None:
        self._index = index
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """A step ends here in the GPU's current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._index))
        self._marks.append(event)

    def restart(self) -> None:
        """Forget the steps so far; the first measured one begins."""
        self._marks.clear()
        self.mark()

    def step_times_ns(self) -> list[int]:
        """One for each step since `restart`; the GPU must have finished them."""
        return [round(a.elapsed_time(b) * 1e6) for a, b in pairwise(self._marks)]


class Profiler:
    """torch's profiler, without the lines that it writes to the terminal, and looks at the thread.

    The profiler sees torch's work; the looks see when the thread that starts it is blocked.
    """

    def __init__(self, device: str) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._is_on_gpu = device == "cuda"
        self._profile = torch.profiler.profile(
            activities=activities, acc_events=True, record_shapes=True
        )
        self._open = contextlib.ExitStack()
        self._looks: list[Look] = []
        self._is_ours = False  # what torch's profiler sees, if it is on
        self._clock = DayClock()  # of the events
        self.note = ""  # why there are no events, once it has stopped
        self._thread = threading.current_thread()  # that has started it
        self._began: dict[str, list[int]] = {}  # name of a region -> when each began

    def start(self) -> None:
        """Profile this thread, and those of its backward passes, from now on.

        Raises:
            SettingsError: the program profiles itself, which this would end, or a recording of
                another thread does.
        """
        if (now := _PROFILES.get("now")) and not now._thread.is_alive():
            now.stop()
        self._thread = threading.current_thread()
        if (now := _PROFILES.setdefault("now", self)) is not self:
            raise SettingsError(
                "another watch of this loop traces, and torch has one profiler a process"
                if now._thread is self._thread
                else "torch's profiler takes one thread at a time, and records another"
            )
        if is_profiling():
            _PROFILES.clear()
            raise SettingsError(
                "the program runs under a profiler of torch's already, which takes one thread of "
                "a process at a time: end that one first"
            )
        self._is_ours = True
        if self._is_on_gpu:
            let_go()
        with postponed(), quiet(), contextlib.ExitStack() as undo:
            undo.enter_context(others_wait(self._give_way))
            if self._is_on_gpu:
                undo.enter_context(given_back())
            undo.callback(self._stop)
            self._clock = DayClock()
            self._profile.start()
            undo.enter_context(loaders_noted())
            self._looks = undo.enter_context(looks(often=True))
            self._open = undo.pop_all()

    def stop(self) -> None:
        """In the thread that has started it, or once that has ended; else it does nothing."""
        try:
            self._end()
        except BaseException:  # an interrupt in the middle: a profiler that is left on ends others
            try:
                self._end()
            finally:
                _PROFILES.clear()  # what cannot end shall not keep all others from beginning
            raise

    def _end(self) -> None:
        if _PROFILES.get("now") is not self:
            return
        with postponed(), quiet():
            try:
                self._open.close()
            finally:
                self._stop()
        _PROFILES.clear()

    def _give_way(self, other: Any) -> None:
        """The program begins a profile of its own in this thread, which has room for one."""
        if other is not self._profile.profiler:
            self.stop()
            self.note = _GAVE_WAY

    def _stop(self) -> None:
        is_on = private("torch.autograd._profiler_enabled")()  # in this thread
        is_left = not is_on and not self._thread.is_alive()
        is_left = is_left and private("torch.autograd.profiler._is_profiler_enabled")
        if self._is_ours and (is_on or is_left):
            if is_left:
                self._take_over()
            self._profile.stop()
            self.note = self._clock.note()

    def _take_over(self) -> None:
        """Torch 2.11 ends a profile in its own thread only, and begins none until it has."""
        profile: Any = self._profile.profiler
        private("torch.autograd._enable_profiler")(profile.config(), profile.kineto_activities)

    @contextlib.contextmanager
    def region(self, name: str) -> Iterator[None]:
        """An event of this name; by these the profiler's clock and Python's are compared."""
        self._began.setdefault(name, []).append(time.perf_counter_ns())
        with torch.profiler.record_function(name):
            yield

    def events(self) -> list[Any]:
        """What was seen, once it has stopped; nothing where it could not start, or as `note` says.

        The profiler stretches all times between its start and its end as the clock of the day says.
        """
        return list(self._profile.events()) if self._is_ours and not self.note else []

    def looks(self) -> list[Look]:
        """What the thread did, on the clock of the events; none where that is not known."""
        events: dict[str, list[float]] = {name: [] for name in self._began}
        for event in self.events():
            if event.name in events and event.device_type.name == "CPU":
                events[event.name].append(event.time_range.start)
        apart = [
            began - round(start * 1000)
            for name, starts in events.items()
            if len(starts) == len(self._began[name])
            for began, start in zip(self._began[name], sorted(starts), strict=True)
        ]
        # An event begins after its look at the clock: the closest pair is the best.
        return [moved(x, -max(apart)) for x in self._looks] if apart else []


def _leave_behind() -> None:
    """In a forked child, such as a loader's worker: it need not pay for a profile of others."""
    if _PROFILES:
        private("torch.autograd._enable_record_function")(False)
    _PROFILES.clear()


in_forked_children(_leave_behind)
