"""What ran on the device: a row for each kernel of each segment, and what part of the time it had.

Kernels overlap: on several streams, and on a CPU, where XLA runs them on a pool of threads. So
durations are never added up: a row's total is a union, and its share is of the device's busy time,
where an instant in which n kernels ran gives each 1/n. The shares of all rows add up to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.errors import SettingsError
from kit.text import check_number, format_count, format_ms, format_ns
from kit.trace.active import launches, paired
from kit.trace.communication import way_of
from kit.trace.devices import CPU_SENDS, TORCH_CPU
from kit.trace.host import AT_ONCE_NS
from kit.trace.intervals import Ints, Mask, distinct, elapsed, joined, within
from kit.trace.kinds import KINDS, ON_DEVICE
from kit.trace.timeline import Timeline

__all__ = [
    "Ceilings",
    "KernelRow",
    "WrongTimes",
    "after_steps_fraction",
    "charged_ns",
    "computes_nothing",
    "distinct_kernels",
    "in_steps",
    "kernel_table",
    "named_fraction",
    "wrong_times",
]

_NEVER = np.iinfo(np.int64).max
_MUCH = 0.1  # of a step, or of the kernels: what is wrong for so long makes the whole wrong
_SHORT = ("memset", "memcpy", "copy")  # names of what a file in whole microseconds says lasts 0
_RARE = 0.01  # of the kernels: what happens to fewer is no difference of clocks
_OVER_NS = 100_000  # kernels of one stream overlap by 0.4 us at most in published traces


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device reaches at best, as measured by `kit.measure_ceilings`."""

    gb_s: float  # bytes read and written by a large copy
    gflop_s: float  # of a large matrix product
    device: str = ""

    def __post_init__(self) -> None:
        for name in ("gb_s", "gflop_s"):
            check_number(SettingsError, f"a ceiling's {name}", getattr(self, name), above=0)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All runs of one kernel of one segment, in all traced steps together.

    On a CPU a kernel's time goes from its launch to its end and includes the wait for a thread.
    """

    name: str
    segment: int  # -1 if not known
    count: int
    total_ms: float  # in which at least one run of the kernel went on
    mean_us: float  # of one
    charged_ms: float  # its part of the time in which a kernel ran: these add up to it
    share: float  # charged_ms as a fraction of that time
    node: int = -1  # that its first span names


def named_fraction(timeline: Timeline) -> float:
    """The part of all kernels' time in which they are named after an op; nan without kernels."""
    kernels = timeline.where(kind=ON_DEVICE)
    lengths = (timeline.stop_ns - timeline.start_ns)[kernels]
    whole = int(lengths.sum())
    return int(lengths[timeline.node[kernels] >= 0].sum()) / whole if whole else math.nan


def kernel_table(timeline: Timeline) -> tuple[KernelRow, ...]:
    """The kernels of the timeline by name and segment; what had most of the time comes first.

    `charged_ms` of all rows adds up to the time of the steps in which a device was busy, whatever
    overlapped: devices count as one here, as in `kit.trace.breakdown`. What communicates or calls
    Python is charged where nothing computes, beside the busy time. A kernel that runs in no step is
    left out, and one at the edge is charged for its part in them; without steps all count.

    Units:
        milliseconds and microseconds; shares in [0, 1]

    Source:
        Count, total and mean of HTA's kernel breakdown, with unions in the place of its sums,
        https://hta.readthedocs.io/en/latest/source/features/kernel_breakdown.html
    """
    spans, inside = in_steps(timeline, np.flatnonzero(timeline.where(kind=ON_DEVICE)))
    if not len(spans):
        return ()
    names = len(timeline.names)
    keys = _keys(timeline, spans)
    found, first, group = np.unique(keys, return_index=True, return_inverse=True)
    times = timeline.times(spans)
    charged = np.bincount(group, weights=charged_ns(inside, computes_nothing(timeline, spans)))
    count = np.bincount(group)
    sums = np.bincount(group, weights=times[:, 1] - times[:, 0])
    unions = _unions(times, group, len(found))
    busy = max(float(charged.sum()), 1e-9)
    rows = [
        KernelRow(timeline.names[key % names], key // names, int(count[i]), float(unions[i]) / 1e6,
                  float(sums[i] / count[i]) / 1e3, float(charged[i]) / 1e6,
                  float(charged[i]) / busy, int(timeline.node[spans[first[i]]]))
        for i, key in enumerate(found.tolist())
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda r: (-r.charged_ms, r.segment, r.name)))


def in_steps(timeline: Timeline, spans: NDArray[np.intp]) -> tuple[NDArray[np.intp], Ints]:
    """Which of these spans are in a step, if only in part, and their times on a clock that runs in
    steps only; without steps all, as they are.

    Shape:
        spans (n,) -> (m,), (m, 2)
    """
    times = timeline.times(spans)
    steps = joined(timeline.intervals(kind="step"))
    if not len(steps):
        return spans, times
    start, stop = elapsed(steps, times[:, 0]), elapsed(steps, times[:, 1])
    # also what took no time
    is_inside = elapsed(steps, np.maximum(times[:, 1], times[:, 0] + 1)) > start
    return spans[is_inside], np.stack([start, stop], axis=1)[is_inside]


def after_steps_fraction(timeline: Timeline) -> float:
    """Of what the steps launched, the part of the kernels' time that comes after the last step.

    What the steps ran of earlier work makes up for it: a device that is always behind by one step
    has a step's work in each step. Where no file says which call launched a kernel, it is what runs
    from the last step's end to the next dispatch.

    Returns:
        A number in [0, 1], dimensionless; 0 without steps, and of what ran on the host.
    """
    steps = timeline.intervals(kind="step")
    on_host = timeline.where(lane=TORCH_CPU) | timeline.where(lane=CPU_SENDS)
    spans = np.flatnonzero(timeline.where(kind=ON_DEVICE) & ~on_host)
    if not len(steps) or not len(spans):
        return 0.0
    low, high = int(steps[:, 0].min()), int(steps[:, 1].max())
    start, stop = timeline.start_ns[spans], timeline.stop_ns[spans]
    called, by = launches(timeline, spans)
    if not (by >= 0).any():
        later = timeline.intervals(kind="dispatch")[:, 0]
        called = np.where(start < later[later >= high].min(initial=_NEVER), low, high + 1)
        called = np.where(start < low, low - 1, called)
    of_steps = (called >= low) & (called <= high)
    after = (stop - start.clip(min=high)).clip(min=0)[of_steps].sum()
    earlier = (stop.clip(max=high) - start.clip(min=low)).clip(min=0)[~of_steps].sum()
    whole = (stop - start)[of_steps].sum()
    return max(int(after - earlier), 0) / int(whole) if whole else 0.0


@dataclass(frozen=True, slots=True)
class WrongTimes:
    """What is to be said of times that cannot be true."""

    notes: tuple[str, ...]
    doubt: str  # why no limit can be told; "" if one can


def wrong_times(timeline: Timeline) -> WrongTimes:
    """Kernels on streams of GPUs that begin before their launch, outlast later ones, or last 0;
    and copies that go on when the wait for them has ended.

    Profilers have written such: a device's clock differs from the host's, or a kernel gets the end
    of another one. Then the device seems idle, or busy, when it is not.
    """
    streams = [i for i, lane in enumerate(timeline.lanes) if " stream " in lane]
    kernels = np.flatnonzero(timeline.where(kind=ON_DEVICE) & np.isin(timeline.lane, streams))
    if not len(kernels):
        return WrongTimes((), "")
    steps = timeline.intervals(kind="step")
    lengths = steps[:, 1] - steps[:, 0]
    much_ns = _MUCH * float(lengths.mean()) if len(steps) else math.inf  # of a step
    found = [find(timeline, kernels, much_ns) for find in (_instant, _early, _late, _overlong)]
    doubts = [doubt for _, doubt in found if doubt]
    return WrongTimes(tuple(note for note, _ in found if note), doubts[-1] if doubts else "")


_Places = NDArray[np.intp]  # of spans


def _instant(timeline: Timeline, kernels: _Places, _: float) -> tuple[str, str]:
    """What is said of kernels that last 0, and why no limit can be told then; "" of few."""
    names = [i for i, x in enumerate(timeline.names) if not x.lower().startswith(_SHORT)]
    computing = kernels[np.isin(timeline.name[kernels], names)]
    count = int((timeline.stop_ns[computing] == timeline.start_ns[computing]).sum())
    if not count or count < _MUCH * len(computing):
        return "", ""
    doubt = "most kernels last 0 in the file" * (2 * count >= len(computing))
    return f"{count:,} of {len(computing):,} kernels last 0 in the file", doubt


def _early(timeline: Timeline, kernels: _Places, much_ns: float) -> tuple[str, str]:
    """The same of those whose launch is known and that begin before it."""
    known, call = paired(timeline, kernels)
    early: Ints = timeline.start_ns[call] - timeline.start_ns[known]
    note = _by_clocks(early, f"{len(early):,} kernels begin before the call that launched them")
    if not note:
        return "", ""
    often = int(np.sort(early)[-1 - int(_RARE * len(early))])
    doubt = (
        f"kernels begin {format_ms(often / 1e6)} before their launch: the clocks of device and "
        "host differ"
    )
    return note, doubt if often >= much_ns else ""


def _late(timeline: Timeline, kernels: _Places, much_ns: float) -> tuple[str, str]:
    """The same of copies that go on when the wait for them has ended."""
    late = _late_ns(timeline, kernels)
    note = _by_clocks(late, f"{format_count(len(late), 'wait')} for a copy end before it has")
    if not note:
        return "", ""
    often = int(np.sort(late)[len(late) // 2])
    is_much = often > 0 and _mistaken_ns(timeline, kernels, often) >= much_ns * timeline.steps
    doubt = (
        f"waits end {format_ms(often / 1e6)} before the copy that they are for: the clocks of "
        "device and host differ"
    )
    return note, doubt if is_much else ""


def _by_clocks(apart: Ints, what: str) -> str:
    """How many of what is told are too early or late, and by how much; "" if none is.

    Args:
        apart: of each, by how many ns; 0 and below: as it should be.
    """
    count = int((apart > 0).sum())
    if not count:
        return ""
    most = format_ns(apart.max())
    return f"{count:,} of {what}, by up to {most}: the device's clock differs from the host's"


def _overlong(timeline: Timeline, kernels: _Places, much_ns: float) -> tuple[str, str]:
    """The same of those that outlast others which follow on their stream."""
    long, over_ns = _outlasting(timeline, kernels)
    if not len(long):
        return "", ""
    note = (
        f"{format_count(len(long), 'kernel')} {'last' if len(long) > 1 else 'lasts'} beyond "
        f"others that follow on the same stream, by up to {format_ms(over_ns / 1e6)}: their "
        "durations are wrong"
    )
    steps = timeline.intervals(kind="step")
    filled = within(joined(timeline.times(long)), joined(steps)).sum()
    doubt = "kernels last beyond others that follow on the same stream"
    return note, doubt if filled >= much_ns * len(steps) else ""


def _late_ns(timeline: Timeline, kernels: _Places) -> Ints:
    """How long each copy goes on after the wait for it has returned; below 0: it had ended.

    A read copies a value and waits for it. Of others that wait after a copy, only such are sure as
    copy to memory that is not pinned. Of several copies before a wait it is for the last: others,
    as to pinned memory on streams of their own, may go on.
    """
    waits = np.flatnonzero(timeline.where(kind="wait"))
    down = [i for i, name in enumerate(timeline.names) if way_of(name) == "copy_to_host"]
    copies, call = paired(timeline, kernels[np.isin(timeline.name[kernels], down)])
    if not len(waits) or not len(copies):
        return np.zeros(0, np.int64)
    # Side by side on one axis, the waits of one thread follow those of another.
    lane = timeline.lane.astype(np.int64) * (int(timeline.stop_ns.max()) + 1)
    waits = waits[np.argsort((lane + timeline.stop_ns)[waits], kind="stable")]
    at = np.searchsorted((lane + timeline.stop_ns)[waits], (lane + timeline.stop_ns)[call])
    wait = waits[at.clip(max=len(waits) - 1)]
    follows = (timeline.lane[wait] == timeline.lane[call]) & (at < len(waits))
    follows &= timeline.start_ns[wait] <= timeline.stop_ns[call] + AT_ONCE_NS
    order = np.argsort((lane + timeline.stop_ns)[call], kind="stable")
    follows[order[:-1]] &= wait[order[:-1]] != wait[order[1:]]
    sure = [i for i, name in enumerate(timeline.names) if name == "item" or "Pageable" in name]
    follows &= np.isin(timeline.name[wait], sure) | np.isin(timeline.name[copies], sure)
    late: Ints = (timeline.stop_ns[copies] - timeline.stop_ns[wait])[follows]
    return late


def _mistaken_ns(timeline: Timeline, kernels: _Places, late_ns: int) -> int:
    """For how long, at most, gaps have a wrong cause, if the device's clock is late by so much.

    That is the cause of an earlier time. A gap before a kernel that had been launched long before
    has the same cause at any time.
    """
    busy = joined(timeline.times(kernels))
    begin, end = busy[:-1, 1], busy[1:, 0]
    known, call = paired(timeline, kernels)
    order = np.argsort(timeline.start_ns[known], kind="stable")
    known, call = known[order], call[order]
    at = np.searchsorted(timeline.start_ns[known], end).clip(max=len(known) - 1)
    is_next = timeline.start_ns[known[at]] == end
    is_queued = is_next & (timeline.stop_ns[call[at]] + late_ns < begin)
    return int(np.minimum(end - begin, late_ns)[~is_queued].sum())


def _outlasting(timeline: Timeline, kernels: _Places) -> tuple[_Places, int]:
    """Kernels that end after a later one of their stream, and by how much at most.

    A stream runs one after the other. Of the kernels of one launch, as of a CUDA graph, some may
    run side by side; and a collective may wait beside what computes.
    """
    computes = timeline.kind[kernels] == KINDS.index("kernel")
    kernels = kernels[computes & (timeline.segment[kernels] < -1)]
    _, of, count = np.unique(timeline.segment[kernels], return_inverse=True, return_counts=True)
    kernels = kernels[count[of] == 1]
    if len(kernels) < 2:
        return kernels[:0], 0
    start, lane = timeline.start_ns[kernels], timeline.lane[kernels].astype(np.int64)
    kernels = kernels[np.lexsort((start, lane))]
    stop, lane = timeline.stop_ns[kernels], np.sort(lane)
    # Side by side on one axis, the kernels of a later stream end after those of an earlier one.
    stop = stop + lane * (int(stop.max() - start.min()) + 1)
    over = stop[:-1] - np.minimum.accumulate(stop[:0:-1])[::-1]
    return kernels[:-1][over > _OVER_NS], int(over.max())


def distinct_kernels(timeline: Timeline, spans: NDArray[np.intp]) -> tuple[Ints, NDArray[np.intp]]:
    """Segment, name and node of each kernel that these spans are runs of, and which one each is of.

    Shape:
        spans (n,) -> (kernels, 3), (n,)
    """
    keys, pair = np.unique(_keys(timeline, spans), return_inverse=True)
    node = timeline.node[spans].astype(np.int64)
    nodes = int(node.max(initial=-1)) + 2
    found, group = np.unique(pair * nodes + node + 1, return_inverse=True)
    segment, name = np.divmod(keys[found // nodes], max(len(timeline.names), 1))
    return np.stack([segment, name, found % nodes - 1], axis=1), group


def _keys(timeline: Timeline, spans: NDArray[np.intp]) -> Ints:
    """One number for segment and name; the launches of a foreign trace are no segments."""
    segment: Ints = timeline.segment[spans].astype(np.int64).clip(min=-1)
    keys: Ints = segment * len(timeline.names) + timeline.name[spans]
    return keys


def computes_nothing(timeline: Timeline, spans: NDArray[np.intp]) -> Mask:
    """Which of these spans only communicate or call Python: charged where nothing computes."""
    found: Mask = timeline.where(kind=("communication", "callback"))[spans]
    return found


def charged_ns(times: Ints, beneath: Mask | None = None) -> NDArray[np.float64]:
    """What each interval is charged if an instant is divided equally among those that cover it.

    Args:
        beneath: those that are charged only where none of the others is.

    Shape:
        times (n, 2): starts and stops; beneath (n,) -> (n,)
    Units:
        nanoseconds; they add up to the union of the intervals, but for rounding
    """
    edges = distinct(times)
    if len(edges) < 2:
        return np.zeros(len(times))
    starts, stops = np.searchsorted(edges, times[:, 0]), np.searchsorted(edges, times[:, 1])
    below = np.zeros(len(times), dtype=bool) if beneath is None else beneath
    charged, free = np.zeros(len(times)), np.ones(len(edges) - 1, dtype=bool)
    for mask in (~below, below):
        opened, closed = (np.bincount(x[mask], minlength=len(edges)) for x in (starts, stops))
        active = np.cumsum(opened - closed)[:-1]
        widths = np.where(free & (active > 0), np.diff(edges) / np.maximum(active, 1), 0.0)
        until = np.concatenate([[0.0], np.cumsum(widths)])
        charged[mask] = until[stops[mask]] - until[starts[mask]]
        free &= active == 0
    return charged


def _unions(times: Ints, group: NDArray[np.intp], groups: int) -> NDArray[np.float64]:
    """Time in at least one interval of each group."""
    order = np.lexsort((times[:, 0], group))
    low = int(times[:, 0].min())
    # Side by side on one axis, no group reaches into the next, and one running maximum serves all.
    shift = group[order].astype(np.int64) * (int(times[:, 1].max()) - low + 1)
    start, stop = (times[order, i] - low + shift for i in (0, 1))
    latest = np.append(-1, np.maximum.accumulate(stop)[:-1])
    new = (stop - np.maximum(start, latest)).clip(0)
    return np.bincount(group[order], weights=new, minlength=groups).astype(np.float64)
