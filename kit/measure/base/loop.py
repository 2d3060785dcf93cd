"""The measured loop that every mode shares: warm up, then time each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kit.errors import Cancelled, SettingsError
from kit.runs.settings import Settings

__all__ = ["CancelledFn", "Pace", "Progress", "detached", "no_loss", "timed_steps"]

Progress = Callable[[str, float], None]
CancelledFn = Callable[[], bool]


_NO_GRADIENTS = (
    "kit: no parameter of this optimizer has a gradient: call scaler.scale(loss).backward() before "
    "scaler.step(optimizer), with a loss that depends on them"
)


def detached(loss: Any) -> Any:
    """The loss outside of autograd; an array of jax is that already.

    Raises:
        SettingsError: it is no tensor and no array.
    """
    if hasattr(loss, "detach"):
        return loss.detach()
    if getattr(loss, "shape", None) == () and hasattr(loss, "block_until_ready"):
        return loss
    raise no_loss(loss)


def no_loss(result: Any) -> SettingsError:
    """What to raise of a step that returns something else."""
    return SettingsError(
        f"the step must return its loss as a tensor, not {type(result).__name__}: "
        "end it with `return loss`"
    )


def _nothing() -> None:
    """Where a runtime has nothing to do."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What the measured loop does around the steps, which each runtime does in its own way."""

    finish: Callable[[], object]  # wait for all work
    mark_step: Callable[[], object] = _nothing  # a step ends
    quiet: Callable[[], object] = _nothing  # wait for what else would disturb the clock
    start: Callable[[], object] = _nothing  # the measured steps begin
    keep: Callable[[Any], Any] = detached  # what to keep of a measured step's result


def timed_steps(
    step: Callable[[], Any],
    settings: Settings,
    pace: Pace,
    *,
    progress: Progress | None = None,
    cancelled: CancelledFn | None = None,
) -> tuple[list[int], list[Any]]:
    """Run warm-up steps, then measured ones: times in nanoseconds, and what was kept of each.

    A step's time is from one `mark_step` to the next; the last one's includes `finish`, so that
    work still running counts. While the program pauses after the warm-up, a loader's thread fills
    its queue; `settings.settling` steps more empty it before the clock runs. What is kept is of the
    first steps after the warm-up all the same: losses are those of any other `prefetch`.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
        SettingsError: the step returned something that is not a loss.
    """
    first = settings.warmup + settings.settling  # measured step
    total = first + settings.steps
    times: list[int] = []
    kept: list[Any] = []
    before = time.perf_counter_ns()
    for i in range(total):
        if cancelled is not None and cancelled():
            raise Cancelled(f"cancelled before step {i + 1} of {total}")
        if i == settings.warmup:
            pace.finish()
            pace.quiet()
        if i == first:
            pace.start()
            before = time.perf_counter_ns()
        result = _called(step, i, settings)
        pace.mark_step()
        if i == total - 1:
            pace.finish()
        now = time.perf_counter_ns()
        if i >= first:
            times.append(now - before)
        if settings.warmup <= i < settings.warmup + settings.steps:
            kept.append(pace.keep(result))
        before = now
        if progress is not None:
            name = "measuring" if i >= first else "warming up"
            progress(f"{name} (compiling)" if i < settings.warmup else name, 0.9 * (i + 1) / total)
            before = time.perf_counter_ns()
    return times, kept


def _called(step: Callable[[], Any], i: int, settings: Settings) -> Any:
    """The step's result; an error says in which step it was."""
    try:
        return step()
    except StopIteration as error:
        raise SettingsError(
            f"an iterator that the step reads has ended, at step {i + 1} of "
            f"{settings.warmup + settings.steps}: give it more data, ask for fewer steps, or take "
            "batches from ctx.loader(dataset), which starts again"
        ) from error
    except Exception as error:
        what = f"warm-up step {i}" if i < settings.warmup else f"step {i - settings.warmup}"
        error.add_note(f"kit: this was {what}, with {settings}")
        if "No inf checks were recorded" in str(error):  # torch says no more than that
            error.add_note(_NO_GRADIENTS)
        raise
