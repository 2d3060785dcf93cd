"""What an engine runs: operations, each of which reads and writes variables."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kit.errors import Cancelled, ExecutionError, KitError, named

__all__ = ["CANCELLED", "DONE", "IN_BETWEEN", "RUNNING", "WAITING", "Operation", "Variable",
           "outcome"]  # fmt: skip

IN_BETWEEN = (
    "a signal handler or __del__ uses a kit tensor while an op is recorded: set a flag there and "
    "act between two steps"
)


class Variable:
    """A tag, and the operations that wait to read or write what it stands for."""

    __slots__ = ("error", "last_write", "queue", "readers")

    def __init__(self) -> None:
        self.error: BaseException | None = None  # what poisoned it; a whole overwrite heals it
        self.readers = 0  # operations that may read it now; -1: one may write it
        self.queue: deque[Operation] = deque()  # in program order; those that write come alone
        self.last_write: Operation | None = None


WAITING, RUNNING, CANCELLED, DONE = range(4)


class Operation:
    """One pushed function: what it waits for, and what became of it."""

    __slots__ = ("function", "gates", "is_urgent", "name", "number", "reads", "state", "waits",
                 "writes")  # fmt: skip

    def __init__(
        self,
        function: Callable[[], object],
        reads: Sequence[Variable],
        writes: Sequence[Variable],
        name: str = "",
        *,
        is_urgent: bool = False,
    ) -> None:
        self.function: Callable[[], object] | None = function
        self.reads = reads
        # each once, as it must not wait for itself
        self.writes = tuple(dict.fromkeys(writes)) if len(writes) > 1 else writes
        self.name = name
        self.is_urgent = is_urgent
        self.state = WAITING
        self.gates: list[Any] | None = None  # a lock for each thread that waits for it
        self.number = 0  # in program order; 0 until the engine has it
        self.waits: int  # queues that have not let it through; set by the engine

    def __repr__(self) -> str:
        return self.name or getattr(self.function, "__name__", "operation")


def outcome(op: Operation) -> tuple[BaseException | None, bool]:
    """Run it unless something that it reads is poisoned: its error, and whether that is news."""
    for variable in op.reads:
        if variable.error is not None:
            return variable.error, False
    if op.state == CANCELLED:
        return Cancelled(f"{op!r} was cancelled before it began"), False
    function = op.function
    assert function is not None
    try:
        function()
    except KitError as error:
        return error, True
    except BaseException as error:  # noqa: BLE001 - the waiter gets it, the thread lives
        wrapped = ExecutionError(f"{op!r} failed: {named(error, 2000)}")
        wrapped.__cause__ = error
        return wrapped, True
    return None, False
