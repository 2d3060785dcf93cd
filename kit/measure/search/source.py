"""Whether a saved run is still of the workload that is swept: its text, and what it was given."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kit.measure.base.context import Workload

__all__ = ["source_of"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def source_of(workload: Workload) -> str:
    """Changes when the builder's text or what it was given do; "" where Python has no text."""
    build: Callable[..., Any] = workload.build
    bound: list[Any] = []
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
        given = "\0".join([text, *map(_text, bound)])
    except RecursionError:  # something holds itself
        given = "\0".join([text, *(type(x).__qualname__ for x in bound)])
    return hashlib.sha256(given.encode(errors="replace")).hexdigest()[:20]


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
