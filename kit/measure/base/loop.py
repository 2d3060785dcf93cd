"""The measured loop that every mode shares: warm up, then time each step; how many are traced."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit.errors import Cancelled, SettingsError, note, words_of
from kit.measure.base.loss import check_loss, detached, no_loss
from kit.measure.base.ready import ReadyBatches, used_up_text
from kit.measure.base.turns import CancelledFn
from kit.runs.settings import ENOUGH, UNTIL_STEADY, Settings
from kit.runs.steady import LEAST_STEPS, MOST_STEPS, MOST_WARMUP, WINDOW, enough_steps
from kit.shown import Progress
from kit.text import format_ms

__all__ = [
    "TRACED_STEPS",
    "Pace",
    "Timed",
    "timed_steps",
    "to_trace",
]

TRACED_STEPS = 3  # after the measured ones; of two, the spread of a fraction is hardly known
_AROUND_TRACED = 2  # steps before them, at most, and as many as settle a loader
_REPORTING = 0.01  # of the time, at most: the device works on meanwhile, and the clock stands
LEAST_WARMUP = 3  # where steps decide how long it takes; losses are kept from then on


_NO_GRADIENTS = (
    "kit: no parameter of this optimizer has a gradient: call scaler.scale(loss).backward() before "
    "scaler.step(optimizer), with a loss that depends on them"
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
    agree: Callable[[bool], bool] = bool  # do all who take the step call their steps steady?
    share: Callable[[int], int] = int  # how many steps do all who take the step measure?


@dataclass(frozen=True, slots=True)
class Timed:
    """The measured steps."""

    times: list[int]  # nanoseconds
    kept: list[Any]  # of the first steps after the least warm-up
    warmup: int  # steps before the clock ran
    ready: ReadyBatches = field(default_factory=ReadyBatches)  # counted at the end of each step

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the times, for the timeline."""
        begin, end = max(self.warmup - 1, 0), self.warmup + len(self.times)
        said = used_up_text(self.ready.counts[begin:end], self.times)  # later ones lead in
        return (said,) if said else ()

    @property
    def losses(self) -> tuple[float, ...]:
        """What was kept, read, if it is losses."""
        return tuple(float(loss.item()) for loss in self.kept)


def timed_steps(
    step: Callable[[], Any],
    settings: Settings,
    pace: Pace,
    *,
    progress: Progress | None = None,
    cancelled: CancelledFn | None = None,
    source: Callable[[], Any] | None = None,
) -> Timed:
    """Run warm-up steps, then measured ones.

    A step's time is from one `mark_step` to the next; the last one's includes `finish`, so that
    work still running counts. While the program pauses after the warm-up, a loader's thread fills
    its queue; `settings.settling` steps more empty it before the clock runs. What is kept is of the
    first steps after the least warm-up all the same: losses are those of any other `prefetch`, and
    of a run that took longer to warm up.

    Args:
        source: the step as its author wrote it, where `step` is something around that.

    Raises:
        Cancelled: `cancelled()` became true between two steps.
        SettingsError: the step returned something that is not a loss.
    """
    least = _least_warmup(settings)
    fixed = None if settings.warmup == UNTIL_STEADY else settings.warmup
    times: list[int] = []
    warming: list[int] = []
    kept: list[Any] = []
    first: int | None = None  # measured step
    end = 0  # the step after the last measured one
    ready = ReadyBatches()
    i = 0
    if progress is not None:
        progress("running the first step (may compile)", 0.0)
    before = next_report = time.perf_counter_ns()
    while first is None or i < end:
        if cancelled is not None and cancelled():
            raise Cancelled(f"cancelled before step {i + 1}")
        if first is None and ready.is_warm(warming, fixed, pace.agree):
            first = i + settings.settling
            end = first + _measured_steps(settings, warming, pace)
            pace.quiet()
        if i == first:
            pace.start()
        if first is None or i == first:
            before = time.perf_counter_ns()
        result = _called(step, i, settings)
        if i == 0:
            _check(result, pace, source or step)
        pace.mark_step()
        if i == end - 1:
            pace.finish()
        now = time.perf_counter_ns()
        (times if first is not None and i >= first else warming).append(now - before)
        if i >= least:
            kept.append(pace.keep(result))
        del result  # with its graph, which keeps the inputs that have gradients
        ready.note()
        before = time.perf_counter_ns()
        i += 1
        if progress is not None and (now >= next_report or i == end):
            said, part = _progress(i, first, end, settings)
            progress(said + _slow(i, (times or warming)[-1]), part)
            before = time.perf_counter_ns()
            next_report = before + round((before - now) / _REPORTING)
    ready.end_measured(len(times))
    return Timed(times, kept[: settings.least_steps], i - len(times), ready)


def _measured_steps(settings: Settings, warming: Sequence[int], pace: Pace) -> int:
    """How many steps are measured: as many as were asked for, or enough. All work is done then.

    A host that runs ahead of the device shows how long a step is by what is still to be done.
    """
    began = time.perf_counter_ns()
    pace.finish()
    if settings.steps != ENOUGH:
        return settings.steps
    last = warming[-WINDOW:]
    left = time.perf_counter_ns() - began
    each_ns = statistics.median(last) + left / len(last) if last else 0.0
    return pace.share(enough_steps(each_ns / 1e9))


def _least_warmup(settings: Settings) -> int:
    """Warm-up steps that every run of these settings has."""
    return LEAST_WARMUP if settings.warmup == UNTIL_STEADY else settings.warmup


def _progress(done: int, first: int | None, end: int, settings: Settings) -> tuple[str, float]:
    """What is said after a step, and which part of the run is over."""
    warmup = WINDOW if settings.warmup == UNTIL_STEADY else settings.warmup
    least = max(done, warmup) + settings.settling + settings.least_steps
    expected = least if first is None else end
    name = "measuring" if first is not None and done > first else "warming up"
    said = f"{name} (may compile)" if done <= min(warmup, LEAST_WARMUP) else name
    return said, 0.9 * done / expected


def _slow(done: int, last_ns: int) -> str:
    """How long a step took that a person has waited for."""
    return f"; step {done} took {format_ms(last_ns / 1e6)}" if last_ns >= 1e9 else ""


def _needed(settings: Settings) -> str:
    """How many steps a run has, in words."""
    warmup = (settings.warmup,) * 2
    steps = (settings.steps,) * 2
    fewer = []
    if settings.warmup == UNTIL_STEADY:
        warmup = (WINDOW, MOST_WARMUP)
        fewer.append("warmup=3")
    if settings.steps == ENOUGH:
        steps = (LEAST_STEPS, MOST_STEPS)
        fewer.append("steps=10")
    others = 2 * settings.settling + _AROUND_TRACED + TRACED_STEPS
    fewest, most = (a + b + others for a, b in zip(warmup, steps, strict=True))
    if not fewer:
        return str(most)
    return f"{fewest} to {most:,} (fewer with {', '.join(fewer)})"


def _check(result: Any, pace: Pace, step: Callable[[], Any]) -> None:
    """Refuse what is no loss after the first step: when all are over, nobody wants to hear it."""
    check_loss(result, step)
    try:
        pace.keep(result)
    except SettingsError:
        raise no_loss(result, step) from None


def _no_more(settings: Settings, at: str) -> SettingsError:
    return SettingsError(
        f"an iterator that the step reads has ended, {at} {_needed(settings)}: give it more data, "
        "ask for fewer steps, or take batches from ctx.loader(dataset), which starts again"
    )


def to_trace(step: Callable[[], Any], settings: Settings) -> Callable[[], Any]:
    """The step as it is called after the measured ones: that its data ends is said, and how."""

    def run() -> Any:
        try:
            return step()
        except StopIteration as error:
            raise _no_more(settings, "in the traced steps, which are the last of") from error

    return run


def _called(step: Callable[[], Any], i: int, settings: Settings) -> Any:
    """The step's result; an error says in which step it was."""
    try:
        return step()
    except StopIteration as error:
        raise _no_more(settings, f"at step {i + 1} of") from error
    except Exception as error:
        warmup = _least_warmup(settings)
        what = f"warm-up step {i}" if i < warmup else f"step {i - warmup}"
        note(error, f"kit: this was {what}, with {settings.to_string() or 'the default settings'}")
        if "No inf checks were recorded" in words_of(error):  # torch says no more than that
            note(error, _NO_GRADIENTS)
        raise
