"""The segments of the next step, issued before the program has recorded them."""

from __future__ import annotations

import time
from collections import Counter

from kit.runtime.recording.bulk import Cell, Task, same_task
from kit.runtime.steps.payoff import Payoff
from kit.runtime.steps.program import Issuer
from kit.runtime.steps.recording import Draw, Recording, Source, leaf_of

__all__ = ["Guesses"]


class Guesses:
    """The guesses of the step that is recorded now.

    Attributes:
        most: how many may be made: the first segments that did not change between the last two
            steps.
    """

    def __init__(self, issuer: Issuer, payoff: Payoff, counts: Counter[str]) -> None:
        self.most = 0
        self._issuer = issuer
        self._payoff = payoff
        self._counts = counts
        self._tasks: list[Task] = []
        self._results: list[list[Cell]] = []  # of the tasks, kept alive until confirmed
        self._confirmed = 0  # tasks that the recording has reached
        self._draws = 0  # random numbers foreseen

    def begin(self, draws: int) -> None:
        """A step begins, after so many random numbers."""
        self._tasks, self._results, self._confirmed = [], [], 0
        self._draws = draws

    def issue(self, last: Recording, now: Recording) -> None:
        """Issue the segments of the last step whose inputs are all there."""
        if not self._payoff.is_guessing:
            return
        start = time.thread_time_ns()
        while len(self._tasks) < self.most and self._issue_next(last, now):
            pass
        self._payoff.cost(start)

    def _issue_next(self, last: Recording, now: Recording) -> bool:
        """Issue the next segment of the last step, if its inputs are all there."""
        number = len(self._tasks)
        old = last.tasks[number]
        leaves = [self._foresee(last, now, source) for source in last.sources[number]]
        if None in leaves:
            return False
        scalars = [self._foresee_number(number) for number in old.scalars]
        known: list[Cell] = [leaf for leaf in leaves if leaf is not None]
        task, cells = same_task(old, self._issuer.next_segment(), known, scalars)
        task.step, task.guessed = self._issuer.step, known
        self._tasks.append(task)
        self._results.append(cells)
        self._counts["speculate.issued"] += 1
        self._issuer.push(task)
        return True

    def _foresee_number(self, number: float) -> float:
        if number.__class__ is not Draw:
            return number
        self._draws += 1
        return Draw(self._draws)

    def _foresee(self, last: Recording, now: Recording, source: Source) -> Cell | None:
        if source[0] == "input":
            i = source[1]
            return now.inputs[i] if i < len(now.inputs) else None
        if source[0] == "made" and source[1] == 1:
            of = last.tasks[source[2] : source[2] + 1]  # the step before last may have had more
            return of[0].outputs[source[3]]() if of and source[3] < len(of[0].outputs) else None
        return leaf_of(last, source, [], self._results)

    def confirm(self, task: Task) -> Task | None:
        """The guess for the segment that was cut just now, if it was right."""
        if self._confirmed >= len(self._tasks):
            return None
        guess = self._tasks[self._confirmed]
        is_right = (  # equal keys have equally many leaves
            guess.cut.key == task.cut.key
            and guess.scalars == task.scalars
            and guess.guessed == task.leaves
        )
        if not is_right:
            self.abandon()
            return None
        self._confirmed += 1
        self._issuer.confirm(guess)
        self._payoff.judge(guess, is_right=True)
        self._counts["speculate.right"] += 1
        return guess

    def abandon(self) -> None:
        """Drop the guesses that were not confirmed, and guess no more of this step."""
        for guess in self._tasks[self._confirmed :]:
            self._issuer.cancel(guess)
            self._payoff.judge(guess, is_right=False)
            guess.guessed = []  # still a guess, but one that holds no arrays
            self._counts["speculate.wrong"] += 1
        self._tasks, self._results = self._tasks[: self._confirmed], []
        self.most = 0
