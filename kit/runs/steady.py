"""Are steps still getting faster, or slower? One rule, for the warm-up and for measured steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["ALIKE", "MOST_WARMUP", "WINDOW", "drift", "drift_text"]

ALIKE = 0.05  # of the step: medians that differ by less are taken for equal
SURE = 0.9  # of the pairs of an earlier and a later step must say the same
WINDOW = 6  # warm-up steps that are judged: three against three
MOST_WARMUP = 20


def drift(times: Sequence[float]) -> float:
    """By how much the later half of the steps is slower than the earlier one; 0: no trend.

    Medians must differ by more than `ALIKE`, and in `SURE` of all pairs of an earlier and a later
    step it must be the same one that is slower: single slow steps, and steps of two sorts, are no
    trend.
    """
    half = len(times) // 2
    if half < WINDOW // 2:
        return 0.0  # two steps differ by chance
    early, late = np.asarray(times[:half], float), np.asarray(times[-half:], float)
    change = float(np.median(late) / max(float(np.median(early)), 1e-9)) - 1
    pairs = np.sign(late[None, :] - early[:, None])
    agreed = max(float((pairs > 0).mean()), float((pairs < 0).mean()))
    return change if abs(change) > ALIKE and agreed >= SURE else 0.0


def drift_text(times: Sequence[float]) -> str:
    """A sentence for measured steps that were not steady; "" if they were."""
    change = drift(times)
    if not change:
        return ""
    how = "slower" if change > 0 else "faster"
    return (
        f"the measured steps were still getting {how}: the later half took {abs(change):.0%} "
        f"{'more' if change > 0 else 'less'} than the earlier one. Measure again, or raise warmup"
    )
