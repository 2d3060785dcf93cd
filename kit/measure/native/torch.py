"""The baseline: the same step run by PyTorch itself, timed untraced and profiled by torch."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch

from kit.errors import SettingsError
from kit.measure.base.allocator import Allocated, memory_metrics, of_torch
from kit.measure.base.context import Context, as_workload
from kit.measure.base.loop import TRACED_STEPS, Pace, timed_steps, to_trace
from kit.measure.base.machine import Watch
from kit.measure.base.ranks import ranks_of_job
from kit.measure.base.ready import ReadyBatches
from kit.measure.base.turns import CancelledFn
from kit.measure.native.events import FINISH, STEP, blocking_lines, steps_of, timeline_of
from kit.measure.native.instruments import DeviceClock, Profiler
from kit.measure.native.launches import Launches, find_launches
from kit.measure.native.lines import Lines, ModuleNames
from kit.runs.run import Run
from kit.runs.settings import ENOUGH, UNTIL_STEADY, Settings
from kit.runs.sources import snippets_of
from kit.runs.steady import LEAST_STEPS, MOST_WARMUP, WINDOW
from kit.runtime.profiling.elsewhere import Look
from kit.runtime.profiling.heap import keep_freed_memory
from kit.runtime.recording.sites import format_site
from kit.shown import Progress
from kit.trace import Timeline
from kit.versions import warn_of_untried

__all__ = ["environment", "measure"]

_OF_RANKS = (
    "the ranks of a job must run equally many steps: where warmup and steps left that open, each "
    f"took {MOST_WARMUP} to warm up, and {LEAST_STEPS} to measure"
)


def measure(workload: Any, settings: Settings, *, progress: Progress | None = None,
            cancelled: CancelledFn | None = None) -> Run:  # fmt: skip
    """Warm up, time steps untraced, `settings.steps` or enough, then profile three more.

    A rank of a job takes as many as the others, whatever they last: its steps may wait for theirs.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
        SettingsError: a GPU was asked for and torch has none.
    """
    warn_of_untried("python", "torch")
    chosen, watch = as_workload(workload), Watch()
    device = _device(settings)
    if device == "cpu":
        keep_freed_memory()  # as for the runs on device kit that it is compared with
    torch.manual_seed(settings.seed)
    allocated = _allocated(device)
    with contextlib.closing(Context(settings, device)) as context:
        step = chosen(context)
        clock = DeviceClock() if device == "cuda" else None
        is_rank = ranks_of_job() > 1  # now: the builder may have joined the others
        pace = _pace(clock, partial(watch.begin, cancelled), is_rank=is_rank)
        timed = timed_steps(step, settings, pace, progress=progress, cancelled=cancelled)
        _check_torchs(timed.kept)
        metrics = memory_metrics(allocated, _allocated(device))
        if progress is not None:
            progress("tracing", 0.95)
        last = to_trace(step, settings)
        lines = _lines_of(last, device)
        pace.finish()
        ready = ReadyBatches() if is_rank else timed.ready  # else ranks would lead in differently
        lead_in = partial(_lead_in, last, settings.settling, ready)
        profiler, early = _profile(last, lead_in, device, pace.finish, watch.end)
    is_open = settings.warmup == UNTIL_STEADY or settings.steps == ENOUGH
    notes = [*timed.notes, *([_OF_RANKS] if is_rank and is_open else [])]
    timeline, launches, looks = _seen(profiler, lines, device, notes, early)
    return Run(
        settings=settings,
        losses=timed.losses,
        step_times_ns=tuple(clock.step_times_ns() if clock else timed.times),
        timeline=timeline,
        sync_points=timeline.syncs,
        metrics=metrics,
        environment=environment(device),
        name=chosen.name,
        sources=snippets_of(
            [*blocking_lines(timeline, looks), *launches.sites], format_site, step=step
        ),
        conditions=watch.conditions(timed.warmup),
        callers=launches.callers,
    )


def _check_torchs(losses: Sequence[Any]) -> None:
    """Refuse a step that something else has computed."""
    for loss in losses:
        if not isinstance(loss, torch.Tensor):
            raise SettingsError(
                f"the step returned a {type(loss).__name__}, which PyTorch has not "
                'computed; a step of kit.jax is marked @kit.workload(framework="jax")'
            )


def _lines_of(step: Callable[[], Any], device: str) -> list[Lines]:
    """The lines of two more steps: they may be of two sorts, by turns."""
    modules = ModuleNames()
    lines = [Lines(device, modules) for _ in range(2)]
    for look in lines:
        with look:
            step()
    return lines


def _pace(clock: DeviceClock | None, quiet: Callable[[], object], *, is_rank: bool) -> Pace:
    if clock is None:
        pace = Pace(lambda: None, quiet=quiet)
    else:
        pace = Pace(torch.cuda.synchronize, clock.mark, quiet, clock.restart)
    return _as_others(pace) if is_rank else pace


def _as_others(pace: Pace) -> Pace:
    """As many steps as every other rank takes: a collective waits for ever for one that took less.

    They do not ask each other: a rank that measures alone would wait for answers.
    """
    done = count(WINDOW)  # steps, when it is first asked whether they are steady
    return replace(
        pace,
        agree=lambda is_steady: next(done) >= MOST_WARMUP,
        share=lambda steps: LEAST_STEPS,
    )


def _seen(
    profiler: Profiler,
    lines: Sequence[Lines],
    device: str,
    notes: Sequence[str],
    early: Sequence[str],
) -> tuple[Timeline, Launches, list[Look]]:
    """The traced steps, what launched their kernels, and the looks at their thread.

    Args:
        notes: on the run; early: on the steps before those.
    """
    looks = profiler.looks()
    events = profiler.events()
    launches = find_launches(events, steps_of(events), lines, device=device)
    if profiler.note:
        return Timeline.of([], origin="profiled", notes=[*notes, profiler.note]), launches, looks
    timeline = timeline_of(
        events,
        device=device,
        places=[look.places for look in lines],
        looks=looks,
        caller=launches.of,
        notes=(*notes, *early, *launches.notes),
    )
    return timeline, launches, looks


def _allocated(device: str) -> Allocated | None:
    return of_torch(torch.cuda.memory_stats()) if device == "cuda" else None


def _device(settings: Settings) -> str:
    has_gpu = torch.cuda.is_available()
    if settings.device == "gpu" and not has_gpu:
        raise SettingsError(
            "device='gpu' and mode='torch', but this torch sees no CUDA device; use device='auto'"
        )
    return "cuda" if has_gpu and settings.device != "cpu" else "cpu"


def environment(device: str, index: int | None = None) -> dict[str, str]:
    """What a native run was measured with; device: "cuda" or "cpu"; index: as of `DeviceClock`."""
    name = torch.cuda.get_device_name(index) if device == "cuda" else platform.processor() or "cpu"
    return {
        "device": f"{device} ({name})",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads of torch": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _profile(
    step: Callable[[], Any],
    lead_in: Callable[[], Sequence[str]],
    device: str,
    finish: Callable[[], object],
    then: Callable[[], object],
) -> tuple[Profiler, Sequence[str]]:
    """What saw the traced steps, and what to know of the steps before them."""
    profiler = Profiler(device)
    with contextlib.ExitStack() as undo:
        undo.callback(profiler.stop)
        profiler.start()
        notes = lead_in()
        for i in range(TRACED_STEPS):
            with profiler.region(f"{STEP}{i}"):
                step()
                if i == TRACED_STEPS - 1:
                    with torch.profiler.record_function(FINISH):
                        finish()
        then()  # before what they did is worked out, which takes as long
    return profiler, notes


def _lead_in(step: Callable[[], Any], settling: int, ready: ReadyBatches) -> Sequence[str]:
    """Take what loaders have prepared meanwhile; notes, where that does not get less."""
    for _ in range(settling):
        step()
    number = 0
    while not (led_in := ready.led_in(number))[0]:
        step()
        number += 1
    return tuple(filter(None, led_in[1:]))
