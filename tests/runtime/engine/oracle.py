"""The meaning of a program of operations: each is run where it is pushed, without threads.

The engine with threads is compared with this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kit.runtime.engine.operations import DONE, Operation, Variable, outcome


class NaiveEngine:
    """The same meaning with no threads: each operation runs where it is pushed."""

    def __init__(self) -> None:
        self._failures: list[BaseException] = []

    def push(self, function: Callable[[], object], reads: Sequence[Variable] = (),
             writes: Sequence[Variable] = (), *, name: str = "",
             is_urgent: bool = False) -> Operation:  # fmt: skip
        """Run `function()` now."""
        op = Operation(function, reads, writes, name, is_urgent=is_urgent)
        error, is_new = outcome(op)
        if error is not None and is_new:
            self._failures.append(error)
        for variable in dict.fromkeys(writes):
            variable.error = error
        op.state = DONE
        return op

    def wait_to_read(self, variable: Variable) -> None:
        """Raise what poisoned the variable, if anything did."""
        if variable.error is not None:
            self._failures = [x for x in self._failures if x is not variable.error]
            raise variable.error.with_traceback(None)

    def wait_all(self) -> None:
        """Raise the first failure that no wait has raised yet."""
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0].with_traceback(None)

    def close(self) -> None:
        """There is nothing to end."""
