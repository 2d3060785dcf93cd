"""Tools around torch itself: the clock of a GPU, the profiler, and the lines of waits."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kit.errors import SettingsError
from kit.measure.native.events import Place
from kit.measure.native.kineto import given_back, let_go, quiet
from kit.measure.native.others import is_profiling, others_wait
from kit.runtime.profiling.clocks import DayClock
from kit.runtime.profiling.elsewhere import Look, looks
from kit.runtime.recording.sites import format_site, is_kits
from kit.runtime.session.interrupts import postponed
from kit.torch.tensors.private import private

__all__ = ["DeviceClock", "Profiler", "Waits", "is_compiled_here"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
# Who profiles: one at a time in the process. A second thread's start ends the process in Kineto.
_PROFILES: dict[str, Profiler] = {}
_GAVE_WAY = (
    "no step was traced: the program began a profiler of torch's own meanwhile, which takes one "
    "thread of a process at a time"
)
_WRAPPERS = tuple(_TORCH + part for part in ("_tensor", "_dynamo", "utils", "_compile", "_ops"))


class DeviceClock:
    """Step times by the GPU: a host that runs ahead of it would time its own launches only."""

    def __init__(self) -> None:
        self._marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """A step ends here in the GPU's stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def restart(self) -> None:
        """Forget the steps so far; the first measured one begins."""
        self._marks.clear()
        self.mark()

    def step_times_ns(self) -> list[int]:
        """One for each step since `restart`; the GPU must have finished them."""
        return [round(a.elapsed_time(b) * 1e6) for a, b in pairwise(self._marks)]


class Waits(TorchDispatchMode):
    """Notes the user's line of each op that waits: the profiler has times, but no lines.

    It is below the modes of the program, such as a count of FLOPs, and so is none that one of them
    takes off in its place: a program's block may begin or end while this one is on. What is
    compiled stays compiled.

    Args:
        device: "cuda"; or "cpu", where nothing waits: then the reads, which would on a GPU.
    """

    def __init__(self, device: str = "cuda") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[str, list[Place]] = {}
        self._cause = _cause if device == "cuda" else _read

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """For torch.compile: it need not run the program uncompiled for this mode."""
        return True

    def __enter__(self) -> Self:
        try:
            with postponed():
                _put_on([self, *_taken_off()])
            return self
        except BaseException:  # of the memory
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        try:
            self._leave()
        except BaseException:  # an interrupt before it was postponed: nobody asks again
            self._leave()
            raise

    def _leave(self) -> None:
        with postponed():
            _put_on([mode for mode in _taken_off() if mode is not self])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if cause := self._cause(func.overloadpacket, args, result):
            self.places.setdefault(cause, []).append(_user_line())
        return result


def is_compiled_here() -> bool:
    """Is this called by a function that torch.compile has compiled?

    At its end torch sets this thread's dispatch as it was at its beginning, so no mode may come or
    go in it.
    """
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_qualname.startswith("_TorchDynamoContext."):
        frame = frame.f_back
    return frame is not None


def _taken_off() -> list[Any]:
    """The modes of this thread, the lowest first; none is on after this."""
    pop = private("torch.utils._python_dispatch._pop_mode")
    count = private("torch._C._len_torch_dispatch_stack")()
    return [pop() for _ in range(count)][::-1]


def _put_on(modes: Sequence[Any]) -> None:
    for mode in modes:
        private("torch.utils._python_dispatch._push_mode")(mode)


def _cause(op: Any, args: Any, result: Any) -> str:
    """Why this op waits for the GPU, in the words of `torch_events`; "" if it does not."""
    aten = torch.ops.aten
    if op is aten._local_scalar_dense:
        return "item" if args[0].is_cuda else ""
    if op is aten._to_copy or op is aten.copy_:
        source = args[1] if op is aten.copy_ else args[0]
        if source.is_cuda != result.is_cuda:
            return "copy_to_device" if result.is_cuda else "copy_to_host"
    return "nonzero" if op is aten.nonzero and args[0].is_cuda else ""


def _read(op: Any, args: Any, result: Any) -> str:
    """The same word where a number is read on the CPU."""
    return "item" if op is torch.ops.aten._local_scalar_dense else ""


def _user_line() -> Place:
    via = ""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_TORCH) and not is_kits(name):
            return format_site((name, frame.f_lineno)), via
        if not via and name.startswith(_TORCH) and not name.startswith(_WRAPPERS):
            via = f"torch/{name.removeprefix(_TORCH)}:{frame.f_lineno}"
        frame = frame.f_back
    return "", via


class Profiler:
    """torch's profiler, without the lines that it writes to the terminal, and looks at the thread.

    The profiler sees torch's work; the looks see when the thread that starts it is blocked.
    """

    def __init__(self, device: str) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._is_on_gpu = device == "cuda"
        self._profile = torch.profiler.profile(activities=activities, acc_events=True)
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
        if _PROFILES.setdefault("now", self) is not self:
            raise SettingsError("torch's profiler takes one thread at a time, and records another")
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
            self._looks = undo.enter_context(looks())
            self._open = undo.pop_all()

    def stop(self) -> None:
        """In the thread that has started it, or once that has ended; else it does nothing."""
        try:
            self._end()
        except BaseException:  # an interrupt in the middle: a profiler that is left on ends others
            self._end()
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
        if self._thread.is_alive():
            is_on = private("torch.autograd._profiler_enabled")()  # in this thread
        else:
            is_on = private("torch.autograd.profiler._is_profiler_enabled")
        if self._is_ours and is_on:
            self._profile.stop()
            self.note = self._clock.note()

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
        return [replace(x, at_ns=x.at_ns - max(apart)) for x in self._looks] if apart else []
