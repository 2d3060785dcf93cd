"""Frozen dataclasses to plain JSON values and back, led by the fields' own annotations.

`decoder(Node)` reads exactly what `encode(node)` wrote: every value is checked against the type of
its field, so that what comes out of a foreign file is what mypy says it is. A field that is
missing takes its default; one that is unknown is an error.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from kit.errors import RunFileError

__all__ = ["decoder", "encode"]

Decoder = Callable[[Any, str], Any]  # (value, where it stands in the file) -> checked value

_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no word for them
_INT = 1 << 63


def encode(value: Any) -> Any:
    """Plain dicts, lists, texts and numbers for a dataclass, tuple, mapping or number."""
    if isinstance(value, (str, bool)):
        return value
    if is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value) if _is_kept(f.name)}
    if isinstance(value, Mapping):
        return {str(key): encode(x) for key, x in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(x) for x in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    raise RunFileError(f"a value of type {type(value).__name__} cannot be saved")


def decoder(hint: Any) -> Decoder:
    """A function that checks a JSON value against the annotation `hint` and rebuilds it.

    Raises:
        RunFileError: (the function it gives) the value does not fit; the message says where.
    """
    if hint in _SCALARS:
        return _SCALARS[hint]
    if is_dataclass(hint):
        return _dataclass(hint)
    arguments = get_args(hint)
    if isinstance(hint, UnionType):
        return _either([decoder(x) for x in arguments])
    if get_origin(hint) is tuple and arguments[-1] is Ellipsis:
        return _sequence(decoder(arguments[0]))
    if get_origin(hint) is tuple:
        return _pair([decoder(x) for x in arguments])
    if get_origin(hint) is Mapping:
        return _mapping(decoder(arguments[1]))
    raise TypeError(f"fields of type {hint} cannot be read from a file")


def _is_kept(name: str) -> bool:
    return not name.startswith("_")  # a cache, not data


def _no(where: str, wanted: str, value: Any) -> RunFileError:
    return RunFileError(f"{where} must be {wanted}, not {reprlib.repr(value)}")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _no(where, "a text", value)
    return value


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _no(where, "true or false", value)
    return value


def _int(value: Any, where: str) -> int:
    if type(value) is not int or not -_INT <= value < _INT:
        raise _no(where, "a whole number of 64 bits", value)
    return value


def _float(value: Any, where: str) -> float:
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is int and -_INT <= value < _INT:
        return float(value)
    raise _no(where, "a number", value)


def _either(items: list[Decoder]) -> Decoder:
    def read(value: Any, where: str) -> Any:
        for item in items[:-1]:
            with suppress(RunFileError):
                return item(value, where)
        return items[-1](value, where)

    return read


def _sequence(item: Decoder) -> Decoder:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _no(where, "a list", value)
        return tuple(item(x, f"{where}[{i}]") for i, x in enumerate(value))

    return read


def _pair(items: list[Decoder]) -> Decoder:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(items):
            raise _no(where, f"a list of {len(items)}", value)
        return tuple(item(x, where) for item, x in zip(items, value, strict=True))

    return read


def _mapping(item: Decoder) -> Decoder:
    def read(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _no(where, "an object", value)
        return {key: item(x, f"{where}[{key!r:.60}]") for key, x in value.items()}

    return read


def _dataclass(cls: Any) -> Decoder:
    hints = get_type_hints(cls)
    kept = [f for f in fields(cls) if _is_kept(f.name)]
    readers = {f.name: decoder(hints[f.name]) for f in kept}
    needed = {f.name for f in kept if f.default is MISSING and f.default_factory is MISSING}

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict) or needed - set(value) or set(value) - set(readers):
            raise _no(where, f"an object with the fields of {cls.__name__}", value)
        return cls(**{k: readers[k](x, f"{where}.{k}") for k, x in value.items()})

    return read


_SCALARS: dict[Any, Decoder] = {str: _text, bool: _bool, int: _int, float: _float}
