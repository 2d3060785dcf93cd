"""What changed from one run to another, in one sentence, by the one rule for "changed".

Only what the spread exceeds is told; where there is nothing, the sentence says that. A sync point
that is gone or new is a count, which has no spread.
"""

from __future__ import annotations

from collections.abc import Mapping

from kit.runs.change import Difference
from kit.text import format_count, format_ms, format_number, format_percent

__all__ = ["NOTHING", "change_sentence", "is_told"]

NOTHING = "nothing that can be told from noise"


def change_sentence(
    found: Mapping[str, Difference], *, unit: str = "step", known_doubt: str = ""
) -> str:
    """`the red wait is gone (it took 2 ms a step); the device is busy 97% instead of 71%`.

    Args:
        found: what `headline_differences` gives.
        unit: what step times are compared by, "step" or "sample".
        known_doubt: the doubt that stands beside the sentence, which so need not say it, too.
    """
    step = found["step_ms"]
    parts = [_of_step(step, unit) if step.is_changed else "", _of_waits(found)]
    busy, overlap = found["device_busy_fraction"], found["overlap_fraction"]
    if busy.is_changed:
        now, before = format_percent(busy.new), format_percent(busy.old)
        parts.append(f"the device is busy {now} instead of {before}")
    if overlap.is_changed:
        now, before = format_percent(overlap.new), format_percent(overlap.old)
        hidden = f"{now} of recording instead of {before}"
        parts.append(f"{hidden} is hidden under the device's work")
    told = [part for part in parts if part]
    if step.is_changed:
        return "; ".join(told)
    if not told and all(d.kind == "unknown" for d in found.values()):
        return "not measured in both"
    said = f"a {unit}: {step.text(says_doubt=step.doubt != known_doubt)}"
    return f"{'; '.join(told) or NOTHING}; {said}"


def is_told(found: Mapping[str, Difference]) -> bool:
    """Is anything told from noise? The sentence is bold then."""
    return any(difference.is_changed for difference in found.values())


def _of_step(step: Difference, unit: str) -> str:
    times = f"{format_ms(step.new)} instead of {format_ms(step.old)}"
    return f"a {unit} takes {times} ({step.text()})"


def _of_waits(found: Mapping[str, Difference]) -> str:
    wait, count = found["sync_wait_ms"], found["syncs_per_step"]
    if count.is_changed and not count.new:
        if not wait.is_changed:
            return "the sync points are gone" if count.old > 1 else "the sync point is gone"
        return f"the red wait is gone (it took {format_ms(wait.old)} a step)"
    if count.is_changed and not count.old:
        if wait.is_changed:
            return f"there is a red wait of {format_ms(wait.new)} a step, where there was none"
        return f"{_there_are(count.new)}, where there was none"
    parts = []
    if wait.is_changed:
        parts.append(
            f"the host waits {format_ms(wait.new)} a step instead of {format_ms(wait.old)}"
        )
    if count.is_changed:
        parts.append(f"{_there_are(count.new)} instead of {format_number(count.old)}")
    return "; ".join(parts)


def _there_are(count: float) -> str:
    points = format_count(count, "sync point")
    return f"there {'are' if points.endswith('s') else 'is'} {points} a step"
