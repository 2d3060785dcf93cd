"""Taking back a write that turns out to have been wrong: what has read it since runs once more.

A check is a flag that the device computes and no thread waits for, with pairs of values: what a
write made, and what was there before. Until the flag is known, the segments issued since are kept.
If the flag is raised, the old values take the place of the new ones, and each kept segment that has
read a new value, or anything computed from one, is issued again: the same program on the same
inputs and the same random numbers, as if the write had not been. The program that recorded the
segments notices nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any
from weakref import ref

import numpy as np

from kit.runtime.recording.bulk import Bulk, Cell, Task, Value, same_task
from kit.runtime.recording.stream import CutPolicy
from kit.runtime.session.issuer import Issuer

__all__ = ["Check", "Redo"]


@dataclass(eq=False)
class Check:
    """A flag that is still open, and what to put back if it is raised."""

    flag: Value
    pairs: list[tuple[Value, Value]]  # (what the write made, what was there)
    step: int  # of the session, in which the write was recorded
    first: int  # the number of the first segment that may have read what the write made
    at: dict[Bulk, int]  # bulks that were growing then -> how many ops they had


@dataclass(eq=False)
class _Kept:
    """A segment that may have to run again, with its leaves, which the task does not keep."""

    number: int
    task: Task
    leaves: list[Cell]
    results: list[tuple[ref[Value], int]] = field(default_factory=list)  # (value, place in wanted)


class Redo:
    """The open checks of one session, oldest first.

    Args:
        lock: held while a bulk is cut.
        flush: cuts and issues what every thread has recorded, for a reason.
        note_obstacle: says why the step that is recorded cannot be replayed.

    Attributes:
        is_unknown: a guarded write was only planned, and nobody will look at its flag.
    """

    def __init__(
        self, lock: Any, policy: CutPolicy, issuer: Issuer, *,
        flush: Callable[[str], None], note_obstacle: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._lock = lock
        self._policy = policy
        self._issuer = issuer
        self._flush = flush
        self._note_obstacle = note_obstacle
        self.is_unknown = False
        self._open: list[Check] = []
        self._kept: list[_Kept] = []
        self._count = 0

    @property
    def is_on(self) -> bool:
        """True while a check is open: segments must be noted."""
        return bool(self._open)

    @property
    def first_step(self) -> float:
        """The first step of which segments may be issued again."""
        return self._open[0].step if self._open else inf

    def open(self, flag: Value, pairs: Sequence[tuple[Value, Value]]) -> None:
        """Guard a write that has just been recorded, and may still be pending.

        Args:
            flag: one number, not zero if the write must be taken back.
            pairs: (new, old) for each value that was written.
        """
        with self._lock:
            self._policy.donates = False  # a segment that runs again needs all that it has read
            self._note_obstacle("a step is only known to be right one step later")
            growing = {new.bulk: len(new.bulk.ops) for new, _ in pairs if new.bulk is not None}
            check = Check(flag, list(pairs), self._issuer.step, self._count, growing)
            if self._policy.is_planning:  # nothing runs then, so nothing is known
                self.is_unknown = True
            else:
                self._open.append(check)

    def border(self, bulk: Bulk) -> int:
        """Where the bulk must be split, because what follows reads a guarded write; or 0.

        A write is taken back between two segments, so none may hold it and what has read it.
        """
        found = []
        for check in self._open:
            if (at := check.at.get(bulk)) is not None and at < len(bulk.ops):
                slots = {new.slot for new, _ in check.pairs if new.bulk is bulk}
                refs = [refs for _, refs in bulk.nodes()][at:]
                if any(slots.intersection(r) for r in refs):
                    found.append(at)
        return min(found, default=0)

    def note_split(self, bulk: Bulk, at: int, rest: Bulk) -> None:
        """A bulk was split: what was at `i` in it is at `i - at` in the rest."""
        for check in self._open:
            before = check.at.pop(bulk, 0)
            if before > at:
                check.at[rest] = before - at

    def note(self, task: Task, leaves: list[Cell], kept: Sequence[Value]) -> None:
        """A segment was cut while a check is open."""
        results = [(ref(value), i) for i, value in enumerate(kept)]
        self._kept.append(_Kept(self._count, task, leaves, results))
        self._count += 1

    def concerns(self, cell: Cell) -> bool:
        """True if the array there may be taken back."""
        return any(cell.task is kept.task for kept in self._kept) or any(
            new.cell is cell for check in self._open for new, _ in check.pairs
        )

    def close(self, until_step: int | None = None) -> None:
        """Look at the flags, oldest first: all of them, or those opened up to this step."""
        with self._lock:
            while self._open and (until_step is None or self._open[0].step <= until_step):
                check = self._open[0]
                if check.flag.cell is None:
                    self._flush("check")
                is_raised = self._is_raised(check)
                if check not in self._open:
                    continue  # another thread has looked at it during the wait
                if is_raised:
                    self._take_back(check)
                self._open.pop(0)
                first = self._open[0].first if self._open else self._count
                self._kept = [kept for kept in self._kept if kept.number >= first]

    def _is_raised(self, check: Check) -> bool:
        cell, issuer = check.flag.cell, self._issuer
        assert cell is not None, "what was pending has just been cut"
        start = time.perf_counter_ns()
        if cell.task is not None:
            issuer.finish(cell.task)
        issuer.counts["check.count"] += 1
        stop = max(start, issuer.waits.until_ns)  # without a wait, the last one was earlier
        issuer.spans.add("check of an earlier step", "ahead", start, stop)
        return cell.error is None and bool(np.any(np.asarray(cell.array) != 0))

    def _take_back(self, check: Check) -> None:
        issuer = self._issuer
        self._flush("redo")  # what is pending may have read the new values too
        moved: dict[Cell, Cell] = {}
        for new, old in check.pairs:
            assert new.cell is not None, "what was pending has been cut"
            assert old.cell is not None, "what was pending has been cut"
            moved[new.cell] = old.cell
            new.cell = old.cell
        again = 0
        for kept in self._kept:
            if kept.number < check.first or not any(leaf in moved for leaf in kept.leaves):
                continue
            leaves = [moved.get(leaf, leaf) for leaf in kept.leaves]
            task, cells = same_task(kept.task, issuer.next_segment(), leaves, kept.task.scalars)
            task.cut = replace(task.cut, reason="redo")
            task.step, task.position = kept.task.step, kept.task.position
            for output, cell in zip(kept.task.outputs, cells, strict=True):
                if (before := output()) is not None:
                    moved.setdefault(before, cell)  # not for what is put back itself
            for holder, i in kept.results:
                value = holder()
                if value is not None and value.cell is not None and value.cell in moved:
                    value.cell = cells[i]
            issuer.executor.retract(kept.task)
            kept.task, kept.leaves = task, leaves
            issuer.issue(task)
            again += 1
        issuer.counts["redo.count"] += 1
        issuer.counts["redo.segments"] += again
