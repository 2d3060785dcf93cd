"""The baseline: the same step run by PyTorch itself, timed untraced and profiled by torch."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kit.errors import SettingsError
from kit.measure.base.context import Context, as_workload
from kit.measure.base.loop import CancelledFn, Pace, Progress, timed_steps
from kit.measure.base.machine import Watch, conditions_of
from kit.measure.native.events import FINISH, STEP, Place, timeline_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.sources import snippets_of
from kit.runtime.recording.sites import format_site

__all__ = ["measure"]

TRACED_STEPS = 2
_TORCH = os.path.dirname(torch.__file__) + os.sep
_WRAPPERS = tuple(_TORCH + part for part in ("_tensor", "_dynamo", "utils", "_compile", "_ops"))


def measure(workload: Any, settings: Settings, *, progress: Progress | None = None,
            cancelled: CancelledFn | None = None) -> Run:  # fmt: skip
    """Warm up, time `settings.steps` steps untraced, then profile two more.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
        SettingsError: a GPU was asked for and torch has none.
    """
    chosen, watch = as_workload(workload), Watch()
    device = _device(settings)
    torch.manual_seed(settings.seed)
    step = chosen(Context(settings, device))
    clock = _DeviceClock() if device == "cuda" else None
    quiet = partial(watch.begin, cancelled)
    pace = (
        Pace(torch.cuda.synchronize, clock.mark, quiet, clock.restart)
        if clock
        else Pace(_nothing, quiet=quiet)
    )
    timed = timed_steps(step, settings, pace, progress=progress, cancelled=cancelled)
    if not all(isinstance(loss, torch.Tensor) for loss in timed.kept):
        raise SettingsError(
            f"the step returned a {type(timed.kept[0]).__name__}, which PyTorch has not computed; "
            'a step of kit.jax is marked @kit.workload(framework="jax")'
        )
    if progress is not None:
        progress("tracing", 0.95)
    places = _places(step) if clock else {}
    pace.finish()
    timeline = timeline_of(
        _profile(step, settings.settling, device, pace.finish), device=device, places=places
    )
    per_step = len(timeline.syncs) // TRACED_STEPS
    return Run(
        settings=settings,
        losses=tuple(float(x) for x in timed.kept),
        step_times_ns=tuple(clock.step_times_ns() if clock else timed.times),
        timeline=timeline,
        # torch times waits in a trace only
        sync_points=timeline.syncs[:per_step] * len(timed.times),
        environment=_environment(device),
        name=chosen.name,
        sources=snippets_of((), format_site, step=step),
        conditions=conditions_of([watch.end()], timed.warmup),
    )


def _nothing() -> None:
    pass


def _device(settings: Settings) -> str:
    has_gpu = torch.cuda.is_available()
    if settings.device == "gpu" and not has_gpu:
        raise SettingsError(
            "device='gpu' and mode='torch', but this torch sees no CUDA device; use device='auto'"
        )
    return "cuda" if has_gpu and settings.device != "cpu" else "cpu"


def _environment(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    return {
        "device": f"{device} ({name})",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads of torch": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
    }


class _DeviceClock:
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


class _Waits(TorchDispatchMode):
    """Notes the user's line of each op that waits: the profiler has times, but no lines."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: dict[str, list[Place]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if cause := _cause(func.overloadpacket, args, result):
            self.places.setdefault(cause, []).append(_user_line())
        return result


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


def _user_line() -> Place:
    via = ""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_TORCH) and name != __file__:
            return format_site((name, frame.f_lineno)), via
        if not via and name.startswith(_TORCH) and not name.startswith(_WRAPPERS):
            via = f"torch/{name.removeprefix(_TORCH)}:{frame.f_lineno}"
        frame = frame.f_back
    return "", via


def _places(step: Callable[[], Any]) -> dict[str, list[Place]]:
    waits = _Waits()
    with waits:
        step()
    return waits.places


def _profile(
    step: Callable[[], Any], settling: int, device: str, finish: Callable[[], object]
) -> list[Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profile = torch.profiler.profile(activities=activities, acc_events=True)
    with _quiet():
        profile.start()
    try:
        for _ in range(settling):
            step()
        for i in range(TRACED_STEPS):
            with torch.profiler.record_function(f"{STEP}{i}"):
                step()
                if i == TRACED_STEPS - 1:
                    with torch.profiler.record_function(FINISH):
                        finish()
    finally:
        with _quiet():
            profile.stop()
    return list(profile.events())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Kineto writes a line of its own to the terminal, which a notebook shows in red."""
    terminal = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nowhere)
