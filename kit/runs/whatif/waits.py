"""Where a recorded step waits for the device, and which of these waits a question takes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.errors import SettingsError
from kit.ir import READ_CUTS, Segment
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import SyncPoint
from kit.trace.syncs import SyncRow

__all__ = ["SCALER", "STOPPED", "is_guessed", "of_scaler", "on_guessing", "taken_away", "waits_of"]

SCALER = "grad_scaler.py"
STOPPED = "speculate.stopped"  # of `kit.runtime.steps.stepper`


def is_guessed(run: Run, waits: Mapping[int, SyncPoint]) -> bool:
    """Would a run like this one guess steps with these waits, under `step_mode="speculate"`?

    As the runtime does: a step that waits for nothing is not guessed, and where guessing has not
    paid it stops. Whether it pays is known only where it was tried.
    """
    return bool(waits) and not _has_stopped(run)


def _has_stopped(run: Run) -> bool:
    """Has the run stopped to guess its steps, because it did not pay?"""
    return bool(run.metrics.get(STOPPED))


def on_guessing(run: Run, waits: Mapping[int, SyncPoint]) -> str:
    """What a prediction under `step_mode="speculate"` takes for granted."""
    if not waits:
        return "a step that waits for nothing is not guessed: it is recorded as in retrace"
    if _has_stopped(run):
        return "as in the measured run, guessing does not pay: steps are recorded as in retrace"
    return (
        "steps are guessed; where that takes the host more than the device gains, the runtime "
        "stops it after 16 steps, and then a step is as in retrace"
    )


def waits_of(run: Run, segments: Sequence[Segment]) -> dict[int, SyncPoint]:
    """Segment -> the sync point after it, in the order in which the first traced step had them."""
    steps = run.timeline.intervals(kind="step")
    begin, end = (steps[0][0], steps[0][1]) if len(steps) else (0, 0)
    seen = [s for s in run.timeline.syncs if begin <= s.at_ns < end]
    reads = [s.index for s in segments if s.cut in READ_CUTS]
    return dict(zip(reads, seen, strict=False))


def taken_away(own: dict[int, SyncPoint], without: Sequence[str | SyncRow | SyncPoint]) -> set[int]:
    """The segments whose wait is wished away.

    Raises:
        SettingsError: no wait is where a wish says.
    """
    found: set[int] = set()
    for wish in without:
        hits = {k for k, sync in own.items() if _matches(sync, wish)}
        if not hits:
            places = sorted({f"{s.site} via {s.via}" if s.via else s.site for s in own.values()})
            raise SettingsError(
                f"no sync point of the run is at {wish!r}; there are: {', '.join(places) or 'none'}"
            )
        found |= hits
    return found


def _matches(sync: SyncPoint, wish: str | SyncRow | SyncPoint) -> bool:
    if isinstance(wish, str):
        return bool(wish) and (wish in sync.site or wish in sync.via)
    return (sync.site, sync.via, sync.cause) == (wish.site, wish.via, wish.cause)


def of_scaler(run: Run, own: dict[int, SyncPoint], wanted: Settings) -> set[int]:
    """The scaler's own reads, where the wanted mode has none."""
    if not run.settings.scaling.waits_for_check or wanted.scaling.waits_for_check:
        return set()
    return {k for k, sync in own.items() if SCALER in sync.via or SCALER in sync.site}
