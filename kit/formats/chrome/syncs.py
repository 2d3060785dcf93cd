"""Which calls of a torch trace wait for the device, and which of their waits are the steps'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.events import Events
from kit.formats.chrome.lanes import Lanes
from kit.text import format_count
from kit.trace.active import grouped
from kit.trace.communication import way_of
from kit.trace.host import AT_ONCE_NS, idle_in, waits_for_copy
from kit.trace.imported import Spans
from kit.trace.intervals import Ints, Mask
from kit.trace.timeline import SyncPoint

__all__ = [
    "Copies",
    "frees",
    "joined",
    "of_steps",
    "of_threads",
    "wait_spans",
    "without_last",
]

Chosen = NDArray[np.intp]  # indices of events
Times = tuple[Ints, Ints, Ints]  # thread, start and stop of each event
_MAX_DEVICES = 64  # that one file may have
_WHOLE_DEVICE = ("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize")


class Copies:
    """The copies between host and device, by the number that each shares with its call."""

    def __init__(self, events: Events, times: Times, kernels: Chosen) -> None:
        self._names, self._name = events.names, events.column("name")
        self._link = events.column("link").astype(np.int64)
        _, self._start, self._stop = times
        is_copy = np.array([bool(way_of(text)) for text in events.names], bool)
        copies = kernels[(self._link[kernels] > 0) & is_copy[self._name[kernels]]]
        self._copy = dict(zip(self._link[copies].tolist(), copies.tolist(), strict=True))

    def ways(self, calls: Chosen, op: NDArray[np.int32]) -> dict[int, str]:
        """Where each op has copied to, as far as the file says which copy it has called."""
        return {int(op[i]): way_of(self._names[self._name[k]]) for i, k in self._pairs(calls)}

    def waiting(self, calls: Chosen) -> Chosen:
        """The calls that return no earlier than their copy is done."""
        found = [i for i, k in self._pairs(calls) if self._waits(i, k)]
        return np.array(found, np.intp)

    def _waits(self, call: int, copy: int) -> bool:
        of_call, of_copy = (self._names[self._name[event]] for event in (call, copy))
        return waits_for_copy(of_call, of_copy, self._ends(call), self._ends(copy))

    def _pairs(self, calls: Chosen) -> Iterator[tuple[int, int]]:
        numbers = self._link[calls].tolist()
        for i, number in zip(calls.tolist(), numbers, strict=True):
            if number in self._copy:
                yield i, self._copy[number]

    def _ends(self, event: int) -> tuple[int, int]:
        return int(self._start[event]), int(self._stop[event])


def joined(
    waits: Chosen, copies: Chosen, times: Times, op: NDArray[np.int32]
) -> tuple[Chosen, Ints]:
    """Each wait once, in order of thread and time, and the ends of all events.

    A copy that waits, and the synchronize call after it in the same op, are one wait.

    Args:
        copies: calls that copy, and wait for it.
        op: of each event, the op around.
    """
    thread, start, stop = times
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
    calls: Chosen, launches: Chosen, work: Chosen, times: Times, lanes: Lanes, launched: Ints
) -> tuple[Chosen, Ints]:
    """Those of some calls that first wait for a device, and when it had done its work.

    To give memory back, CUDA lets the device become idle. Which one it is, no call says: it may be
    any that its process is known to use, or all where that is not known.

    Args:
        launches: the calls that launch work.
        work: what ran on devices.
        launched: of each call and of what it launched, one number below -1.
    """
    thread, start, stop = times
    done = start[calls]

    def ends(some: Chosen) -> Ints:
        return np.stack([start[some], stop[some]], axis=1)

    if not len(calls) or not len(work):
        return calls[:0], done[:0]
    owner = lanes.owners()[thread]
    _, first, work = grouped(owner[work], work)
    for mine in np.split(work, first[1:])[:_MAX_DEVICES]:
        numbers = launched[mine][launched[mine] < -1]
        users = owner[launches[np.isin(launched[launches], numbers)]]
        is_users = np.isin(owner[calls], users) | (not len(users))
        idle = idle_in(ends(calls), ends(mine))
        done = np.where(is_users, np.maximum(done, idle), done)
    waits = done > start[calls]
    return calls[waits], done[waits]


def of_threads(
    chosen: Chosen, thread: Ints, host: Sequence[int], said: str, notes: list[str]
) -> Chosen:
    """Those of some events that run on the threads of the steps; a note counts the others.

    Args:
        thread: of each event of the file.
        host: the threads of the steps.
        said: what one of the events is.
    """
    is_theirs = np.isin(thread[chosen], host)
    if out := int((~is_theirs).sum()):
        notes.append(f"{format_count(out, said)} of threads beside the steps' left out")
    return chosen[is_theirs]


def of_steps(waits: Chosen, start: Ints, steps: Ints, notes: list[str]) -> Chosen:
    """The waits that begin in a step; a note counts the others. Without steps, all.

    Shape:
        start, of each event of the file: (events,); steps, in order: (n, 2)
    """
    if not len(steps):
        return waits
    step = np.searchsorted(steps[:, 0], start[waits], "right") - 1
    latest = np.maximum.accumulate(steps[:, 1])[np.maximum(step, 0)]
    is_inside = (step >= 0) & (start[waits] <= latest)
    if out := int((~is_inside).sum()):
        notes.append(f"{format_count(out, 'wait')} outside of the steps left out")
    return waits[is_inside]


def without_last(
    waits: Chosen, work: Chosen, times: Times, names: Callable[[int], str], notes: list[str]
) -> Chosen:
    """Without a wait for the whole device that ends the recording: torch's profiler calls one.

    Args:
        work: ops, and calls that launch.
        names: of an event, by its index.
    """
    _, start, _ = times
    if not len(waits):
        return waits
    last = waits[np.argmax(start[waits])]
    if names(int(last)) not in _WHOLE_DEVICE or (start[work] > start[last]).any():
        return waits
    notes.append(
        "a wait for the whole device ends the recording, as torch's profiler does: left out"
    )
    kept: Chosen = waits[waits != last]
    return kept


def wait_spans(syncs: Sequence[tuple[SyncPoint, int]], name: Callable[[str], int]) -> Spans:
    """The spans of sync points, each on its thread; `name` numbers a text."""
    at = np.array([s.at_ns for s, _ in syncs], np.int64)
    wait = np.array([s.wait_ns for s, _ in syncs], np.int64)
    names = np.array([name(s.cause) for s, _ in syncs], np.int32)
    return Spans(np.array([t for _, t in syncs], np.int32), "wait", names, at, at + wait)
