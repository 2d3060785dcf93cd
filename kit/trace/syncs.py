"""Sync points gathered by line, and what each costs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.errors import TimelineError
from kit.trace.active import without
from kit.trace.timeline import SyncPoint, Timeline
from kit.trace.waits import excused, goes_around

__all__ = ["SyncRow", "idle_after", "sync_table"]

_END = np.iinfo(np.int64).max


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
    def cost_ms_per_step(self) -> float:
        """What is known to be lost: the device's time, or else the host's."""
        idle = self.idle_ms_per_step
        return self.wait_ms_per_step if math.isnan(idle) else idle


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
    groups: dict[tuple[str, str, str], list[int]] = {}
    for s in syncs:
        groups.setdefault((s.site, s.via, s.cause), []).append(s.wait_ns)
    if groups and steps < 1:
        raise TimelineError(f"waits per step need at least one step, not {steps}")
    idle = {} if timeline is None else _idle_by_place(timeline)
    rows = []
    for place, waits in groups.items():
        per_step = len(waits) / steps
        wait_ms = sum(waits) / steps / 1e6
        idle_ms = idle[place] * per_step / 1e6 if place in idle else math.nan
        rows.append(SyncRow(*place, len(waits), per_step, wait_ms, idle_ms))
    return tuple(sorted(rows, key=lambda r: (-r.wait_ms_per_step, -r.count, r.site)))


def idle_after(timeline: Timeline) -> tuple[int, ...]:
    """For each of `timeline.syncs`, device time lost because the host had waited there.

    A host that waits records nothing, so when the value is there the device has nothing to do until
    more is recorded and issued: what was prepared ahead is used up. Charged to a wait is the time
    in which no kernel ran, nothing was reduced and the host did not wait elsewhere, from its end to
    the next wait, but not more than it lasted: without it the host could have got ahead by no more
    than that. What is left over is charged to earlier waits of the same step. Gaps inside one
    program are the program's own. What follows the last wait is also seen at the begin of the first
    step, if each step waits at that place.

    Units:
        nanoseconds; all 0 on a timeline without kernels
    """
    gaps = _gaps(timeline)
    starts = np.array([s.at_ns for s in timeline.syncs], np.int64)
    ends = starts + np.array([s.wait_ns for s in timeline.syncs], np.int64)
    steps = np.sort(timeline.intervals(kind="step")[:, 0])
    step_of = np.searchsorted(steps, starts, side="right")
    left = (ends - starts).tolist()
    found = [0] * len(left)
    until = np.append(starts[1:], _END)[: len(starts)]
    between = (_idle_until(gaps, until) - _idle_until(gaps, ends)).clip(0)
    if goes_around(timeline):
        between[-1:] += _idle_until(gaps, starts[:1])
    open_: list[int] = []  # waits of this step with something left of them, the latest last
    for i, idle in enumerate(between.tolist()):
        if i and step_of[i] != step_of[i - 1]:
            open_.clear()
        open_.append(i)
        while open_ and idle:
            taken = min(left[open_[-1]], idle)
            found[open_[-1]] += taken
            left[open_[-1]] -= taken
            idle -= taken
            if not left[open_[-1]]:
                open_.pop()
    return tuple(found)


def _idle_by_place(timeline: Timeline) -> dict[tuple[str, str, str], float]:
    """Mean idle time after a wait, by place; only if kernels were seen."""
    if not len(timeline.intervals(kind="kernel")):
        return {}
    found: dict[tuple[str, str, str], list[int]] = {}
    for sync, idle in zip(timeline.syncs, idle_after(timeline), strict=True):
        found.setdefault((sync.site, sync.via, sync.cause), []).append(idle)
    return {place: float(np.mean(idle)) for place, idle in found.items()}


def _idle_until(gaps: NDArray[np.int64], when: NDArray[np.int64]) -> NDArray[np.int64]:
    """Idle time before each instant. Shape: gaps (n, 2), sorted and apart; when (m,) -> (m,)."""
    if not len(gaps):
        return np.zeros(len(when), np.int64)
    total = np.concatenate([[0], np.cumsum(gaps[:, 1] - gaps[:, 0])])
    begun = np.searchsorted(gaps[:, 0], when, side="right")
    ahead = (gaps[np.maximum(begun - 1, 0), 1] - when).clip(0)  # of a gap that still goes on
    found: NDArray[np.int64] = total[begun] - np.where(begun > 0, ahead, 0)
    return found


def _gaps(timeline: Timeline) -> NDArray[np.int64]:
    """When the device had no program to run, within the traced steps. Shape: (n, 2)."""
    mask = timeline.where(kind="kernel")
    steps = timeline.intervals(kind="step")
    if not mask.any() or not len(steps):
        return np.zeros((0, 2), np.int64)
    start, stop, segment = timeline.start_ns[mask], timeline.stop_ns[mask], timeline.segment[mask]
    last = np.maximum.accumulate(stop)
    # the segment of the kernel that has ended last so far
    latest = segment[np.maximum.accumulate(np.where(stop == last, np.arange(len(stop)), 0))]
    begun = np.sort(timeline.intervals(kind="device step")[:, 0])
    same_step = np.searchsorted(begun, start[1:], "right") == np.searchsorted(begun, last[:-1])
    inside = (latest[:-1] == segment[1:]) & (segment[1:] != -1) & same_step
    low, high = int(steps[:, 0].min()), int(steps[:, 1].max())
    from_, to = np.append(low, last), np.append(start, high)
    kept = (to > from_) & ~np.concatenate([[False], inside, [False]])
    gaps = np.stack([from_, to], axis=1)[kept]
    return without(gaps, excused(timeline))
