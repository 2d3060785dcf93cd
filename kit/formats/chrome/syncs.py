"""Which calls of a torch trace wait for the device, and which of their waits are the steps'; and
where Python waits for something else, or computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.columns import Columns, Rows
from kit.formats.chrome.frames import Frames
from kit.formats.chrome.lanes import Lanes
from kit.text import format_count
from kit.trace.active import grouped
from kit.trace.communication import way_of
from kit.trace.host import AT_ONCE_NS, idle_in, waits_for_copy
from kit.trace.imported import Spans, cut_name
from kit.trace.intervals import Ints, Mask
from kit.trace.timeline import SyncPoint

__all__ = [
    "LEAST_NS",
    "Copies",
    "asleep",
    "computed",
    "frees",
    "joined",
    "of_steps",
    "of_threads",
    "wait_spans",
    "without_last",
]

LEAST_NS = 1_000_000  # what is shorter may be no wait at all, as of a lock that is free
_WAITS = re.compile(
    r"<built-in (function (sleep|select|read|wait4|waitpid)>|method ("
    r"acquire of _thread|get of _queue|poll of select|(read\w*|write|flush) of _io|"
    r"(accept|connect|recv\w*|send\w*) of _?socket))"
)
_COMPUTES = re.compile(r"<built-in (function collect>|method \w+ of numpy\.)")
_MAX_DEVICES = 64  # that one file may have
_WHOLE_DEVICE = ("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize")


class Copies:
    """The copies between host and device, by the number that each shares with its call."""

    def __init__(self, columns: Columns, kernels: Rows) -> None:
        self._columns = columns
        copies = columns.named(kernels[columns.link[kernels] > 0], way_of)
        self._copy = dict(zip(columns.link[copies].tolist(), copies.tolist(), strict=True))

    def ways(self, calls: Rows, op: NDArray[np.int32]) -> dict[int, str]:
        """Where each op has copied to, as far as the file says which copy it has called."""
        return {int(op[i]): way_of(self._name(k)) for i, k in self._pairs(calls)}

    def waiting(self, calls: Rows) -> Rows:
        """The calls that return no earlier than their copy is done."""
        found = [i for i, k in self._pairs(calls) if self._waits(i, k)]
        return np.array(found, np.intp)

    def _waits(self, call: int, copy: int) -> bool:
        names = self._name(call), self._name(copy)
        return waits_for_copy(*names, self._ends(call), self._ends(copy))

    def _name(self, event: int) -> str:
        return self._columns.names[int(self._columns.name[event])]

    def _pairs(self, calls: Rows) -> Iterator[tuple[int, int]]:
        numbers = self._columns.link[calls].tolist()
        for i, number in zip(calls.tolist(), numbers, strict=True):
            if number in self._copy:
                yield i, self._copy[number]

    def _ends(self, event: int) -> tuple[int, int]:
        return int(self._columns.start[event]), int(self._columns.stop[event])


def joined(columns: Columns, waits: Rows, copies: Rows, op: NDArray[np.int32]) -> tuple[Rows, Ints]:
    """Each wait once, in order of thread and time, and the ends of all events.

    A copy that waits, and the synchronize call after it in the same op, are one wait.

    Args:
        copies: calls that copy, and wait for it.
        op: of each event, the op around.
    """
    thread, start, stop = columns.thread, columns.start, columns.stop
    found = np.concatenate([waits, copies])
    found = found[np.lexsort((start[found], thread[found]))]
    around, is_copy = op[found], np.isin(found, copies)
    before, after = found[:-1], found[1:]
    follows: Mask = is_copy[:-1] & ~is_copy[1:] & (thread[before] == thread[after])
    follows &= (around[:-1] == around[1:]) & (start[after] - stop[before] < AT_ONCE_NS)
    stop = stop.copy()
    stop[before[follows]] = np.maximum(stop[before[follows]], stop[after[follows]])
    return found[~np.append(np.zeros(len(found[:1]), bool), follows)], stop


def frees(
    columns: Columns, calls: Rows, launches: Rows, work: Rows, lanes: Lanes, launched: Ints
) -> tuple[Rows, Ints]:
    """Those of some calls that first wait for a device, and when it had done its work.

    To give memory back, CUDA lets the device become idle. Which one it is, no call says: it may be
    any that its process is known to use, or all where that is not known.

    Args:
        launches: the calls that launch work.
        work: what ran on devices.
        launched: of each call and of what it launched, one number below -1.
    """
    begun = done = columns.start[calls]
    if not len(calls) or not len(work):
        return calls[:0], done[:0]
    owner = lanes.owners()[columns.thread]
    _, first, work = grouped(owner[work], work)
    for mine in np.split(work, first[1:])[:_MAX_DEVICES]:
        numbers = launched[mine][launched[mine] < -1]
        users = owner[launches[np.isin(launched[launches], numbers)]]
        is_users = np.isin(owner[calls], users) | (not len(users))
        idle = idle_in(columns.times(calls), columns.times(mine))
        done = np.where(is_users, np.maximum(done, idle), done)
    waits = done > begun
    return calls[waits], done[waits]


def of_threads(
    columns: Columns, chosen: Rows, host: Sequence[int], said: str, notes: list[str]
) -> Rows:
    """Those of some events that run on the threads of the steps; a note counts the others.

    Args:
        host: the threads of the steps.
        said: what one of the events is.
    """
    is_theirs = np.isin(columns.thread[chosen], host)
    if out := int((~is_theirs).sum()):
        notes.append(f"{format_count(out, said)} of threads beside the steps' left out")
    return chosen[is_theirs]


def of_steps(columns: Columns, waits: Rows, steps: Ints, notes: list[str]) -> Rows:
    """The waits that begin in a step; a note counts the others. Without steps, all.

    Shape:
        steps, in order: (n, 2)
    """
    if not len(steps):
        return waits
    start = columns.start[waits]
    step = np.searchsorted(steps[:, 0], start, "right") - 1
    latest = np.maximum.accumulate(steps[:, 1])[np.maximum(step, 0)]
    is_inside = (step >= 0) & (start <= latest)
    if out := int((~is_inside).sum()):
        notes.append(f"{format_count(out, 'wait')} outside of the steps left out")
    return waits[is_inside]


def without_last(columns: Columns, waits: Rows, work: Rows, notes: list[str]) -> Rows:
    """Without a wait for the whole device that ends the recording: torch's profiler calls one.

    Args:
        work: ops, and calls that launch.
    """
    if not len(waits):
        return waits
    start = columns.start
    last = waits[np.argmax(start[waits])]
    is_whole = columns.names[columns.name[last]] in _WHOLE_DEVICE
    if not is_whole or (start[work] > start[last]).any():
        return waits
    notes.append(
        "a wait for the whole device ends the recording, as torch's profiler does: left out"
    )
    kept: Rows = waits[waits != last]
    return kept


def wait_spans(syncs: Sequence[tuple[SyncPoint, int]], name: Callable[[str], int]) -> Spans:
    """The spans of sync points, each on its thread; `name` numbers a text."""
    at = np.array([s.at_ns for s, _ in syncs], np.int64)
    wait = np.array([s.wait_ns for s, _ in syncs], np.int64)
    names = np.array([name(s.cause) for s, _ in syncs], np.int32)
    return Spans(np.array([t for _, t in syncs], np.int32), "wait", names, at, at + wait)


def asleep(
    columns: Columns, calls: Rows, place: Callable[[int], str], number: Callable[[str], int]
) -> Spans:
    """A span for each call of a C function of Python's that only waits, if it is long.

    It is named after the function that called it.

    Args:
        calls: events of Python functions on one thread.
        place: where the function is that called an event; "" if that is not known.
        number: of a name, that of the timeline.
    """
    waits = columns.named(calls, _WAITS.match)
    waits = waits[columns.stop[waits] - columns.start[waits] >= LEAST_NS]
    found = [number(cut_name(place(i) or "an unknown line")) for i in waits.tolist()]
    times = columns.start[waits], columns.stop[waits]
    return Spans(columns.thread[waits], "elsewhere", np.array(found, np.int32), *times)


def computed(
    columns: Columns,
    calls: Rows,
    others: Rows,
    frame: NDArray[np.int32],
    frames: Frames,
    number: Callable[[str], int],
) -> Spans:
    """A span for each long stretch in which a function of the user's ran, and called nothing.

    There Python computes, or waits without a call, as `with lock` does. So do the garbage collector
    and numpy in a call. It is named after the function.

    Args:
        calls: events of Python functions on one thread.
        others: ops and other work of that thread.
        frame: of each event the Python function around, or -1.
        number: of a name, that of the timeline.
    """
    start, stop = columns.start, columns.stop
    calls = calls[np.lexsort((-stop[calls], start[calls]))]
    cells = _quiet(columns, calls, others)
    inner = calls[np.searchsorted(start[calls], cells[:, 0], "right") - 1]
    found: list[tuple[int, int, int]] = []
    for call, (begin, end) in zip(inner.tolist(), cells.tolist(), strict=True):
        while call >= 0 and stop[call] < end:  # has ended before
            call = int(frame[call])
        if call >= 0 and _COMPUTES.match(columns.names[columns.name[call]]):
            call = int(frame[call])
        place, is_users = frames.place(int(columns.name[call])) if call >= 0 else ("", False)
        if is_users:
            found.append((number(cut_name(place)), begin, end))
    name, begins, stops = np.array(found, np.int64).reshape(-1, 3).T
    thread = int(columns.thread[calls[0]]) if len(calls) else 0
    return Spans(thread, "own", name.astype(np.int32), begins, stops)


def _quiet(columns: Columns, calls: Rows, others: Rows) -> Ints:
    """The long stretches in which no event begins or ends, and none of the others goes on.

    Only what is long is looked at closely: a trace has millions of edges, and few such stretches.
    """
    if not len(calls):
        return np.zeros((0, 2), np.int64)
    sides = columns.start, columns.stop
    edges = np.concatenate([side[rows] for side in sides for rows in (calls, others)])
    edges.sort()
    places = np.flatnonzero(edges[1:] - edges[:-1] >= LEAST_NS)
    cells = np.stack([edges[places], edges[places + 1]], axis=1)
    begun, ended = (np.searchsorted(np.sort(side[others]), cells[:, 0], "right") for side in sides)
    found: Ints = cells[(begun == ended) & (cells[:, 0] >= columns.start[calls].min())]
    return found
