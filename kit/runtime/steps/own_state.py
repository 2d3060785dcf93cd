"""Whether a step changes Python state that it reaches for itself: a replay would not.

A step whose state is the same at its end as at its beginning does the same again, if its batch and
what the program changes in between are the same. One that counts, `self.n += 1`, may do something
else each tenth time, so it is not replayed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from types import MethodType
from typing import Any
from weakref import ref

import numpy as np

from kit.runtime.steps.kept import copy_of
from kit.runtime.steps.look import Look
from kit.runtime.steps.names import line_of
from kit.runtime.steps.outside import asked
from kit.runtime.steps.reach import Part

__all__ = ["Looks", "OwnState", "host_draws"]

_LONGEST = 15  # steps without a look


class OwnState:
    """The Python state that a step reaches for, as it is when the step begins.

    Variables around it, globals and defaults, those of the functions and classes of the user's that
    are reached by them, attributes, what is in lists and dicts, places of iterators, and arrays of
    the host; and the random numbers that Python, numpy and the front ends draw there.

    Attributes:
        draws_beside: a loader's thread may draw at any time.
        anew: the arrays of the device that it has bound anew, and new lists and dicts around them.
    """

    def __init__(self, step: Any, *, without: Collection[Any], frontends: Sequence[Any]) -> None:
        """Remember the state.

        Args:
            without: functions that a replay calls, too, so that what they change does not count.
            frontends: they draw random numbers of the host.
        """
        self._step, self._without, self._frontends = step, without, frontends
        self.draws_beside = False
        self._change = ""
        self.anew: tuple[list[tuple[str, ref[Any]]], list[Part]] = ([], [])
        self._look()
        self._before = [ref(array) for _, array in _with_gradients(self._seen.arrays)]
        self._boxes = {id(box) for _, box in self._seen.boxes}
        self._seen.let_go()

    def fetch(self, load: Callable[[], Any]) -> Any:
        """Ask a loader for a batch: what that changes and draws does not count."""
        self._change = self.change()
        try:
            return load()
        finally:
            self._look()
            self._seen.let_go()

    def change(self, keeps: Callable[[Any], str] | None = None) -> str:
        """What the step has changed since it began, in words; "" if nothing.

        Args:
            keeps: says what an array of the device is that the step must not keep, in words. It is
                given at the step's end, and what the step has bound anew is noted then.
        """
        if self._change:
            return self._change
        if not self.draws_beside and self._draws() != self._drawn:
            return "the step draws random numbers on the host, and a replay would not"
        now = self._look_around()
        if name := self._seen.change(now):
            return f"the step changes {name}{line_of(name, now.functions)}, and a replay would not"
        if now.unseen:
            where = line_of(now.unseen.partition(" ")[0], now.functions)
            return f"the step reaches {now.unseen}{where}, and whether it changes cannot be seen"
        if what := asked(now.functions, now.by_libraries, now.paths, now.held):
            return f"the step asks {what}, and a replay would not"
        if keeps is None:
            return ""
        for name, array in now.arrays:
            if what := keeps(array):
                where = line_of(name, now.functions)
                return f"the step keeps {what} as {name}{where}; {copy_of(array)}"
        self._note_anew(now)
        return ""

    def _note_anew(self, now: Look) -> None:
        before = {id(array) for one in self._before if (array := one()) is not None}
        found = _with_gradients(now.arrays)
        arrays = [(name, array) for name, array in found if id(array) not in before]
        starts = {name[:i] for name, _ in arrays for i in range(len(name)) if name[i] in ".["}
        # New ones only: a module's own hold weights, with gradients where no collector looks.
        boxes = [x for x in now.boxes if x[0] in starts and id(x[1]) not in self._boxes]
        self.anew = [(name, ref(array)) for name, array in arrays], boxes

    def _look(self) -> None:
        if not self._change:
            self._seen = self._look_around()
        self._drawn = self._draws()

    def _look_around(self) -> Look:
        name = "self" if type(self._step) is MethodType else ""
        hooks = [hook for one in self._frontends for hook in one.hooks()]
        return Look(name, self._step, without=self._without, also=hooks)

    def _draws(self) -> Any:
        return host_draws(self._frontends)


class Looks:
    """Which steps are looked at: fewer and fewer of a program whose steps change their state.

    Attributes:
        why: what the last look has found, which is taken for granted of a step without one.
    """

    def __init__(self) -> None:
        self.why = ""
        self._pause = self._left = 0

    def is_due(self) -> bool:
        """May a replay follow the step that begins, so that its state is to be compared?"""
        self._left -= self._left > 0
        return self._left == 0

    def note(self, why: str) -> None:
        """A step was looked at, and this was found; "" if it changes nothing."""
        self.why = why
        self._pause = min(2 * self._pause + 1, _LONGEST) if why else 0
        self._left = self._pause


def _with_gradients(arrays: Sequence[Part]) -> list[Part]:
    """Gradients are no part of a look: a step may zero them before or after it fetches."""
    leaves = [(name, array) for name, array in arrays if getattr(array, "is_leaf", False)]
    gradients = [(f"{name}.grad", array.grad) for name, array in leaves]
    return [*arrays, *((name, grad) for name, grad in gradients if grad is not None)]


def host_draws(frontends: Sequence[Any]) -> Any:
    """How far the random numbers of Python, numpy and these front ends are, on the host."""
    of_numpy = list(_leaves(np.random.get_state(legacy=False)))
    return random.getstate(), of_numpy, [one.host_draws() for one in frontends]


def _leaves(state: Any) -> Iterator[Any]:
    """The numbers of a state of numpy's; also the second of two that it draws at once."""
    for value in state.values():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield value.tobytes() if isinstance(value, np.ndarray) else value
