"""What a stepper needs of the session: segments are issued through it, and steps ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kit.runtime.recording.bulk import Task

__all__ = ["Issuer", "UserProgram"]


class Issuer(Protocol):
    """What gives segments to the executor: `kit.runtime.session.issuer` says what each does."""

    step: int

    def place(self, task: Task) -> None: ...
    def next_segment(self) -> int: ...
    def issue(self, task: Task) -> None: ...
    def push(self, task: Task) -> None: ...
    def has(self, task: Task) -> bool: ...
    def confirm(self, task: Task) -> None: ...
    def cancel(self, task: Task) -> None: ...
    def note_replay(self, start: int) -> None: ...


@dataclass(frozen=True, slots=True)
class UserProgram:
    """What a stepper asks of the program whose steps it runs."""

    end_step: Callable[[], None]
    is_pending: Callable[[], bool]  # whether this thread has recorded ops that are not cut yet
    settle: Callable[[], None]  # cut what other threads have recorded: it reads what is there now
    frontends: Callable[[], tuple[Any, ...]]  # they make the result of a replayed step
