"""What each event of a thread is inside of: one pass over the events in time.

torch itself finds nesting in the same way. See `kit/formats/chrome/callers.py` for what launched a
kernel.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.columns import Columns, Rows
from kit.formats.chrome.events import NONE
from kit.formats.chrome.frames import Frames
from kit.formats.chrome.roles import ATEN_OPS, OPS, Role
from kit.trace.devices import is_librarys
from kit.trace.intervals import Ints, Mask

__all__ = ["Nesting", "Paths", "Places", "nest", "regions"]

Places = NDArray[np.int32]

_ROUNDING_NS = 1000  # older files have whole microseconds
_MAX_PATHS = 100_000
_MODULE, _USERS = 1, 2  # Python functions
_DEEPEST = 200  # modules, or annotations, in each other; what goes on and a range outlasts
_STEP = Role.STEP  # begins and ends inside of calls of prof.step: nothing is inside of it
_PART = 1 << 16  # events that are looked at together
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


@dataclass
class Nesting:
    """Of each event; indices of events, -1 for none."""

    op: Places  # the nearest aten op around
    frame: Places  # the nearest python function around
    engine: Places  # the nearest function of the autograd engine around
    is_finish: Mask  # the end of kit's own native run is around
    anchors: Mapping[str, Ints]  # where something is launched, or has a gradient: see `_Host`
    paths: Paths  # that anchors name
    crossing: int  # events that end after what they began in


def nest(columns: Columns, frames: Frames, is_gpu: bool) -> Nesting:
    """What each event of each thread is inside of, by its time.

    Args:
        is_gpu: what a GPU ran is launched; else the ops that no other op called are the work.
    """
    role, thread, start, stop = columns.role, columns.thread, columns.start, columns.stop
    is_hosts = (role < Role.KERNEL) | columns.has(Role.ANNOTATION, Role.CALL, Role.FREE)
    chosen = np.flatnonzero(columns.usable & is_hosts)
    chosen = chosen[np.lexsort((-stop[chosen], start[chosen], thread[chosen]))]
    around = _around(thread[chosen], start[chosen], stop[chosen], role[chosen])
    return _Host(columns, chosen, around, frames).nesting(is_gpu)


def _around(thread: Places, start: Ints, stop: Ints, role: NDArray[np.int8]) -> Places:
    """The event around each of some events, by its place among them; -1: none. It comes before.

    Args:
        thread, start, stop, role: of the events, in order of thread and time.
    """
    found = array("i")
    ends: list[int] = []  # of the events that go on, the innermost last
    open_: list[int] = []  # their places
    lasting, last, place = _LASTING, NONE, 0
    for low in range(0, len(start), _PART):
        part = (column[low : low + _PART].tolist() for column in (thread, start, stop, role))
        for of, begin, end, kind in zip(*part, strict=True):
            if of != last:
                last = of
                ends.clear()
                open_.clear()
            while ends and ends[-1] <= begin:
                ends.pop()
                open_.pop()
            base = len(ends)
            if kind in lasting:
                least = max(base - _DEEPEST, 0)
                while base > least and ends[base - 1] + _ROUNDING_NS < end:
                    base -= 1
            found.append(open_[base - 1] if base else NONE)
            if kind != _STEP:
                ends.insert(base, end)
                open_.insert(base, place)
            place += 1
    return np.frombuffer(found, np.int32)


class _Host:
    """The events of threads in order, and what is around each.

    Args:
        chosen: the events of threads, in order of thread and time.
        around: of each, the place among them of the one around, which comes before it; -1: none.
    """

    def __init__(self, columns: Columns, chosen: Rows, around: Places, frames: Frames) -> None:
        self._chosen, self._around, self._frames = chosen, around, frames
        self._count, self._stop = len(columns), columns.stop[chosen]
        self._role, self._name = columns.role[chosen], columns.name[chosen]
        self._link = columns.link[chosen]

    def nesting(self, is_gpu: bool) -> Nesting:
        """What the events are inside of."""
        aten, engines = self._is(*ATEN_OPS), self._is(Role.ENGINE)
        op, engine = self._nearest(aten), self._nearest(engines)
        of = np.flatnonzero(aten & (op >= 0))
        crossing = int((self._stop[of] > self._stop[op[of]] + _ROUNDING_NS).sum())
        ops = self._is(*OPS) & ~engines
        paths = Paths()
        return Nesting(
            self._of_events(op),
            self._of_events(self._nearest(self._is(Role.PYTHON))),
            self._of_events(engine),
            self._of_events(self._nearest(self._is(Role.FINISH))) >= 0,
            self._anchors(self._launching(ops, op, is_gpu), ops, engine, paths),
            paths,
            crossing,
        )

    def _is(self, *roles: int) -> Mask:
        found: Mask = np.isin(self._role, roles)
        return found

    def _nearest(self, is_one: Mask) -> Places:
        """Of each event the nearest one around it that is one; -1: none."""
        found = self._around.copy()
        if not is_one.any():
            found[:] = NONE
        left = np.flatnonzero(found >= 0)
        left = left[~is_one[found[left]]]
        while len(left):  # what is around something that is none has the same around it
            further = found[found[left]]
            found[left] = further
            left = left[further >= 0]
            left = left[~is_one[found[left]]]
        return found

    def _of_events(self, places: Places) -> Places:
        """The same of all events of the file, by their indices there."""
        found = np.full(self._count, NONE, np.int32)
        found[self._chosen] = np.where(places >= 0, self._chosen[places], NONE)
        return found

    def _launching(self, ops: Mask, op: Places, is_gpu: bool) -> Rows:
        """Where something is launched, and ops whose gradients are computed later."""
        found = ops & (self._link >= 0) | self._is(*_LAUNCHING) & (self._link > 0)
        return np.flatnonzero(found if is_gpu else found | ops & (op < 0))

    def _anchors(self, chosen: Rows, ops: Mask, engine: Places, paths: Paths) -> dict[str, Ints]:
        """A row for each of some events.

        Returns:
            event: it; call: the innermost op around, or itself; module, annotation: numbers in
            `paths`; line: the name of the user's function around; engine: the function of
            autograd's. What Python has called the engine from is no place of an op in it.
        """
        kinds = _kinds(self._frames, self._name, self._is(Role.PYTHON))
        engines = self._is(Role.ENGINE)
        call = np.where(ops[chosen], chosen, self._nearest(ops)[chosen])
        user = self._nearest(engines | (kinds == _USERS))[chosen]
        is_line = (user >= 0) & (kinds[user] == _USERS)
        found: dict[str, NDArray[Any]] = {
            "event": self._index(chosen),
            "call": self._index(call),
            "module": self._paths(paths, kinds == _MODULE, engines)[chosen],
            "annotation": self._paths(paths, self._is(*_ANNOTATING))[chosen],
            "line": np.where(is_line, self._name[user], NONE),
            "engine": self._index(engine[chosen]),
        }
        return {name: column.astype(np.int64) for name, column in found.items()}

    def _index(self, places: NDArray[Any]) -> Ints:
        return np.where(places >= 0, self._chosen[places], NONE)

    def _paths(self, paths: Paths, is_one: Mask, ends: Mask | None = None) -> Places:
        """Of each event the path of those around it that are one, up to one that ends paths."""
        stops = is_one if ends is None else is_one | ends
        nearest = self._nearest(stops)
        within = np.full(len(stops) + 1, NONE, np.int32)  # the last is of -1
        ones = np.flatnonzero(is_one)
        names = self._name[ones].tolist()
        for place, around, name in zip(ones.tolist(), nearest[ones].tolist(), names, strict=True):
            within[place] = paths.inside(int(within[around]), name)
        found: Places = within[nearest]
        return found


def _kinds(frames: Frames, names: Places, is_python: Mask) -> NDArray[np.int8]:
    """Of each event: is it a call of a module, a function of the user's, or neither?"""
    found = np.zeros(int(names.max(initial=0)) + 1, np.int8)
    for name in np.unique(names[is_python]).tolist():
        is_users = _USERS if frames.place(name)[1] else 0
        found[name] = _MODULE if frames.is_module(name) else is_users
    return np.where(is_python, found[names], 0)


def regions(columns: Columns, calls: Rows, code: Rows, op: Places) -> Rows:
    """What computes beside the aten ops that it calls, the outermost of it, in order of time.

    Args:
        calls: ops that are none of aten's.
        code: what is around code of torch.compile's.
        op: of each event the nearest aten op around, or -1.
    """
    found = np.append(columns.named(calls, is_librarys), code)
    found = columns.outermost(found[op[found] < 0])
    return found[np.lexsort((-columns.stop[found], columns.start[found]))]
