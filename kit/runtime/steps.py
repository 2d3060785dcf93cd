"""Step modes: record each step, replay what was recorded, or guess it while it is recorded.

A recorded step is pure data flow: its segments, and for each of their leaves where the array comes
from (`Source`). Two steps in a row that are equal in that tell what the next one will be.

retrace    record every step; equal segments reuse their executables
replay     after `CONFIRM` equal steps, issue the known executables without running the step's
           Python; record every `VERIFY_EVERY`th step to check
speculate  issue the executables of the last step as soon as their inputs are there, while the
           step is recorded; a segment that turns out to be equal takes over the results. Only the
           first segments that did not change between the last two steps are guessed

All three run the same executables on the same arrays: the numbers are the same to the bit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from kit.runtime.lowering import format_site
from kit.runtime.redo import same_task
from kit.runtime.stream import Cell, Task, Value

if TYPE_CHECKING:
    from kit.runtime.session import Session

__all__ = ["CONFIRM", "VERIFY_EVERY", "Draw", "Stepper"]

CONFIRM = 3  # equal steps in a row before one is replayed
VERIFY_EVERY = 32  # replayed steps between two recorded ones
SMALL = 4096  # bytes of a host array that are kept, to see that the next step sends the same

Fetch = Callable[[], Any]
Source = tuple[Any, ...]  # ("made", steps ago, task, output), ("input", i) or ("fixed", Cell)


class Draw(float):
    """A number that the next random op takes: another one each time, and we know which."""

    __slots__ = ()


@dataclass(eq=False)
class Recording:
    """What one step did."""

    tasks: list[Task] = field(default_factory=list)
    sources: list[tuple[Source, ...]] = field(default_factory=list)  # of each task's leaves
    numbers: dict[int, int] = field(default_factory=dict)  # id of a task -> its place in `tasks`
    inputs: list[Cell] = field(default_factory=list)  # copied from the host, in order
    contents: list[bytes | None] = field(default_factory=list)  # of each; None: a loader's batch
    fetches: list[Fetch] = field(default_factory=list)
    alive: list[tuple[ref[Value], int, int]] = field(default_factory=list)  # (value, task, output)
    obstacle: str = ""  # why this step cannot be replayed
    result: Any = None  # what the step returned
    draws: int = 0  # random numbers drawn before it


class Stepper:
    """Runs the steps of one session, and remembers the last one."""

    def __init__(self, session: Session, mode: str) -> None:
        self.mode = mode
        self.reasons: Counter[str] = Counter()  # why a step was recorded and not replayed
        self.counts: Counter[str] = Counter()
        self._session = session
        self._now: Recording | None = None  # the step that is being recorded
        self._last: Recording | None = None
        self._equal = 0  # steps in a row that were equal to the one before
        self._alike = 0  # first segments of the last step that were equal to those before
        self._replayed = 0  # since the last recorded one
        self._guesses: list[Task] = []
        self._confirmed = 0  # guesses that the recording has reached
        self._results: list[list[Cell]] = []  # of the guesses, kept alive until confirmed
        self.is_fetching = False  # asking the loaders for the batches of a replay
        self._draws = 0  # random numbers that the guesses have foreseen
        self._ahead: list[tuple[Fetch, Any, list[Cell]]] = []  # batches that no step has had yet

    def run(self, step: Callable[[], Any]) -> Any:
        """Run one step and end it; gives what the step returns."""
        session = self._session
        if self.mode == "retrace":
            result = step()
            session.mark_step()
            return result
        if self.mode == "replay" and self._may_replay():
            return self._replay(step)
        self._begin()
        try:
            result = step()
            session.mark_step()
        except BaseException:
            self._abandon()
            self._now, self._last, self._equal, self._alike = None, None, 0, 0
            raise
        self._finish(result)
        return result

    def describe(self) -> list[str]:
        """What the step mode came to, in words; nothing for `retrace`."""
        c = self.counts
        lines = []
        if self.mode == "replay":
            lines.append(f"replay: {c['replay.steps']} steps were issued without being recorded")
        elif self.mode == "speculate":
            right, issued = c["speculate.right"], c["speculate.issued"]
            lines.append(f"speculate: {right} of the {issued} segments issued ahead were right")
        for why, n in self.reasons.most_common(3):
            lines.append(f"recorded{f' {n} times' if n > 1 else ''}, because {why}")
        return lines

    # -- what the session tells ------------------------------------------------------------------

    def note_input(self, cell: Cell, array: Any) -> None:
        """An array was copied from the host."""
        if (now := self._now) is not None:
            now.inputs.append(cell)
            now.contents.append(array.tobytes() if array.nbytes <= SMALL else b"")

    def note_batch(self, cells: list[Cell]) -> None:
        """A loader's thread has copied these from the host, for the step that fetches now."""
        if (now := self._now) is not None:
            now.inputs += cells
            now.contents += [None] * len(cells)

    def fetch(self, fetch: Fetch) -> Any:
        """Ask a loader for a batch; what it copies to the device is the step's input."""
        now = self._now
        first = 0 if now is None else len(now.inputs)
        if self._ahead and self._ahead[0][0] == fetch:
            _, batch, cells = self._ahead.pop(0)
            if now is not None:
                now.inputs += cells
        else:
            batch = fetch()
        if now is None:
            return batch
        now.fetches.append(fetch)
        now.contents[first:] = [None] * (len(now.inputs) - first)
        self._guess()
        return batch

    def note_obstacle(self, what: str) -> None:
        """The step did something that a replay could not do again."""
        if self.mode == "replay" and self._now is not None and not self._now.obstacle:
            self._now.obstacle = what

    def note_cut(self, task: Task, kept: Sequence[Value]) -> Task | None:
        """A segment was cut; gives the guess that has already run it, if there is one."""
        now = self._now
        if now is None:
            return None
        guess = self._confirm(task)
        chosen = guess or task
        number = len(now.tasks)
        now.sources.append(tuple(self._source(leaf) for leaf in task.leaves))
        now.tasks.append(chosen)
        now.numbers[id(chosen)] = number
        now.alive += [(ref(value), number, i) for i, value in enumerate(kept)]
        return guess

    def _source(self, leaf: Cell) -> Source:
        now, last = self._now, self._last
        assert now is not None
        if leaf.task is None:
            for i, cell in enumerate(now.inputs):
                if cell is leaf:
                    return ("input", i)
            return ("fixed", leaf)
        for age, recording in ((0, now), (1, last)):
            if recording is not None:
                number = recording.numbers.get(id(leaf.task))
                if number is not None:
                    return ("made", age, number, recording.tasks[number].wanted.index(leaf.slot))
        return ("fixed", leaf)

    # -- recording -------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._draws = self._session.random_calls
        self._now = Recording(draws=self._draws)
        self._guesses, self._results, self._confirmed = [], [], 0
        self._guess()

    def _finish(self, result: Any) -> None:
        now, last = self._now, self._last
        assert now is not None
        self._abandon()
        returned: list[Value] = []

        def note(value: Value) -> Value:
            returned.append(value)
            return value

        for frontend in self._session.frontends:
            frontend.renew(result, note)
        own = set(map(id, returned))
        now.result = result
        now.alive = [a for a in now.alive if (v := a[0]()) is not None and id(v) not in own]
        drawn = sum(x.__class__ is Draw for task in now.tasks for x in task.scalars)
        if drawn != self._session.random_calls - now.draws:
            self.note_obstacle("the step sets the state of the random numbers")
        reason = "" if last is None else _difference(last, now, replay=self.mode == "replay")
        self._equal = 0 if last is None or reason else self._equal + 1
        self._alike = 0 if last is None else _alike(last, now)
        if reason:
            late = f", noticed {self._replayed} replayed steps later" if self._replayed else ""
            self.reasons[reason + late] += 1
        self._replayed = 0
        self._now, self._last = None, now

    # -- replay ----------------------------------------------------------------------------------

    def _may_replay(self) -> bool:
        last = self._last
        if last is None or last.obstacle or self._equal < CONFIRM - 1:
            return False
        return self._replayed < VERIFY_EVERY

    def _replay(self, step: Callable[[], Any]) -> Any:
        """The last step once more: its executables on the arrays of now, none of its Python."""
        session, last = self._session, self._last
        assert last is not None
        start = time.perf_counter_ns()
        inputs = self._fetch_again(last)
        if inputs is None:  # the batches wait in `_ahead` for the step that is recorded now
            self._equal = 0
            return self.run(step)
        made: list[list[Cell]] = []
        tasks = []
        for number in range(len(last.tasks)):
            task = self._again(last, number, inputs, made)
            session.issue(task)
            tasks.append(task)
        for holder, number, i in last.alive:
            if (value := holder()) is not None:
                value.cell = made[number][i]

        def renewed(value: Value) -> Value:
            cell = value.cell
            number = None if cell is None else last.numbers.get(id(cell.task))
            if cell is None or number is None:
                return value
            new = Value(value.aval)
            new.cell = made[number][last.tasks[number].wanted.index(cell.slot)]
            return new

        result = last.result
        for frontend in session.frontends:
            result = frontend.renew(result, renewed)
        last.tasks, last.numbers = tasks, {id(task): i for i, task in enumerate(tasks)}
        last.result = result
        self._replayed += 1
        self.counts["replay.steps"] += 1
        session.note_replay(start)
        session.mark_step()
        return result

    def _fetch_again(self, last: Recording) -> list[Cell] | None:
        """The inputs of the next step: fresh batches, and the small constants of the last one."""
        for fetch in last.fetches:
            self._now = fresh = Recording()
            self.is_fetching = True
            try:
                batch = fetch()
            finally:
                self._now, self.is_fetching = None, False
            self._ahead.append((fetch, batch, fresh.inputs))
        batches = [cell for _, _, cells in self._ahead for cell in cells]
        old = [c for c, data in zip(last.inputs, last.contents, strict=True) if data is None]
        if self._session.stream.bulk is not None or list(map(_type, batches)) != list(
            map(_type, old)
        ):
            self.reasons["the batch has another shape, or computes on the device"] += 1
            return None
        self._ahead = []
        rest = iter(batches)
        return [
            next(rest) if data is None else cell
            for cell, data in zip(last.inputs, last.contents, strict=True)
        ]

    def _again(
        self, last: Recording, number: int, inputs: list[Cell], made: list[list[Cell]]
    ) -> Task:
        old = last.tasks[number]
        leaves = [self._find(last, source, inputs, made) for source in last.sources[number]]
        session = self._session
        scalars = [
            session.next_random() if number.__class__ is Draw else number for number in old.scalars
        ]
        task, cells = same_task(old, session.next_segment(), leaves, scalars)
        made.append(cells)
        return task

    def _find(
        self, last: Recording, source: Source, inputs: list[Cell], made: list[list[Cell]]
    ) -> Cell:
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

    # -- speculate -------------------------------------------------------------------------------

    def _guess(self) -> None:
        """Issue the segments of the last step whose inputs are all there."""
        last, now = self._last, self._now
        if self.mode != "speculate" or last is None or now is None:
            return
        session = self._session
        while len(self._guesses) < self._alike:
            old = last.tasks[len(self._guesses)]
            leaves = [
                self._foresee(last, now, source) for source in last.sources[len(self._guesses)]
            ]
            if any(leaf is None for leaf in leaves):
                return
            scalars = [self._foresee_number(number) for number in old.scalars]
            known: list[Cell] = [leaf for leaf in leaves if leaf is not None]
            task, cells = same_task(old, session.next_segment(), known, scalars)
            task.is_guess, task.read = True, known
            self._guesses.append(task)
            self._results.append(cells)
            self.counts["speculate.issued"] += 1
            session.push(task)

    def _foresee_number(self, number: float) -> float:
        if number.__class__ is not Draw:
            return number
        self._draws += 1
        return Draw(self._draws)

    def _foresee(self, last: Recording, now: Recording, source: Source) -> Cell | None:
        if source[0] == "input":
            i = source[1]
            if i < len(now.inputs):
                return now.inputs[i]
            return None
        if source[0] == "made" and source[1] == 1:
            return last.tasks[source[2]].outputs[source[3]]()
        return self._find(last, source, [], self._results)

    def _confirm(self, task: Task) -> Task | None:
        """The guess for the segment that was cut just now, if it was right."""
        if self._confirmed >= len(self._guesses):
            return None
        guess = self._guesses[self._confirmed]
        is_right = (  # equal keys have equally many leaves
            guess.key == task.key
            and guess.scalars == task.scalars
            and all(a is b for a, b in zip(guess.read, task.leaves, strict=True))
        )
        if not is_right:
            self.reasons[_task_difference(guess, task)] += 1
            self._abandon()
            return None
        self._confirmed += 1
        guess.is_guess, guess.read = False, []
        self.counts["speculate.right"] += 1
        return guess

    def _abandon(self) -> None:
        """The guesses that nobody has confirmed are wrong; those that wait need not run."""
        for guess in self._guesses[self._confirmed :]:
            self._session.cancel(guess)
            guess.read = []
            self.counts["speculate.wrong"] += 1
        self._guesses, self._results = self._guesses[: self._confirmed], []


def _type(cell: Cell) -> Any:
    return cell.array.shape, cell.array.dtype


def _difference(last: Recording, now: Recording, *, replay: bool) -> str:
    """The first thing in which two steps differ, in words; empty if there is none."""
    if now.obstacle:
        return now.obstacle
    if len(last.tasks) != len(now.tasks):
        return f"the step was cut into {len(now.tasks)} segments instead of {len(last.tasks)}"
    for old, new in zip(last.tasks, now.tasks, strict=True):
        if why := _task_difference(old, new):
            return why
    if last.sources != now.sources:
        return "the step reads arrays that the step before did not read, or from elsewhere"
    if last.fetches != now.fetches or len(last.inputs) != len(now.inputs):
        return "the step asks its loaders for other batches than the step before"
    if not replay:
        return ""
    for old_data, new_data in zip(last.contents, now.contents, strict=True):
        if old_data != new_data or old_data == b"":
            return "the step copies other data from the host each time; let ctx.loader bring it"
    for holder, number, i in last.alive:
        value = holder()
        if value is not None and value.cell is not None and id(value.cell.task) in last.numbers:
            return f"the step keeps a tensor of each step, made at {_site(last.tasks[number], i)}"
    return ""


def _alike(last: Recording, now: Recording) -> int:
    """How many segments at the start of two steps are the same, and read from the same places."""
    count = 0
    for old, new, *sources in zip(last.tasks, now.tasks, last.sources, now.sources, strict=False):
        if _task_difference(old, new) or sources[0] != sources[1]:
            break
        count += 1
    return count


def _task_difference(old: Task, new: Task) -> str:
    if old.key != new.key:
        return f"the graph is another one ({new.bulk.phase}, {len(new.bulk.ops)} ops)"
    for i, (a, b) in enumerate(zip(old.scalars, new.scalars, strict=True)):
        if a != b and not (a.__class__ is Draw and b.__class__ is Draw) and (a == a or b == b):
            return f"a Python number changes from step to step ({a:g}, {b:g}) at {_owner(new, i)}"
    return ""


def _owner(task: Task, scalar: int) -> str:
    """The op and the line that a number belongs to."""
    for op, frame in zip(task.bulk.ops, task.bulk.frames, strict=True):
        scalar -= op.scalars
        if scalar < 0:
            return f"{format_site(frame[0])} ({op.name})"
    return "an unknown line"


def _site(task: Task, output: int) -> str:
    slot = task.wanted[output]
    for op, frame in zip(task.bulk.ops, task.bulk.frames, strict=True):
        slot -= len(op.outputs)
        if slot < 0:
            return format_site(frame[0]) or "an unknown line"
    return "an unknown line"
