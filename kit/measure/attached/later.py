"""What a loop does after its recording: whether its time goes where the recorded steps show it."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from kit.runs.conditions import doubt
from kit.runs.run import Run
from kit.runs.steady import UNEQUAL
from kit.text import format_count, format_ms

__all__ = ["LaterSteps"]

_LONG_MS = 500.0  # after the last step: less is the end of any program
_START_MS = 10_000.0  # before the first step: less is the start of any program, with its imports
_SPREADS = 2.0  # standard deviations of the measured steps: a mean so near to theirs may be noise
_FASTER = 1.5  # times: measured steps that took so much longer are no sample of the loop


class LaterSteps:
    """The steps after a recording: how many, and how long they and what came after them took.

    In a loop of phases (to play games, then to train on them) the recorded steps are of one phase.
    Where none came after it, the time before it is all that tells of the others.

    Args:
        asked_ns: when the recording was asked for, whose first step begins now.
    """

    def __init__(self, asked_ns: int | None = None) -> None:
        self._before_ns = 0 if asked_ns is None else perf_counter_ns() - asked_ns
        self._count = 0
        self._began_ns = self._ended_ns = self._over_ns = -1

    def begin(self) -> None:
        """The recording is over."""
        self._began_ns = self._ended_ns = self._over_ns = perf_counter_ns()
        self._count = 0

    def end_step(self) -> None:
        """A step of the loop has ended."""
        self._ended_ns = self._over_ns = perf_counter_ns()
        self._count += 1

    def end(self) -> None:
        """Nothing of the program's is watched any more."""
        self._over_ns = perf_counter_ns()

    def noted(self, run: Run) -> Run:
        """The run, with notes where its steps do not show where the loop's time went."""
        own_ms = np.array(run.step_times_ns) / 1e6
        if not len(own_ms) or self._began_ns < 0:
            return run
        took_ms = (self._ended_ns - self._began_ns) / 1e6
        after_ms = (self._over_ns - self._ended_ns) / 1e6
        is_waited = bool(len(run.timeline))  # these steps of jax, which has none, do not wait
        said = [self._unlike(own_ms, took_ms, is_waited, bool(doubt(run.conditions)))]
        if after_ms > max(took_ms + own_ms.sum(), _LONG_MS):
            said.append(
                f"after the loop's last step the program went on for {format_ms(after_ms)}: what "
                "it did there, as to validate or to save, is in no step"
            )
        before_ms = self._before_ns / 1e6
        if not self._count and before_ms > max(own_ms.sum(), _START_MS):
            said.append(
                f"recording began {format_ms(before_ms)} after it was asked for, and no step came "
                "after the recorded ones: what the program did before, as to import, to load data, "
                "to play games or to make its first step, was not recorded, and whether it comes "
                "again is not known"
            )
        notes = (*run.timeline.notes, *filter(None, said))
        return replace(run, timeline=replace(run.timeline, notes=notes))

    def _unlike(
        self, own_ms: NDArray[np.float64], took_ms: float, is_waited: bool, is_busy: bool
    ) -> str:
        """Where these took longer than the measured ones, or far less, in the mean; "" elsewhere.

        A few may show that only by more time than all of the measured ones took. On a machine that
        `is_busy` it may be that others took more of it for a while.
        """
        mean_ms = float(own_ms.mean())
        is_few = self._count < len(own_ms) and took_ms <= (1 + UNEQUAL) * own_ms.sum()
        if not self._count or is_few:
            return ""
        each_ms = took_ms / self._count
        most_ms = mean_ms + max(UNEQUAL * mean_ms, _SPREADS * float(own_ms.std()))
        if (mean_ms / _FASTER <= each_ms or not is_waited) and each_ms <= most_ms:
            return ""
        why = "the rest of the loop's time is outside of what was recorded"
        if each_ms < mean_ms:
            why = (
                "those were of a slower beginning, as of an epoch that fills a cache; begin later "
                "(skip=, or --skip)"
            )
        return (
            f"after the recording the loop made {format_count(self._count, 'step')} in "
            f"{format_ms(took_ms)}, {format_ms(each_ms)} each in the mean; the measured ones took "
            f"{format_ms(mean_ms)}: {why}{', unless other programs did that' * is_busy}"
        )
