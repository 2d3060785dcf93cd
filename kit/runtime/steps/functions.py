"""Whether a step's function is the one of the step before, and reaches for the same things.

A replay does not run the step's Python, so what that would read has to be compared before each
step: the function's code, and what it has of its surroundings.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from numbers import Number
from types import CodeType, FunctionType, MethodType
from typing import Any
from weakref import ref

__all__ = ["KnownFunction"]

_MISSING = object()


class KnownFunction:
    """A function as it was when it had been called: what a later call is compared with.

    A lambda or a method that a loop makes anew for each call is the same one. What it reaches for
    are the variables around it, its defaults, the globals that its code names, and the attributes
    of the object whose method it is. Of these, numbers and texts are compared by value, all else
    by identity. Nothing of it is kept alive but lists, tuples and dicts.
    """

    def __init__(self, function: Any) -> None:
        self._code = _code_of(function)
        self._held = {name: _hold(thing) for name, thing in _reached(function)}

    def change(self, function: Any) -> str:
        """Why a call of this function may do something else, in words; "" if it does the same."""
        reached = dict(_reached(function))
        if _code_of(function) is not self._code or reached.keys() != self._held.keys():
            return "another function was given as the step"
        for name, thing in reached.items():
            if not _is_held(self._held[name], thing):
                return f"what it holds has changed, between two steps: {name}"
        return ""


def _code_of(function: Any) -> CodeType | None:
    """The code of a function in Python; None of any other callable, which stands for itself."""
    plain = function.__func__ if isinstance(function, MethodType) else function
    return plain.__code__ if isinstance(plain, FunctionType) else None


def _reached(function: Any) -> Iterator[tuple[str, Any]]:
    """What it has of its surroundings, by names that differ."""
    if isinstance(function, MethodType):
        owner = function.__self__
        yield "self", owner
        for name, thing in getattr(owner, "__dict__", {}).items():
            yield f"self.{name}", thing
        function = function.__func__
    if not isinstance(function, FunctionType):
        yield "the function", function
        return
    code = function.__code__
    for i, thing in enumerate(function.__defaults__ or ()):
        yield f"default {i + 1}", thing
    for name, thing in (function.__kwdefaults__ or {}).items():
        yield f"{name}=", thing
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is empty
            yield name, _MISSING
    for name in _globals_of(code):
        yield f"global {name}", function.__globals__.get(name, _MISSING)


@lru_cache(maxsize=256)
def _globals_of(code: CodeType) -> tuple[str, ...]:
    """The globals that it names, and those that the functions in it name."""
    names: dict[str, None] = {}
    for part in dis.get_instructions(code):
        if part.opname == "LOAD_GLOBAL":
            names[part.argval] = None
        elif isinstance(part.argval, CodeType):
            names |= dict.fromkeys(_globals_of(part.argval))
    return tuple(names)


def _hold(thing: Any) -> tuple[bool, Any]:
    """(is it weak, the thing or a reference to it)"""
    if isinstance(thing, Number | str):
        return False, thing
    try:
        return True, ref(thing)
    except TypeError:  # a list, None
        return False, thing


def _is_held(held: tuple[bool, Any], thing: Any) -> bool:
    is_weak, known = held
    if is_weak:
        return known() is thing
    if known is thing:
        return True
    return isinstance(known, Number | str) and type(known) is type(thing) and known == thing
