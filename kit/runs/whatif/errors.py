"""How wrong the model is known to be, by the kind of change: measured figures, kept as data.

`interval_ms` makes of them, and of the base run's own spread, where the measured step is expected.
docs/what_if.md says how the figures were measured; what nobody has measured has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kit.runs.change import told_interval
from kit.runs.knob import knobs_of
from kit.runs.run import Run
from kit.runs.steady import sorts_of_steps
from kit.runs.whatif.question import Question
from kit.text import format_percent

__all__ = ["KNOWN_ERRORS", "KnownError", "doubts", "interval_ms"]


@dataclass(frozen=True, slots=True)
class KnownError:
    """How far nine of ten predictions of one kind were off at most, beside their runs' spread."""

    settings: tuple[str, ...]  # that differ from the run's
    at_most: float  # of the measured step
    origin: str  # where that was measured


def _unfitted(pairs: int) -> str:
    return (
        "measured on five small steps that no constant of the model was chosen on "
        f"({pairs:,} pairs, a quiet machine with 2 cores, NPROC=1)"
    )


REPLAY = "step_mode='replay'"  # of a recorded step: nothing but its loading and launches is left
WORTH_SAYING = 1.2  # a stretch of the measured steps
SAME = KnownError((), 0.10, _unfitted(888))  # measured again
KNOWN_ERRORS = (
    SAME,
    KnownError(
        ("mode", "bulk_forward", "bulk_backward", "step_mode", "loss_scaling", "accumulate"),
        0.25,
        _unfitted(4345),
    ),
    KnownError((REPLAY,), 0.45, _unfitted(206)),
    KnownError(("prefetch",), 0.50, _unfitted(1430)),
)


def doubts(*runs: Run) -> list[str]:
    """Why all that is predicted from these runs may be off; nothing of runs that can be told."""
    found = dict.fromkeys(run.doubt for run in runs if run.doubt)
    return [f"the run may be off, and what is made of it: {why}" for why in found]


def interval_ms(
    step_ms: float, run: Run, asked: Question, stretch: float
) -> tuple[float, float, str]:
    """In which the measured step is expected in nine of ten cases, and why so wide, in words.

    Args:
        step_ms: what the model says.
        run: what it says that from; its steps' spread counts, too.
        stretch: how many times the run's steps took what the model makes of its traced parts. A
            trace only slows, so what is above 1 is something that no part shows, and under other
            settings it may be there or not.

    Returns:
        least, most and the words; nan, nan where nobody has measured such predictions.
    """
    if run.doubt and run.doubt != run.measured.unlike_text:  # that one widens it, below
        why = "how wrong predictions are was measured on runs that nothing disturbed"
        return math.nan, math.nan, f"how far off this is, is not known: {why}"
    unmeasured = [name for name in _changed(run, asked) if _known(name) is None]
    low, high = told_interval(run, of_rerun=False)  # beside which `KNOWN_ERRORS` were measured
    if differ := sorts_of_steps(run.timeline, run.sorts):
        why = f"the traced steps differ ({differ}), and the model has the first one's ops"
        return math.nan, math.nan, f"how far off this is, is not known: {why}"
    if unmeasured or not low > 0:
        what = f"no prediction with another {' or '.join(unmeasured)} was compared with a run"
        few = "the run has too few steps to know their spread, or very unequal ones"
        why = what if unmeasured else few
        return math.nan, math.nan, f"how far off this is, is not known: {why}"
    rows = [SAME, *(row for name in _changed(run, asked) if (row := _known(name)) is not None)]
    worst = max(rows, key=lambda row: row.at_most)
    half = math.hypot(math.log1p(worst.at_most), math.log(high / low) / 2)
    said = (
        f"the interval: nine of ten such predictions are off by at most "
        f"{format_percent(worst.at_most)} beside the spread of the run's own steps, {worst.origin}"
    )
    if _changed(run, asked) and stretch > 1.0:
        half = math.hypot(half, math.log(stretch))
        if stretch >= WORTH_SAYING:
            said += (
                f". It is wider because the measured steps took {stretch:.1f} times what their "
                "traced parts come to, and what the rest was is not known: measure again when "
                "nothing else runs"
            )
    return step_ms * math.exp(-half), step_ms * math.exp(half), said


def _changed(run: Run, asked: Question) -> list[str]:
    """What differs from the run: settings that say what is run, and arguments of `kit.predict`."""
    mine, theirs = run.settings, asked.settings
    found = [
        REPLAY if (knob.name, theirs.step_mode) == ("step_mode", "replay") else knob.name
        for knob in knobs_of(mine)
        if not knob.is_measuring and getattr(mine, knob.name) != getattr(theirs, knob.name)
    ]
    others = {
        "set of sync points": bool(asked.without),
        "device speed": asked.device_speed != 1.0,
        "host speed": asked.host_speed != 1.0,
        "launch time": asked.launch_ns is not None,
        "wait time": asked.sync_ns is not None,
    }
    return [*found, *(name for name, is_asked in others.items() if is_asked)]


def _known(name: str) -> KnownError | None:
    return next((row for row in KNOWN_ERRORS if name in row.settings), None)
