"""Step modes: record each step, replay what was recorded, or guess it while it is recorded.

retrace    record every step; equal segments reuse their executables
replay     after `CONFIRM` equal steps, issue the known executables without running the step's
           Python; record every `VERIFY_EVERY`th step to check
speculate  issue the executables of the last step as soon as their inputs are there, while the
           step is recorded; a segment that turns out to be equal takes over the results. Only the
           first segments that did not change between the last two steps are guessed, and only as
           long as that pays: see `kit.runtime.steps.guesses` and `payoff`

All three run the same executables on the same arrays: the numbers are the same to the bit.
"""

from __future__ import annotations

import time
from collections import ChainMap, Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

from kit.runtime.recording.bulk import Cell, Task, Value
from kit.runtime.steps.functions import KnownFunction
from kit.runtime.steps.guesses import Guesses
from kit.runtime.steps.kept import Arrays, BoundAnew
from kit.runtime.steps.look import Batch
from kit.runtime.steps.own_state import Looks, OwnState
from kit.runtime.steps.payoff import Payoff
from kit.runtime.steps.program import Issuer, UserProgram
from kit.runtime.steps.recording import (
    FRESH,
    OTHER_CONSTANTS,
    OTHER_TENSORS,
    Draw,
    Draws,
    EarlyBatch,
    Fetch,
    Reasons,
    Recording,
    Watched,
    alike,
    difference,
    is_held,
    is_read,
    reads_of,
    source_of,
    take,
    type_of,
)
from kit.runtime.steps.replaying import fill, hand_over, issue_again, own_value
from kit.runtime.steps.said import said_of

__all__ = ["CONFIRM", "STOPPED", "VERIFY_EVERY", "Stepper"]

CONFIRM = 3  # equal steps in a row before one is replayed
VERIFY_EVERY = 32  # replayed steps between two recorded ones
STOPPED = "speculate.stopped"  # the counter that is 1 once guessing has not paid
SMALL = 1 << 16  # bytes of a host array that are kept, to see that the next step sends the same


class Stepper:
    """Runs the steps of one session, and keeps the recording of the last one.

    Attributes:
        payoff: whether it pays to guess them.
        is_fetching: the loaders are asked for the batches of a replay.
        has_run: a step was given to `run`; else the mode has changed nothing.
    """

    def __init__(self, mode: str, issuer: Issuer, draws: Draws, program: UserProgram) -> None:
        self.mode = mode
        self.reasons = Reasons()  # why a step was recorded and not replayed
        self.counts: Counter[str] = Counter()
        self._issuer = issuer
        self._random = draws
        self._program = program
        self._arrays = Arrays(program.frontends)
        self._now: Recording | None = None  # the step that is being recorded
        self._last: Recording | None = None
        self._equal = 0  # steps in a row that were equal to the one before
        self._replayed = 0  # steps since the last recorded one
        self.is_fetching = self.has_run = False
        self._step: KnownFunction | None = None  # at the end of its last recorded call
        self._own: OwnState | None = None  # as this step began, where a replay may follow
        self._looks = Looks()
        self._anew: BoundAnew | None = None  # by the last recorded step
        self._ahead: list[EarlyBatch] = []  # batches that no step has had yet
        self.payoff = Payoff()
        self._guesses = Guesses(issuer, self.payoff, self.counts)

    def run(self, step: Callable[[], Any]) -> Any:
        """Run one step and end it; gives what the step returns."""
        self.has_run = True
        if self._now is not None:  # a step within a step: a part of that one
            return self._run_recorded(step)
        if self.mode == "retrace" or (self.mode == "speculate" and not self.payoff.begin_step()):
            self._last, self._guesses.most = None, 0
            return self._run_recorded(step)
        if self.mode == "replay":
            if self._step is not None and (why := self._step.change(step)):
                self.forget(why)
            if self._may_replay():
                return self._replay(step)
        self._step = self._anew = None  # they may hold a dict that this step puts another one for
        try:
            self._begin(step)
            result = self._run_recorded(step)
            self._finish(step, result)
            if self.mode == "speculate":
                self.payoff.end_step()
                if self.payoff.stopped:
                    self.counts[STOPPED] = 1
        except BaseException:
            self.drop()
            raise
        return result

    def _run_recorded(self, step: Callable[[], Any]) -> Any:
        result = step()
        self._program.end_step()
        return result

    def drop(self, *, for_good: bool = False) -> None:
        """What was recorded of this step is in part only: it is no example for the next one.

        Args:
            for_good: there is no next one, so let go of what the function holds and batches, too.
        """
        self._guesses.abandon()
        self._now = self._own = None
        self.forget()
        if for_good:
            self._step, self._anew, self._ahead = None, None, []

    @property
    def is_between(self) -> bool:
        """True between two steps that may be replayed."""
        return self.mode == "replay" and self._now is None

    def forget(self, why: str = "", *, of: Value | None = None) -> None:
        """The next step may be another one: record it.

        Args:
            of: forget between two steps only, and only if the next one reads this value.
        """
        last = self._last
        if of is not None and not (self.is_between and last is not None and is_read(last, of)):
            return
        if why and self._last is not None and self.mode == "replay":
            self.reasons.note(why)
        self._last, self._equal, self._guesses.most = None, 0, 0

    def note_write(self, old: Value) -> None:
        """A tensor has another value now. A replay of the step that made the old one misses it."""
        last = self._last
        if last is None or self._now is not None or old.cell is None:
            return
        if id(old.cell.task) in last.numbers and any(held() is old for held, _, _ in last.alive):
            self.forget("the program has changed what the step makes, between two steps")

    def describe(self) -> list[str]:
        """What the step mode came to, in words; nothing for `retrace`."""
        return said_of(self.mode, self.has_run, self.counts, self.payoff, self.reasons)

    # -- calls of the recording --------------------------------------------------------------------

    def note_input(self, cell: Cell, array: Any) -> None:
        """An array was copied from the host."""
        if (now := self._now) is not None:
            now.inputs.append(cell)
            now.contents.append(array.tobytes() if array.nbytes <= SMALL else None)

    def note_batch(self, cells: list[Cell]) -> None:
        """Note arrays that a loader's thread has copied, for the step that fetches now."""
        if (now := self._now) is not None:
            now.inputs += cells
            now.contents += [FRESH] * len(cells)
            if self._own is not None:
                self._own.draws_beside = True

    def fetch(self, fetch: Fetch) -> Any:
        """Ask a loader for a batch; what it copies to the device is the step's input."""
        now = self._now
        first = 0 if now is None else len(now.inputs)
        if (ahead := take(self._ahead, fetch)) is not None:
            batch = ahead.batch
            if now is not None:
                now.inputs += ahead.cells
        else:
            batch = fetch() if now is None or self._own is None else self._own.fetch(fetch)
        if now is None:
            return batch
        now.fetches.append(fetch)
        if self.mode == "replay":
            now.brought.append(Batch(batch, now.inputs[first:], self._arrays.cells_of))
        now.contents[first:] = [FRESH] * (len(now.inputs) - first)
        self._guess()
        return batch

    def note_obstacle(self, what: str, *, unless_made: Value | None = None) -> None:
        """The step did something that a replay could not do again, but to what it has made."""
        now = self._now
        if self.mode == "replay" and now and not (now.obstacle or now.has_made(unless_made)):
            now.obstacle = what

    def is_given(self, value: Value | None) -> bool:
        """May the program change this value's tensor before a replay, which would not see it?"""
        now = self._now
        return self.mode == "replay" and now is not None and not now.has_made(value)

    def note_call(self, call: Callable[[], Any]) -> None:
        """Note a call of the step, which a replay makes after as many segments."""
        if (now := self._now) is not None:
            now.calls.append((len(now.tasks), call))

    def watch(self, thing: Any, looks_at: Callable[[Any], Watched]) -> None:
        """Note a thing of which the program may change what a replay would not notice.

        `looks_at(thing)` must not keep it alive: torch holds gradients where no collector looks,
        and these their session.
        """
        now = self._now if self.mode == "replay" else None
        if now is None or ((known := now.watched.get(id(thing))) and known[0]() is thing):
            return
        now.watched[id(thing)] = ref(thing), (watched := looks_at(thing))
        if watched.unseen:
            self.note_obstacle(watched.unseen)

    def note_cut(
        self, task: Task, kept: Sequence[Value], holders: Sequence[Value] = ()
    ) -> Task | None:
        """A segment was cut; gives the guess that has already run it, if there is one.

        Args:
            holders: through which the program has given each of the task's leaves.
        """
        now = self._now
        if now is None:
            return None
        start = time.thread_time_ns()
        guess = self._guesses.confirm(task)
        chosen = guess or task
        number = len(now.tasks)
        sources = tuple([source_of(leaf, now, self._last) for leaf in task.leaves])
        now.sources.append(sources)
        for source, holder in zip(sources, holders, strict=False):
            if source[0] == "fixed":
                now.fixed.setdefault(id(holder), (ref(holder), source[1]))
        now.tasks.append(chosen)
        now.numbers[id(chosen)] = number
        now.alive += [(ref(value), number, i) for i, value in enumerate(kept)]
        self.payoff.cost(start)
        return guess

    # -- recording -------------------------------------------------------------------------------

    def _begin(self, step: Callable[[], Any]) -> None:
        draws = self._random.calls
        watched = [] if self._last is None else self._last.watched.values()
        self._now = Recording(
            draws=draws,
            modes=self._modes(),
            seen=[(one.constants, one.constants(), OTHER_CONSTANTS) for _, one in watched],
        )
        self._own = None
        if self._last is not None and self.mode == "replay" and self._equal >= CONFIRM - 2:
            if self._looks.is_due():
                frontends = self._program.frontends()
                self._own = OwnState(step, without=self._last.called, frontends=frontends)
            else:
                self.note_obstacle(self._looks.why)
        self._guesses.begin(draws)
        self._guess()

    def _finish(self, step: Callable[[], Any], result: Any) -> None:
        start = time.thread_time_ns()
        now, last = self._now, self._last
        assert now is not None
        self._guesses.abandon()
        returned: list[Value] = []
        given = now.batch_cells()

        def note(value: Value) -> Value:
            returned.append(value)
            cell = value.cell
            if cell and id(cell) not in given and id(cell.task) not in now.numbers:
                now.fixed.setdefault(id(value), (ref(value), cell))  # a replay returns it again
            return own_value(value)

        result = self._arrays.renew(result, note)  # without the program's graph of gradients
        own = set(map(id, returned))
        now.result = result if self.mode == "replay" else None
        now.alive = [a for a in now.alive if (v := a[0]()) is not None and id(v) not in own]
        drawn = sum(x.__class__ is Draw for task in now.tasks for x in task.scalars)
        if drawn != self._random.calls - now.draws:
            self.note_obstacle("the step sets the state of the random numbers")
        known = None
        if self._own is not None:
            made = {id(v) for v in returned if v.cell and id(v.cell.task) in now.numbers}
            known = self._known(step, self._own, partial(self._arrays.kept_as, made, given))
        reason = "" if last is None else difference(last, now, replay=self.mode == "replay")
        self._equal = 0 if last is None or reason else self._equal + 1
        self._guesses.most = 0 if last is None else alike(last, now)
        if reason:
            late = f", noticed {self._replayed} replayed steps later" if self._replayed else ""
            self.reasons.note(reason + late)
        elif self._equal and self.mode == "replay":
            now.reads = reads_of(now)
            now.seen += [(one.bound, one.bound(), OTHER_TENSORS) for _, one in now.watched.values()]
            if self._equal >= CONFIRM - 1 and self._own is not None:
                self._step, self._anew = known, BoundAnew(*self._own.anew, self._arrays.counter_of)
        self._replayed = 0
        self._now, self._own, self._last = None, None, now
        self.payoff.cost(start)

    def _known(
        self, step: Callable[[], Any], own: OwnState, kept_as: Callable[[Any], str]
    ) -> KnownFunction | None:
        """The step's function as it is now, if a replay may stand for it; else the obstacle."""
        now = self._now
        assert now is not None
        if not (why := own.change(kept_as)):
            known = KnownFunction(
                step,
                without=now.called,
                watched=now.watched.keys(),
                hooks=[hook for one in self._program.frontends() for hook in one.hooks()],
            )
            why = known.unseen
        self._looks.note(why)
        if not why:
            return known
        self.note_obstacle(why)
        return None

    def _guess(self) -> None:
        if self.mode == "speculate" and self._last is not None and self._now is not None:
            self._guesses.issue(self._last, self._now)

    # -- replay ----------------------------------------------------------------------------------

    def _may_replay(self) -> bool:
        last = self._last
        if last is None or last.obstacle or self._equal < CONFIRM - 1:
            return False
        if self._program.is_pending() or not is_held(last):
            self.forget("the program has changed what the step reads, between two steps")
            return False
        for what, now in self._modes().items():
            if last.modes.get(what) != now:
                self.forget(f"the program has changed {what}, between two steps")
                return False
        for look, seen, why in last.seen:
            if look() not in (None, seen):
                self.forget(why)
                return False
        if self._anew is not None and (why := self._anew.kept()):
            self.forget(why)
            return False
        return self._replayed < VERIFY_EVERY

    def _modes(self) -> dict[str, Any]:
        """What may be changed by one call, and decides what each op does."""
        of_frontends = (frontend.modes() for frontend in self._program.frontends())
        return dict(ChainMap({"the seed of the random numbers": self._random.seed}, *of_frontends))

    def _replay(self, step: Callable[[], Any]) -> Any:
        """The last step once more: its executables on the arrays of now, none of its Python."""
        last = self._last
        assert last is not None
        inputs = self._fetch_again(last, step)
        if inputs is None:  # the batches wait in `_ahead` for the step that is recorded now
            self._equal = self._replayed = 0
            return self.run(step)
        tasks: list[Task] = []
        made: list[list[Cell]] = []
        try:
            self._program.settle()
            issue_again(last, inputs, tasks, made, issuer=self._issuer, draws=self._random)
        except BaseException:
            if tasks and not self._issuer.has(tasks[-1]):
                del tasks[-1], made[-1]
            if any(task.cut.dead for task in tasks):  # what the program holds has lost its memory
                fill(last, made)
            self.forget()
            raise
        try:
            result = hand_over(last, inputs, tasks, made, self._arrays.renew)
        except BaseException:  # some of the program's values are of this step already
            fill(last, made)
            self.forget()
            raise
        self._replayed += 1
        self.counts["replay.steps"] += 1
        self._program.end_step()
        return result

    def _fetch_again(self, last: Recording, step: Callable[[], Any]) -> list[Cell] | None:
        """The inputs of the next step: fresh batches, and the small constants of the last one."""
        # Where a loader raises, the others' batches are lost, as in a step that is recorded.
        found = [take(self._ahead, fetch) or self._ask(fetch) for fetch in last.fetches]
        waiting, self._ahead = self._ahead, [*found, *self._ahead]
        for known, ahead in zip(last.brought, found, strict=True):
            if why := known.change(Batch(ahead.batch, ahead.cells, self._arrays.cells_of)):
                self.reasons.note(why)
                return None
        if last.fetches and self._step is not None and self._step.change(step):
            return None  # by a loader: the step that is recorded now says so
        batches = [cell for ahead in found for cell in ahead.cells]
        old = [c for c, data in zip(last.inputs, last.contents, strict=True) if data is FRESH]
        is_pending = self._program.is_pending()
        if is_pending or list(map(type_of, batches)) != list(map(type_of, old)):
            self.reasons.note("the batch has another shape, or computes on the device")
            return None
        self._ahead = waiting
        rest = iter(batches)
        return [
            next(rest) if data is FRESH else cell
            for cell, data in zip(last.inputs, last.contents, strict=True)
        ]

    def _ask(self, fetch: Fetch) -> EarlyBatch:
        self._now = fresh = Recording()
        self.is_fetching = True
        try:
            return EarlyBatch(fetch, fetch(), fresh.inputs)
        finally:
            self._now, self.is_fetching = None, False
