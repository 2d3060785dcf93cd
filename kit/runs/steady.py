"""How many steps a run takes: some until they are steady, then enough to measure.

One rule says whether steps still get faster or slower, for the warm-up and for measured steps. One
says how many are measured where nobody does: a machine's speed comes in phases of some 100 ms, so a
few short steps lie within one of them and say nothing of the next. Of long steps there must be
some, too, or their spread is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kit.text import format_percent

__all__ = [
    "ALIKE",
    "ENOUGH_S",
    "LEAST_STEPS",
    "MOST_STEPS",
    "MOST_WARMUP",
    "WINDOW",
    "drift",
    "drift_text",
    "enough_steps",
]

ALIKE = 0.05  # of the step: medians that differ by less are taken for equal
SURE = 0.9  # of the pairs of an earlier and a later step must say the same
WINDOW = 6  # warm-up steps that are judged: three against three
MOST_WARMUP = 20
ENOUGH_S = 1.0  # what the measured steps fill together
GOOD_STEPS = 30  # at least, unless they fill more than `LONG_S`
LONG_S = 5.0
LEAST_STEPS = 10  # however long they are
MOST_STEPS = 1000  # however short: each keeps its time and its sync points


def drift(times: Sequence[float]) -> float:
    """By how much the later half of the steps is slower than the earlier one; 0: no trend.

    Medians must differ by more than `ALIKE`, and in `SURE` of all pairs of an earlier and a later
    step it must be the same one that is slower: single slow steps, and steps of two sorts, are no
    trend.
    """
    import numpy as np  # here: `Settings` needs this file, and must not wait for it

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
        f"the measured steps were still getting {how}: the later half took "
        f"{format_percent(abs(change))} {'more' if change > 0 else 'less'} than the earlier "
        "one. Measure again, or raise warmup"
    )


def enough_steps(step_s: float) -> int:
    """How many steps of this length are measured; `LEAST_STEPS` if the length is not known."""
    if not step_s > 0:
        return LEAST_STEPS
    least = min(max(int(LONG_S / step_s), LEAST_STEPS), GOOD_STEPS)
    return min(max(math.ceil(ENOUGH_S / step_s), least), MOST_STEPS)
