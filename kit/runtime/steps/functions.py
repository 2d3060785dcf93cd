"""Whether a step's function is the one of the step before, and reaches for the same things.

A replay does not run the step's Python, so what that would read has to be compared before each
step: the function's code, and what it has of its surroundings.
"""

from __future__ import annotations

from collections.abc import Collection
from types import CodeType, FunctionType, MethodType
from typing import Any

from kit.runtime.steps.links import links_of
from kit.runtime.steps.names import Held, attributes, is_of_users, named

__all__ = ["KnownFunction"]


class KnownFunction:
    """A function as it was when it had been called: what a later call is compared with.

    A lambda or a method that a loop makes anew for each call is the same one. What it reaches for
    are the variables around it, its defaults, the globals that its code names, what functions among
    these, of its own file, reach for, and what its words name of the objects, classes and modules
    among all these. See `Held` for how each is compared.
    """

    def __init__(self, function: Any, *, without: Collection[Any] = ()) -> None:
        """Remember the function.

        Args:
            without: functions that are called in any case, so that nothing they reach for counts.
        """
        self._code, self._without = _code_of(function), list(without)
        self._held = [(name, Held(thing)) for name, thing in _reached(function, self._without)]
        self._links = links_of(function, self._without)

    def change(self, function: Any) -> str:
        """Why a call of this function may do something else, in words; "" if it does the same."""
        reached = _reached(function, self._without)
        if _code_of(function) is not self._code or len(reached) != len(self._held):
            return "another function was given as the step"
        for (name, thing), (known_name, held) in zip(reached, self._held, strict=True):
            if name != known_name:
                return "another function was given as the step"
            if not held.is_held(thing):
                return f"what it holds has changed, between two steps: {name}"
        for link in self._links:
            if not link.is_held():
                return f"what it holds has changed, between two steps: {link.name}"
        return ""


def _code_of(function: Any) -> CodeType | None:
    """The code of a function in Python; None of any other callable, which stands for itself."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    return plain.__code__ if isinstance(plain, FunctionType) else None


def _reached(function: Any, without: list[Any]) -> list[tuple[str, Any]]:
    """What it has of its surroundings, with the names that it has there."""
    found: list[tuple[str, Any]] = []
    if isinstance(function, MethodType):
        owner = function.__self__
        found.append(("self", owner))
        if not is_of_users(type(owner)):
            found += [(f"self.{name}", thing) for name, thing in attributes(owner).items()]
        function = function.__func__
    if not isinstance(function, FunctionType):
        return [*found, ("the function", function)]
    functions = [function]
    for one in functions:  # grows while it is gone through
        where = "" if one is function else f" of {one.__name__}"
        for name, thing in named(one):
            found.append((name + where, thing))
            is_own = type(thing) is FunctionType and thing.__globals__ is function.__globals__
            if is_own and thing not in functions and thing not in without:
                functions.append(thing)
    return found
