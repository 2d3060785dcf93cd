"""The op stream while it is recorded: values that may not exist yet, and the bulk that grows.

This is the hot path: one `Bulk.add` for each op that the user's program executes. A bulk refers to
its own earlier outputs by slot, and to anything older by leaf number; so two steps that do the same
thing give the same key, whatever their objects are called, and aliasing shows in the key.

A `Value` is what the program holds; a `Cell` is where its array will be. Tasks know cells only, so
a value that has no holder but its bulk is one that the program can never ask for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from sys import getrefcount
from time import perf_counter_ns
from typing import Any
from weakref import ref

from kit.ir import Aval
from kit.runtime.engine.operations import Operation, Variable

__all__ = [
    "LISTED_REFERENCES",
    "NOWHERE",
    "Bulk",
    "Cell",
    "Cut",
    "Frame",
    "Op",
    "Origin",
    "Seen",
    "Site",
    "Task",
    "Value",
    "pending",
    "same_task",
    "twin",
]

_Recorded = tuple["Op", list["Value"], "Frame", list[float], list["Value"]]
Site = tuple[str, int]  # file name, line
NOWHERE: Site = ("", 0)  # the line is not known
Frame = tuple[Site, str, str]  # the user's site, the library site under it ("" if none), scope


@dataclass(slots=True, weakref_slot=True)
class Op:
    """What one recorded call does: interned, so that `id` stands for all of it.

    `template` is the call's arguments with `Hole` and `Scalar` where values go.
    """

    id: int
    name: str  # "aten.add.Tensor"
    template: tuple[Any, ...]  # (args, kwargs)
    avals: tuple[Aval, ...]  # of its inputs
    outputs: tuple[Aval, ...]
    scalars: int  # how many numbers it takes from the scalar vector
    is_view: bool = False  # a view can be made again from its base, so it is never returned
    writes: tuple[int, ...] = ()  # for each output, the input whose memory it overwrites

    @property
    def called(self) -> str:
        """The second part of its name, "add"; "" if there is none."""
        return self.name.partition(".")[2].partition(".")[0]


class Cell:
    """Room for one array on the device: empty until its task has run, or poisoned by it."""

    __slots__ = ("__weakref__", "array", "error", "has_twins", "kind", "slot", "task")

    def __init__(self, task: Task | None, slot: int = 0, kind: str = "parameter") -> None:
        self.task = task  # None: the array came from the host
        self.slot = slot
        self.array: Any = None
        self.error: BaseException | None = None
        self.kind = kind  # what it is called when it comes into a graph from outside
        self.has_twins = False  # several values show it, so a dead one says nothing of its memory

    @property
    def origin(self) -> tuple[int, int] | None:
        """(segment index, slot) that makes it; None if it came from the host."""
        return None if self.task is None else (self.task.index, self.slot)


class Origin:
    """Where a leaf came from: all that a graph needs of its cell, without the array in it."""

    __slots__ = ("_cell", "_slot", "_task", "kind")

    def __init__(self, cell: Cell) -> None:
        self._cell, self._task, self._slot, self.kind = ref(cell), cell.task, cell.slot, cell.kind

    @property
    def made_by(self) -> tuple[int, int] | None:
        """As `Cell.origin`; a guess learns its number late."""
        return None if self._task is None else (self._task.index, self._slot)

    @property
    def identity(self) -> int:
        """The same for two leaves that are one cell, and for no others."""
        return id(self._cell)  # Python has one such reference for each object, alive or dead


class Value:
    """One array of the program: output `slot` of a bulk that still grows, or a `Cell`."""

    __slots__ = ("__weakref__", "aval", "bulk", "cell", "is_shared", "number", "slot")
    number: Any  # what all of its elements are; set where a front end knows that
    is_shared: bool  # set, to True, where a front end gives it to a second memory

    def __init__(self, aval: Aval, bulk: Bulk | None = None, slot: int = 0) -> None:
        self.aval = aval
        self.bulk = bulk  # None once it is cut
        self.slot = slot
        self.cell: Cell | None = None

    @property
    def error(self) -> BaseException | None:
        """What poisoned it, if anything did."""
        return None if self.cell is None else self.cell.error


class Bulk:
    """Ops recorded since the last cut, in program order.

    Args:
        flush: ends this bulk now, for a reason: a reader needs one of its values.
    """

    __slots__ = ("calls", "earlier", "flush", "frames", "key", "kind", "leaf_of", "leaves",
                 "limit", "ops", "phase", "phases", "scalars", "size", "times", "values",
                 "views")  # fmt: skip

    def __init__(self, flush: Callable[[str], None], phase: str, kind: str, limit: int) -> None:
        self.flush = flush
        self.kind = kind  # the phase, or "inference": which size is its limit
        self.phase = phase  # of its first op; only a lazy bulk spans several
        self.phases: list[tuple[int, str]] = [(0, phase)]  # (first op, phase)
        self.limit = limit
        self.ops: list[Op] = []
        self.key: list[int] = []  # of each op: its id, then a slot or -1 - leaf for each input
        self.frames: list[Frame] = []
        self.leaves: list[Value] = []
        self.leaf_of: dict[int, int] = {}
        self.scalars: list[float] = []
        self.values: list[Value] = []  # by slot
        self.views: set[int] = set()  # slots that are views
        self.size = 0  # ops that count: not views
        self.times: list[int] | None = None  # when each op was recorded; kept in a trace only
        self.calls: list[int] = [0]  # ops that begin a call; kept while a step is only planned
        self.earlier: Bulk | None = None  # is cut before this one, so its values may be leaves

    def add(
        self, op: Op, inputs: Sequence[Value], scalars: Sequence[float], frame: Frame
    ) -> list[Value]:
        """Append one op; its outputs are returned as pending values."""
        self._append(op, inputs, frame)
        if scalars:
            self.scalars.extend(scalars)
        values = self.values
        first = len(values)
        for aval in op.outputs:
            values.append(Value(aval, self, len(values)))
        if op.is_view:
            self.views.add(first)
        else:
            self.size += 1
        return values[first:]

    def add_one(self, op: Op, inputs: Sequence[Value], frame: Frame) -> Value:
        """The same for most ops: one output, no numbers, not a view."""
        self._append(op, inputs, frame)
        values = self.values
        value = Value(op.outputs[0], self, len(values))
        values.append(value)
        self.size += 1
        return value

    def _append(self, op: Op, inputs: Sequence[Value], frame: Frame) -> None:
        if self.times is not None:
            self.times.append(perf_counter_ns())
        self.ops.append(op)
        self.frames.append(frame)
        key = self.key
        key.append(op.id)
        for value in inputs:
            if value.bulk is self:
                key.append(value.slot)
            else:
                leaf = self.leaf_of.get(id(value))
                if leaf is None:
                    if value.bulk is not None and value.bulk is not self.earlier:
                        value.bulk.flush("another thread")  # where it is pending
                    leaf = self.leaf_of[id(value)] = len(self.leaves)
                    self.leaves.append(value)
                key.append(-1 - leaf)

    def nodes(self) -> Iterator[tuple[Op, tuple[int, ...]]]:
        """Each op with where its inputs come from: a slot, or -1 - leaf."""
        at = 1
        for op in self.ops:
            stop = at + len(op.avals)
            yield op, tuple(self.key[at:stop])
            at = stop + 1

    def split(self, at: int) -> tuple[Bulk, Callable[[], Bulk]]:
        """The first `at` ops, and what makes the rest once those have been cut."""
        items: list[_Recorded] = []
        slots, scalars = 0, iter(self.scalars)
        for (op, refs), frame in zip(self.nodes(), self.frames, strict=True):
            inputs = [self.values[r] if r >= 0 else self.leaves[-1 - r] for r in refs]
            outputs = self.values[slots : slots + len(op.outputs)]
            items.append((op, inputs, frame, list(islice(scalars, op.scalars)), outputs))
            slots += len(op.outputs)
        phases = [(i, phase) for i, phase in self.phases if i < at]
        later = [(i - at, phase) for i, phase in self.phases if i > at]
        begun = dict(self.phases).get(at, phases[-1][1])
        head = self._part(items[:at], phases)
        head.times, times = self.times and self.times[:at], self.times and self.times[at:]
        rest = items[at:]
        del items  # holds what only the head needs

        def make_rest() -> Bulk:
            made = self._part(rest, [(0, begun), *later])
            made.times = times
            return made

        return head, make_rest

    def _part(self, items: Sequence[_Recorded], phases: list[tuple[int, str]]) -> Bulk:
        part = Bulk(self.flush, phases[0][1], self.kind, self.limit)
        part.phases = phases
        for op, inputs, frame, scalars, outputs in items:
            part._append(op, inputs, frame)
            part.scalars += scalars
            for value in outputs:
                value.bulk, value.slot = part, len(part.values)
                part.values.append(value)
            if op.is_view:
                part.views.add(len(part.values) - 1)
            else:
                part.size += 1
        return part

    def wanted(self, *, keep_views: bool = False) -> list[Value]:
        """The values that something alive still needs; the rest will never leave the device.

        The list is in slot order. Views are left out: their holder makes them again from the base
        when it needs them, unless the holder is another thread's bulk.
        """
        held = _held(self.values)
        return held if keep_views else [v for v in held if v.slot not in self.views]

    def close(self) -> None:
        """The bulk has been issued: its values are where their cells are filled, and it lets go."""
        for value in self.values:
            value.bulk = None
        self.values, self.leaves, self.leaf_of = [], [], {}

    def mend(self) -> None:
        """Leave out what was recorded of an op in part, because an error came in the middle."""
        ops = self.ops
        count = key = slots = numbers = 0
        for op in ops:
            after = key + 1 + len(op.avals), slots + len(op.outputs), numbers + op.scalars
            have = len(self.key), len(self.values), len(self.scalars)
            if count == len(self.frames) or any(a > b for a, b in zip(after, have, strict=True)):
                break
            count, (key, slots, numbers) = count + 1, after
        del ops[count:], self.frames[count:], self.key[key:]
        del self.values[slots:], self.scalars[numbers:]
        if self.times is not None:
            del self.times[count:]
        del self.leaves[max(0, -min(self.key, default=0)) :]
        self.leaf_of = {id(leaf): i for i, leaf in enumerate(self.leaves)}
        starts = accumulate((len(op.outputs) for op in ops), initial=0)
        self.views = {slot for slot, op in zip(starts, ops, strict=False) if op.is_view}
        self.size = sum(not op.is_view for op in ops)

    def pending_bytes(self) -> int:
        """Bytes of the results so far that somebody holds."""
        return sum(value.aval.size_bytes for value in _held(self.values))

    def dead_leaves(self) -> tuple[int, ...]:
        """Leaves that an op overwrites and nothing but this bulk can read again.

        Their memory may be written over. Of all other leaves deadness is not looked at, so that it
        makes no second program.
        """
        overwritten: set[int] = set()
        at = 1
        for op in self.ops:
            if op.writes:
                overwritten.update(-1 - self.key[at + i] for i in op.writes)  # slots are negative
            at += 1 + len(op.avals)
        if not overwritten:
            return ()
        held = set(map(id, _held(self.leaves)))
        return tuple(
            i
            for i, leaf in enumerate(self.leaves)
            if i in overwritten and id(leaf) not in held and leaf.cell is not None
        )


def _references_of_listed() -> int:
    """What `getrefcount` gives of a value that only a list holds, in a loop over that list.

    The list's, the variable's and the argument's make three; Python 3.14 lends the last.
    """
    (count,) = [getrefcount(value) for value in [object()]]
    return count


LISTED_REFERENCES = _references_of_listed()


def _held(values: list[Value]) -> list[Value]:
    """The values that somebody besides the list holds."""
    return [value for value in values if getrefcount(value) > LISTED_REFERENCES]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """What was cut off a stream: the same for a task and for each task that repeats it."""

    bulk: Bulk
    wanted: tuple[int, ...]  # slots to return
    reason: str
    key: tuple[Any, ...]  # equal keys stand for the same program
    avals: tuple[Aval, ...] = ()  # of the leaves
    dead: tuple[int, ...] = ()  # leaves whose memory the results may take over


@dataclass(slots=True, eq=False)
class Seen:
    """What a trace shows of a task; `issued` and `origins` are known while one is on."""

    plan_ns: tuple[int, int] = (0, 0)
    dispatch_ns: tuple[int, int] = (0, 0)
    worked_ns: int = -1  # processor time of the worker meanwhile, where a trace knows it
    times: list[int] | None = None  # of its ops; a guess shares its bulk with an earlier step
    is_cached: bool = True
    names: list[str] = field(default_factory=list)  # of its programs, as they were issued
    issued: list[tuple[Any, int]] = field(default_factory=list)  # (Executable, its first op)
    origins: tuple[Origin, ...] = ()  # of the leaves


@dataclass(slots=True, eq=False)
class Task:
    """A segment that runs once: what was cut, on which arrays, and where the results go."""

    index: int
    cut: Cut
    leaves: list[Cell] = field(default_factory=list)  # emptied once the task has run
    scalars: list[float] = field(default_factory=list)
    step: int = 0
    position: int = 0  # among the segments of its step
    outputs: list[ref[Cell]] = field(default_factory=list)  # for each wanted slot
    variable: Variable = field(default_factory=Variable)  # its results, for the engine
    operation: Operation | None = None  # once the engine has the task
    # Known beforehand if the task repeats another one. The cache keeps programs, and nothing else
    # does: a list of old losses would keep the memory maps of all, see compiling/maps.py.
    executable: ref[Any] | None = None
    guessed: list[Cell] | None = None  # the leaves, if no program has asked for the task yet
    failures: tuple[BaseException, ...] = ()  # that came first in this task
    again: Callable[[list[Cell]], tuple[Task, list[Cell]]] | None = None  # if it is no segment
    seen: Seen = field(default_factory=Seen)

    def results(self) -> Iterator[tuple[int, Cell]]:
        """Each wanted slot whose cell something still holds, and that cell."""
        for slot, output in zip(self.cut.wanted, self.outputs, strict=True):
            if (cell := output()) is not None:
                yield slot, cell


def pending(cell: Cell, aval: Aval) -> Value:
    """A value that will be where the cell is filled."""
    value = Value(aval)
    value.cell = cell
    return value


def twin(value: Value, cell: Cell) -> Value:
    """A second value of a value's cell, for a holder of its own."""
    cell.has_twins = True
    return pending(cell, value.aval)


def same_task(
    old: Task, index: int, leaves: list[Cell], scalars: list[float]
) -> tuple[Task, list[Cell]]:
    """The task once more on other arrays, and the cells of its results, which the caller holds."""
    task = Task(index, old.cut, leaves, scalars, executable=old.executable)
    cells = [Cell(task, slot) for slot in old.cut.wanted]
    task.outputs = [ref(cell) for cell in cells]
    return task, cells
