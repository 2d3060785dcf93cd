"""Where a recorded step waits for the device, and which of these waits a question takes away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from kit.errors import SettingsError
from kit.ir import Graph
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import SyncPoint
from kit.trace.syncs import SyncRow

__all__ = [
    "CHECK",
    "SCALER",
    "STOPPED",
    "Waits",
    "around_check",
    "by_op",
    "is_guessed",
    "on_guessing",
    "waits_by_segment",
    "without_scalers",
    "without_wished",
]

Waits = Mapping[int, tuple[SyncPoint, ...]]  # segment -> the sync points that follow it, in order

SCALER = "grad_scaler.py"
CHECK = SyncPoint(0, 0, "item", "the loss-scale check", SCALER)
STOPPED = "speculate.stopped"  # of `kit.runtime.steps.stepper`


def is_guessed(run: Run, waits: Waits) -> bool:
    """Would a run like this one guess steps with these waits, under `step_mode="speculate"`?

    As the runtime does: a step that waits for nothing is not guessed, and where guessing has not
    paid it stops. Whether it pays is known only where it was tried.
    """
    return bool(waits) and not _has_stopped(run)


def _has_stopped(run: Run) -> bool:
    """Has the run stopped to guess its steps, because it did not pay?"""
    return bool(run.metrics.get(STOPPED))


def on_guessing(run: Run, waits: Waits) -> str:
    """What a prediction under `step_mode="speculate"` takes for granted."""
    if not waits:
        return "a step that waits for nothing is not guessed: it is recorded as in retrace"
    if _has_stopped(run):
        return "as in the measured run, guessing does not pay: steps are recorded as in retrace"
    return (
        "steps are guessed; where that takes the host more than the device gains, the runtime "
        "stops it after 16 steps, and then a step is as in retrace"
    )


def waits_by_segment(run: Run) -> Waits:
    """The sync points of the first traced step, by the segment that was cut last before each ends.

    A read of what was issued before cuts no segment of its own: so it is in mode "imperative", and
    where two values are read one after the other. One that comes before the first cut waits for the
    step before, and is left out.
    """
    timeline, steps = run.timeline, run.timeline.intervals(kind="step")
    if not len(steps):
        return {}
    begin, end = steps[0]
    named = [i for i, name in enumerate(timeline.names) if name.startswith("cut: ")]
    is_cut = timeline.where(kind="plan") & np.isin(timeline.name, named)
    cuts = timeline.start_ns[is_cut & (timeline.start_ns >= begin) & (timeline.start_ns < end)]
    found: dict[int, tuple[SyncPoint, ...]] = {}
    for sync in timeline.syncs:
        place = int(np.searchsorted(cuts, sync.at_ns + sync.wait_ns)) - 1
        if begin <= sync.at_ns < end and 0 <= place < len(run.segments):
            index = run.segments[place].index
            found[index] = (*found.get(index, ()), sync)
    return found


def by_op(run: Run, waits: Waits) -> dict[int, tuple[SyncPoint, ...]]:
    """The same by the op that was recorded last before each: cut otherwise, a segment ends there.

    In the run itself that op may have been pending then, in a segment that nobody waited for.
    """
    at = np.array(run.recorded_ns, np.int64)
    ops = np.array(run.graphs[0].ops, np.intp)
    ops = ops[ops < len(at)]
    ops = ops[at[ops] >= 0]
    found: dict[int, tuple[SyncPoint, ...]] = {}
    for segment in run.segments:
        for sync in waits.get(segment.index, ()):
            op = int(ops[at[ops] <= sync.at_ns].max(initial=segment.nodes[-1]))
            found[op] = (*found.get(op, ()), sync)
    return found


def without_wished(own: Waits, without: Sequence[str | SyncRow | SyncPoint]) -> Waits:
    """The waits that nobody wishes away.

    Raises:
        SettingsError: no wait is where a wish says.
    """
    every = [sync for syncs in own.values() for sync in syncs]
    for wish in without:
        if not any(_matches(sync, wish) for sync in every):
            places = sorted({f"{s.site} via {s.via}" if s.via else s.site for s in every})
            raise SettingsError(
                f"no sync point of the run is at {wish!r}; there are: {', '.join(places) or 'none'}"
            )
    return _kept(own, lambda sync: not any(_matches(sync, wish) for wish in without))


def _matches(sync: SyncPoint, wish: str | SyncRow | SyncPoint) -> bool:
    if isinstance(wish, str):
        return bool(wish) and (wish in sync.site or wish in sync.via)
    return sync.place == wish.place


def without_scalers(run: Run, own: Waits, wanted: Settings) -> Waits:
    """The waits without the scaler's own reads, where the wanted mode has none."""
    if not run.settings.scaling.waits_for_check or wanted.scaling.waits_for_check:
        return own
    return _kept(own, lambda sync: SCALER not in sync.via and SCALER not in sync.site)


def around_check(graph: Graph) -> tuple[int, int]:
    """The first op of the update, before which a scaler looks at the gradients; the one before it.

    Raises:
        SettingsError: there is no update, or nothing before it.
    """
    for before, op in pairwise(graph.ops):
        if graph.nodes[op].phase == "update":
            return op, before
    raise SettingsError(
        "loss_scaling cannot be predicted: no optimizer's update was recorded in this run, before "
        "which a check of the gradients would be. Measure it: kit.run(workload, settings)"
    )


def _kept(own: Waits, is_kept: Callable[[SyncPoint], bool]) -> Waits:
    """Those of the waits that stay; a segment that has none any more is left out."""
    left = {k: tuple(filter(is_kept, syncs)) for k, syncs in own.items()}
    return {k: syncs for k, syncs in left.items() if syncs}
