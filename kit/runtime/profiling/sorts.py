"""Which traced steps did the same, and what each did that no step before it had done.

A validation pass in every tenth step, an update after every fourth, batches of several shapes: such
steps are not all of one sort. What they have in common is found segment by segment, so that the
kernels of each step are those of its own ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kit.runtime.recording.bulk import Task

__all__ = ["Sorts", "sorts_of"]


@dataclass(frozen=True, slots=True)
class Sorts:
    """The sorts of step in a trace, and one numbering of the segments of all of them.

    Attributes:
        numbers: the segment of each task, by its index; those of the first step come first.
        steps: the tasks of the first step of each sort; then those of steps before the traced ones
            that had segments of their own, whose kernels may still run in them.
        of_steps: of each traced step the place of its sort in `steps`.
    """

    numbers: dict[int, int]
    steps: tuple[tuple[Task, ...], ...]
    of_steps: tuple[int, ...]


def sorts_of(tasks: Sequence[tuple[Task, int]], count: int) -> Sorts:
    """Two segments are one if both record the same ops at the same lines, the n-th of a step each.

    So they are where programs differ by a number only, as where a Python int counts the steps.

    Args:
        tasks: each with its step; steps below 0 only filled the pipeline.
        count: of the traced steps.
    """
    by_step: dict[int, list[Task]] = {step: [] for step in range(max(count, 1))}
    for task, step in tasks:  # those that filled the pipeline come last
        by_step.setdefault(step, []).append(task)
    found: dict[tuple[object, int], int] = {}
    numbers: dict[int, int] = {}
    sorts: dict[tuple[int, ...], int] = {}
    firsts: list[tuple[Task, ...]] = []
    of_steps = []
    for step, own in by_step.items():
        seen: Counter[object] = Counter()
        before = len(found)
        for task in own:
            ops = _ops_of(task)
            numbers[task.index] = found.setdefault((ops, seen[ops]), len(found))
            seen[ops] += 1
        is_traced = 0 <= step < max(count, 1)
        sort = sorts.setdefault(tuple(numbers[task.index] for task in own), len(firsts))
        if sort == len(firsts) and (is_traced or len(found) > before):
            firsts.append(tuple(own))
        if is_traced:
            of_steps.append(sort)
    return Sorts(numbers, tuple(firsts), tuple(of_steps))


def _ops_of(task: Task) -> tuple[object, ...]:
    """The ops, what each makes, which values it reads, its line; not the numbers among them."""
    bulk = task.cut.bulk
    return tuple(
        (op.name, op.outputs, refs, site)
        for (op, refs), (site, _, _) in zip(bulk.nodes(), bulk.frames, strict=True)
    )
