"""Whether a step's function is the one of the step before, and reaches for the same things.

A replay does not run the step's Python, so what that would read has to be compared before each
step: the function's code, and what it has of its surroundings.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import islice
from numbers import Number
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

__all__ = ["KnownFunction", "attributes", "codes_in", "is_of_kit", "named", "words_in"]

_MISSING = object()
_LIMIT = 1000  # things of one variable that are compared; of a larger list, its length, too
_LISTS = (list, tuple)
# The answers of the functions below, which are asked before each step.
_SETTINGS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_VALUES: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


class KnownFunction:
    """A function as it was when it had been called: what a later call is compared with.

    A lambda or a method that a loop makes anew for each call is the same one. What it reaches for
    are the variables around it, its defaults, the globals that its code names, the attributes of
    the object whose method it is, and what functions among these, of its own file, reach for.
    Of each of them also what is in its lists and dicts, and its attributes that are numbers or
    texts. Numbers and texts are compared by value, all else by identity. Nothing of it is kept
    alive but lists, tuples and dicts.
    """

    def __init__(self, function: Any, *, without: Collection[Any] = ()) -> None:
        """Remember the function.

        Args:
            without: functions that are called in any case, so that nothing they reach for counts.
        """
        self._code, self._without = _code_of(function), list(without)
        self._held = [
            (name, [_hold(part) for part in _parts(thing)])
            for name, thing in _reached(function, self._without)
        ]

    def change(self, function: Any) -> str:
        """Why a call of this function may do something else, in words; "" if it does the same."""
        reached = _reached(function, self._without)
        if _code_of(function) is not self._code or len(reached) != len(self._held):
            return "another function was given as the step"
        for (name, thing), (known_name, held) in zip(reached, self._held, strict=True):
            if name != known_name:
                return "another function was given as the step"
            if not _are_held(held, _parts(thing)):
                return f"what it holds has changed, between two steps: {name}"
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


def named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names that is not its own."""
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


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of the functions in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes_in(inner)


@lru_cache(maxsize=1024)
def words_in(code: CodeType) -> frozenset[str]:
    """The names of variables around it, of attributes and of modules that a code has."""
    return frozenset(x for one in codes_in(code) for x in (*one.co_names, *one.co_freevars))


def _parts(thing: Any) -> list[Any]:
    """The thing, what is in it if it is a list or a dict, and its numbers and texts."""
    parts = [thing]
    if _has_settings(type(thing)):
        parts += [x for x in attributes(thing).values() if _is_value(type(x))]
    for part in parts:  # grows while it is gone through
        if issubclass(type(part), _LISTS):  # `isinstance` may run code of its class
            parts.append(len(part))
            parts += part[:_LIMIT]
        elif issubclass(type(part), dict):
            parts.append(len(part))
            parts += islice(part.values(), _LIMIT)
        if len(parts) > _LIMIT:
            return parts[:_LIMIT]
    return parts


def _has_settings(kind: type) -> bool:
    """May the numbers that are attributes of such an object decide what a step does?

    Those of an iterator are its place, which no step is repeated from, and of the kit's own
    objects and of arrays not the program's.
    """
    if (known := _SETTINGS.get(kind)) is None:
        is_passive = hasattr(kind, "__next__") or hasattr(kind, "__array__")
        is_code = issubclass(kind, (type, ModuleType, FunctionType, BuiltinFunctionType))
        known = _SETTINGS[kind] = not (is_of_kit(kind) or is_passive or is_code)
    return known


def is_of_kit(kind: type) -> bool:
    """Is it a class of the kit's own?"""
    return kind.__module__.partition(".")[0] == "kit"


def _is_value(kind: type) -> bool:
    """Is such a thing compared by value?"""
    if (known := _VALUES.get(kind)) is None:
        known = _VALUES[kind] = issubclass(kind, Number | str)
    return known


def attributes(thing: Any) -> dict[str, Any]:
    """An object's own attributes; none of one that has slots. Runs no code of its class."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _hold(thing: Any) -> Any:
    """A weak reference to it if that can be; a value, a list or None by itself."""
    if _is_value(type(thing)):
        return thing
    try:
        return ref(thing)
    except TypeError:
        return thing


def _are_held(held: list[Any], parts: list[Any]) -> bool:
    """Are these the same things, and equal values?"""
    if len(held) != len(parts):
        return False
    try:
        return all(map(_is_held, held, parts))
    except Exception:  # noqa: BLE001 - of the `==` of a class of the program's
        return False


def _is_held(known: Any, part: Any) -> bool:
    one = known() if type(known) is ref else known
    return one is part or (type(one) is type(part) and _is_value(type(one)) and bool(one == part))
