"""The baseline: the same step run by PyTorch itself, timed untraced and profiled by torch."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kit.errors import SettingsError
from kit.run import Run, Settings
from kit.trace import Span, SyncPoint, Timeline
from kit.workloads.context import Context, as_workload
from kit.workloads.loop import CancelledFn, Progress, loop

__all__ = ["measure"]

TRACED_STEPS = 2
_TORCH = os.path.dirname(torch.__file__) + os.sep
_WRAPPERS = tuple(_TORCH + part for part in ("_tensor", "_dynamo", "utils", "_compile", "_ops"))
_SYNC_OPS = {"aten::_local_scalar_dense": "item", "cudaStreamSynchronize": "stream synchronize",
             "cudaDeviceSynchronize": "device synchronize"}  # fmt: skip


def measure(workload: Any, settings: Settings, *, progress: Progress | None = None,
            cancelled: CancelledFn | None = None) -> Run:  # fmt: skip
    """Warm up, time `settings.steps` steps untraced, then profile two more.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
        SettingsError: a GPU was asked for and torch has none.
    """
    chosen = as_workload(workload)
    device = _device(settings)
    torch.manual_seed(settings.seed)
    step = chosen(Context(settings, device))
    finish = torch.cuda.synchronize if device == "cuda" else _nothing
    times, kept = loop(step, settings, mark_step=_nothing, finish=finish, progress=progress,
                       cancelled=cancelled)  # fmt: skip
    if progress is not None:
        progress("tracing", 0.95)
    sites = _sync_sites(step)
    finish()
    timeline = _profile(step, device, finish, sites)
    per_step = len(timeline.syncs) // TRACED_STEPS
    return Run(
        settings=settings,
        losses=tuple(float(x) for x in kept),
        step_times_ns=tuple(times),
        timeline=timeline,
        sync_points=timeline.syncs[:per_step] * len(times),  # torch times waits in a trace only
        environment=_environment(device),
        name=chosen.name,
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
        "device": f"{device} ({name})", "torch": torch.__version__,
        "python": platform.python_version(), "threads of torch": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
    }  # fmt: skip


class _Reads(TorchDispatchMode):
    """Notes the user's line of each read, in order: the profiler has times, but no lines."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sites: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_cuda:
            self.sites.append(_user_line())
        return func(*args, **(kwargs or {}))


def _user_line() -> tuple[str, str]:
    via = ""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_TORCH) and name != __file__:
            return f"{name.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.f_lineno}", via
        if not via and name.startswith(_TORCH) and not name.startswith(_WRAPPERS):
            via = f"torch/{name.removeprefix(_TORCH)}:{frame.f_lineno}"
        frame = frame.f_back
    return "", via


def _sync_sites(step: Callable[[], Any]) -> list[tuple[str, str]]:
    reads = _Reads()
    with reads:
        step()
    return reads.sites


def _profile(step: Callable[[], Any], device: str, finish: Callable[[], None],
             sites: list[tuple[str, str]]) -> Timeline:  # fmt: skip
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    spans: list[tuple[int, int]] = []
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        for i in range(TRACED_STEPS):
            with torch.profiler.record_function(f"kit step {i}"):
                start = time.perf_counter_ns()
                step()
                if i == TRACED_STEPS - 1:
                    finish()
            spans.append((start, time.perf_counter_ns()))
    return timeline_of(list(profile.events()), sites)


def timeline_of(events: list[Any], sites: list[tuple[str, str]]) -> Timeline:
    """Torch profiler events as a timeline; host phases are told by the events' own names."""
    steps = [e for e in events if e.name.startswith("kit step ")]
    if not steps:
        return Timeline.of([], origin="profiled")
    zero = min(e.time_range.start for e in steps)

    def ns(us: float) -> int:
        return max(0, round(float(us - zero) * 1000))

    spans = [Span("host/main", e.name.removeprefix("kit "), "step", ns(e.time_range.start),
                  ns(e.time_range.end)) for e in steps]  # fmt: skip
    spans += list(_phases(events, steps, ns))
    on_gpu = [e for e in events if e.device_type.name != "CPU"]
    if on_gpu:
        spans += [Span(f"device/0 stream {e.thread}", e.name, "kernel", ns(e.time_range.start),
                       ns(e.time_range.end)) for e in on_gpu]  # fmt: skip
    else:
        spans += [Span("device/0 torch cpu", e.name, "kernel", ns(e.time_range.start),
                       ns(e.time_range.end)) for e in events if _is_top_op(e)]  # fmt: skip
    # A CPU tensor is ready when the call that makes it returns: reading one waits for nothing.
    reads = [e for e in events if e.name in _SYNC_OPS] if on_gpu else []
    reads.sort(key=lambda e: e.time_range.start)
    syncs = []
    for i, e in enumerate(reads):
        site, via = sites[i % len(sites)] if sites else ("", "")
        start, stop = ns(e.time_range.start), ns(e.time_range.end)
        syncs.append(SyncPoint(start, stop - start, _SYNC_OPS[e.name], site, via))
    return Timeline.of(spans, syncs, "profiled")


def _is_top_op(event: Any) -> bool:
    """An aten op that no other aten op called: what torch's CPU kernels do for the step."""
    if not event.name.startswith("aten::"):
        return False
    parent = event.cpu_parent
    while parent is not None:
        if parent.name.startswith("aten::"):
            return False
        parent = parent.cpu_parent
    return True


def _phases(events: list[Any], steps: list[Any], ns: Callable[[float], int]) -> Iterator[Span]:
    backward = [e for e in events if e.name.startswith("autograd::engine::evaluate_function")]
    update = [e for e in events if e.name.startswith("Optimizer.step")]
    for step in steps:
        inside = step.time_range
        marks = [("forward", inside.start)]
        for name, found in (("backward", backward), ("update", update)):
            starts = [e.time_range.start for e in found
                      if inside.start <= e.time_range.start <= inside.end]  # fmt: skip
            if starts:
                marks.append((name, min(starts)))
        marks.sort(key=lambda m: m[1])
        for (name, start), (_, stop) in zip(marks, [*marks[1:], ("", inside.end)], strict=True):
            yield Span("host/main", name, "record", ns(start), ns(stop))
