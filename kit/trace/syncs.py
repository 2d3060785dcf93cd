"""Sync points gathered by line, what each of them costs, and what limits a step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.errors import TimelineError
from kit.trace.metrics import breakdown_ns
from kit.trace.timeline import SyncPoint, Timeline

__all__ = ["LIMITS", "Limit", "SyncRow", "idle_after", "limited_by", "sync_table"]

LIMITS = ("device", "recording", "sync", "input", "dispatch", "compile", "unknown")
BUSY = 0.85  # a device that is busy for this part of the step is what limits it
_LATE_NS = 50_000  # the host may see that a wait has ended before the last kernel's end is noted

_GROUP = {"device busy": "device", "dispatch": "dispatch", "compile": "compile",
          "forward recording": "recording", "backward recording": "recording",
          "update recording": "recording", "input": "input", "sync wait": "sync",
          "unknown": "unknown"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyncRow:
    """All sync points of one place and cause."""

    site: str
    via: str
    cause: str
    count: int
    count_per_step: float
    wait_ms_per_step: float
    idle_ms_per_step: float = math.nan  # the device's, after the waits; nan where nobody saw it


@dataclass(frozen=True, slots=True)
class Limit:
    """What keeps the step from being faster."""

    what: str  # one of LIMITS
    share: float  # of the step: the device's busy time, or the time lost to the other

    def __str__(self) -> str:
        return f"{self.what}-bound ({self.share:.0%} of the step)"


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
        idle_ms = idle[place] * per_step / 1e6 if place in idle else math.nan
        rows.append(
            SyncRow(*place, len(waits), per_step, sum(waits) / steps / 1e6, idle_ms)
        )  # fmt: skip
    return tuple(sorted(rows, key=lambda r: (-r.wait_ms_per_step, -r.count, r.site)))


def idle_after(timeline: Timeline) -> tuple[int, ...]:
    """For each of `timeline.syncs`, how long the device had nothing to do when the wait ended.

    While the host waits, nobody gives the device more work: when the value is there the device is
    idle, until the host has recorded and issued something again. A gap between kernels is charged
    to the first wait that ends in it, once.

    Units:
        nanoseconds; all 0 on a timeline without kernels
    """
    gaps = _gaps(timeline)
    taken = np.zeros(len(gaps), bool)
    found = []
    for sync in timeline.syncs:
        end = sync.at_ns + sync.wait_ns
        fits = (gaps[:, 1] > end) & (gaps[:, 0] <= end + _LATE_NS) & ~taken
        if not fits.any():
            found.append(0)
            continue
        lengths = np.where(fits, gaps[:, 1] - gaps[:, 0], -1)
        chosen = int(np.argmax(lengths))
        taken[chosen] = True
        found.append(int(lengths[chosen]))
    return tuple(found)


def limited_by(timeline: Timeline) -> Limit:
    """What the steps spend their time on: the device, or else what keeps it waiting most.

    The device, if it is busy for at least `BUSY` of the time. Otherwise the largest part of the
    rest, where the idle time that follows a sync point counts as the sync point's and not as that
    of the recording in which it shows.

    Raises:
        TimelineError: no step was traced.
    """
    charged = dict.fromkeys(LIMITS, 0)
    for category, (_, exposed) in breakdown_ns(timeline).items():
        charged[_GROUP[category]] += exposed
    whole = sum(charged.values())
    if not whole:
        raise TimelineError("what limits a step is known from traced steps only: none is there")
    moved = min(sum(idle_after(timeline)), charged["recording"])
    charged["sync"] += moved
    charged["recording"] -= moved
    device = charged["device"] / whole
    if device >= BUSY:
        return Limit("device", device)
    what = max(LIMITS[1:], key=lambda name: charged[name])
    return Limit(what, charged[what] / whole)


def _idle_by_place(timeline: Timeline) -> dict[tuple[str, str, str], float]:
    """Mean idle time after a wait, by place; only if kernels were seen."""
    if not len(timeline.intervals(kind="kernel")):
        return {}
    found: dict[tuple[str, str, str], list[int]] = {}
    for sync, idle in zip(timeline.syncs, idle_after(timeline), strict=True):
        found.setdefault((sync.site, sync.via, sync.cause), []).append(idle)
    return {place: float(np.mean(idle)) for place, idle in found.items()}


def _gaps(timeline: Timeline) -> NDArray[np.int64]:
    """When no kernel ran, within the traced steps. Shape: (n, 2)."""
    kernels, steps = timeline.intervals(kind="kernel"), timeline.intervals(kind="step")
    if not len(kernels):
        return np.zeros((0, 2), np.int64)
    kernels = kernels[np.argsort(kernels[:, 0])]
    ends = np.maximum.accumulate(kernels[:, 1])
    last = max(int(steps[:, 1].max()) if len(steps) else 0, int(ends[-1]))
    stops = np.append(kernels[1:, 0], last)
    return np.stack([ends, stops], axis=1)[stops > ends]
