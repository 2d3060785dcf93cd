"""What a loop does after its recording: whether its time goes where the recorded steps show it."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from time import perf_counter_ns

from kit.runs.run import Run
from kit.runs.steady import UNEQUAL
from kit.text import format_count, format_ms

__all__ = ["LaterSteps"]

_FASTER = 1.5  # times: measured steps that took so much longer are no sample of the loop


class LaterSteps:
    """The steps after a recording that was complete: how many, and from when to when.

    In a loop of phases (to play games, then to train on them) the recorded steps are of one phase.
    """

    def __init__(self) -> None:
        self._count = -1  # the first end of a step only begins the time
        self._began_ns = self._ended_ns = 0

    def end_step(self) -> None:
        """A step of the loop has ended."""
        self._ended_ns = perf_counter_ns()
        if self._count < 0:
            self._began_ns = self._ended_ns
        self._count += 1

    def noted(self, run: Run) -> Run:
        """The run, with a note where these took longer than its own, or far less, in the mean."""
        own = run.step_times_ns
        if not own or self._count < len(own):
            return run
        took_ms = (self._ended_ns - self._began_ns) / 1e6
        each_ms, own_ms = took_ms / self._count, fmean(own) / 1e6
        if own_ms / _FASTER <= each_ms <= (1 + UNEQUAL) * own_ms:
            return run
        why = "the rest of the loop's time is outside of what was recorded"
        if each_ms < own_ms:
            why = (
                "those were of a slower beginning, as of an epoch that fills a cache; begin later "
                "(skip=, or --skip)"
            )
        said = (
            f"after the recording the loop made {format_count(self._count, 'step')} in "
            f"{format_ms(took_ms)}, {format_ms(each_ms)} each in the mean; the measured ones took "
            f"{format_ms(own_ms)}: {why}"
        )
        notes = (*run.timeline.notes, said)
        return replace(run, timeline=replace(run.timeline, notes=notes))
