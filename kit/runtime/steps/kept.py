"""The arrays of the device that a step returns or is given, and whether it keeps one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from kit.runtime.recording.bulk import Cell, Value

__all__ = ["Arrays"]


class Arrays:
    """What is behind the tensors and arrays of a program, by its front ends."""

    def __init__(self, frontends: Callable[[], tuple[Any, ...]]) -> None:
        self._frontends = frontends

    def cells_of(self, array: Any) -> list[Cell]:
        """Where its numbers are; none before they have been issued."""
        return [value.cell for value in self._values_of(array) if value.cell is not None]

    def renew(self, result: Any, fresh: Callable[[Value], Value]) -> Any:
        """What a step returns, with each array over `fresh(its value)`."""
        for frontend in self._frontends():
            result = frontend.renew(result, fresh)
        return result

    def kept_as(self, returned: Collection[int], given: Collection[int], array: Any) -> str:
        """What an array is that a step keeps, though a replay makes or fetches another; or "".

        Args:
            returned: ids of the values that the step returns.
            given: ids of the cells that its loaders have brought.
        """
        for value in self._values_of(array):
            if id(value) in returned:
                return "what it returns"
            if id(value.cell) in given:
                return "a batch"
        return ""

    def _values_of(self, array: Any) -> Iterator[Value]:
        for frontend in self._frontends():
            if (value := frontend.value_of(array)) is not None:
                yield value
