"""Whether a saved run is still of the workload that is swept: its text, and what it was given.

Its text is that of the builder, and of the user's functions and classes that the builder leads to
by their names: the model stands in one of these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import hashlib
import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from kit.measure.base.context import Workload
from kit.runtime.recording.sites import is_users

__all__ = ["source_of"]

_MOST = 1000  # things of a list that are looked at: it may have a whole dataset
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def source_of(workload: Workload) -> str:
    """Changes when a builder's text, or what it was given or leads to, do; "" where none is."""
    build: Callable[..., Any] = workload.build
    bound: list[Any] = []
    leads = list(_led_to([build]))
    if isinstance(build, partial):
        bound += [build.args, dict(sorted(build.keywords.items()))]
        build = build.func
    for cell in getattr(build, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            # What may change while it runs, such as a list of losses, is no other workload's.
            bound += [x for x in [cell.cell_contents] if _is_fixed(x)]
    try:
        text = inspect.getsource(build if inspect.isroutine(build) else type(build))
    except (OSError, TypeError):
        return ""
    try:
        given = "\0".join([text, *map(_text, bound), *leads])
    except RecursionError:  # something holds itself
        given = "\0".join([text, *(type(x).__qualname__ for x in bound), *leads])
    return hashlib.sha256(given.encode(errors="replace")).hexdigest()[:20]


def _led_to(roots: Sequence[Any]) -> Iterator[str]:
    """The texts of the user's functions and classes, and the constants, that these lead to."""
    todo, seen = deque(roots), dict[int, Any]()
    while todo:
        thing = todo.popleft()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing  # kept, so that no other gets its identity
        if isinstance(thing, (list, tuple, dict)):
            parts = [*thing.values()] if isinstance(thing, dict) else thing
            todo += filter(_has_text, parts[:_MOST])  # a step may append to it: no objects
        elif isinstance(thing, partial):
            todo += [thing.func, *thing.args, *thing.keywords.values()]
        elif inspect.ismethod(thing):
            todo += [thing.__func__, thing.__self__]
        elif isinstance(thing, Workload):
            todo.append(thing.build)
        elif inspect.isfunction(thing):
            if is_users(thing.__code__.co_filename):
                yield _source(thing)
                named, constants = _names_in(thing)
                todo += named
                yield from constants
            todo.append(getattr(thing, "__wrapped__", None))
        elif inspect.isclass(thing):
            if _is_of_user(thing):
                yield _source(thing)
                todo += [*thing.__bases__, *_functions_of(thing)]
        elif not inspect.ismodule(thing):
            wrapped = inspect.getattr_static(thing, "__wrapped__", None)  # runs no code of its own
            todo += [type(thing), wrapped]


def _has_text(thing: Any) -> bool:
    """Is it, or does it hold, a function or a class?"""
    kinds = (FunctionType, MethodType, type, partial, Workload, list, tuple, dict)
    return isinstance(thing, kinds)


def _is_of_user(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)  # of a notebook's there is none
    return is_users(file) if file else kind.__module__ == "__main__"


def _functions_of(kind: type) -> Iterator[Any]:
    """The methods of a class that have a text."""
    for value in vars(kind).values():
        plain = getattr(value, "__func__", getattr(value, "fget", value))
        if inspect.isfunction(plain):
            yield plain


def _names_in(function: FunctionType) -> tuple[list[Any], list[str]]:
    """What a function's names lead to: things that have a text, and constants in words."""
    found, constants = list[Any](), list[str]()
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):
            found.append(cell.cell_contents)
    names, changed = _names_of(function.__code__)
    known, modules = function.__globals__, list[Any]()
    for name in names:
        value = known.get(name, sys.modules.get(name))
        if inspect.ismodule(value):
            modules += [vars(value)] if is_users(getattr(value, "__file__", None) or "") else []
        elif name in known and name not in changed and _is_fixed(value):
            constants.append(f"{name}={_text(value)}")
        else:
            found.append(value)
    found += [module[name] for module in modules for name in names if name in module]
    return found, constants


def _names_of(code: CodeType) -> tuple[list[str], set[str]]:
    """The names that it reads, with the functions in it; and the globals that it changes."""
    names = list(code.co_names)
    changed = {x.argval for x in dis.get_instructions(code) if x.opname == "STORE_GLOBAL"}
    for part in code.co_consts:
        if isinstance(part, CodeType):
            inner, others = _names_of(part)
            names, changed = names + inner, changed | others
    return names, changed


def _source(thing: Any) -> str:
    """Its text; "" where Python has none, as of a class of a notebook, whose methods have one."""
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(thing)
    return ""


def _is_fixed(value: Any) -> bool:
    """Can nobody change it?"""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_fixed, value))
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    is_dtype = type(value).__name__ == "dtype"
    return value is None or frozen or is_dtype or isinstance(value, (str, int, float, complex))


def _text(value: Any) -> str:
    """The same in each process for the same value; of what says nothing of itself, its type.

    So it is of most objects: two datasets of one class are taken for the same.
    """
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, row.name, None) for row in dataclasses.fields(value)]
        return f"{type(value).__qualname__}{_text(parts)}"
    if getattr(type(value), "__repr__", None) != object.__repr__:
        with contextlib.suppress(Exception):  # a `__repr__` of the user's
            return _ADDRESS.sub("", repr(value))
    return type(value).__qualname__
