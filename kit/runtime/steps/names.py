"""What code names, and what a thing was: for comparing what a replayed step would have read."""

from __future__ import annotations

import dis
import sys
from array import array
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from numbers import Number
from threading import local
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any
from weakref import WeakKeyDictionary, ref

from kit.runtime.recording.sites import is_users

__all__ = [
    "MAKERS", "MISSING", "Held", "attributes", "codes_in", "is_of_kit", "is_of_users", "is_plain",
    "named", "unbound", "words_in", "wrapped_by",
]  # fmt: skip

MAKERS = frozenset({"__init__", "__new__", "__post_init__"})  # called by no name of their own
MISSING = object()  # in the place of a variable that has no value
_LIMIT = 1000  # things of one variable that are compared; of a larger list, its length, too
_SMALL = 4096  # bytes of an array of numpy's whose numbers are compared
_SINGLE = {int, float, str, bool, type(None), object, type, FunctionType, ModuleType}
_BYTES = (bytearray, array)
_LISTS = (list, tuple, deque, set, frozenset)
# The answers of the functions below, which are asked before each step.
_SETTINGS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_OWN: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_BUILT_IN = frozenset(sys.builtin_module_names)
_ARRAYS: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_VALUES: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


class Held:
    """A thing as it was, with what is in its lists, dicts and arrays, and its numbers and texts.

    Numbers and texts are compared by value, all else by identity. Nothing is kept alive but lists,
    tuples and dicts.
    """

    __slots__ = ("_parts",)

    def __init__(self, thing: Any) -> None:
        self._parts = [_hold(part) for part in _parts(thing)]

    def is_held(self, thing: Any) -> bool:
        """Is it the same thing, and are the same things and equal values in it?"""
        if type(thing) in _SINGLE:  # as most are
            return len(self._parts) == 1 and _is_held(self._parts[0], thing)
        return _are_held(self._parts, _parts(thing))


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
            yield name, MISSING
    for name in _globals_of(code):
        yield f"global {name}", function.__globals__.get(name, MISSING)


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


def unbound(functions: Collection[Any]) -> list[Any]:
    """These, and the functions of those of them that are methods of an object."""
    return [*functions, *(one.__func__ for one in functions if type(one) is MethodType)]


def wrapped_by(function: FunctionType) -> list[Any]:
    """What a library's function calls for a program, as those of `torch.no_grad()` do."""
    around = [attributes(function).get("__wrapped__")]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            around.append(cell.cell_contents)
    return [one for one in around if type(one) in (FunctionType, MethodType)]


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
    """The thing, its numbers and texts, and what is in it if it is a list, a dict or an array."""
    parts = [thing]
    if type(thing) in _SINGLE:
        return parts
    if _has_settings(type(thing)):
        parts += [x for x in attributes(thing).values() if is_plain(type(x))]
    for part in parts:  # grows while it is gone through
        kind = type(part)
        if issubclass(kind, _LISTS):  # `isinstance` may run code of its class
            parts.append(len(part))
            parts += part[:_LIMIT] if kind in (list, tuple) else list(part)[:_LIMIT]
        elif issubclass(kind, dict | MappingProxyType):
            parts.append(len(part))
            parts += islice(part.values(), _LIMIT)
            parts += islice(part, _LIMIT)
        elif kind is ContextVar:
            parts.append(part.get(None))
        elif issubclass(kind, local):
            parts.append(part.__dict__)
        elif issubclass(kind, _BYTES):
            parts.append(bytes(memoryview(part)[:_SMALL]).hex())
        elif _is_array(kind):
            parts.append(_writes_to(part))
        if len(parts) > _LIMIT:
            return parts[:_LIMIT]
    return parts


def _is_array(kind: type) -> bool:
    if (known := _ARRAYS.get(kind)) is None:
        known = _ARRAYS[kind] = hasattr(kind, "__array__") and not is_of_kit(kind)
    return known


def _writes_to(thing: Any) -> Any:
    """What tells of a write to it: torch counts them; of a small array of numpy's, its numbers."""
    try:
        return thing._version if hasattr(thing, "_version") else _numbers_of(thing)
    except Exception:  # noqa: BLE001 - of no kind that is known
        return None


def _numbers_of(thing: Any) -> str | None:
    return thing.tobytes().hex() if thing.nbytes <= _SMALL else None


def _has_settings(kind: type) -> bool:
    """May the numbers that are attributes of such an object decide what a step does?

    Those of an iterator are its place, which no step is repeated from, and of the kit's own
    objects and of arrays not the program's. What only code of the program reads, `Link` compares.
    """
    if (known := _SETTINGS.get(kind)) is None:
        is_passive = hasattr(kind, "__next__") or hasattr(kind, "__array__")
        is_code = issubclass(kind, (type, ModuleType, FunctionType, BuiltinFunctionType))
        is_read_by_name = all(base is object or is_of_users(base) for base in kind.__mro__)
        is_other = is_passive or is_code or is_read_by_name
        known = _SETTINGS[kind] = not (is_of_kit(kind) or is_other)
    return known


def module_of(kind: type) -> str:
    """The module of a class; "" of one that says it in another way, as some of Cython's do."""
    found = kind.__module__
    return found if type(found) is str else ""


def is_of_kit(kind: type) -> bool:
    """Is it a class of the kit's own?"""
    return module_of(kind).partition(".")[0] == "kit"


def is_of_users(kind: type) -> bool:
    """Is it a class of the program's own?"""
    if (known := _OWN.get(kind)) is None:
        name = module_of(kind)
        path = getattr(sys.modules.get(name), "__file__", None) or "<cell>"
        is_other = name in _BUILT_IN or not name or is_of_kit(kind)
        known = _OWN[kind] = not is_other and is_users(path)
    return known


def is_plain(kind: type) -> bool:
    """Is such a thing, a number or a text, compared by value?"""
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
    if is_plain(type(thing)):
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
    return one is part or (type(one) is type(part) and is_plain(type(one)) and bool(one == part))
