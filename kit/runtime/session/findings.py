"""What the probes of programs have found: noted at once on what depends on it, or noted late.

On a CPU the worker waits for a program, so it knows at once what the probes have found. On a GPU it
only issues: what they find comes to the host behind the results, and is looked at when something is
read anyway, or when a later step begins and it is there. What was issued in later programs by then
may have read bad numbers, so none of it can be read any more.
"""

from __future__ import annotations

from _thread import RLock
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from kit.errors import DeviceCheckError
from kit.runtime.compiling.checks import findings
from kit.runtime.compiling.lower import Executable
from kit.runtime.recording.bulk import Task
from kit.runtime.recording.sites import format_site

__all__ = ["Findings", "Flags", "raise_found", "spoiled_by"]

Flags = tuple[int, Executable, Any]  # the first op of a program, and what its probes give


def _errors_of(task: Task, found: Sequence[Flags]) -> Iterator[tuple[int, DeviceCheckError]]:
    """What the probes of a task have found, each with the op in the task that was given it."""
    for first, executable, flags in found:
        for probe, at, bits in findings(executable.asked, flags):
            node = first + probe.node
            site = format_site(task.cut.bulk.frames[node][0])
            yield node, probe.explained(at, bits, site=site, step=task.step)


def raise_found(task: Task, found: Sequence[Flags]) -> None:
    """Raise what the probes of a task have found, if anything; the earliest op wins."""
    for _, error in _errors_of(task, found):
        raise error


def spoiled_by(
    task: Task, found: Sequence[Flags]
) -> tuple[dict[int, BaseException], list[BaseException]] | None:
    """The errors of the slots that bad numbers have come to, and those errors in program order.

    All else that the program has computed is right. None: its probes have found nothing.
    """
    culprits: dict[int, DeviceCheckError] = {}
    for node, error in _errors_of(task, found):
        culprits.setdefault(node, error)
    if not culprits:
        return None
    slots: list[DeviceCheckError | None] = []
    new: list[BaseException] = []
    for node, (op, refs) in enumerate(task.cut.bulk.nodes()):
        poison = next((slots[r] for r in refs if r >= 0 and slots[r] is not None), None)
        if poison is None and (poison := culprits.get(node)) is not None:
            new.append(poison)
        slots += [poison] * len(op.outputs)
    return {s: e for s in task.cut.wanted if (e := slots[s]) is not None}, new


@dataclass(eq=False, slots=True)
class _Issued:
    """A task that is issued, and what its probes give; None until it has been issued."""

    task: Task
    found: Sequence[Flags] | None = None


class Findings:
    """What the probes give on a device that is not waited for.

    Args:
        fail: called with a task and the error that was found, once it is known.
    """

    def __init__(self, fail: Callable[[Task, BaseException], None]) -> None:
        self._fail = fail
        self._unseen: deque[_Issued] = deque()  # in the order of issue
        self._lock = RLock()  # held by a thread that takes one off that it has looked at

    def begin(self, task: Task) -> Callable[[Sequence[Flags]], None]:
        """A task is going to be issued; the result is called with what its probes give."""
        issued = _Issued(task)
        self._unseen.append(issued)

        def end(found: Sequence[Flags]) -> None:
            for _, _, flags in found:
                flags.copy_to_host_async()
            issued.found = found

        return end

    def look(self, *, until: int = -1, before_step: float = inf) -> None:
        """Look at what is there, and wait for what segments up to number `until` give.

        Args:
            before_step: later steps may be issued again, so nothing is said of them.
        """
        while self._unseen:
            issued = self._unseen[0]
            task, found = issued.task, issued.found
            if found is None or task.guessed or task.step >= before_step:
                return
            if task.index > until and not all(flags.is_ready() for _, _, flags in found):
                return
            is_asked_for = task.guessed is None  # else it was a wrong guess
            if is_asked_for and (spoiled := spoiled_by(task, found)) is not None:
                self._lose(*spoiled)
                self._fail(task, spoiled[1][0])
            with self._lock:
                if self._unseen and self._unseen[0] is issued:  # no other thread was faster
                    self._unseen.popleft()

    def _lose(self, errors: Mapping[int, BaseException], new: Sequence[BaseException]) -> None:
        """Of the first unseen task the slots of these errors cannot be read, of later ones none."""
        first, *later = list(self._unseen)  # the worker may append meanwhile
        lost = [(cell, errors[slot]) for slot, cell in first.task.results() if slot in errors]
        lost += [(cell, new[0]) for issued in later for _, cell in issued.task.results()]
        for cell, error in lost:
            if cell.error is None:
                cell.error = error
