"""What a step mode came to, in words."""

from __future__ import annotations

from collections import Counter

from kit.runtime.steps.payoff import Payoff
from kit.runtime.steps.recording import Reasons
from kit.text import format_count

__all__ = ["said_of"]


def said_of(
    mode: str, has_run: bool, counts: Counter[str], payoff: Payoff, reasons: Reasons
) -> list[str]:
    """A line for what was replayed or guessed, and for why steps were recorded; none of retrace."""
    if mode != "retrace" and not has_run:
        return [
            f"{mode}: no step was given to session.run_step(step); steps of a loop that is watched "
            "are recorded each time, those of a @kit.workload are not"
        ]
    lines = list[str]()
    if mode == "replay":
        count = counts["replay.steps"]
        steps = format_count(count, "step") if count else "no step was"
        lines.append(f"replay: {steps} issued without being recorded")
    elif mode == "speculate":
        right, said = counts["speculate.right"], "no segment was issued ahead"
        if issued := counts["speculate.issued"]:
            said = f"{format_count(issued, 'segment')} issued ahead, {right:,} of them right"
        lines.append(f"speculate: {said}")
        if why := payoff.said:
            lines.append(f"speculate: steps are recorded without being guessed, as {why}")
    for why, n in reasons.most_common(3):
        lines.append(f"recorded{f' {n} times' if n > 1 else ''}, because {why}")
    return lines
