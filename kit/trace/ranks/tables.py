"""Ranks compared: what each did, which one was the slowest in each step, who came last to what.

A rank that waits in a collective is not slow: it waits for the slow one. So a rank's *own* time of
a step is the step without the time in which it did nothing but wait for ranks that came later. The
rank with the most of it is the slowest, and what it did longer than the middle one of the others is
why. Arrivals that are closer than the clocks are known, and own times that are, name nobody.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kit.text import format_count
from kit.trace.communication import BYTES_UNKNOWN, Channel, copy_totals
from kit.trace.intervals import Ints, Mask, common, joined, within, without
from kit.trace.ranks.clocks import EXCHANGED, TOGETHER, Clock, align
from kit.trace.ranks.match import NUMBERED, Matched, match
from kit.trace.ranks.one import RankTrace

__all__ = [
    "CollectiveRow",
    "Compared",
    "CopyRow",
    "RankRow",
    "StepRow",
    "bus_bytes",
    "compare_ranks",
]

ROUGH = 0.2  # a rate is not shown if the clocks are wrong by more than this part of its time


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank; means of its steps.

    compute + exposed + memory + the idle times are the step.

    Units:
        milliseconds a step; fractions in [0, 1], nan where there is nothing to divide
    """

    rank: int
    file: str
    steps: int
    step_ms: float
    compute_ms: float
    communication_ms: float  # all of it, hidden or not
    exposed_ms: float  # communication under which nothing computed
    waited_ms: float  # of that: others had not come yet; nan if no clock says so
    memory_ms: float  # under which nothing computed or communicated
    idle_ms: Mapping[str, float]  # by cause
    overlap: float  # of communication, under compute
    last: int  # collectives to which it came last, for sure
    clock: Clock


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of all ranks.

    Units:
        milliseconds
    """

    name: str
    step_ms: float  # of the rank that took longest
    slowest: int  # the rank with the most time of its own; -1 if none stands out
    own_ms: float  # of that rank
    over_ms: float  # by which it is above the next
    error_ms: float  # of `over_ms`, from the clocks and from collectives that were not compared
    why: str  # what it did longer than the middle one of the others; "" if nothing
    why_ms: float


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective on all its ranks, on the reference's clock.

    Units:
        nanoseconds on the clock of the reference's file; bytes; bytes a second
    """

    channel: Channel
    step: str
    place: int  # in the step, or its number if the file gives one
    start_ns: Mapping[int, int]  # by rank
    stop_ns: Mapping[int, int]
    last: int  # the rank that came last; -1 if several may have
    missing: int  # ranks of the group that are not here: one of them may have come later
    late_ns: int  # after the one before it; what they all would gain were it as early
    spread_ns: int  # after the first: the longest that one has waited
    error_ns: float  # of these two, from the clocks
    size_bytes: int  # -1: not known
    bus_rate: float  # from the last arrival to the last end; nan if not known


@dataclass(frozen=True, slots=True)
class CopyRow:
    """All copies of one kind on one rank; of files that say the bytes.

    Units:
        bytes; milliseconds; bytes a second: all bytes over the time of all copies
    """

    rank: int
    what: str  # "Memcpy HtoD", "Memset"
    count: int
    size_bytes: int
    total_ms: float
    rate: float  # nan if no copy took any time


@dataclass(frozen=True)
class Compared:
    """All ranks on one clock."""

    ranks: tuple[RankRow, ...]
    steps: tuple[StepRow, ...]
    collectives: tuple[CollectiveRow, ...]
    copies: tuple[CopyRow, ...]
    notes: tuple[str, ...]


def compare_ranks(traces: Sequence[RankTrace]) -> Compared:
    """The tables of some ranks, in the order of their numbers."""
    traces = sorted(traces, key=lambda trace: trace.rank)
    matched = match(traces)
    clocks = _clocks(traces, matched)
    together = _Together(matched, clocks)
    fit = np.flatnonzero(together.fit).tolist()
    rows = tuple(_collective(traces, matched, clocks, i) for i in fit)
    waits = [_Waits(trace, r, clocks[r], together) for r, trace in enumerate(traces)]
    came_last = Counter(row.last for row in rows)
    notes = [*matched.notes, *_far_off(traces, clocks, matched)]
    bad = len(matched.keys) - len(fit)
    if bad and sum(clock.is_known for clock in clocks) > 1:  # else the notes say that there is none
        notes.append(
            f"{format_count(bad, 'collective')} with an end on one rank before the begin on "
            "another, by more than the clocks are wrong: not the same ones, and not compared"
        )
    return Compared(
        tuple(_rank(*each, came_last) for each in zip(traces, clocks, waits, strict=True)),
        tuple(_steps(traces, waits)),
        rows,
        tuple(row for trace in traces for row in _copies(trace)),
        tuple(notes),
    )


def _clocks(traces: Sequence[RankTrace], matched: Matched) -> list[Clock]:
    """The clock of each rank; a rank whose file keeps none is set by nothing."""
    together = np.array([key[0].operation in TOGETHER for key in matched.keys], dtype=bool)
    none = Clock(0, math.nan, "no common clock: a saved or exported run keeps none")
    clocks = [none] * len(traces)
    clocked = np.array([r for r, trace in enumerate(traces) if trace.has_clock], np.intp)
    rows = np.ix_(together, clocked)
    found = align(
        [traces[r].rank for r in clocked.tolist()],
        matched.start[rows],
        matched.stop[rows],
        matched.seen[rows],
        [traces[r].host for r in clocked.tolist()],
        np.array([key[0].operation in EXCHANGED for key in matched.keys], dtype=bool)[together],
    )
    for r, clock in zip(clocked.tolist(), found, strict=True):
        clocks[r] = clock
    return clocks


def _far_off(
    traces: Sequence[RankTrace], clocks: Sequence[Clock], matched: Matched
) -> Iterator[str]:
    """Which clocks may be wrong by whole steps, since their collectives are known by steps only."""
    by_place = np.array([key[1] != NUMBERED for key in matched.keys], dtype=bool)
    steps = [
        np.median(trace.steps[:, 1] - trace.steps[:, 0]) for trace in traces if len(trace.steps)
    ]
    if not steps or not by_place.any():
        return
    half = float(np.median(steps)) / 2
    counted = matched.seen[by_place].any(axis=0).tolist()
    far = [
        trace.rank
        for trace, clock, is_counted in zip(traces, clocks, counted, strict=True)
        if is_counted and abs(clock.offset_ns) > half
    ]
    if far:
        shown = ", ".join(map(str, far[:8])) + ", ..." * (len(far) > 8)
        yield (
            f"the clock of rank{'s' * (len(far) > 1)} {shown} was set by more than half a step, "
            "from collectives that have no numbers: if such a trace begins at another step than "
            "the others, its steps are compared with the wrong ones"
        )


def _copies(trace: RankTrace) -> Iterator[CopyRow]:
    """A row for each kind of copy of a rank; what took longest comes first."""
    for total in copy_totals(trace.copies):
        ms = total.total_ns / 1e6
        yield CopyRow(trace.rank, total.what, total.count, total.size_bytes, ms, total.rate)


class _Together:
    """What ranks did together, on the reference's clock.

    Shape:
        known: (collectives, ranks); fit, last: (collectives,)
    """

    def __init__(self, matched: Matched, clocks: Sequence[Clock]) -> None:
        offset = np.array([clock.offset_ns for clock in clocks], np.int64)
        error = np.array([clock.error_ns for clock in clocks])
        self.matched = matched
        self.known = matched.seen & ~np.isnan(error)
        self.worst_ns = float(np.nan_to_num(error).max(initial=0.0))
        error_ns = np.nan_to_num(error).astype(np.int64)
        never = np.iinfo(np.int64).max // 2
        start = np.where(self.known, matched.start + offset, -never)
        self.last = start.max(axis=1, initial=-never)  # when the last rank came
        # Which can be one: no rank ends before another has begun, however wrong the clocks are.
        earliest = (start - error_ns).max(axis=1, initial=-never)
        stop = np.where(self.known, matched.stop + offset + error_ns, never)
        end = stop.min(axis=1, initial=never)
        self.fit: Mask = (earliest <= end) & (self.known.sum(axis=1) > 1)


def bus_bytes(channel: Channel, size_bytes: int, ranks: int, *, is_even: bool = True) -> float:
    """The bytes that each link carries at least, as nccl-tests counts them; nan if not known.

    Args:
        is_even: each rank sends as much to every other; of another all-to-all nothing is known.
    """
    n = channel.size or ranks
    is_uneven = channel.operation == "all_to_all" and not is_even
    if size_bytes == BYTES_UNKNOWN or n < 2 or is_uneven:
        return math.nan
    share = {"all_reduce": 2 * (n - 1) / n, "all_gather": (n - 1) / n,
             "reduce_scatter": (n - 1) / n, "all_to_all": (n - 1) / n,
             "broadcast": 1.0, "reduce": 1.0}.get(channel.operation, math.nan)  # fmt: skip
    return size_bytes * share


def _collective(
    traces: Sequence[RankTrace], matched: Matched, clocks: Sequence[Clock], row: int
) -> CollectiveRow:
    channel, step, place = matched.keys[row]
    known = [r for r in np.flatnonzero(matched.seen[row]).tolist() if clocks[r].is_known]
    start = {r: int(matched.start[row, r]) + clocks[r].offset_ns for r in known}
    stop = {r: int(matched.stop[row, r]) + clocks[r].offset_ns for r in known}
    order = sorted(start, key=lambda r: start[r])
    first, last = order[0], order[-1]
    # The rank that may have come after it, first: not always the next one, if its clock is worse.
    errors = {r: clocks[last].error_ns + clocks[r].error_ns for r in order[:-1]}
    before = min(errors, key=lambda r: start[last] - start[r] - errors[r])
    late, error = start[last] - start[order[-2]], errors[before]
    is_sure = start[last] - start[before] > error
    world = max(trace.world for trace in traces) if not channel.group else 0
    missing = max((channel.size or world) - len(known), 0)
    each = [traces[r].collectives[int(matched.which[row, r])] for r in known]
    sizes = {one.size_bytes for one in each}
    size = sizes.pop() if len(sizes) == 1 else BYTES_UNKNOWN
    is_even = all(one.is_even for one in each)
    length = max(stop.values()) - start[last]
    is_exact = error < ROUGH * length
    carried = bus_bytes(channel, size, len(known), is_even=is_even)
    rate = carried / length * 1e9 if is_exact else math.nan
    return CollectiveRow(
        channel,
        step,
        place,
        {traces[r].rank: at for r, at in start.items()},
        {traces[r].rank: at for r, at in stop.items()},
        traces[last].rank if is_sure else -1,
        missing,
        late,
        start[last] - start[first],
        error,
        size,
        math.nan if missing else rate,
    )


class _Waits:
    """What one rank waited for others, step by step; all of it is exposed communication.

    Shape:
        exposed, error, unknown, own: (steps,)
    """

    def __init__(self, trace: RankTrace, r: int, clock: Clock, together: _Together) -> None:
        mine = together.fit & together.known[:, r]
        self.is_known = clock.is_known and bool(mine.any())
        self.may_be = bool(len(trace.exposed)) or not trace.lanes  # lanes: of devices that worked
        shift = clock.offset_ns + trace.zero_ns  # from the rank's own timeline to the reference's
        last = together.last[mine] - shift
        start = together.matched.start[mine, r] - trace.zero_ns
        stop = together.matched.stop[mine, r] - trace.zero_ns

        def waited(until: Ints) -> Ints:
            times = np.stack([start, np.maximum(start, np.minimum(until, stop))], axis=1)
            return within(common(joined(times), trace.exposed), trace.steps)

        self.exposed = waited(last)
        # the others may all have come earlier, or all later, by what the clocks may be wrong
        error = round(np.nan_to_num(clock.error_ns) + together.worst_ns)
        low, high = waited(last - error), waited(last + error)
        self.error = np.maximum(self.exposed - low, high - self.exposed)
        compared = joined(np.stack([start, stop], axis=1))
        # in what was not compared, a receive or a collective of an uneven step, it may have waited
        self.unknown = within(without(trace.exposed, compared), trace.steps)
        self.own = trace.steps[:, 1] - trace.steps[:, 0] - self.exposed


def _rank(trace: RankTrace, clock: Clock, waits: _Waits, came_last: Counter[int]) -> RankRow:
    parts, count = trace.parts, len(trace.steps)

    def mean(values: Ints) -> float:
        return float(values.sum()) / count / 1e6 if count else math.nan

    sent = int(parts.communication.sum())
    return RankRow(
        rank=trace.rank,
        file=trace.file,
        steps=count,
        step_ms=mean(trace.steps[:, 1] - trace.steps[:, 0]),
        compute_ms=mean(parts.compute),
        communication_ms=mean(parts.communication),
        exposed_ms=mean(parts.exposed),
        waited_ms=mean(waits.exposed) if waits.is_known or not waits.may_be else math.nan,
        memory_ms=mean(parts.memory),
        idle_ms={cause: mean(ns) for cause, ns in parts.causes.items()},
        overlap=1 - int(parts.exposed.sum()) / sent if sent else math.nan,
        last=came_last[trace.rank],
        clock=clock,
    )


def _steps(traces: Sequence[RankTrace], waits: Sequence[_Waits]) -> list[StepRow]:
    """The steps that at least two ranks have, in the order of the first rank that has each."""
    places: dict[str, dict[int, int]] = {}  # of each name its first step on each rank
    for r, trace in enumerate(traces):
        for i, name in enumerate(trace.step_names):
            places.setdefault(name, {}).setdefault(r, i)
    return [_step(name, traces, waits, at) for name, at in places.items() if len(at) > 1]


def _step(
    name: str, traces: Sequence[RankTrace], waits: Sequence[_Waits], at: Mapping[int, int]
) -> StepRow:
    own = {r: int(waits[r].own[i]) for r, i in at.items()}
    *others, slowest = sorted(own, key=lambda r: own[r])
    over = own[slowest] - own[others[-1]]
    of_slowest = float(waits[slowest].error[at[slowest]] + waits[slowest].unknown[at[slowest]])
    errors = {r: of_slowest + float(waits[r].error[at[r]]) for r in others}
    rival = max(others, key=lambda r: errors[r] + own[r])  # may have been the slowest, first
    error = errors[rival]
    is_known = all(waits[r].is_known for r in at) or not any(waits[r].may_be for r in at)
    is_sure = own[slowest] - own[rival] > error and is_known
    lengths = [int(traces[r].steps[i, 1] - traces[r].steps[i, 0]) for r, i in at.items()]
    why, why_ns = _why(traces, waits, at, slowest) if is_sure else ("", 0.0)
    return StepRow(
        name=name,
        step_ms=max(lengths) / 1e6,
        slowest=traces[slowest].rank if is_sure else -1,
        own_ms=own[slowest] / 1e6,
        over_ms=over / 1e6,
        error_ms=error / 1e6,
        why=why,
        why_ms=why_ns / 1e6,
    )


def _why(
    traces: Sequence[RankTrace], waits: Sequence[_Waits], at: Mapping[int, int], slowest: int
) -> tuple[str, float]:
    """What the slowest rank did longer than the middle one of the others, and by how much."""
    parts = {r: _named_parts(traces[r], waits[r], i) for r, i in at.items()}
    mine = parts.pop(slowest)
    causes = dict.fromkeys([*mine, *(cause for other in parts.values() for cause in other)])
    more = {
        cause: mine.get(cause, 0)
        - float(np.median([other.get(cause, 0) for other in parts.values()]))
        for cause in causes
    }
    why = max(more, key=lambda cause: more[cause])
    return (why, more[why]) if more[why] > 0 else ("", 0.0)


def _named_parts(trace: RankTrace, waits: _Waits, step: int) -> dict[str, int]:
    parts = trace.parts
    return {
        "compute": int(parts.compute[step]),
        "communication": int(parts.exposed[step] - waits.exposed[step]),
        "memory": int(parts.memory[step]),
        **{f"idle: {cause}": int(ns[step]) for cause, ns in parts.causes.items()},
    }
