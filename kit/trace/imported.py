"""Spans of a foreign trace as columns, with what had to be repaired: the way from a file to a
`Timeline` without an object for each of a million spans.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from kit.errors import TraceFileError
from kit.ir import Aval
from kit.trace.communication import Collective, Copy
from kit.trace.devices import device_of
from kit.trace.intervals import Ints
from kit.trace.kinds import KINDS
from kit.trace.timeline import SyncPoint, Timeline

__all__ = [
    "DAY_NS",
    "MAX_CALLERS",
    "MAX_DIGITS",
    "MAX_LANES",
    "MAX_NAME",
    "MAX_POINTS",
    "MAX_SPANS",
    "MAX_SPAN_NAME",
    "MAX_SYNCS",
    "NOT_AN_ARRAY",
    "NOT_TRACED",
    "OF_FUNCTIONS",
    "ONLY_CALLS",
    "STALLED",
    "TOGETHER",
    "Caller",
    "Held",
    "Imported",
    "MeasuredMemory",
    "Member",
    "Spans",
    "cut_name",
    "few_points",
    "is_number",
    "naming",
    "own_name",
    "whole",
    "whole_said",
]

DAY_NS = 86_400 * 10**9  # what is longer, or that far from the rest, is a damaged number
MAX_SPANS = 4_000_000  # what a saved run may hold, too
MAX_LANES = 200  # a plot has no room for more
MAX_NAME = 1_000  # characters of a text that is no span's name
MAX_SPAN_NAME = 1 << 16  # those of kernels are kept whole: templates make some very long
MAX_SYNCS = 20_000
MAX_POINTS = 1_000  # of a curve: as many as a screen has pixels
MAX_CALLERS = 100_000  # of one run
MAX_DIGITS = 40  # of a number in quotes
_OTHER = "host/other lanes"
NOT_TRACED = ", not traced"  # ends the name of a device that a file has nothing else of
STALLED = "profiler and driver"  # of an environment: how much of the steps is their own work
# A note of a profile that lacks waits.
ONLY_CALLS = (
    "this profile has no event where a buffer is waited for: each call of jax.block_until_ready is "
    "shown as a wait, a call of array.block_until_ready() cannot be seen"
)
OF_FUNCTIONS = "a line is the one where its function begins: torch writes no other"  # of stacks
TOGETHER = "processes in the file"  # of an environment: several, whose work is shown as of one
NOT_AN_ARRAY = Aval((), "")  # in the place of an argument that is a number, a list or nothing


@dataclass(frozen=True, slots=True)
class Member:
    """What a trace says of the job of several ranks that its program was one of."""

    rank: int = -1  # -1: the file does not say
    world: int = 0  # ranks in all; 0: the file does not say
    zero_ns: int = 0  # on the clock of the file, where the timeline is 0
    collectives: tuple[Collective, ...] = ()
    copies: tuple[Copy, ...] = ()  # whose bytes the file says
    has_clock: bool = True  # False: the file keeps no clock that other ranks share
    process: str = ""  # host and process id of the program; "" if the file does not say both
    host: str = ""  # the name of its machine; "" if the file does not say it


@dataclass(frozen=True, slots=True)
class Held:
    """What one op at one line had allocated, and had not freed at the peak."""

    op: str  # "" if no op was around
    line: str  # "train.py:41"; "" if the trace has no stacks
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """What one device's allocator had given out, measured over a trace with each allocation.

    Units:
        bytes; nanoseconds of the timeline
    """

    device: str  # "device/0", or "host"
    times_ns: tuple[int, ...]  # few of them: the highest of those that lie close together
    allocated: tuple[int, ...]  # from each time on
    peak_bytes: int
    peak_ns: int
    held: tuple[Held, ...]  # of the peak, the largest first
    before: int  # of the peak: allocated before the recording, by nobody knows what
    events: int  # allocations and frees

    @property
    def is_whole(self) -> bool:
        """Does the peak hold what was there before? torch counts a CPU's from the begin only."""
        return self.device != "host"


@dataclass(frozen=True, slots=True)
class Caller:
    """One way in which kernels were launched, as far as the trace says it.

    Kernels that were launched alike share it: the `node` of their spans is its place among the
    callers of the run, so that a text is kept once for a million kernels.

    A kernel of the backward pass has no module and no line of its own: it has those of the op of
    the forward pass whose gradient it computes, and says so (`is_backward`).
    """

    op: str = ""  # the innermost around the launch, "aten::addmm"; "" if there was none
    module: tuple[str, ...] = ()  # outermost first: "Bert_0", "Linear_3"
    annotation: tuple[str, ...] = ()  # of the program, outermost first
    site: str = ""  # "train.py:41", where the user's function begins; "" without stacks
    inputs: tuple[Aval, ...] = ()  # arguments of the op; empty without shapes
    others: tuple[str, ...] = ()  # arguments that are no arrays, as text, where shapes need them
    is_backward: bool = False
    calls: int = 0  # of the op, in all traced steps, that launched something
    kernels: int = 0  # that these calls launched
    graph_node: int = -1  # of a CUDA graph, if the kernel was replayed as a part of one

    @property
    def shapes(self) -> str:
        """The arrays among its arguments, as text: "float32[5,128], float32[128,128]"."""
        return ", ".join(str(aval) for aval in self.inputs if aval != NOT_AN_ARRAY)

    def lines(self) -> list[str]:
        """What is known, a line for each."""
        op = f"{self.op}({self.shapes})" if self.shapes else self.op
        found = [op, "/".join(self.module), *self.annotation[-1:], self.site]
        if self.graph_node >= 0:
            found.append(f"node {self.graph_node} of a CUDA graph")
        return [line for line in [*found, "backward" * self.is_backward] if line]


@dataclass(frozen=True)
class Imported:
    """A foreign trace, read: the timeline and what else its file says."""

    timeline: Timeline
    format: str  # "torch.profiler", "jax profile", "overlap-kit export"
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    step_times_ns: tuple[int, ...] | None = None  # None: the timeline's own steps
    member: Member = Member()
    memory: tuple[MeasuredMemory, ...] = ()
    callers: tuple[Caller, ...] = ()  # of the kernels: `timeline.node` is a place in it
    # Of an export of kit's own, what its run knew:
    exported_as: str = ""  # the origin that its timeline had; "": it has traced steps only
    conditions: Mapping[str, float] = field(default_factory=dict)  # by name
    sync_points: tuple[SyncPoint, ...] | None = None  # of the measured steps; None: not known
    sorts: tuple[int, ...] = ()  # of each traced step; (): all are alike


def cut_name(name: object, most: int = MAX_NAME) -> str:
    """The text of a name, at most so many characters of it; "" for what is no text."""
    text = name if isinstance(name, str) else str(name) if type(name) in (int, float) else ""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def own_name(name: str, taken: dict[str, int]) -> str:
    """The name, with a number behind it if it is taken; from now on it is.

    Args:
        taken: the names that are, and the last number that was tried behind each.
    """
    found = name
    while found in taken:
        taken[name] += 1
        found = f"{name} {taken[name]}"
    taken[found] = 1
    return found


def whole(value: object, most: int = (1 << 31) - 1) -> int:
    """A whole number from 0 on, at most so large; -1 of anything else."""
    return value if type(value) is int and 0 <= value <= most else -1


def whole_said(value: object, most: int) -> int:
    """The same, also of a number in quotes, and of one that was written as a fraction: 7.0."""
    if type(value) is int:  # nearly always
        return value if 0 <= value <= most else -1
    if isinstance(value, str):
        is_digits = len(value) < MAX_DIGITS and value.isascii() and value.isdigit()
        value = int(value) if is_digits else -1
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return whole(value, most)


def is_number(value: object, most: float) -> TypeGuard[float]:
    """Is it a number that is nearer to 0 than this? What is not finite is none."""
    return type(value) in (int, float) and abs(value) < most  # type: ignore[arg-type]


@contextmanager
def naming(path: str | os.PathLike[str], what: str = "a trace") -> Iterator[None]:
    """Read a file: an error that its reader raises will name it."""
    try:
        yield
    except TraceFileError as error:
        name = cut_name(os.fspath(path))
        raise TraceFileError(f"{name!r} is not {what} that can be read: {error}") from None


@dataclass(frozen=True)
class Spans:
    """Spans of one kind, or of several. Shape: every column (spans,), or a number for all."""

    lane: NDArray[np.int32] | int  # in the lanes given to `timeline`
    kind: NDArray[np.int32] | str
    name: NDArray[np.int32] | int  # in the names given to `timeline`
    start_ns: Ints
    stop_ns: Ints
    segment: Ints | int = -1
    node: Ints | int = -1

    @classmethod
    def timeline(
        cls,
        parts: Sequence[Spans],
        lanes: Sequence[str],
        names: Sequence[str],
        syncs: Iterable[SyncPoint] = (),
        notes: Iterable[str] = (),
    ) -> Timeline:
        """All the parts on one clock that starts with the first of them.

        Raises:
            TraceFileError: more than `MAX_SPANS` spans.
        """
        count = sum(len(p.start_ns) for p in parts)
        if count > MAX_SPANS:
            raise TraceFileError(
                f"it holds {count:,} spans, more than {MAX_SPANS:,}: trace fewer steps"
            )
        start, stop = _joined(parts, "start_ns"), _joined(parts, "stop_ns")
        order, notes = _in_order(start, stop), list(notes)
        chosen, lanes = _few_lanes(_joined(parts, "lane")[order], lanes, notes)
        name = _joined(parts, "name")[order]
        used = np.flatnonzero(np.bincount(name))
        place = np.zeros(len(names), np.int32)
        place[used] = np.arange(len(used))
        kept = _few_syncs(sorted(syncs, key=lambda s: s.at_ns), notes)
        return Timeline(
            lanes=tuple(lanes),
            names=tuple(names[i] for i in used.tolist()),
            lane=chosen.astype(np.int32),
            kind=_joined(parts, "kind")[order].astype(np.int32),
            name=place[name],
            start_ns=start[order],
            stop_ns=stop[order],
            segment=_joined(parts, "segment")[order].astype(np.int32),
            node=_joined(parts, "node")[order].astype(np.int32),
            syncs=kept,
            origin="imported",
            notes=tuple(notes),
        )


def _in_order(start: Ints, stop: Ints) -> NDArray[np.intp]:
    """Where each span is, by start; of those that start together the longest comes first."""
    order = np.argsort(start, kind="stable")  # parts are in order, nearly: only merged
    alike = start[order[1:]] == start[order[:-1]]
    tied = (np.append(alike, False) | np.append(False, alike))[: len(order)]
    some = order[tied]
    order[tied] = some[np.lexsort((-stop[some], start[some]))]
    return order


def _joined(parts: Sequence[Spans], column: str) -> Ints:
    """One column of all parts, one after the other."""
    found = [np.zeros(0, np.int64)]
    for part in parts:
        value = getattr(part, column)
        if isinstance(value, str):
            value = KINDS.index(value)
        found.append(np.broadcast_to(np.asarray(value, np.int64), (len(part.start_ns),)))
    return np.concatenate(found)


def _few_lanes(
    lane: Ints, lanes: Sequence[str], notes: list[str]
) -> tuple[NDArray[np.intp], list[str]]:
    """Lanes by first appearance, each name once; of too many, the last are drawn together."""
    used = np.flatnonzero(np.bincount(lane))
    number = np.zeros(len(lanes), np.intp)
    number[used] = np.arange(len(used))
    first = np.zeros(len(used), np.intp)
    first[number[lane[::-1]]] = np.arange(len(lane))[::-1]
    order = np.argsort(first, kind="stable").tolist()
    drawn_as = _drawn_as([lanes[used[i]] for i in order], notes)
    names = list(dict.fromkeys(drawn_as))
    place = {name: i for i, name in enumerate(names)}
    rank = np.empty(len(used), np.intp)
    rank[order] = [place[name] for name in drawn_as]
    return rank[number[lane]], names


def _drawn_as(names: Sequence[str], notes: list[str]) -> list[str]:
    """The lane that each is a part of: a stream stays with its device, and the steps stay alone.

    Idle time and the critical path are told by devices and by the thread of the steps.
    """
    distinct = list(dict.fromkeys(names))
    if len(distinct) <= MAX_LANES:
        return list(names)
    rest = {
        name: _OTHER if name.startswith("host/") else f"{device_of(name)} other lanes"
        for name in distinct
    }
    if len(set(rest.values())) >= MAX_LANES:  # devices without end: no trace of a machine's
        rest = dict.fromkeys(distinct, _OTHER)
    distinct.sort(key=lambda name: (name != "host/main", name.startswith("host/")))
    last = distinct[MAX_LANES - len(set(rest.values())) :]
    room = MAX_LANES - len({rest[name] for name in last})
    own = set(distinct[:room])
    left = len(distinct) - room
    notes.append(f"{len(distinct):,} lanes: {left:,} of them are drawn together")
    return [name if name in own else rest[name] for name in names]


def _few_syncs(syncs: Sequence[SyncPoint], notes: list[str]) -> tuple[SyncPoint, ...]:
    """The longest waits, if there are more than can be shown."""
    if len(syncs) <= MAX_SYNCS:
        return tuple(syncs)
    notes.append(
        f"{len(syncs):,} sync points: the longest {MAX_SYNCS:,} are kept, no other one is counted"
    )
    longest = sorted(range(len(syncs)), key=lambda i: -syncs[i].wait_ns)[:MAX_SYNCS]
    return tuple(syncs[i] for i in sorted(longest))


def few_points(times: Ints, values: Ints, most: int = MAX_POINTS) -> tuple[Ints, Ints]:
    """At most so many points of a curve; of those that lie close together the highest."""
    if len(times) <= most:
        return times, values
    edges = np.linspace(times[0], times[-1], most, endpoint=False)
    first = np.unique(np.searchsorted(times, edges))
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(times))))
    order = np.lexsort((-values, group))
    highest = order[np.searchsorted(group[order], np.arange(len(first)))]
    return times[highest], values[highest]
