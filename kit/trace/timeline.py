"""What happened when: spans on lanes, where the host waited, and what somebody wrote there.

All times are nanoseconds on one host clock (`time.perf_counter_ns`), made relative to the start of
the timeline. A timeline is stored as numpy columns; `spans` builds objects on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.errors import TimelineError
from kit.text import check_number, format_count, is_whole_number
from kit.trace.kinds import KINDS

__all__ = [
    "COLUMNS",
    "MAX_PINS",
    "MAX_TEXT",
    "ORIGINS",
    "Pin",
    "Place",
    "Span",
    "SyncPoint",
    "Timeline",
    "each_step",
    "per_step",
    "shown_pins",
    "with_pin",
    "without_pin",
]

MAX_PINS = 1000  # of a run
MAX_TEXT = 1000  # characters of one pin
_MAX_NS = 1 << 53  # beyond it a float64, as plots use, is no longer exact

ORIGINS = ("recorded", "profiled", "modelled", "imported")
# The arrays of a timeline, and the type of each: one entry a span.
COLUMNS = {"lane": "int32", "kind": "int32", "name": "int32", "start_ns": "int64",
           "stop_ns": "int64", "segment": "int32", "node": "int32"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Span:
    """Something that ran on `lane` from `start_ns` to `stop_ns`.

    A `record` span is named after its phase: "forward", "backward" or "update".
    """

    lane: str  # "host/main", "host/worker", "device/0 kernels": the part before "/" groups lanes
    name: str
    kind: str  # one of KINDS
    start_ns: int
    stop_ns: int
    segment: int = -1  # Segment.index; -1: none; below: a launch in a foreign trace
    node: int = -1  # node id in the graph, -1 if none


@dataclass(frozen=True, slots=True)
class Pin:
    """A text at one time, on the clock of the timeline's spans."""

    at_ns: int
    text: str


Place = tuple[str, str, str]  # line, library line and cause


@dataclass(frozen=True, slots=True)
class SyncPoint:
    """The host stopped at `at_ns` and waited `wait_ns` for the device."""

    at_ns: int
    wait_ns: int
    cause: str  # "item", "print", "copy to host", "unlowered op aten.nonzero", ...
    site: str = ""  # "train.py:41", the user's line
    via: str = ""  # "torch/amp/grad_scaler.py:371", the library line that did it, if not the user's

    @property
    def place(self) -> Place:
        """What is one row of a table: the line, the library line and the cause."""
        return self.site, self.via, self.cause


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans as columns (sorted by start), sync points, and where the numbers come from.

    Shape:
        lane, kind, name, start_ns, stop_ns, segment, node: (spans,)
        `lane`, `kind` and `name` are indices into `lanes`, `KINDS` and `names`.
    Units:
        nanoseconds from the start of the timeline
    """

    lanes: tuple[str, ...]
    names: tuple[str, ...]
    lane: NDArray[np.int32]
    kind: NDArray[np.int32]
    name: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    stop_ns: NDArray[np.int64]
    segment: NDArray[np.int32]
    node: NDArray[np.int32]
    syncs: tuple[SyncPoint, ...] = ()
    origin: str = "recorded"
    notes: tuple[str, ...] = field(default=())  # what the reader must know, e.g. clock error

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise TimelineError(f"origin {self.origin!r} is not one of {ORIGINS}")
        columns = (self.lane, self.kind, self.name, self.stop_ns, self.segment, self.node)
        if any(len(c) != len(self.start_ns) for c in columns):
            raise TimelineError("the columns of a timeline must have one length")
        if np.any(self.stop_ns < self.start_ns):
            raise TimelineError("a span stops before it starts")

    def __repr__(self) -> str:
        parts = (
            format_count(self.steps, "step"),
            format_count(len(self), "span"),
            format_count(len(self.lanes), "lane"),
            format_count(len(self.syncs), "sync point"),
        )
        return f"Timeline({', '.join(parts)}, {self.origin})"

    @classmethod
    def of(cls, spans: Iterable[Span], syncs: Iterable[SyncPoint] = (), origin: str = "recorded",
           notes: Iterable[str] = ()) -> Timeline:  # fmt: skip
        """Build the columns from span objects; lanes keep the order of their first appearance."""
        spans = list(spans)
        lanes = tuple(dict.fromkeys(s.lane for s in spans))
        names = tuple(dict.fromkeys(s.name for s in spans))
        unknown = {s.kind for s in spans} - set(KINDS)
        if unknown:
            raise TimelineError(f"span kinds {sorted(unknown)} are not in {KINDS}")
        lane_of = {lane: i for i, lane in enumerate(lanes)}
        name_of = {name: i for i, name in enumerate(names)}
        spans.sort(key=lambda s: (s.start_ns, -s.stop_ns))
        small, big = np.int32, np.int64
        return cls(
            lanes=lanes,
            names=names,
            lane=np.array([lane_of[s.lane] for s in spans], small),
            kind=np.array([KINDS.index(s.kind) for s in spans], small),
            name=np.array([name_of[s.name] for s in spans], small),
            start_ns=np.array([s.start_ns for s in spans], big),
            stop_ns=np.array([s.stop_ns for s in spans], big),
            segment=np.array([s.segment for s in spans], small),
            node=np.array([s.node for s in spans], small),
            syncs=tuple(sorted(syncs, key=lambda s: s.at_ns)),
            origin=origin,
            notes=tuple(notes),
        )

    def __len__(self) -> int:
        return len(self.start_ns)

    def __eq__(self, other: object) -> bool:
        """Equal when every column and every text is; a timeline has no hash."""
        if not isinstance(other, Timeline):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name))
            if f.name in COLUMNS
            else getattr(self, f.name) == getattr(other, f.name)
            for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def spans(self) -> list[Span]:
        """The spans as objects: convenient for a few thousand, slow for a million."""
        return [
            Span(self.lanes[la], self.names[n], KINDS[k], int(a), int(b), int(s), int(d))
            for la, n, k, a, b, s, d in zip(self.lane, self.name, self.kind, self.start_ns,
                                            self.stop_ns, self.segment, self.node, strict=True)
        ]  # fmt: skip

    @property
    def steps(self) -> int:
        """How many steps it has, those of all devices."""
        return int(self.where(kind="step").sum())

    @property
    def begin_ns(self) -> int:
        """The first start, from which pictures count; 0 if empty."""
        return int(self.start_ns.min()) if len(self) else 0

    @property
    def duration_ns(self) -> int:
        """From the first start to the last stop; 0 if empty."""
        return int(self.stop_ns.max()) - self.begin_ns if len(self) else 0

    def where(
        self,
        *,
        kind: str | tuple[str, ...] | None = None,
        lane: str | None = None,
        name: str | None = None,
    ) -> NDArray[np.bool_]:
        """A mask over the spans of this kind, lane and name; a lane may be a group: "device".

        Of several kinds it has the spans of each.

        Raises:
            TimelineError: there is no such kind.
        """
        mask = np.ones(len(self), dtype=bool)
        if kind is not None:
            chosen = np.zeros(len(self), dtype=bool)
            for one in (kind,) if isinstance(kind, str) else kind:
                if one not in KINDS:
                    raise TimelineError(f"kind {one!r} is not one of {KINDS}")
                chosen |= self.kind == KINDS.index(one)  # np.isin takes five times as long, or more
            mask &= chosen
        if lane is not None:
            wanted = [i for i, x in enumerate(self.lanes) if x == lane or x.startswith(lane + "/")]
            mask &= np.isin(self.lane, wanted)
        if name is not None:
            mask &= self.name == (self.names.index(name) if name in self.names else -1)
        return mask

    def intervals(
        self,
        *,
        kind: str | tuple[str, ...] | None = None,
        lane: str | None = None,
        name: str | None = None,
    ) -> NDArray[np.int64]:
        """Starts and stops of the spans that `where` selects. Shape: (n, 2)."""
        return self.times(self.where(kind=kind, lane=lane, name=name))

    def times(self, chosen: NDArray[Any]) -> NDArray[np.int64]:
        """Starts and stops of the spans of a mask, or of these indices. Shape: (n, 2)."""
        return np.stack([self.start_ns[chosen], self.stop_ns[chosen]], axis=1)


def per_step(timeline: Timeline) -> tuple[int, str]:
    """What a total is divided by, and what its unit then ends with: `(5, " a step")`.

    A timeline without steps is one piece of work: `(1, "")`.
    """
    steps = timeline.steps
    return (steps, " a step") if steps else (1, "")


def each_step(timeline: Timeline) -> tuple[Timeline, ...]:
    """The timeline of each traced step alone, cut at its edges; steps of several devices at the
    same time are one. A step of no length, as damaged traces have them, holds nothing: it is none.
    """
    steps = _apart(timeline.intervals(kind="step"))
    low, high = np.array(steps, np.int64).reshape(-1, 2).T
    # a span lies in the steps from the first that ends after its begin on, as far as they begin
    # before its end
    first = np.searchsorted(high, timeline.start_ns, "right")
    count = (np.searchsorted(low, timeline.stop_ns, "left") - first).clip(0)
    spans = _grouped(first, count, len(steps))
    at = np.array([s.at_ns for s in timeline.syncs], np.int64)
    step = np.searchsorted(low, at, "right") - 1
    is_inside = (step >= 0) & (at < np.append(high, 0)[step])
    syncs = _grouped(step, is_inside.astype(np.int64), len(steps))
    found = []
    for (begin, end), inside, waits in zip(steps, spans, syncs, strict=True):
        columns = {name: getattr(timeline, name)[inside] for name in COLUMNS}
        columns["start_ns"] = columns["start_ns"].clip(begin)
        columns["stop_ns"] = columns["stop_ns"].clip(max=end)
        waited = tuple(timeline.syncs[i] for i in waits.tolist())
        found.append(replace(timeline, syncs=waited, **columns))
    return tuple(found)


def _grouped(
    first: NDArray[np.intp], count: NDArray[np.int64], groups: int
) -> list[NDArray[np.intp]]:
    """The members of each group, in order; each is in so many groups from its first one on."""
    member = np.repeat(np.arange(len(first)), count)
    place = np.arange(len(member)) - np.repeat(np.cumsum(count) - count, count)
    group = first[member] + place
    edges = np.cumsum(np.bincount(group, minlength=groups))
    return np.split(member[np.argsort(group, kind="stable")], edges)[:groups]


def _apart(intervals: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The intervals in order; those that overlap are joined, and those of no length left out."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted((low, high) for low, high in intervals.tolist() if low < high):
        if joined and low < joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def with_pin(pins: Sequence[Pin], at_ns: int, text: str) -> tuple[Pin, ...]:
    """The pins with one more, in order of time.

    Raises:
        TimelineError: there is no text, it is too long, the time is impossible, or there are too
            many pins.
    """
    text = text.strip()
    if not text or len(text) > MAX_TEXT:
        raise TimelineError(f"a pin has a text of 1 to {MAX_TEXT:,} characters, not {len(text):,}")
    check_number(TimelineError, "the time of a pin", at_ns, at_least=-_MAX_NS, at_most=_MAX_NS - 1,
                 unit="nanoseconds")  # fmt: skip
    if len(pins) >= MAX_PINS:
        raise TimelineError(f"a run holds at most {MAX_PINS:,} pins")
    return tuple(sorted((*pins, Pin(int(at_ns), text)), key=lambda pin: pin.at_ns))


def without_pin(pins: Sequence[Pin], place: int) -> tuple[Pin, ...]:
    """The pins without the one at this place.

    Raises:
        TimelineError: there is none at this place.
    """
    if not pins:
        raise TimelineError("there is no pin to take away")
    if not (is_whole_number(place, 0) and place < len(pins)):
        raise TimelineError(f"there is no pin {place!r}: the places are 0 to {len(pins) - 1}")
    return (*pins[:place], *pins[place + 1 :])


def shown_pins(timeline: Timeline, pins: Sequence[Pin]) -> list[tuple[int, str]]:
    """(time, text) of each pin; the time from the first span on, as the timeline's axis has it."""
    begin = timeline.begin_ns
    return [(pin.at_ns - begin, pin.text) for pin in pins]
