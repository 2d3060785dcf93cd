"""Numbers read off a `Timeline`: how busy, how overlapped, where each step went, what waited.

Every function is pure: a timeline in, plain numbers out, nothing drawn. Each function cuts time at
the edges of the spans that it reads; within one such cell nothing begins or ends, so set algebra on
spans is boolean algebra on cells. That costs O(n log n) in numpy, whatever the spans' lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kit.errors import TimelineError
from kit.shown import Column, Rows
from kit.text import format_count, format_ms, format_share
from kit.trace.active import LOADER, hull
from kit.trace.devices import TORCH_CPU
from kit.trace.intervals import Ints, Mask, covered
from kit.trace.kinds import (
    AWAY,
    CATEGORIES,
    CATEGORY_ROWS,
    KINDS,
    ON_DEVICE,
    RECORDING,
    SPAN_KINDS,
    Category,
)
from kit.trace.timeline import SyncPoint, Timeline

__all__ = [
    "BreakdownRow",
    "Headline",
    "MeasuredRun",
    "MeasuredWaits",
    "Together",
    "breakdown",
    "breakdown_ns",
    "busy_fraction",
    "headline",
    "overlap_fraction",
    "says_device",
    "says_host",
    "union_ns",
    "waits_of",
]

_ALONE = 1.01  # waits of one thread, which may touch, to the time in which some wait goes on
# A row of the breakdown only where it happens.
_RARE = ("communication", "host callback", "reduction", "host waits elsewhere", "own code")
_Masks = tuple[Mask, Mask]


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """One category's part of the mean step."""

    category: str  # one of CATEGORIES
    total_ms: float  # while it went on, whatever else did: these may add up to more than the step
    exposed_ms: float  # charged to it alone: these add up to the step
    share: float  # exposed_ms as a fraction of the step


class BreakdownRows(Rows[BreakdownRow]):
    """The rows of `breakdown`."""

    noun = "part"
    columns = (
        Column("where the mean traced step went", lambda r: r.category, is_number=False),
        Column("charged", lambda r: format_ms(r.exposed_ms)),
        Column("share", lambda r: format_share(r.share)),
        Column("in all", lambda r: format_ms(r.total_ms)),
    )


@dataclass(frozen=True, slots=True)
class Headline:
    """The five numbers above every view; nan where the timeline cannot say.

    Units:
        milliseconds a step; fractions in [0, 1]
    """

    step_ms: float
    device_busy_fraction: float  # of the steps' time
    overlap_fraction: float  # of host recording (its waits and input left out), under a device
    sync_wait_ms: float
    syncs_per_step: float


class MeasuredRun(Protocol):
    """What `headline` needs of a `Run`: steps timed without tracing, and their sync points."""

    @property
    def timeline(self) -> Timeline: ...
    @property
    def step_times_ns(self) -> tuple[int, ...]: ...
    @property
    def sync_points(self) -> tuple[SyncPoint, ...]: ...
    @property
    def knows_waits(self) -> bool: ...
    @property
    def sees_waits_untraced(self) -> bool: ...
    @property
    def measures_untraced(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class MeasuredWaits:
    """Sync points, and the steps that they are of."""

    syncs: Sequence[SyncPoint]
    steps: int
    is_traced: bool

    @property
    def each_ms(self) -> float:
        """The mean of a step; nan without a step."""
        wait = sum(s.wait_ns for s in self.syncs)
        return wait / self.steps / 1e6 if self.steps else math.nan

    @property
    def at_once(self) -> str:
        """Behind `each_ms`, what is to be known of it where several threads wait at a time."""
        starts = np.array([s.at_ns for s in self.syncs], np.int64)
        waits = np.array([s.wait_ns for s in self.syncs], np.int64)
        some_ns = union_ns(np.stack([starts, starts + waits], axis=1))
        is_sum = int(waits.sum()) > _ALONE * some_ns
        return " (waits of several threads at a time add up)" if is_sum else ""

    @property
    def kind(self) -> str:
        """`untraced step` or `traced step`."""
        return f"{'traced' if self.is_traced else 'untraced'} step"

    @property
    def which(self) -> str:
        """`10 untraced steps`."""
        return format_count(self.steps, self.kind)


def waits_of(run: MeasuredRun) -> MeasuredWaits:
    """The waits that every card, table and sentence tells: those of the untraced steps.

    A trace makes steps slower, and so waits longer or shorter. Only where nobody looked in other
    steps, as of an imported trace and of native runs, those of the traced ones are told. There are
    no steps where nobody looked for waits at all.
    """
    if not run.knows_waits:
        return MeasuredWaits((), 0, is_traced=True)
    if run.step_times_ns and run.sees_waits_untraced:
        return MeasuredWaits(run.sync_points, len(run.step_times_ns), is_traced=False)
    steps = run.timeline.steps
    return MeasuredWaits(run.timeline.syncs, steps, is_traced=True)


def union_ns(intervals: Ints) -> int:
    """Time in at least one of the intervals; what several cover counts once.

    Shape:
        intervals (n, 2): starts and stops
    Units:
        nanoseconds

    Raises:
        TimelineError: the array has another shape, or an interval stops before it starts.
    """
    intervals = np.asarray(intervals, dtype=np.int64)
    if intervals.ndim != 2 or intervals.shape[1] != 2:
        raise TimelineError(f"intervals have shape (n, 2), not {intervals.shape}")
    if np.any(intervals[:, 1] < intervals[:, 0]):
        raise TimelineError("an interval stops before it starts")
    widths, (inside,) = _cells(intervals)
    return int(widths[inside].sum())


def busy_fraction(timeline: Timeline, *, lane: str) -> float:
    """Fraction of the steps' time in which something ran on `lane`.

    A lane may be a group: "device" is busy while any of its lanes is, but not with reductions and
    collectives: for these name their own lane. The window is the union of the step spans; on a
    timeline without steps, all of it.

    Returns:
        A number in [0, 1], dimensionless.

    Raises:
        TimelineError: there is no such lane, or the window is empty.

    Source:
        Busy time of HTA's temporal breakdown, as a fraction,
        https://hta.readthedocs.io/en/latest/source/features/temporal_breakdown.html
    """
    if not any(x == lane or x.startswith(lane + "/") for x in timeline.lanes):
        known = ", ".join(map(repr, timeline.lanes[:20])) or "none"
        raise TimelineError(f"no lane is called {lane!r}; there are: {known}")
    mask = timeline.where(lane=lane) & (timeline.kind != KINDS.index("step"))
    if lane not in timeline.lanes:
        mask &= ~timeline.where(kind=("reduction", "communication", "callback"))
    widths, (busy, window) = _cells(timeline.times(mask), _window(timeline))
    if not widths[window].any():
        raise TimelineError("a busy fraction needs a timeline that lasts longer than 0 ns")
    return _part(widths, window, busy)


def overlap_fraction(timeline: Timeline, *, of: str, under: str) -> float:
    """Fraction of the time of `of` spans during which an `under` span ran too.

    `overlap_fraction(t, of="dispatch", under="kernel")` is 1.0 when all dispatching is hidden
    under kernels. It is not symmetric: the denominator is `of`. Both are kinds of span.

    Returns:
        A number in [0, 1], dimensionless.

    Raises:
        TimelineError: a kind does not exist, or the timeline has no time of kind `of`.

    Source:
        Same ratio as HTA's communication-computation overlap,
        https://hta.readthedocs.io/en/latest/source/features/comm_comp_overlap.html
    """
    widths, (a, b) = _cells(timeline.intervals(kind=of), timeline.intervals(kind=under))
    if not widths[a].any():
        raise TimelineError(f"the overlap of {of!r} needs {of!r} spans that last longer than 0 ns")
    return _part(widths, a, b)


def breakdown(timeline: Timeline, together: Together | None = None) -> BreakdownRows:
    """Where the mean step went, one row for each of `CATEGORIES`; () if no step was traced.

    Each instant of a step is charged once: to the device if it is busy, else to a collective, a
    callback or a reduction, else to compiling, else to dispatching, else to what the host does (a
    wait, input, own code, or recording by phase), else to "unknown". So `exposed_ms` adds up to the
    step, while `total_ms` counts all of an activity (a phase's recording without the waits and
    copies inside it). Where nothing was sent or reduced, as on one device, there is no row for
    it; nor for waits elsewhere and own code where none was seen, nor for the device where nobody
    saw it.

    Args:
        together: that of the timeline, if it is known already.

    Units:
        milliseconds, averaged over the step spans

    Source:
        Idle, compute and non-compute time of HTA's temporal breakdown, split further,
        https://hta.readthedocs.io/en/latest/source/features/temporal_breakdown.html
    """
    parts = (together or Together(timeline)).breakdown_ns()
    whole = sum(exposed for _, exposed in parts.values())
    if not whole:
        return BreakdownRows()
    scale = 1e6 * timeline.steps
    left_out = _RARE if says_device(timeline) else (*_RARE, "device busy")
    return BreakdownRows(
        BreakdownRow(name, total / scale, exposed / scale, exposed / whole)
        for name, (total, exposed) in parts.items()
        if total or name not in left_out
    )


def breakdown_ns(timeline: Timeline) -> dict[str, tuple[int, int]]:
    """`breakdown` before averaging: category -> (total, exposed) over all steps together.

    Units:
        whole nanoseconds: the exposed ones add up to the union of the step spans exactly
    """
    return Together(timeline).breakdown_ns()


class Together:
    """What goes on at the same time in the steps of a timeline: cut once, asked often."""

    def __init__(self, timeline: Timeline) -> None:
        self._widths, self._step, self._masks = _by_category(timeline)

    def breakdown_ns(self) -> dict[str, tuple[int, int]]:
        """As `breakdown_ns` of the timeline."""
        widths, left = self._widths, self._step.copy()
        found: dict[str, tuple[int, int]] = {}
        for name, (done, mask) in self._masks.items():
            found[name] = int(widths[done & self._step].sum()), int(widths[mask & left].sum())
            left &= ~mask
        (unknown,) = found.keys() ^ CATEGORIES
        found[unknown] = (int(widths[left].sum()),) * 2
        return {category: found[category] for category in CATEGORIES}

    def time_ns(self, categories: Iterable[str]) -> int:
        """Time of the steps in which at least one of these categories of the breakdown goes on.

        Units:
            whole nanoseconds, over all steps together
        """
        any_of = np.zeros_like(self._step)
        for name in categories:
            any_of |= self._masks[name][0]
        return int(self._widths[any_of & self._step].sum())


def _by_category(timeline: Timeline) -> tuple[Ints, Mask, dict[str, _Masks]]:
    """Cells, which lie in a step, and where each category but the last is done and where it is on.

    In the order in which an instant is charged. While a thread waits or copies, its phase is on,
    but nothing of it is done.
    """
    *work, _ = sorted(CATEGORY_ROWS, key=lambda row: row.charged)
    cut = _cells(
        timeline.intervals(kind="step"),
        timeline.intervals(kind="ahead"),
        *(_of_category(timeline, row) for row in work),
    )
    widths, (step, ahead, *masks) = _alike(*cut)
    found: dict[str, _Masks] = {}
    away = np.zeros_like(step)
    for row, mask in zip(work, masks, strict=True):
        on = mask & ~ahead if row.phase else mask
        found[row.name] = (on & ~away if row.phase else on), on
        if row.is_away:
            away |= on
    return widths, step, found


def headline(of: Timeline | MeasuredRun) -> Headline:
    """The five numbers of a `Run` or of a `Timeline` alone.

    Of a run, step time and sync waits come from its untraced steps, the fractions from the traced
    ones. Of a timeline everything comes from its step spans. An undefined number is nan, not 0.

    Units:
        milliseconds a step (`step_ms`: the median step); fractions in [0, 1]
    """
    if isinstance(of, Timeline):
        steps = of.intervals(kind="step")
        timeline, times = of, tuple((steps[:, 1] - steps[:, 0]).tolist())
        waits = MeasuredWaits(of.syncs, len(times), is_traced=True)
    else:
        timeline, times, waits = of.timeline, of.step_times_ns, waits_of(of)
    told = waits.steps and says_host(timeline)
    return Headline(
        step_ms=float(np.median(times)) / 1e6 if times else math.nan,
        device_busy_fraction=_device_busy(timeline),
        overlap_fraction=_recording_overlap(timeline),
        sync_wait_ms=waits.each_ms if told else math.nan,
        syncs_per_step=len(waits.syncs) / waits.steps if told else math.nan,
    )


def says_device(timeline: Timeline) -> bool:
    """Can it say what the device did? Not if the device was given work, and no kernel was seen.

    Nor if all kernels last 0: their times were lost. A foreign trace is there for the work of a
    device, whether it has the calls or not.
    """
    is_given = timeline.where(kind=("dispatch", "wait")).any() or timeline.origin == "imported"
    lasts = timeline.stop_ns > timeline.start_ns
    return bool((timeline.where(kind=ON_DEVICE) & lasts).any()) or not is_given


def says_host(timeline: Timeline) -> bool:
    """Can it say whether the host waited? Some foreign traces have a device only, or no calls."""
    without_calls = timeline.where(kind=("step", "input", "compile", *ON_DEVICE))
    return timeline.origin != "imported" or not bool(without_calls.all())


def _cells(*sets: Ints) -> tuple[Ints, list[Mask]]:
    """As `covered`, with the cells' widths in the place of their edges."""
    edges, masks = covered(*sets)
    return np.diff(edges), masks


def _part(widths: Ints, of: Mask, under: Mask) -> float:
    """The part of the time of one set of cells in which another holds, too."""
    return int(widths[of & under].sum()) / int(widths[of].sum())


def _alike(widths: Ints, masks: Sequence[Mask]) -> tuple[Ints, list[Mask]]:
    """Cells that the same sets cover, as one cell: a few, however many there were."""
    code = np.zeros(len(widths), np.int64)
    for i, mask in enumerate(masks):
        code |= mask.astype(np.int64) << i
    total = np.zeros(1 << len(masks), np.int64)
    np.add.at(total, code, widths)
    found = np.flatnonzero(total)
    return total[found], [(found >> i & 1).astype(bool) for i in range(len(masks))]


def _of_category(timeline: Timeline, row: Category) -> Ints:
    category = RECORDING if row.phase else row.name
    kinds = tuple(kind.name for kind in SPAN_KINDS if kind.category == category)
    return _of_kinds(timeline, kinds, row.phase)


def _of_kinds(timeline: Timeline, kinds: tuple[str, ...], name: str = "") -> Ints:
    """The spans of some kinds, and of one name if one is given, that a step waits for."""
    mask = timeline.where(kind=kinds, name=name or None) & ~timeline.where(lane=LOADER)
    return timeline.times(mask)


def _window(timeline: Timeline) -> Ints:
    """The steps; without steps, everything from the first start to the last stop."""
    steps = timeline.intervals(kind="step")
    if len(steps) or not len(timeline):
        return steps
    return np.array([hull(timeline)], dtype=np.int64)


def _device_busy(timeline: Timeline) -> float:
    kinds = (timeline.intervals(kind=kind) for kind in ("kernel", "callback"))
    widths, (busy, called, window) = _cells(*kinds, _window(timeline))
    if not (busy | called).any() or not widths[window].any():
        return math.nan  # neither was seen: the device was not profiled, or is not known
    return _part(widths, window, busy)


def _recording_overlap(timeline: Timeline) -> float:
    """A recording thread that waits or copies is not recording, though its phase goes on.

    Ops that native torch computes on the CPU hide nothing: the thread that calls them runs them.
    """
    if timeline.where(kind="kernel", lane=TORCH_CPU).any():
        return math.nan
    kinds = ("record", *AWAY, "callback", "kernel")
    widths, (record, *away, called, busy) = _cells(*(_of_kinds(timeline, (k,)) for k in kinds))
    recording = record & ~np.logical_or.reduce(away)
    if not (busy | called).any() or not widths[recording].any():
        return math.nan
    return _part(widths, recording, busy)
