"""What the arguments of torch's ops say of their inputs: shapes, types, numbers. Each is kept once.

torch writes them with `record_shapes=True`. Everything is taken as a stranger's: of a wrong type,
or too long, it is not known.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.formats.chrome.frames import Stacks
from kit.ir import Aval
from kit.trace.imported import NOT_AN_ARRAY, cut_name

__all__ = ["SAYING", "Arguments", "OpArguments", "joined", "parts"]

# With none of these an op's arguments say nothing: `Arguments` need not be asked.
SAYING = frozenset({"Input Dims", "Module Hierarchy", "Call stack"})
_MOST = 64  # arguments of an op, dimensions of an array
_MAX_ELEMENTS = 1 << 50
_MAX_KEPT = 100_000
_MAX_BYTES = 6_000  # of the arguments of one op
_MAX_ALL_BYTES = 32 << 20
_MAX_CHARS = 4_000  # of its modules
_AS_WRITTEN = 2  # the form of marshal that writes equal values alike; a third of the time of str
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
# numpy's names for torch's types, as C++ spells them.
_DTYPES = {
    "float": "float32", "double": "float64", "int": "int32", "long int": "int64", "long": "int64",
    "short": "int16", "short int": "int16", "signed char": "int8", "unsigned char": "uint8",
    "bool": "bool", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    **{f"c10::{name[0].upper()}{name[1:]}": name for name in _FLOAT8},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpArguments:
    """What is known of the inputs of an op."""

    inputs: tuple[Aval, ...] = ()
    others: tuple[str, ...] = ()
    hierarchy: tuple[str, ...] = ()  # modules, where TorchScript names them


_NO_ARGUMENTS = OpArguments()


class Arguments:
    """Distinct arguments of ops, by number; the number of an op without any is -1."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._kept: list[OpArguments] = []
        self._bytes = 0
        self._stacks = Stacks()

    def __getitem__(self, number: int) -> OpArguments:
        return self._kept[number] if number >= 0 else _NO_ARGUMENTS

    def number(self, name: str, args: Mapping[str, Any]) -> int:
        """The number of what an op's arguments say; -1 if that is nothing, or too much."""
        dims, modules = args.get("Input Dims"), args.get("Module Hierarchy")
        if not dims and not modules:
            return -1
        types = args.get("Input type")
        others = args.get("Concrete Inputs") if "conv" in name else None
        try:
            key = marshal.dumps((dims, types, others, modules), _AS_WRITTEN)
        except ValueError:  # lists in lists in lists
            return -1
        found = self._numbers.get(key)
        if found is not None:
            return found
        self._bytes += len(key)
        is_full = len(self._kept) >= _MAX_KEPT or self._bytes > _MAX_ALL_BYTES
        if is_full or len(key) > _MAX_BYTES:
            return -1
        self._numbers[key] = len(self._kept)
        self._kept.append(OpArguments(_inputs(dims, types), _others(others), _modules(modules)))
        return len(self._kept) - 1

    def function(self, args: Mapping[str, Any]) -> str:
        """The user's innermost function in the stack of an op; "" if there is none."""
        return self._stacks.users(args.get("Call stack"))


def joined(arguments: int, line: int) -> int:
    """Two numbers from -1 on, of an op's arguments and of its line, as one; -1 if both are."""
    return ((line + 1) << 32) + arguments


def parts(joined: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of arguments, and those of lines."""
    return ((joined + 1) & 0xFFFF_FFFF) - 1, ((joined + 1) >> 32) - 1


def _inputs(shapes: Any, types: Any) -> tuple[Aval, ...]:
    """One for each argument; empty if they are not as torch writes them."""
    if not isinstance(shapes, list) or not isinstance(types, list):
        return ()
    if len(shapes) != len(types) or len(shapes) > _MOST:
        return ()
    return tuple(_input(shape, kind) for shape, kind in zip(shapes, types, strict=True))


def _input(shape: Any, kind: Any) -> Aval:
    dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
    if dtype is None or not isinstance(shape, list) or len(shape) > _MOST:
        return NOT_AN_ARRAY
    count = 1
    for size in shape:
        if type(size) is not int or not 0 <= size <= _MAX_ELEMENTS:
            return NOT_AN_ARRAY
        count *= max(size, 1)
    return Aval(tuple(shape), dtype) if count <= _MAX_ELEMENTS else NOT_AN_ARRAY


def _others(values: Any) -> tuple[str, ...]:
    is_list = isinstance(values, list) and len(values) <= _MOST
    return tuple(cut_name(value, 200) for value in values) if is_list else ()


def _modules(text: Any) -> tuple[str, ...]:
    """`TOP(MLP)::forward.SELF(Linear)::forward` as its modules."""
    if not isinstance(text, str) or len(text) > _MAX_CHARS:
        return ()
    return tuple(x.partition("::")[0] for x in text.split(".") if x)[:_MOST]
