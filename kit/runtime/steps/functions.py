"""Whether a step's function is the one of the step before, and reaches for the same things.

A replay does not run the step's Python, so what that would read has to be compared before each
step: the function's code, and what it has of its surroundings.
"""

from __future__ import annotations

from collections.abc import Collection
from types import CodeType, FunctionType, MethodType
from typing import Any

from kit.errors import but_of_handlers
from kit.runtime.steps.links import Search
from kit.runtime.steps.names import attributes, is_of_users, named, unbound
from kit.runtime.steps.reach import Part

__all__ = ["KnownFunction"]

_CHANGED = "what it holds has changed, between two steps"


class KnownFunction:
    """A function as it was when it had been called: what a later call is compared with.

    A lambda or a method that a loop makes anew for each call is the same one. What it reaches for
    are the variables around it, its defaults, the globals that its code names, and what its words
    name of the objects, classes, modules and functions among all these, and of what these reach
    for. See `Held` for how each is compared.

    Attributes:
        unseen: what cannot be compared before each step, in words; "" if all can be.
    """

    def __init__(
        self,
        function: Any,
        *,
        without: Collection[Any] = (),
        watched: Collection[int] = (),
        hooks: Collection[Any] = (),
    ) -> None:
        """Remember the function; no code of the program's that this runs can end the step.

        Args:
            without: functions that are called in any case, so that nothing they reach for counts.
            watched: ids of modules and optimizers whose numbers are compared in another way.
            hooks: functions that are called without being named.
        """
        plain = _plain(function)
        self._code = plain.__code__ if isinstance(plain, FunctionType) else None
        try:
            found = Search(
                plain, _around(function), without=unbound(without), watched=watched, hooks=hooks
            )
        except but_of_handlers(Exception) as error:  # code of the program's
            self.unseen = f"what the step names raises {type(error).__name__} where it is compared"
        else:
            self.unseen = found.unseen
        if not self.unseen:
            self._held, self._links = found.roots, found.links

    def change(self, function: Any) -> str:
        """Why a call of this function may do something else, in words; "" if it does the same."""
        if self.unseen:
            return self.unseen
        try:
            return self._change(function)
        except but_of_handlers(Exception) as error:  # code of the program's
            return f"{_CHANGED}: it raises {type(error).__name__} where it is compared"

    def _change(self, function: Any) -> str:
        around, plain = _around(function), _plain(function)
        code: CodeType | None = plain.__code__ if isinstance(plain, FunctionType) else None
        if code is not self._code or len(around) != len(self._held):
            return "another function was given as the step"
        for (name, thing), (known_name, held) in zip(around, self._held, strict=True):
            if name != known_name:
                return "another function was given as the step"
            if changed := held.change(thing):
                return f"{_CHANGED}: {changed}"
        for link in self._links:
            if changed := link.change():
                return f"{_CHANGED}: {changed}"
        return ""


def _plain(function: Any) -> Any:
    """The function of a method."""
    return function.__func__ if isinstance(function, MethodType) else function


def _around(function: Any) -> list[Part]:
    """What it has of its surroundings, with the names that it has there."""
    found: list[Part] = []
    if isinstance(function, MethodType):
        owner = function.__self__
        found.append(("self", owner))
        if not is_of_users(type(owner)):
            found += [(f"self.{name}", thing) for name, thing in attributes(owner).items()]
    plain = _plain(function)
    return [
        *found,
        *(named(plain) if isinstance(plain, FunctionType) else [("the function", plain)]),
    ]
