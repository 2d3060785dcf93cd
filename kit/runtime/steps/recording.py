"""What one step did, as data flow, and in what two steps differ.

A recorded step is pure data flow: its segments, and for each of their leaves where the array comes
from (`Source`). Two steps in a row that are equal in that tell what the next one will be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref

from kit.runtime.recording.bulk import Bulk, Cell, Op, Task, Value
from kit.runtime.recording.sites import format_site
from kit.runtime.steps.look import Batch
from kit.text import format_count

__all__ = [
    "FRESH",
    "OTHER_CONSTANTS",
    "OTHER_TENSORS",
    "Draw",
    "Draws",
    "EarlyBatch",
    "Fetch",
    "Reasons",
    "Recording",
    "Source",
    "Watched",
    "alike",
    "difference",
    "is_held",
    "is_read",
    "leaf_of",
    "made_at",
    "reads_of",
    "source_of",
    "take",
    "type_of",
]

_SUCH_AS = ", such as "  # follow numbers, which are others in each step
_MOST_REASONS = 100
FRESH = object()  # in the place of a batch's contents: another one each time
_OTHERS = "of something else each time"

OTHER_CONSTANTS = (
    "the program has changed a number of an optimizer or of a scaler, or which modules train or "
    "need gradients, between two steps"
)
OTHER_TENSORS = (
    "gradients, buffers or an optimizer's state were other tensors between two steps; zero the "
    "gradients within the step"
)

Fetch = Callable[[], Any]
Source = tuple[Any, ...]  # ("made", steps ago, task, output), ("input", i) or ("fixed", Cell)


class EarlyBatch(NamedTuple):
    """A batch that a loader was asked for before the step that has it, and the arrays in it."""

    fetch: Fetch
    batch: Any
    cells: list[Cell]


class Reasons(Counter[str]):
    """Why steps were recorded, and how often each; one reason for all numbers of one place."""

    def note(self, why: str) -> None:
        """One step was recorded because of this."""
        place, such_as, _ = why.partition(_SUCH_AS)
        known = [one for one in self if such_as and one.startswith(place + such_as)]
        told = known[0] if known else why
        self[told if told in self or len(self) < _MOST_REASONS else _OTHERS] += 1


class Draw(float):
    """A number that the next random op takes: another one each time, and we know which."""

    __slots__ = ()


class Draws:
    """The random numbers of one session: a seed, and how many ops have drawn."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calls = 0

    def reseed(self, seed: int, calls: int = 0) -> None:
        """Draw the numbers of this seed, from this call of a random op on."""
        self.seed, self.calls = seed, calls

    def next(self) -> Draw:
        """A number that no other random op gets: an input, so that nothing recompiles."""
        self.calls += 1
        return Draw(self.calls)


class Watched(NamedTuple):
    """What of a thing a replay could not notice. Each is None once the thing is gone.

    Attributes:
        constants: gives its numbers that the step has as constants.
        bound: gives the ids of the tensors that it holds, which only the step may put others for.
        unseen: why that is not all that it has, in words; "" if it is.
    """

    constants: Callable[[], Any]
    bound: Callable[[], Any]
    unseen: str = ""


@dataclass(eq=False, slots=True)
class Read:
    """A result that the next step reads."""

    holders: list[ref[Value]]  # in the program
    number: int  # of the task that makes it
    output: int
    cell: Cell | None  # where it is now


@dataclass(eq=False)
class Recording:
    """What one step did."""

    tasks: list[Task] = field(default_factory=list)
    sources: list[tuple[Source, ...]] = field(default_factory=list)  # of each task's leaves
    numbers: dict[int, int] = field(default_factory=dict)  # id of a task -> its place in `tasks`
    inputs: list[Cell] = field(default_factory=list)  # copied from the host, in order
    contents: list[Any] = field(default_factory=list)  # of each: bytes, `FRESH`, or None: too many
    fetches: list[Fetch] = field(default_factory=list)
    brought: list[Batch] = field(default_factory=list)  # by each, beside its tensors
    calls: list[tuple[int, Fetch]] = field(default_factory=list)  # (tasks before it, call)
    watched: dict[int, tuple[ref[Any], Watched]] = field(default_factory=dict)  # by its id
    # constants as the step began, and what is bound as it ended; why another one is recorded
    seen: list[tuple[Fetch, Any, str]] = field(default_factory=list)
    alive: list[tuple[ref[Value], int, int]] = field(default_factory=list)  # (value, task, output)
    reads: list[Read] = field(default_factory=list)
    fixed: dict[int, tuple[ref[Value], Cell]] = field(default_factory=dict)  # read, not made by it
    modes: dict[str, Any] = field(default_factory=dict)  # of front ends and random numbers
    obstacle: str = ""  # why this step cannot be replayed
    result: Any = None  # what the step returned
    draws: int = 0  # random numbers drawn before it
    _inputs: dict[int, int] = field(default_factory=dict)  # id of an input -> its place
    _known: int = 0  # how many inputs are in there
    _outputs: dict[int, dict[int, int]] = field(default_factory=dict)  # task -> slot -> output

    @property
    def called(self) -> list[Fetch]:
        """What a replay calls, too: its loaders, and what the kit has noted."""
        return [*self.fetches, *(call for _, call in self.calls)]

    def has_made(self, value: Value | None) -> bool:
        """Is this the result of an op of the step?"""
        return value is not None and (value.cell is None or id(value.cell.task) in self.numbers)

    def batch_cells(self) -> dict[int, int]:
        """id of each input that is another one each time -> its place."""
        inputs = zip(self.inputs, self.contents, strict=True)
        return {id(cell): i for i, (cell, data) in enumerate(inputs) if data is FRESH}

    def input_of(self, cell: Cell) -> int | None:
        """Which input a cell is; None if it is none."""
        for i in range(self._known, len(self.inputs)):
            self._inputs.setdefault(id(self.inputs[i]), i)
        self._known = len(self.inputs)
        return self._inputs.get(id(cell))

    def output_of(self, number: int, slot: int) -> int:
        """Which output of a task is in this slot."""
        known = self._outputs.get(number)
        if known is None:
            wanted = self.tasks[number].cut.wanted
            known = self._outputs[number] = {slot: i for i, slot in enumerate(wanted)}
        return known[slot]


def take(waiting: list[EarlyBatch], fetch: Fetch) -> EarlyBatch | None:
    """The first batch of this loader's, which waits no longer then; None if none waits."""
    found = (i for i, one in enumerate(waiting) if one.fetch == fetch)
    return None if (i := next(found, None)) is None else waiting.pop(i)


def reads_of(now: Recording) -> list[Read]:
    """The results that the next step reads, if it is equal to this one."""
    holders: dict[tuple[int, int], list[ref[Value]]] = {}
    for holder, number, i in now.alive:
        holders.setdefault((number, i), []).append(holder)
    read: dict[tuple[int, int], None] = dict.fromkeys(
        (source[2], source[3])
        for sources in now.sources
        for source in sources
        if source[0] == "made" and source[1] == 1
    )
    return [
        Read(holders.get((number, i), []), number, i, now.tasks[number].outputs[i]())
        for number, i in read
    ]


def is_held(last: Recording) -> bool:
    """True if the program still holds, as they were, the arrays that the next step reads."""
    for holder, cell in last.fixed.values():
        if (value := holder()) is None or value.cell is not cell:
            return False
    for read in last.reads:
        for holder in read.holders:
            if (value := holder()) is not None and value.cell is read.cell:
                break
        else:
            return False
    return True


def is_read(last: Recording, value: Value | None) -> bool:
    """True if the next step reads this value, if it is equal to this one."""
    holders = [holder for holder, _ in last.fixed.values()]
    holders += [holder for read in last.reads for holder in read.holders]
    return any(holder() is value for holder in holders)


def type_of(cell: Cell) -> Any:
    """What a program that reads the array depends on."""
    return cell.array.shape, cell.array.dtype


def difference(last: Recording, now: Recording, *, replay: bool) -> str:
    """The first thing in which two steps differ, in words; empty if there is none."""
    if now.obstacle:
        return now.obstacle
    if len(last.tasks) != len(now.tasks):
        segments = format_count(len(now.tasks), "segment")
        return f"the step was cut into {segments} instead of {len(last.tasks)}"
    for old, new in zip(last.tasks, now.tasks, strict=True):
        if why := _task_difference(old, new):
            return why
    if last.sources != now.sources or last.calls != now.calls:
        return "the step reads arrays that the step before did not read, or from elsewhere"
    if last.fetches != now.fetches or len(last.inputs) != len(now.inputs):
        return "the step asks its loaders for other batches than the step before"
    if not replay:
        return ""
    for old_data, new_data in zip(last.contents, now.contents, strict=True):
        if new_data is None:
            return (
                "the step copies a large array from the host, and whether it is another one each "
                "time is not compared; let ctx.loader bring it, or keep it on the device"
            )
        if old_data != new_data:
            return "the step copies other data from the host each time; let ctx.loader bring it"
    for holder, number, i in last.alive:
        value = holder()
        if value is not None and value.cell is not None and id(value.cell.task) in last.numbers:
            task = last.tasks[number]
            site = made_at(task.cut.bulk, task.cut.wanted[i])
            return (
                f"the step keeps a tensor of each step, made at {site}; if its loss does, by its "
                "graph, return loss.detach(), and what it returns in an object, in a dict or a list"
            )
    return ""


def alike(last: Recording, now: Recording) -> int:
    """How many segments at the start of two steps are the same, and read from the same places."""
    count = 0
    for old, new, *sources in zip(last.tasks, now.tasks, last.sources, now.sources, strict=False):
        if _task_difference(old, new) or sources[0] != sources[1]:
            break
        count += 1
    return count


def _task_difference(old: Task, new: Task) -> str:
    """In what two segments differ, in words; empty if one can stand for the other."""
    if old.cut.key != new.cut.key:
        bulk = new.cut.bulk
        return f"the graph is another one ({bulk.phase}, {format_count(len(bulk.ops), 'op')})"
    for i, (a, b) in enumerate(zip(old.scalars, new.scalars, strict=True)):
        if a != b and not (a.__class__ is Draw and b.__class__ is Draw) and (a == a or b == b):
            site, name = _origin(new.cut.bulk, i, lambda op: op.scalars)
            where = f"{site} ({name})" if name else site
            return (
                f"a Python number changes from step to step at {where}{_SUCH_AS}from {a:g} to {b:g}"
            )
    return ""


def made_at(bulk: Bulk, slot: int) -> str:
    """The line that makes what is in a slot."""
    return _origin(bulk, slot, lambda op: len(op.outputs))[0]


def _origin(bulk: Bulk, number: int, count: Callable[[Op], int]) -> tuple[str, str]:
    """The line and the name of the op that a thing belongs to, of which each op has `count`."""
    for op, frame in zip(bulk.ops, bulk.frames, strict=True):
        number -= count(op)
        if number < 0:
            return format_site(frame[0]) or "an unknown line", op.name
    return "an unknown line", ""


def source_of(leaf: Cell, now: Recording, last: Recording | None) -> Source:
    """Where a leaf of this step comes from; see `leaf_of`."""
    if leaf.task is None:
        i = now.input_of(leaf)
        return ("fixed", leaf) if i is None else ("input", i)
    for age, recording in enumerate((now, last)):
        number = None if recording is None else recording.numbers.get(id(leaf.task))
        if recording is not None and number is not None:
            return ("made", age, number, recording.output_of(number, leaf.slot))
    return ("fixed", leaf)


def leaf_of(last: Recording, source: Source, inputs: list[Cell], made: list[list[Cell]]) -> Cell:
    """The cell from which a replayed task reads."""
    if source[0] == "made":
        _, age, number, i = source
        if age == 0:
            return made[number][i]
        cell = last.tasks[number].outputs[i]()
        assert cell is not None, "a leaf of the next step is held by the program"
        return cell
    if source[0] == "input":
        return inputs[source[1]]
    fixed: Cell = source[1]
    return fixed
