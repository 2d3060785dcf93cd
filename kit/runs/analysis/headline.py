"""How the headline of one run differs from another's, each number by the rule for "changed".

Step times and waits come from the untraced steps. Fractions come from the traced ones, which are
few: their interval is wide unless they agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from kit.runs.change import Difference, doubt_of, part_difference, shift_of, step_difference
from kit.runs.run import Run
from kit.trace import Headline, each_step, headline

__all__ = ["RERUN_POINTS", "has_other_samples", "headline_differences"]

RERUN_POINTS = 0.03  # what a fraction of one differs by between reruns (standard deviation)
_BLUR_POINTS = 0.10


def headline_differences(old: Run, new: Run) -> dict[str, Difference]:
    """By the field of `Headline`. Steps of other batch sizes are compared by the sample."""
    now, before = new.headline(), old.headline()
    waits = before.sync_wait_ms, now.sync_wait_ms
    more = now.syncs_per_step - before.syncs_per_step  # a count has no spread
    counts = Difference(before.syncs_per_step, now.syncs_per_step, more, more, is_ratio=False)
    why = doubt_of(old, new)
    found = {
        "step_ms": step_difference(old, new, by_sample=has_other_samples(old, new)),
        "device_busy_fraction": _fraction(old, new, lambda h: h.device_busy_fraction),
        "overlap_fraction": _fraction(old, new, lambda h: h.overlap_fraction),
        "sync_wait_ms": part_difference(waits, (_waits_ms(old), _waits_ms(new)), now.step_ms),
    }
    return {k: replace(d, doubt=why) for k, d in found.items()} | {"syncs_per_step": counts}


def has_other_samples(old: Run, new: Run) -> bool:
    """Do their steps hold different numbers of samples, so that step times do not compare?"""
    a, b = old.settings, new.settings
    return a.batch_size * a.accumulate != b.batch_size * b.accumulate


def _fraction(old: Run, new: Run, field: Callable[[Headline], float]) -> Difference:
    """From the traced steps taken together; how sure, from each of them alone."""
    a, b = field(old.headline()), field(new.headline())
    parts = [[field(headline(step)) for step in each_step(run.timeline)] for run in (old, new)]
    half = shift_of([parts[0]], [parts[1]], rerun=RERUN_POINTS).spread
    return Difference(a, b, b - a - half, b - a + half, is_ratio=False, blur=_BLUR_POINTS)


def _waits_ms(run: Run) -> list[float]:
    """What each measured step waited."""
    steps = len(run.step_times_ns)
    waits = [sync.wait_ns / 1e6 for sync in run.sync_points]
    return [float(np.sum(part)) for part in np.array_split(waits, steps)] if steps else []
