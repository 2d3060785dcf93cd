"""The arrays of the device that a step returns or is given, and whether it keeps one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from sys import getrefcount
from typing import Any
from weakref import ref

from kit.runtime.recording.bulk import Cell, Value
from kit.runtime.steps.reach import Part

__all__ = ["ANEW", "Arrays", "BoundAnew"]

ANEW = "the step makes anew each time, from between two steps; keep its .clone()"


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

    def holds(self, array: Any) -> int:
        """How many references to an array there are, and to the memory behind it."""
        return sum(frontend.holds(array) for frontend in self._frontends())

    def _values_of(self, array: Any) -> Iterator[Value]:
        for frontend in self._frontends():
            if (value := frontend.value_of(array)) is not None:
                yield value


class BoundAnew:
    """How often the program holds what a step binds anew, as the step has ended.

    A replay binds nothing: it puts its numbers into the arrays that are there. The program would
    see them in an array of an earlier step that it has kept since.

    Args:
        arrays: those of the step, by name.
        boxes: lists and dicts around these. It keeps them alive.
        holds: counts the references to an array.
    """

    def __init__(
        self,
        arrays: Sequence[tuple[str, ref[Any]]],
        boxes: Sequence[Part],
        holds: Callable[[Any], int],
    ) -> None:
        self._arrays, self._boxes, self._holds = arrays, boxes, holds
        self._counts = self._count()

    def kept(self) -> str:
        """The name of the first one that is held more often than then; "" if none is."""
        names = (name for things in (self._arrays, self._boxes) for name, _ in things)
        counts = zip(names, self._count(), self._counts, strict=True)
        return next((name for name, now, before in counts if now > before), "")

    def _count(self) -> list[int]:
        alive = (array() for _, array in self._arrays)
        counts = [0 if array is None else self._holds(array) for array in alive]
        return counts + [getrefcount(box) for _, box in self._boxes]
