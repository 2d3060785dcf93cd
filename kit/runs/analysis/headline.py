"""How the headline of one run differs from another's, each number by the rule for "changed".

Step times and waits come from the untraced steps. Fractions come from the traced ones, which are
few: their interval is wide unless they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from kit.runs.change import Difference, StepTimes, doubt_of, part_difference, shift_of
from kit.runs.run import Run
from kit.trace import Headline, each_step, headline

__all__ = ["RERUN_POINTS", "Headlines", "has_other_samples", "headline_differences"]

RERUN_POINTS = 0.03  # what a fraction of one differs by between reruns (standard deviation)
_BLUR_POINTS = 0.10
_FRACTIONS: dict[str, Callable[[Headline], float]] = {
    "device_busy_fraction": lambda h: h.device_busy_fraction,
    "overlap_fraction": lambda h: h.overlap_fraction,
}


class Headlines:
    """The headlines of many runs, worked out once, to be compared pair by pair.

    Where runs of one label and the same settings are among them, these say what the step times of
    reruns differ by; see `StepTimes`.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.steps = StepTimes(runs)
        self._runs = runs
        self._all = [run.headline() for run in runs]
        traced = [[headline(step) for step in each_step(run.timeline)] for run in runs]
        self._parts = {
            name: [[field(step) for step in steps] for steps in traced]
            for name, field in _FRACTIONS.items()
        }
        self._waits = [_waits_ms(run) for run in runs]

    def differences(self, old: int, new: int) -> dict[str, Difference]:
        """From one run to another, by the field of `Headline`.

        Steps of other batch sizes are compared by the sample.
        """
        before, now = self._all[old], self._all[new]
        waits = before.sync_wait_ms, now.sync_wait_ms
        found = {
            "step_ms": self.steps.difference(old, new),
            **{name: self._fraction(name, old, new) for name in _FRACTIONS},
            "sync_wait_ms": part_difference(
                waits, (self._waits[old], self._waits[new]), now.step_ms
            ),
        }
        why = doubt_of(self._runs[old], self._runs[new])
        counts = {"syncs_per_step": self._counts(old, new)}
        return {k: replace(d, doubt=why) for k, d in found.items()} | counts

    def _counts(self, old: int, new: int) -> Difference:
        """Of sync points a step: exact, but for a read in some steps only.

        A run may hold one such read more or less, by where in the program it began.
        """
        a, b = (self._all[i].syncs_per_step for i in (old, new))
        steps = [len(self._runs[i].step_times_ns) for i in (old, new)]
        is_exact = a.is_integer() and b.is_integer()
        half = 0.0 if is_exact or not all(steps) else sum(1 / n for n in steps)
        return Difference(a, b, b - a - half, b - a + half, is_ratio=False, blur=0.0)

    def _fraction(self, name: str, old: int, new: int) -> Difference:
        """From the traced steps taken together; how sure, from each of them alone."""
        a, b = (_FRACTIONS[name](self._all[i]) for i in (old, new))
        parts = self._parts[name]
        half = shift_of([parts[old]], [parts[new]], rerun=RERUN_POINTS).spread
        return Difference(a, b, b - a - half, b - a + half, is_ratio=False, blur=_BLUR_POINTS)


def headline_differences(old: Run, new: Run) -> dict[str, Difference]:
    """By the field of `Headline`. Steps of other batch sizes are compared by the sample."""
    return Headlines([old, new]).differences(0, 1)


def has_other_samples(old: Run, new: Run) -> bool:
    """Do their steps hold different numbers of samples, so that step times do not compare?"""
    a, b = old.settings, new.settings
    return a.batch_size * a.accumulate != b.batch_size * b.accumulate


def _waits_ms(run: Run) -> list[float]:
    """What each measured step waited; nothing if not all waited equally often."""
    steps = len(run.step_times_ns)
    waits = [sync.wait_ns / 1e6 for sync in run.sync_points]
    if not steps or len(waits) % steps:
        return []
    return [float(np.sum(part)) for part in np.array_split(waits, steps)]
