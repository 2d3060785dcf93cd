"""Why the device was idle: each gap of each device, cut at what the host did and given one cause.

A device is idle while none of its lanes runs a kernel; a reduction or a collective is none. A gap
is cut wherever its cause changes, so the times of all causes add up to the idle time exactly. An
instant has the cause of the first of `_RULES` that holds; `kit.trace.kinds` says what each means.

The names host wait, kernel wait and other are HTA's, by HTA's rule: see `kit.trace.hta`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kit.shown import Column, Rows
from kit.text import format_ms, format_share
from kit.trace.active import NONE, Active, Gaps, Kernels, Pieces, grouped, hull, launches, steps_of
from kit.trace.devices import at_work, by_device, count_devices
from kit.trace.hta import HTA_CAUSES, hta_places
from kit.trace.intervals import Ints, Mask, Numbers, distinct
from kit.trace.kinds import ELSEWHERE, NOT_BEGUN, OWN
from kit.trace.syncs import after_waits, waits
from kit.trace.timeline import Timeline

__all__ = ["Gap", "Idle", "IdleRow", "idle_gaps", "idle_of", "idle_table"]

_AT_LINES = (ELSEWHERE, OWN)  # their spans are named after their line, or a driver's call
# In 40 published traces an idle device began what was launched within 0.12 ms; where it took longer
# than this, work from before the recording, or left out of the file, went before.
LATE_NS = 1_000_000
_NO_SPANS = np.array([], np.int64)
_OWN = ("reduction", "communication", "callback")  # what is a cause on the device that it runs on
_HOST = {
    "compile": ("lower", "compile"),
    "dispatch": ("dispatch",),
    "wait": ("wait",),
    "input": ("input",),
    "elsewhere": ("elsewhere",),
    "own": ("own",),
    "ahead": ("ahead",),
    "record": ("record", "plan"),
}


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which a device had nothing to do, for one reason.

    `by` is the index in `timeline.syncs` of the sync point to blame if that is the cause, otherwise
    the index of a span of the timeline; -1 if there is none. `before` is the kernel that ended the
    whole gap, of which this may be a part.

    Units:
        nanoseconds from the start of the timeline
    """

    lane: str  # the device: "device/0" for the lanes "device/0 thread 1", "device/0 Stream #7", ...
    start_ns: int
    stop_ns: int
    cause: str  # one of GAP_CAUSES
    site: str = ""  # "train.py:41", of a sync point or a wait elsewhere; "cudaMalloc" of the latter
    by: int = NONE
    note: str = ""
    hta: str = "other"  # one of HTA_CAUSES, of the whole gap
    before: int = NONE

    @property
    def length_ns(self) -> int:
        """How long it lasted."""
        return self.stop_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class IdleRow:
    """All idle time of one cause, and of one line if the cause is a wait of the host."""

    cause: str
    site: str
    count: int  # of pieces of gaps
    total_ms: float
    share: float  # of all idle time
    longest_ms: float


class IdleRows(Rows[IdleRow]):
    """The rows of `idle_table`."""

    noun = "cause"
    columns = (
        Column("why the devices were idle", lambda r: r.cause, is_number=False),
        Column("line", lambda r: r.site, is_number=False),
        Column("in all steps", lambda r: format_ms(r.total_ms)),
        Column("share", lambda r: format_share(r.share)),
        Column("pieces", lambda r: f"{r.count:,}"),
        Column("longest", lambda r: format_ms(r.longest_ms)),
    )


@dataclass(frozen=True, slots=True)
class Idle:
    """All that is told of a timeline's idle time, found in one pass; empty without kernels.

    Devices that are idle at the same instant may be so for different causes; in `causes` each
    counts for its part of the devices.
    """

    rows: IdleRows
    causes: Mapping[str, float]  # ns in which no device worked within the steps, by cause
    by_hta: Mapping[str, int]  # ns of all devices together, by HTA's name of the cause


def idle_gaps(timeline: Timeline) -> tuple[Gap, ...]:
    """Every idle gap of each device at work, in the steps, cut by cause; by device and time.

    Without steps the window is all of the timeline. What is charged to a sync point after its wait
    agrees with `idle_after`. A program that the segment mode "launch" issues op by op counts as one
    program here, as it does there.

    Returns:
        () if no kernel was seen, and no callback: nothing is known of the device then.
    """
    return tuple(gap for cells in _cells(timeline) for gap in cells.gaps())


def _cells(timeline: Timeline) -> Iterator[_Cells]:
    """The gaps of one device after another."""
    devices = at_work(timeline)
    if not devices:
        return
    low, high = hull(timeline)
    everywhere = Kernels(timeline, np.flatnonzero(timeline.where(kind="kernel"))).gaps(low, high)
    shared = _Shared(timeline, everywhere)
    gaps = [Kernels(timeline, spans).gaps(low, high) for spans in devices.values()]
    found = launches(timeline, np.concatenate([x.after for x in gaps]))
    ends = np.cumsum([len(x.after) for x in gaps])[:-1]
    launched = zip(*(np.split(x, ends) for x in found), strict=True)
    own = {kind: by_device(timeline, kind) for kind in _OWN}
    for device, mine, launch in zip(devices, gaps, launched, strict=True):
        sent = {kind: Active(timeline, spans.get(device, _NO_SPANS)) for kind, spans in own.items()}
        yield _Cells(shared, device, mine, launch, sent)


def idle_of(timeline: Timeline) -> Idle:
    """Why and how long the devices were idle, all that is told of it."""
    groups: dict[tuple[str, str], list[Ints]] = {}
    causes: dict[str, float] = {}
    by_hta = np.zeros(len(HTA_CAUSES), np.int64)
    devices = count_devices(timeline)
    for cells in _cells(timeline):
        for key, lengths in cells.lengths():
            groups.setdefault(key, []).append(lengths)
        for cause, length_ns in cells.lost().items():
            causes[cause] = causes.get(cause, 0.0) + length_ns / devices
        np.add.at(by_hta, cells.hta[cells.of], cells.stop - cells.start)
    named = dict(zip(HTA_CAUSES, by_hta.tolist(), strict=True))
    return Idle(_rows({key: np.concatenate(x) for key, x in groups.items()}), causes, named)


def idle_table(of: Timeline | Iterable[Gap]) -> tuple[IdleRow, ...]:
    """Gaps gathered by cause and site; what cost most comes first. Shares add up to 1.

    Of a timeline it is the table of its gaps, without making an object of each.

    Units:
        milliseconds of device time over the whole timeline, all devices together
    """
    if isinstance(of, Timeline):
        return idle_of(of).rows
    groups: dict[tuple[str, str], list[int]] = {}
    for gap in of:
        groups.setdefault((gap.cause, gap.site), []).append(gap.length_ns)
    return _rows({key: np.array(x, np.int64) for key, x in groups.items()})


def _rows(lengths: Mapping[tuple[str, str], Ints]) -> IdleRows:
    """The table of gaps of these lengths, by cause and site."""
    whole = sum(int(x.sum()) for x in lengths.values())
    rows = [
        IdleRow(cause, site, len(x), int(x.sum()) / 1e6, int(x.sum()) / whole, int(x.max()) / 1e6)
        for (cause, site), x in lengths.items()
    ]
    return IdleRows(sorted(rows, key=lambda row: (-row.total_ms, row.cause, row.site)))


def _edges(pieces: Gaps | Pieces | Active) -> tuple[Ints, Ints]:
    return pieces.start, pieces.stop


class _Shared:
    """What is the same for all devices, in cells between the edges of all of it."""

    def __init__(self, timeline: Timeline, everywhere: Gaps) -> None:
        self.timeline = timeline
        is_program = everywhere.is_program.astype(np.int64)
        pieces: dict[str, Pieces | Active] = {
            "whole": Pieces(everywhere.start, everywhere.stop, is_program),
            "step": steps_of(timeline),
            "handed": after_waits(timeline, everywhere),
            "waiting": waits(timeline),
            **{name: Active.of(timeline, kinds) for name, kinds in _HOST.items()},
        }
        self.starts = distinct(np.concatenate([x for p in pieces.values() for x in _edges(p)]))
        self.by = {name: piece.at(self.starts) for name, piece in pieces.items()}
        # What the host does is no cause while another device works or a program goes on.
        kept = self.by["whole"] == 0
        for name in ("whole", "step"):
            kept[1:] |= self.by[name][1:] != self.by[name][:-1]
        self.edges = self.starts[kept]
        self.working = Active.of(timeline, ("kernel",))


class _Cells:
    """The gaps of one device, cut at every edge of what could be their cause."""

    def __init__(
        self,
        shared: _Shared,
        device: str,
        gaps: Gaps,
        launched: tuple[Ints, Ints],  # of the kernel after each gap: as `launches` has it
        own: Mapping[str, Active],
    ) -> None:
        self.timeline = timeline = shared.timeline
        self.shared, self.device, self.gaps_ = shared, device, gaps
        self.hta = hta_places(gaps, launched[0])
        edges = [shared.edges, *_edges(gaps), *(x for a in own.values() for x in _edges(a))]
        cuts = distinct(np.concatenate(edges))
        start, stop = cuts[:-1], cuts[1:]
        of = Pieces(gaps.start, gaps.stop, np.arange(len(gaps.start))).at(start)
        cell = np.searchsorted(shared.starts, start, "right") - 1
        kept = (of >= 0) & (cell >= 0) & (shared.by["step"][cell] >= 0)
        self.start, self.stop, self.of = start[kept], stop[kept], of[kept]
        self.by = {name: spans[cell[kept]] for name, spans in shared.by.items()}
        self.by |= {name: a.at(self.start) for name, a in own.items()}
        self.is_other, self.is_program = self.by["whole"] < 0, self.by["whole"] == 1
        # Of the gap that each cell is a part of: the kernels around, and the next one's dispatch.
        self.before, self.after = gaps.before[self.of], gaps.after[self.of]
        self.dispatch = launched[1][self.of]
        never = np.iinfo(np.int64).max
        self.dispatched_ns = np.where(self.dispatch >= 0, timeline.stop_ns[self.dispatch], never)
        self.is_issued = self.dispatched_ns <= gaps.start[self.of]
        # A call of the device's runtime, as foreign traces have: a worker's issue may take longer.
        is_call = (self.dispatch >= 0) & (timeline.segment[self.dispatch] < NONE)
        sends = np.any([self.by[kind] >= 0 for kind in _OWN], axis=0)
        is_free = is_call & (self.dispatched_ns <= self.start) & ~(sends | self.is_other)
        lasts = Pieces(self.start, self.stop, self.of).lasting(is_free)
        self.is_late = is_free & (lasts > LATE_NS)

    def gaps(self) -> list[Gap]:
        """The cells as gaps; neighbours of one cause and culprit are one."""
        columns = (c.tolist() for c in self._columns())
        return [self._gap(*row) for row in zip(*columns, strict=True)]

    def lengths(self) -> Iterator[tuple[tuple[str, str], Ints]]:
        """(cause, site) -> the lengths of its gaps; a pair may come more than once."""
        rule, by, start, stop, _, _ = self._columns()
        length = stop - start
        for i, cause in enumerate(r.cause for r in _RULES):
            of = rule == i
            if not of.any():
                continue
            if cause not in ("sync point", *_AT_LINES):
                yield (cause, ""), length[of]
                continue
            culprits, first, lengths = grouped(by[of], length[of])
            for culprit, part in zip(culprits, np.split(lengths, first[1:]), strict=True):
                yield (cause, self._site(cause, culprit)), part

    def _site(self, cause: str, by: int) -> str:
        """The line, or call, to blame: a sync point's, or what a span is named after."""
        if by >= 0 and cause == "sync point":
            return self.timeline.syncs[by].site
        return self.timeline.names[self.timeline.name[by]] if by >= 0 and cause in _AT_LINES else ""

    def lost(self) -> dict[str, int]:
        """Cause -> its time in which no other device worked either."""
        rule, _ = self._rules
        length = np.where(self.is_other, 0, self.stop - self.start)
        found: dict[str, int] = {}
        for i, row in enumerate(_RULES):
            if total := int(length[rule == i].sum()):
                found[row.cause] = found.get(row.cause, 0) + total
        return found

    def _columns(self) -> tuple[Ints, ...]:
        """Of each gap: rule, culprit, start, stop, HTA's name, the kernel that ended it."""
        rule, by = self._rules
        first = Pieces(self.start, self.stop, self.of).firsts(rule, by)
        last = np.append(first[1:], len(rule))[: len(first)] - 1
        of = self.of[first]
        columns = (rule[first], by[first], self.start[first], self.stop[last])
        return *columns, self.hta[of], self.gaps_.after[of]

    @cached_property
    def _rules(self) -> tuple[Ints, Ints]:
        """For each cell the place in `_RULES` of the first rule that holds, and its culprit."""
        rule, culprit = np.full(len(self.of), NONE), self.nothing
        for i, row in enumerate(_RULES):  # one after another: all at once fill the memory
            here = np.flatnonzero((rule < 0) & row.holds(self))
            rule[here], culprit[here] = i, row.culprit(self)[here]
        return rule, culprit

    @property
    def nothing(self) -> Ints:
        """No culprit, for every cell."""
        return np.full(len(self.of), NONE)

    @property
    def working(self) -> Ints | Numbers:
        """The kernel of another device that runs in each cell; -1 where there is none."""
        return self.shared.working.at(self.start) if self.is_other.any() else self.nothing

    def _gap(self, rule: int, by: int, start: int, stop: int, hta: int, before: int) -> Gap:
        cause, head, tail = _RULES[rule].cause, _RULES[rule].head, _RULES[rule].tail
        timeline = self.timeline
        name = ""
        if by < 0:
            head = tail = ""
        elif cause == "sync point":
            name = timeline.syncs[by].cause
        else:
            name = timeline.names[timeline.name[by]]
        site = self._site(cause, by)
        note = f"{head}{name[:80]}{tail}"
        return Gap(self.device, start, stop, cause, site, by, note, HTA_CAUSES[hta], before)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A cause, the cells in which it holds, and the span or sync point to blame in each."""

    cause: str  # one of GAP_CAUSES
    holds: Callable[[_Cells], Mask]
    culprit: Callable[[_Cells], Ints | Numbers]
    head: str = ""  # of the note, before and after the culprit's name
    tail: str = ""


def _while(cause: str, what: str, head: str = "", tail: str = "") -> _Rule:
    """The cause holds wherever something of `_Cells.by` goes on, which is also the culprit."""
    return _Rule(cause, lambda c: c.by[what] >= 0, lambda c: c.by[what], head, tail)


# The first rule that holds in a cell gives its cause.
_RULES = (
    _while("reduction", "reduction", "on its way: "),
    _while("communication", "communication", "only this ran: "),
    _while("host callback", "callback", "it waited for Python: "),
    _Rule("dependency", lambda c: c.is_other, lambda c: c.working, "another device works: "),
    _Rule("program", lambda c: c.is_program, lambda c: c.after, "before ", ", in one program"),
    _while("sync point", "handed", "what was issued before the wait (", ") had been used up"),
    _Rule(NOT_BEGUN, lambda c: c.is_late, lambda c: c.dispatch, tail=": not seen to begin"),
    _Rule("dependency", lambda c: c.is_issued, lambda c: c.before, "issued before; waited for "),
    _while("compile", "compile"),
    _while("dispatch", "dispatch"),
    _Rule(
        "dispatch",
        lambda c: c.dispatched_ns <= c.start,
        lambda c: c.dispatch,
        tail=": handed over, not begun yet",
    ),
    _Rule(
        "sync point",
        lambda c: c.by["wait"] >= 0,
        lambda c: c.by["waiting"],
        "the host waited (",
        ")",
    ),
    _while("sync point", "waiting", "the host waited (", ")"),
    _while("input", "input"),
    _while(ELSEWHERE, "elsewhere"),
    _while(OWN, "own"),
    _Rule(
        "host recording",
        lambda c: (c.by["record"] >= 0) & (c.by["ahead"] < 0),
        lambda c: c.by["record"],
    ),
    _while("dispatch", "ahead", "the host is ahead: "),
    _Rule("unknown", lambda c: c.of >= 0, lambda c: c.nothing),
)
