"""Which run of a sweep tells the story, and which one it is told beside.

The story is where the device loses most time because a value was read; beside it stands the run
that is the fastest with as many samples in a step. Both are asked of the numbers that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kit.errors import TimelineError
from kit.runs.labels import has_other_samples, samples_of
from kit.runs.run import Run

__all__ = ["best_of", "lost_ms", "story_of"]

_LEAST_LOST = 0.01  # of the step: waits that cost less are no story


def lost_ms(run: Run) -> float:
    """Device time that the waits of a step cost, in milliseconds; nan where no step was traced."""
    try:
        share = run.limit_shares["sync"]
    except TimelineError:
        return math.nan
    return share * run.step_ms


def story_of(runs: Sequence[Run]) -> int | None:
    """The run that loses most device time to waits; None if no run loses any that counts.

    Runs that were disturbed are asked only where there are no others.
    """
    lost = {i: lost_ms(runs[i]) for i in _calm(runs)}
    told = [i for i, ms in lost.items() if ms > _LEAST_LOST * runs[i].step_ms]
    return max(told, key=lambda i: lost[i]) if told else None


def best_of(runs: Sequence[Run], like: Run | None = None) -> int | None:
    """The run with the least time for a sample; None where none was measured.

    Args:
        like: ask only the runs whose steps hold as many samples as this one's.
    """
    every = all(samples_of(run) for run in runs)  # else steps are compared
    times = {i: runs[i].step_ms / (samples_of(runs[i]) if every else 1) for i in _calm(runs)}
    known = [
        i
        for i, ms in times.items()
        if ms > 0 and (like is None or not has_other_samples(runs[i], like))
    ]
    return min(known, key=lambda i: times[i]) if known else None


def _calm(runs: Sequence[Run]) -> list[int]:
    """The runs that nothing disturbed; all, if there is none."""
    return [i for i, run in enumerate(runs) if not run.doubt] or [*range(len(runs))]
