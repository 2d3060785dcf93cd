"""What several rules of advice ask of a run, and the most that following one could save."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from kit.runs.analysis.lines import recorded_before_copies
from kit.runs.labels import is_on_gpu
from kit.runs.run import Run
from kit.runs.verdict.cures import input_names
from kit.trace.kinds import CATEGORY_ROWS, COPY

__all__ = ["HOST_WORK", "RECORDING", "SHARE", "Seen"]

SHARE = 0.05  # of the step: what costs less is not worth a sentence
RECORDING = tuple(row.name for row in CATEGORY_ROWS if row.phase)
# What one thread does in turn.
HOST_WORK = (*RECORDING, "own code", "input", "host waits elsewhere")


class Seen:
    """What several rules ask of a run's timeline, worked out once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.rows = run.breakdown()
        self._together = run.together
        self.step_ms = run.traced_ms
        times = run.step_times_ns or (self.step_ms * 1e6,)
        # Of the measured steps: the median, or the mean, where a few of them cost much.
        self.measured_ms = max(float(np.median(times)), sum(times) / len(times)) / 1e6
        # A trace slows some parts of a step more than the whole: as often again, it is taken to be.
        self._faster = min(self.measured_ms / self.step_ms, 1.0) ** 2 if self.rows else 1.0

    @cached_property
    def copies_only(self) -> bool:
        """Is what the step itself copies all of its input?"""
        names = input_names(self._run, lane="host/main")
        return bool(names) and all(name.startswith(COPY) for name in names)

    def most_ms(self, spares: Sequence[str]) -> float:
        """The most that a step can lose if the host is spared this work.

        The device's work remains, and the host's other work, both at their least without a trace;
        at best the two hide each other. A trace makes no kernel of a GPU longer.

        Args:
            spares: categories of the breakdown.
        """
        if not self.rows:
            return self._run.step_ms
        left = self.beside_ms(self.rest_ms(spares))
        if is_on_gpu(self._run):
            left = min(left, self.measured_ms - self.together_ms("device busy"))
        return max(left, 0.0)

    def rest_ms(self, spares: Sequence[str]) -> float:
        """What a traced step takes at best if the host is spared this work; as `most_ms`."""
        rest = self.together_ms(*(name for name in HOST_WORK if name not in spares))
        if spares == ("input",) and not self._run.settings.prefetch and self._run.devices == 1:
            rest = self.together_ms(*HOST_WORK) - self.together_ms("input")  # and its sleeps
        if "compile" in spares:  # in native steps, whose phases go on meanwhile
            rest = self.together_ms(*HOST_WORK, "compile") - self.together_ms("compile")
        if "input" in spares and self.copies_only:
            rest -= recorded_before_copies(self._run)
        return max(rest, self.together_ms("device busy"))

    def beside_ms(self, traced_ms: float) -> float:
        """What is left of a measured step beside a part that takes so long in a traced one."""
        return max(self.measured_ms - self._faster * traced_ms, 0.0)

    def together_ms(self, *categories: str) -> float:
        """Milliseconds a step in which one of these categories goes on, hidden or not."""
        steps = max(self._run.timeline.steps, 1)
        return self._together.time_ns(categories) / steps / 1e6

    def exposed_ms(self, category: str) -> float:
        """Milliseconds a step of this category that nothing hides."""
        return sum(row.exposed_ms for row in self.rows if row.category == category)

    @property
    def is_starved(self) -> bool:
        """True if the device is idle for long enough to be worth a sentence, or it is not known."""
        busy = self._run.headline().device_busy_fraction
        return not 1.0 - busy < SHARE
