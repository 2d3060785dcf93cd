"""The arrays of the device that a step returns or is given, and whether it keeps one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from sys import getrefcount
from typing import Any
from weakref import ref

from kit.runtime.recording.bulk import Cell, Value
from kit.runtime.steps.reach import Part

__all__ = ["Arrays", "BoundAnew", "copy_of"]

_ANEW = "the step makes anew each time, from between two steps"


def copy_of(array: Any) -> str:
    """What to keep in place of an array, or to return: torch's and jax's have their own word."""
    return f"keep or return its {'.clone()' if hasattr(array, 'clone') else '.copy()'}"


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

    def counter_of(self, array: Any) -> Callable[[Any], int]:
        """Counts the references to an array, and to the memory behind it."""
        counters = (frontend.holds for frontend in self._frontends() if frontend.holds(array))
        return next(counters, getrefcount)

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
        counter_of: gives what counts the references to an array.
    """

    def __init__(
        self,
        arrays: Sequence[tuple[str, ref[Any]]],
        boxes: Sequence[Part],
        counter_of: Callable[[Any], Callable[[Any], int]],
    ) -> None:
        alive = [(name, held, array) for name, held in arrays if (array := held()) is not None]
        self._arrays = [(name, held, counter_of(array)) for name, held, array in alive]
        self._boxes = boxes
        del alive
        self._counts = [count for _, count in self._count()]

    def kept(self) -> str:
        """Which one is held more often than at the last count, in words; "" if none is.

        The count falls once what the step returned, with its graph, is gone.
        """
        for i, (name, now) in enumerate(self._count()):
            if now > self._counts[i]:
                array = self._arrays[i][1]() if i < len(self._arrays) else None
                cure = "keep copies of its arrays" if array is None else copy_of(array)
                return f"the program keeps {name}, which {_ANEW}; {cure}"
            self._counts[i] = now
        return ""

    def _count(self) -> Iterator[tuple[str, int]]:
        for name, held, count in self._arrays:
            yield name, 0 if (array := held()) is None else count(array)
        for name, box in self._boxes:
            yield name, getrefcount(box)
