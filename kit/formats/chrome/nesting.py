"""What each event of a thread is inside of: one pass over the events in time.

torch itself finds nesting in the same way. See `kit/formats/chrome/callers.py` for what launched a
kernel.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.events import Events
from kit.formats.chrome.frames import Frames
from kit.formats.chrome.roles import ATEN_OPS, OPS, Role
from kit.trace.devices import is_librarys
from kit.trace.intervals import Ints

__all__ = ["NONE", "Anchors", "Nesting", "Paths", "called", "inside", "nest", "outermost",
           "regions"]  # fmt: skip

NONE = -1
_ROUNDING_NS = 1000  # older files have whole microseconds
_MAX_PATHS = 100_000
_MODULE, _USERS = 1, 2  # Python functions
_DEEPEST = 200  # modules, or annotations, in each other
_NOWHERE = (NONE, NONE, NONE, NONE)  # op, path of modules, path of annotations, the user's frame
# Of an anchor: its event; the innermost op around, or itself; paths of modules and annotations;
# the name of the user's frame; the function of autograd's.
_COLUMNS = ("event", "call", "module", "annotation", "line", "engine")
_pack = Struct("=6i").pack
_LAUNCHING = frozenset({Role.LAUNCH, Role.TRANSFER, Role.WAIT})
_ANNOTATING = frozenset({Role.ANNOTATION, Role.UPDATE})
# What a `with` of Python may begin: inside of a function that has ended while it goes on.
_LASTING = _ANNOTATING | {Role.INPUT, Role.COMPILE, Role.FINISH, Role.CALL}


class Paths:
    """Modules in modules, and annotations in annotations: each path by one number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._steps: list[tuple[int, int]] = []  # the path around, and the number of a name
        self._depths: list[int] = []

    def inside(self, path: int, name: int) -> int:
        """The path that goes one name further; the same path if there are too many."""
        key = (path, name)
        found = self._numbers.get(key)
        if found is None:
            depth = self._depths[path] + 1 if path >= 0 else 1
            if len(self._steps) >= _MAX_PATHS or depth > _DEEPEST:
                return path
            found = self._numbers[key] = len(self._steps)
            self._steps.append(key)
            self._depths.append(depth)
        return found

    def names(self, path: int) -> list[int]:
        """The numbers of its names, outermost first."""
        found: list[int] = []
        while path >= 0:
            path, name = self._steps[path]
            found.append(name)
        return found[::-1]


class Anchors:
    """Where something is launched, and ops whose gradients are computed later: a row for each."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def add(self, event: int, around: tuple[int, int, int, int], engine: int) -> None:
        """One more row."""
        self._rows += _pack(event, *around, engine)

    def column(self, name: str) -> Ints:
        """One of `_COLUMNS`."""
        rows = np.frombuffer(self._rows, np.int32).reshape(-1, len(_COLUMNS))
        return rows[:, _COLUMNS.index(name)].astype(np.int64)


@dataclass
class Nesting:
    """Of each event; indices of events, -1 for none."""

    op: array[int]  # the nearest aten op around
    frame: array[int]  # the nearest python function around
    engine: array[int]  # the nearest function of the autograd engine around
    is_finish: bytearray  # the end of kit's own native run is around
    anchors: Anchors = field(default_factory=Anchors)
    paths: Paths = field(default_factory=Paths)
    crossing: int = 0  # events that end after what they began in


def nest(
    events: Events, times: tuple[Ints, Ints], kept: NDArray[np.intp], frames: Frames,
    is_gpu: bool,
) -> Nesting:  # fmt: skip
    """One pass over each thread's events in time, with a stack of the open events.

    Args:
        times: starts and stops of all events.
        kept: indices of those that have a usable time.
        is_gpu: what a GPU ran is launched; else the ops that no other op called are the work.
    """
    role = events.column("role")
    columns = (events.column("thread"), *times, role, events.column("name"), events.column("link"))
    none = array("i", [NONE]) * len(role)
    found = Nesting(none, none[:], none[:], bytearray(len(role)))
    wanted = (role < Role.KERNEL) | np.isin(role, (Role.ANNOTATION, Role.CALL, Role.FREE))
    host = kept[wanted[kept]]
    host = host[np.lexsort((host, -times[1][host], times[0][host], columns[0][host]))]
    if len(host):
        _pass(
            found, [host.tolist(), *(c[host].tolist() for c in columns)], times[1], frames, is_gpu
        )
    return found


def _pass(
    found: Nesting, columns: Sequence[list[int]], ends: Ints, frames: Frames, is_gpu: bool
) -> None:
    """Fill what is found, by events in order of thread and time."""
    # of each open event: its stop; op, frame, engine, finish and more that what is in it has around
    stack: list[tuple[int, int, int, int, int, tuple[int, int, int, int]]] = []
    thread, add, inside = NONE, found.anchors.add, found.paths.inside
    ops, lasting, python, engines, steps = OPS, _LASTING, Role.PYTHON, Role.ENGINE, Role.STEP
    frame_kinds = _FrameKinds(frames)
    for i, of, start, stop, role, name, link in zip(*columns, strict=True):
        if of != thread:
            thread, stack = of, []
        while stack and stack[-1][0] <= start:
            stack.pop()
        base = len(stack)
        if role in lasting:
            while base and stack[base - 1][0] + _ROUNDING_NS < stop:
                base -= 1
        _, op, frame, engine, finish, around = stack[base - 1] if base else _OUTSIDE
        found.op[i], found.frame[i], found.engine[i] = op, frame, engine
        found.is_finish[i] = finish
        if role == python:
            frame, (call, modules, notes, line) = i, around
            kind = frame_kinds[name]
            if kind == _MODULE:
                around = (call, inside(modules, name), notes, line)
            elif kind == _USERS:
                around = (call, modules, notes, name)
        elif role == engines:
            # what Python has called the engine from is no place of the op whose gradient it is
            engine, around = i, (around[0], NONE, around[2], NONE)
        elif role in ops:
            around = (i, *around[1:])
            if link >= 0 or (op < 0 and not is_gpu):
                add(i, around, engine)
            if role in ATEN_OPS:
                found.crossing += op >= 0 and stop > ends[op] + _ROUNDING_NS
                op = i
        elif role in _LAUNCHING:
            if link > 0:
                add(i, around, engine)
        elif role in _ANNOTATING:
            around = (around[0], around[1], inside(around[2], name), around[3])
        elif role == Role.FINISH:
            finish = 1
        if role != steps:  # begins and ends inside of calls of prof.step
            stack.insert(base, (stop, op, frame, engine, finish, around))


class _FrameKinds(dict[int, int]):
    """Of the name of a Python function: is it a module, the user's own, or neither?"""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def __missing__(self, name: int) -> int:
        is_users = _USERS if self._frames.place(name)[1] else 0
        kind = self[name] = _MODULE if self._frames.is_module(name) else is_users
        return kind


_OUTSIDE = (0, NONE, NONE, NONE, 0, _NOWHERE)


def called(
    events: NDArray[np.intp],
    name: NDArray[Any],
    names: Sequence[str],
    is_wanted: Callable[[str], bool],
) -> NDArray[np.intp]:
    """Those of some events whose name is wanted.

    Args:
        name: of each event of the file, the number of its name among `names`.
    """
    wanted = [i for i, text in enumerate(names) if is_wanted(text)]
    return events[np.isin(name[events], wanted)]


def inside(
    events: NDArray[np.intp], around: NDArray[np.intp], times: tuple[Ints, Ints, Ints]
) -> NDArray[np.bool_]:
    """Which of some events began inside of the latest of some others, on its thread.

    Args:
        times: thread, start and stop of each event of the file.
    """
    thread, start, stop = times
    if not len(around):
        return np.zeros(len(events), np.bool_)
    both = np.concatenate([around, events])
    is_around = np.arange(len(both)) < len(around)
    order = np.lexsort((~is_around, start[both], thread[both]))
    latest = np.maximum.accumulate(np.where(is_around[order], np.arange(len(both)), -1))
    one, other = both[order], both[order[latest]]
    is_inside = (latest >= 0) & (thread[one] == thread[other])
    found = np.zeros(len(both), np.bool_)
    found[order] = is_inside & (start[one] < stop[other])
    return found[len(around) :]


def outermost(events: NDArray[np.intp], times: tuple[Ints, Ints, Ints]) -> NDArray[np.intp]:
    """Those of some events that begin inside of no other one of them on its thread.

    Args:
        times: thread, start and stop of each event of the file.
    """
    thread, start, stop = (column[events] for column in times)
    order = np.lexsort((-stop, start, thread))
    kept: list[int] = []
    of, latest = -1, 0
    for i in order.tolist():
        if thread[i] != of or start[i] >= latest:
            of, latest = int(thread[i]), int(stop[i])
            kept.append(i)
    return events[kept]


def regions(
    calls: NDArray[np.intp],
    code: NDArray[np.intp],
    known: tuple[NDArray[Any], Sequence[str], Sequence[int]],
    times: tuple[Ints, Ints, Ints],
) -> NDArray[np.intp]:
    """What computes beside the aten ops that it calls, the outermost of it, in order of time.

    Args:
        calls: ops that are none of aten's.
        code: what is around code of torch.compile's.
        known: of each event the number of its name; the names; the nearest aten op around, or -1.
        times: thread, start and stop of each event.
    """
    (name, names, op), (_, start, stop) = known, times
    found = np.append(called(calls, name, names, is_librarys), code)
    found = found[np.asarray(op, np.int64)[found] < 0]
    found = outermost(found, times)
    return found[np.lexsort((-stop[found], start[found]))]
