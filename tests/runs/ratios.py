"""Two sides that are numbers, compared by the rule for "changed"."""

from __future__ import annotations

from collections.abc import Sequence

from kit.runs.change import RERUN, Difference, Times, ratio
from kit.runs.spread import LogTimes, Rerun


def ratio_of(old: Sequence[Times], new: Sequence[Times]) -> Difference:
    """How many times as much `new` is as `old`; each side is a sequence of runs, each of times."""
    reruns = Rerun(RERUN, wanders=True)
    return ratio(*(LogTimes.of(runs, [reruns] * len(runs)) for runs in (old, new)))
