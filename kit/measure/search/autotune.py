"""`autotune`: the fastest settings within a time budget, without changing what is computed.

Coordinate descent with successive halving: one setting after the other is varied, all its values
are run for a few steps, the better half again for more, until one is left. In the end the best few
and the start take turns, so that a machine that gets slower does so for each of them.

Source: successive halving, Jamieson and Talwalkar, https://arxiv.org/abs/1502.07943.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit.errors import Cancelled, SettingsError, is_a, is_of_handler, named_in_a_line
from kit.measure.base.turns import CancelledFn
from kit.measure.many.placement import Placement
from kit.measure.search.tuned import (
    CUT,
    Programs,
    Trial,
    Tuned,
    choose,
    program_of,
    training_of,
    work_of,
)
from kit.runs.knob import check_by_name, knobs_of
from kit.runs.loss_scaling import LOSS_SCALING, loss_scaling
from kit.runs.run import Run
from kit.runs.settings import ENOUGH, Settings
from kit.runtime.steps.stepper import CONFIRM
from kit.shown import Progress
from kit.text import check_number

__all__ = ["BULK_SIZES", "Tuned", "autotune", "axes_of"]

BULK_SIZES = (200, 50, 15, 5)
EXPLORE = 0.6  # part of the budget for finding candidates; the rest is for comparing the best
FINALISTS = 3  # beside the start and the simplest that is as fast
ROUNDS = 3  # in which the finalists take turns
SWEEPS = 2  # over all settings: the second sees what the first has changed
MIN_STEPS = 4
WARMUP = CONFIRM + 2  # a replayed step is one from there on

Axes = dict[str, list[dict[str, Any]]]
Draw = Callable[[Tuned], Any]  # a view, or None


def autotune(workload: Any, settings: Settings | None = None, *, budget_s: float = 60.0,
             vary: Mapping[str, Sequence[Any]] | None = None, progress: Progress | None = None,
             cancelled: CancelledFn | None = None, draw: Draw | None = None,
             ) -> Tuned:  # fmt: skip
    """The fastest settings that were found in `budget_s` seconds; `kit.autotune` says more.

    Raises:
        SettingsError: a name or a value is wrong; nothing has been run then.
        Cancelled: `cancelled()` became true.
        Exception: what the workload raises under the given settings.
    """
    placement = Placement.of(workload)
    start = placement.workload.fit(settings)
    if budget_s != math.inf:
        check_number(SettingsError, "budget_s", budget_s, at_least=0, unit="seconds")
    axes = axes_of(start, vary or {}, is_alone=placement.is_alone)
    search = _Search(placement, start, budget_s, progress, cancelled)
    first = search.measure(start, search.short)
    _descend(search, axes)
    finalists = _final(search, first)
    best = choose(finalists, first)
    search.say("done", 1.0)
    return Tuned.of(best, first, search.trials.values(), budget_s=budget_s,
                    spent_s=search.spent_s, left_out=search.left_out, draw=draw)  # fmt: skip


def axes_of(start: Settings, vary: Mapping[str, Sequence[Any]], *, is_alone: bool = True) -> Axes:
    """What is varied, by name: for each value the changes that it makes.

    Args:
        is_alone: on one device; several cannot take back what others were sent.
    """
    check_by_name(vary, "what to vary", {"prefetch": [0, 2]})
    named = {**vary, **_tried(start, is_alone), **vary}  # the user's first: the budget may end
    known = [knob.name for knob in knobs_of(start) if not knob.is_measuring]
    for name, values in vary.items():
        if name not in known:
            raise SettingsError(f"{name!r} cannot be varied; there are: {', '.join(known)}")
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise SettingsError(f"vary[{name!r}] must be a list of values, not {values!r}")
    axes: Axes = {name: [{name: x} for x in values] for name, values in named.items()}
    if not any(name in vary for name in CUT):  # after what is seldom in vain, and compiles less
        sizes = [{"mode": "bulked", "bulk_forward": n, "bulk_backward": n} for n in BULK_SIZES]
        last = {name: axes.pop(name) for name in ("prefetch", "segment_mode") if name not in vary}
        axes |= {"bulk size": [{"mode": "lazy"}, *sizes], **last}
    for options in axes.values():
        for option in options:
            start.replace(**option)  # a value that cannot be is refused before anything runs
    return axes


def _tried(start: Settings, is_alone: bool) -> dict[str, Sequence[Any]]:
    """What is varied unasked, by name: it changes how fast a step is, and not what it computes."""
    tried: dict[str, Sequence[Any]] = {}
    if start.scaling.is_dynamic:  # all dynamic modes give the same weights
        tried["loss_scaling"] = [x for x in LOSS_SCALING if loss_scaling(x).is_dynamic]
    knobs = {knob.name: knob for knob in knobs_of(start)}
    tried |= {name: knob.tried for name, knob in knobs.items() if knob.tried}
    return {
        name: [x for x in values if is_alone or x not in knobs[name].one_device_only]
        for name, values in tried.items()
    }


@dataclass
class _Search:
    """Everything measured so far, and the budget."""

    placement: Placement
    start: Settings
    budget_s: float
    progress: Progress | None
    cancelled: CancelledFn | None
    trials: dict[Any, Trial] = field(default_factory=dict)  # by what the settings make happen
    left_out: list[str] = field(default_factory=list)  # what the budget did not allow
    _programs: dict[Any, Programs] = field(default_factory=dict)
    _references: dict[Any, Run] = field(default_factory=dict)  # by what is trained
    _began_s: float = field(default_factory=time.monotonic)

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def short(self) -> int:
        """Steps of a first look."""
        return max(self.start.least_steps // 2, MIN_STEPS)

    @property
    def full(self) -> int:
        """Steps of a run that decides."""
        asked = self.start.steps
        return asked if asked == ENOUGH else max(asked, MIN_STEPS)

    def has_time(self, part: float = 1.0) -> bool:
        return self.spent_s < part * self.budget_s

    def known(self, settings: Settings) -> Trial | None:
        return self.trials.get(work_of(settings))

    def measure(self, settings: Settings, steps: int, *, is_final: bool = False) -> Trial:
        """Run once more; an exception is kept, with its words, in the trial.

        Settings that issue the same programs share what they compile; others have a cache of
        their own, so that the first run tells what these programs cost alone.
        """
        programs = self._programs.setdefault(program_of(settings), Programs())
        key, is_first = work_of(settings), not self.trials
        trial = self.trials.setdefault(key, Trial(settings, self.start, programs))
        warmup = max(self.start.warmup, WARMUP)
        try:
            made = self.placement.run(
                settings.replace(steps=steps, warmup=warmup),
                progress=self._inner(trial.words),
                cancelled=self.cancelled,
                caches=programs.caches,
            )
        except Exception as error:
            if is_first or is_a(error, Cancelled) or is_of_handler(error):
                raise
            trial.failure = named_in_a_line(error)
            error.__traceback__ = None  # its frames hold memory that the next run needs
            gc.collect()
            return trial
        reference = self._references.setdefault(training_of(settings), made)
        trial.add(made, reference, is_final=is_final)
        return trial

    def say(self, text: str, fraction: float) -> None:
        if self.progress is not None:
            self.progress(text, fraction)

    def _inner(self, words: str) -> Progress | None:
        if self.progress is None:
            return None
        count = len(self.trials)

        def report(text: str, fraction: float) -> None:
            share = self.spent_s / self.budget_s if self.budget_s else 1.0
            self.say(f"setting {count}, {words}: {text}", min(share, 0.99))

        return report


def _descend(search: _Search, axes: Axes) -> None:
    """Vary one setting after the other around the best so far."""
    best = next(iter(search.trials.values()))
    for _ in range(SWEEPS):
        before = best
        for name, options in axes.items():
            candidates = [best.settings.replace(**option) for option in options]
            fresh = list({work_of(c): c for c in candidates if search.known(c) is None}.values())
            if fresh and not search.has_time(EXPLORE):
                search.left_out.append(name)
                continue
            best = choose([best, *_halve(search, fresh, name)], best)
        if best is before:
            return


def _halve(search: _Search, settings: Sequence[Settings], name: str) -> list[Trial]:
    """Run all of them for a few steps, the better half for more; gives the two best at most."""
    steps, survivors = search.short, settings
    while True:
        measured = []
        for chosen in survivors:
            if not search.has_time(EXPLORE):
                search.left_out.append(name)
                break
            measured.append(search.measure(chosen, steps))
        good = sorted((t for t in measured if t.is_possible), key=lambda t: t.ms_per_sample)
        if len(good) <= 2 or not search.has_time(EXPLORE):
            return good[:2]
        limit = good[0].ms_per_sample + good[0].spread_per_sample
        better = good[: (len(good) + 1) // 2]
        open_ = [t for t in better if t.ms_per_sample - t.spread_per_sample <= limit]
        if len(open_) == 1:
            return open_
        survivors = [t.settings for t in open_]
        steps = min(2 * steps, max(search.start.least_steps, MIN_STEPS))


def _final(search: _Search, first: Trial) -> list[Trial]:
    """The start and the best few take turns; those that were compared."""
    others = (t for t in search.trials.values() if t.is_possible and t is not first)
    # By how fast it may be: one that ran a few noisy steps has not lost yet.
    possible = sorted(others, key=lambda t: t.ms_per_sample - t.spread_per_sample)
    simple = choose([first, *possible], first)  # the one to beat, if it is as fast
    finalists = list(dict.fromkeys([first, simple, *possible[:FINALISTS]]))
    if len(finalists) == 1:
        if any(not t.is_same for t in search.trials.values()) and search.has_time():
            search.measure(first.settings, search.short)  # does it agree with itself?
        return finalists
    for i in range(ROUNDS):
        for k in range(len(finalists)):
            if not search.has_time():
                search.left_out.append("comparing the best")
                return finalists
            search.measure(finalists[(i + k) % len(finalists)].settings, search.full, is_final=True)
        finalists = [t for t in finalists if t.is_possible or t is first]
    return finalists
