"""A method call on an array, as a function of arrays that is traced once."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple

import jax
import numpy as np

from kit.jax.places import here

__all__ = ["call_of"]


class _Slice(NamedTuple):
    """A slice with a hash, which Python's own has from 3.12 on."""

    start: int | None
    stop: int | None
    step: int | None


@dataclass(frozen=True)
class _Window:
    """A slice of so many elements, whose start is an array: another one is no other call."""

    axis: int
    length: int
    start: int


class _Operand(NamedTuple):
    """The place of an array among the operands."""

    number: int


class _Constant(NamedTuple):
    """An argument that is no array; its type makes 1 another one than True."""

    type: type
    value: Any


@dataclass(frozen=True)
class _Call:
    """`array.name(*arguments)`; two are equal if they differ in the numbers of arrays only."""

    name: str
    form: Any  # jax's tree of the arguments
    leaves: tuple[Any, ...]

    def __call__(self, array: Any, *operands: Any) -> Any:
        for x in self.leaves:
            if isinstance(x, _Window):
                array = jax.lax.dynamic_slice_in_dim(array, operands[x.start], x.length, x.axis)
        leaves = [_filled(x, operands) for x in self.leaves]
        args, kwargs = jax.tree.unflatten(self.form, leaves)
        return getattr(array, self.name)(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return self.name


def call_of(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], lazy: type, shape: tuple[int, ...]
) -> tuple[_Call, list[Any]]:
    """The call, and the arrays among its arguments, those of class `lazy` too.

    A float is an array here, and so are an int in an index and the start of `x[i:i + n]`: another
    one is no other call. Other ints (an axis, a shape) are no arrays, numpy's neither; an end of a
    slice that is one is read. A mask of numpy's in an index is the places where it is true.

    Args:
        shape: of the array whose method is called.

    Raises:
        IndexError: a mask of numpy's in an index has another shape than what it masks.
    """
    operands: list[Any] = []
    arrays: tuple[type, ...] = (lazy, jax.Array, np.ndarray, np.inexact, float, complex)
    if name == "__getitem__":
        arrays = (*arrays, int, np.integer)

    def taken(x: Any) -> Any:
        if isinstance(x, arrays) and not isinstance(x, bool):
            operands.append(x)
            return _Operand(len(operands) - 1)
        if isinstance(x, slice):
            ends = (x.start, x.stop, x.step)
            return _Slice(*(None if end is None else index(end) for end in ends))
        return x if isinstance(x, _Window) else _Constant(type(x), x)

    def window(x: Any, axis: int) -> Any:
        if not isinstance(x, slice) or x.start is None or x.stop is None or x.step not in (None, 1):
            return x
        start, stop, _ = slice(index(x.start), index(x.stop)).indices(shape[axis])
        operands.append(start)
        return _Window(axis, max(stop - start, 0), len(operands) - 1)

    if name == "__getitem__":
        key = _without_masks(args[0], shape)
        parts = key if isinstance(key, tuple) else (key,)
        # Up to the first None, Ellipsis, list or array, the place of a part says its axis.
        count = next((i for i, x in enumerate(parts) if type(x) not in (int, slice)), len(parts))
        count = min(count, len(shape))
        made = (*(window(x, axis) for axis, x in enumerate(parts[:count])), *parts[count:])
        args = (made if isinstance(key, tuple) else made[0],)
    leaves, form = jax.tree.flatten((args, kwargs))
    return _Call(name, form, tuple(map(taken, leaves))), operands


def _without_masks(key: Any, shape: tuple[int, ...]) -> Any:
    """The index with the places of each true element instead of a mask of numpy's."""
    parts = key if isinstance(key, tuple) else (key,)
    if not any(map(_is_mask, parts)):
        return key
    axes = [0 if x is None else x.ndim if _is_mask(x) else 1 for x in parts]
    made: list[Any] = []
    for i, x in enumerate(parts):
        if x is Ellipsis:
            axes[i] = max(len(shape) - sum(axes) + 1, 0)
        if not _is_mask(x):
            made.append(x)
            continue
        masked = shape[sum(axes[:i]) :][: x.ndim]
        if x.shape != masked:
            raise IndexError(f"a mask of shape {x.shape} for an array of shape {masked}{here()}")
        made += np.nonzero(x)
    return tuple(made)


def _is_mask(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.bool_ and x.ndim > 0


def _filled(x: Any, operands: tuple[Any, ...]) -> Any:
    if isinstance(x, _Operand):
        return operands[x.number]
    if isinstance(x, _Constant):
        return x.value
    if isinstance(x, _Slice):
        return slice(*x)
    return slice(None)  # of a window: the array has no more than that
