"""A recorded step once more: its tasks on the arrays of now, and what they make for the program."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kit.runtime.recording.bulk import Cell, Task, Value, pending, same_task, twin
from kit.runtime.steps.program import Issuer
from kit.runtime.steps.recording import Draw, Draws, Recording, leaf_of

__all__ = ["fill", "hand_over", "issue_again", "own_value"]


def issue_again(
    last: Recording,
    inputs: list[Cell],
    tasks: list[Task],
    made: list[list[Cell]],
    *,
    issuer: Issuer,
    draws: Draws,
) -> None:
    """Issue the tasks of the last step once more; appends the new ones, and what they make."""
    calls = deque(last.calls)
    start = time.perf_counter_ns()
    for number, old in enumerate([*last.tasks, None]):
        while calls and calls[0][0] == number:
            issuer.note_replay(start)
            calls.popleft()[1]()
            start = time.perf_counter_ns()
        if old is None:
            break
        leaves = [leaf_of(last, source, inputs, made) for source in last.sources[number]]
        if old.again is not None:
            task, cells = old.again(leaves)
        else:
            scalars = [draws.next() if x.__class__ is Draw else x for x in old.scalars]
            task, cells = same_task(old, issuer.next_segment(), leaves, scalars)
            issuer.place(task)
        tasks.append(task)  # known before it can run, so that no error can come between
        made.append(cells)
        if old.again is None:
            issuer.issue(task)
    issuer.note_replay(start)


def hand_over(
    last: Recording,
    inputs: list[Cell],
    tasks: list[Task],
    made: list[list[Cell]],
    renew: Callable[[Any, Callable[[Value], Value]], Any],
) -> Any:
    """The program has the replayed step from now on; gives what the step returns.

    Args:
        renew: gives a result with each array over another value.
    """
    fill(last, made)
    given = last.batch_cells()

    def renewed(value: Value) -> Value:
        cell = value.cell
        if (i := given.get(id(cell))) is not None:
            return pending(inputs[i], value.aval)
        number = None if cell is None else last.numbers.get(id(cell.task))
        if cell is None or number is None:
            return value
        output = last.tasks[number].cut.wanted.index(cell.slot)
        return pending(made[number][output], value.aval)

    result = renew(last.result, renewed)
    last.inputs = inputs
    last.tasks, last.numbers = tasks, {id(task): i for i, task in enumerate(tasks)}
    last.result = renew(result, own_value)  # the program may change what it is given
    return result


def own_value(value: Value) -> Value:
    """A value of the recording's own, of what the program has another one of."""
    return value if value.cell is None else twin(value, value.cell)


def fill(last: Recording, made: list[list[Cell]]) -> None:
    """The program's values are what a replay of this step has made; twice is as good as once.

    Args:
        made: by each task; by the first ones only, if an error has come in the middle.
    """
    for holder, number, i in last.alive:
        if (value := holder()) is not None and number < len(made):
            value.cell = made[number][i]
    for read in last.reads:
        if read.number < len(made):
            read.cell = made[read.number][read.output]
