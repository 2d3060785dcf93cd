"""What a stepper needs of the session: segments are issued through it, and steps ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kit.runtime.recording.bulk import Task

__all__ = ["Issuer", "UserProgram"]


class Issuer(Protocol):
    """What gives segments to the executor."""

    step: int  # how many the session has ended

    def place(self, task: Task) -> None:
        """The task is the next segment of this step."""

    def next_segment(self) -> int:
        """The number of the next segment."""

    def issue(self, task: Task) -> None:
        """Count a segment and give it to the executor."""

    def push(self, task: Task) -> None:
        """Give a task to the executor."""

    def has(self, task: Task) -> bool:
        """True if the executor has got the task."""

    def confirm(self, task: Task) -> None:
        """The program has asked for a task that was a guess."""

    def cancel(self, task: Task) -> None:
        """A guess was wrong: it need not run."""

    def note_replay(self, start: int) -> None:
        """Segments were issued without being recorded, since `start`."""


@dataclass(frozen=True, slots=True)
class UserProgram:
    """What a stepper asks of the program whose steps it runs."""

    end_step: Callable[[], None]
    is_pending: Callable[[], bool]  # whether this thread has recorded ops that are not cut yet
    frontends: Callable[[], tuple[Any, ...]]  # they make the result of a replayed step
