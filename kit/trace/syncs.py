"""Sync points gathered by line, what each costs, and which idle instants of a device it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kit.errors import TimelineError
from kit.trace.active import Gaps, Kernels, Pieces, hull
from kit.trace.devices import at_work
from kit.trace.intervals import Ints, common, without
from kit.trace.timeline import Place, SyncPoint, Timeline

__all__ = [
    "RANGE",
    "READ_OR_READY",
    "UNMARKED",
    "WHOLE",
    "SyncRow",
    "after_waits",
    "from_first",
    "idle_after",
    "sync_table",
    "waits",
]

_END = np.iinfo(np.int64).max
# The names of the step of a foreign trace in which none repeats: all of it, and what was asked for.
UNMARKED = WHOLE, RANGE = "whole trace", "the chosen range"
READ_OR_READY = "a read, or block_until_ready"  # cause of a wait of which no call is known


@dataclass(frozen=True, slots=True)
class SyncRow:
    """All sync points of one place and cause."""

    site: str
    via: str
    cause: str
    count: int
    count_per_step: float
    wait_ms_per_step: float
    idle_ms_per_step: float = math.nan  # the device's, after the waits; nan if no kernel was seen

    @property
    def place(self) -> Place:
        """As of each of its sync points."""
        return self.site, self.via, self.cause

    @property
    def cost_ms_per_step(self) -> float:
        """What is known to be lost: the device's time, or else the host's."""
        idle = self.idle_ms_per_step
        return self.wait_ms_per_step if math.isnan(idle) else idle


def from_first(syncs: Iterable[SyncPoint]) -> tuple[SyncPoint, ...]:
    """The same points, counted from the first: a clock that began at boot has large numbers."""
    found = tuple(syncs)
    start = min((sync.at_ns for sync in found), default=0)
    return tuple(replace(sync, at_ns=sync.at_ns - start) for sync in found)


def sync_table(
    syncs: Iterable[SyncPoint], *, steps: int, timeline: Timeline | None = None
) -> tuple[SyncRow, ...]:
    """Sync points gathered by site, library line and cause; the dearest comes first.

    `sync_table(run.sync_points, steps=len(run.step_times_ns), timeline=run.timeline)` is the table
    of the measured steps. What each costs the device is seen in the traced steps only: a place has
    the mean of its waits there.

    Units:
        milliseconds a step

    Raises:
        TimelineError: there are sync points but no steps to average over.
    """
    groups: dict[Place, list[int]] = {}
    for s in syncs:
        groups.setdefault(s.place, []).append(s.wait_ns)
    if groups and steps < 1:
        raise TimelineError(f"waits per step need at least one step, not {steps}")
    idle = {} if timeline is None else _idle_by_place(timeline)
    rows = []
    for place, lengths in groups.items():
        per_step = len(lengths) / steps
        wait_ms = sum(lengths) / steps / 1e6
        idle_ms = idle[place] * per_step / 1e6 if place in idle else math.nan
        rows.append(SyncRow(*place, len(lengths), per_step, wait_ms, idle_ms))
    return tuple(sorted(rows, key=lambda r: (-r.wait_ms_per_step, -r.count, r.site)))


def idle_after(timeline: Timeline) -> tuple[int, ...]:
    """For each of `timeline.syncs`, device time lost because the host had waited there.

    A host that waits records nothing, so when the value is there the device has nothing to do until
    more is recorded and issued: what was prepared ahead is used up. Charged to a wait is the time
    within the steps in which nothing ran on a device (no kernel, reduction, collective or callback)
    and the host did not wait elsewhere, from its end to the next wait, but not more than it lasted:
    without it the host could have got ahead by no more than that. What is left over is charged to
    earlier waits of the same step. Gaps inside one program are the program's own. What follows the
    last wait is also seen at the begin of the first step, if each step waits at that place.

    Units:
        nanoseconds; all 0 if no device was seen to work
    """
    lost = np.zeros(len(timeline.syncs), np.int64)
    if at_work(timeline):
        kernels = Kernels(timeline, np.flatnonzero(timeline.where(kind="kernel")))
        handed = after_waits(timeline, kernels.gaps(*hull(timeline)))
        np.add.at(lost, handed.owner, handed.stop - handed.start)
    return tuple(lost.tolist())


def _idle_by_place(timeline: Timeline) -> dict[Place, float]:
    """Mean idle time after a wait, by place; only if a device was seen to work."""
    if not at_work(timeline):
        return {}
    found: dict[Place, list[int]] = {}
    for sync, idle in zip(timeline.syncs, idle_after(timeline), strict=True):
        found.setdefault(sync.place, []).append(idle)
    return {place: sum(idle) / len(idle) for place, idle in found.items()}


def after_waits(timeline: Timeline, gaps: Gaps) -> Pieces:
    """Idle time handed out to the waits that caused it, one instant after another.

    The rule is that of `idle_after`, which says how much; this says which instants. Not charged is
    what has a cause of its own: gradients are on their way, a collective or a callback runs, or the
    host waits for something else than the device.
    """
    within = timeline.intervals(kind="step")
    steps = np.sort(within[:, 0])
    idle = np.stack([gaps.start, gaps.stop], axis=1)[~gaps.is_program]
    idle = common(idle, within) if len(within) else idle  # between two steps it is nobody's
    excused = timeline.intervals(kind=("reduction", "communication", "callback", "elsewhere"))
    start, stop = without(idle, excused).T
    pieces: list[tuple[int, int, int]] = []
    open_: list[list[int]] = []  # [sync, what is left of it], the latest last
    syncs = timeline.syncs if len(steps) else ()
    step_of = np.searchsorted(steps, [s.at_ns for s in syncs], "right").tolist()
    for i, sync in enumerate(syncs):
        if step_of[i] != step_of[i - 1]:
            open_ = []
        open_.append([i, sync.wait_ns])
        at = sync.at_ns + sync.wait_ns
        until = syncs[i + 1].at_ns if i + 1 < len(syncs) else _END
        pieces += _handed(start, stop, (at, until), open_)
    if syncs and not _is_unmarked(timeline) and _goes_around(syncs, step_of, len(steps)):
        pieces += _handed(start, stop, (-_END, syncs[0].at_ns), open_)
    columns = np.array(sorted(pieces), dtype=np.int64).reshape(-1, 3)
    return Pieces(columns[:, 0], columns[:, 1], columns[:, 2])


def _handed(
    start: Ints, stop: Ints, window: tuple[int, int], open_: list[list[int]]
) -> Iterator[tuple[int, int, int]]:
    """The idle time of a window, handed to the waits that are open, the latest first."""
    at, until = window
    k = int(np.searchsorted(stop, at, "right"))
    while k < len(start) and start[k] < until and open_:
        a, b = max(int(start[k]), at), min(int(stop[k]), until)
        k += 1
        while a < b and open_:
            taken = min(open_[-1][1], b - a)
            if taken:
                yield a, a + taken, open_[-1][0]
            a += taken
            open_[-1][1] -= taken
            if not open_[-1][1]:
                open_.pop()


def _is_unmarked(timeline: Timeline) -> bool:
    """Is what counts as one step no step that repeats?"""
    first = np.flatnonzero(timeline.where(kind="step"))[0]
    return timeline.names[timeline.name[first]] in UNMARKED


def _goes_around(syncs: Sequence[SyncPoint], step_of: Sequence[int], steps: int) -> bool:
    """True if what follows the last wait is seen at the begin of the first step.

    What a read at the end of a step costs is seen in the step after it. For the last one the trace
    has ended, but what it costs is as before the first: each step waits at that place, so the step
    before the trace has done so too.
    """
    last = syncs[-1]
    same = {step for s, step in zip(syncs, step_of, strict=True) if s.place == last.place}
    return same == set(range(1, steps + 1))


def waits(timeline: Timeline) -> Pieces:
    """The waits at sync points; where two overlap, the later one has the rest."""
    start = np.array([s.at_ns for s in timeline.syncs], np.int64)
    stop = start + np.array([s.wait_ns for s in timeline.syncs], np.int64)
    if len(start):
        stop[:-1] = np.minimum(stop[:-1], start[1:])
    return Pieces(start, stop, np.arange(len(start)))
