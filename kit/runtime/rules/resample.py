"""Rules that compute images anew: resized, sampled at given places, padded by the edge.

To resize is to read some pixels for each new one, along each dimension: one that is no number or
infinite spoils those that read it, and no others. The gradient is a product with a matrix.
"""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kit.runtime.rules.math import gradient_of, rounded_once, wide
from kit.runtime.rules.table import Rule, Rules

__all__ = ["GRID_RULES", "RESIZE_RULES"]

Ints = Sequence[int]
# (reads, outputs): the places that each output reads, and their weights
_Taps = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def _places(size: int, out: int, scale: float | None, align: bool, kind: Any) -> Any:
    """Where each output sample lies in the input; source: torch's source index of a pixel."""
    at = np.arange(out, dtype=kind)
    if align:
        return at * kind((size - 1) / (out - 1) if out > 1 else 0)
    ratio = kind(1 / scale if scale else size / out)
    return (at + kind(0.5)) * ratio - kind(0.5)


def _linear(size: int, out: int, scale: float | None, align: bool, kind: Any) -> _Taps:
    at = np.maximum(_places(size, out, scale, align, kind), 0)
    low = np.minimum(at.astype(int), size - 1)
    part = at - low
    return np.stack([low, np.minimum(low + 1, size - 1)]), np.stack([1 - part, part])


def _cubic_taps(size: int, out: int, scale: float | None, align: bool, kind: Any) -> _Taps:
    at = _places(size, out, scale, align, kind)
    taps = np.floor(at).astype(int) + np.arange(-1, 3)[:, None]
    return np.clip(taps, 0, size - 1), _cubic(np.abs(at - taps), np.where)


def _cubic(d: Any, where: Any) -> Any:
    """Keys' kernel with a = -0.75, as torch has it, at distances of at most 2."""
    near = ((1.25 * d - 2.25) * d) * d + 1
    far = ((-0.75 * d + 3.75) * d - 6) * d + 3
    return where(d <= 1, near, far)


def _nearest(exact: bool) -> Callable[..., _Taps]:
    def make(size: int, out: int, scale: float | None, align: bool, kind: Any) -> _Taps:
        """In float32, whatever the kind of the pixels, as torch does it."""
        ratio = np.float32(1 / scale if scale else size / out)
        shift = np.float32(0.5 if exact else 0)
        at = np.floor((np.arange(out, dtype=np.float32) + shift) * ratio).astype(int)
        return np.minimum(at, size - 1)[None], np.ones((1, out))

    return make


def _matrix(taps: _Taps, size: int, dtype: Any) -> Array:
    """(outputs, inputs)"""
    places, weights = taps
    matrix = np.zeros((places.shape[1], size))
    for place, weight in zip(places, weights, strict=True):
        np.add.at(matrix, (np.arange(len(place)), place), weight)
    return jnp.asarray(matrix, dtype)


def _spread(grad: Array, matrix: Array, axis: int) -> Array:
    """Each output's gradient given to what it read; of all digits, on a GPU too."""
    product = jnp.tensordot(grad, matrix, ((axis,), (0,)), precision="highest")
    return jnp.moveaxis(product, -1, axis)


def _resized(x: Array, taps: _Taps, axis: int) -> Array:
    places, weights = taps
    parts = [jnp.take(x, place, axis=axis, mode="clip") for place in places]
    if len(parts) == 1:
        return parts[0]
    shape = (-1, *[1] * (x.ndim - 1 - axis))
    total = jnp.zeros((), x.dtype)
    for part, weight in zip(parts, weights, strict=True):
        total = total + part * jnp.asarray(weight, x.dtype).reshape(shape)
    return total


def _upsample(n: int, make: Callable[..., _Taps], *, aligns: bool) -> tuple[Rule, Rule]:
    def taps(
        pixels: Array, shape: Ints, sizes: Ints, rest: Sequence[Any]
    ) -> Iterator[tuple[int, _Taps]]:
        """(dimension, taps) of each spatial dimension; places are as exact as the pixels."""
        kind = np.float64 if pixels.dtype == jnp.float64 else np.float32
        align = bool(rest[0]) if aligns else False
        scales = [None if s is None else float(s) for s in (rest[1:] if aligns else rest)]
        scales += [None] * (n - len(scales))
        for i, axis in enumerate(range(len(shape) - n, len(shape))):
            yield axis, make(shape[axis], sizes[i], scales[i], align, kind)

    def forward(x: Array, sizes: Ints, *rest: Any) -> Array:
        y = wide(x)
        for axis, found in taps(y, x.shape, sizes, rest):
            y = _resized(y, found, axis)
        return y

    def backward(grad: Array, sizes: Ints, shape: Ints, *rest: Any) -> Array:
        y = wide(grad)
        for axis, found in taps(y, shape, sizes, rest):
            y = _spread(y, _matrix(found, shape[axis], y.dtype), axis)
        return y

    return forward, backward


def _resizing() -> Rules:
    table: dict[str, Rule] = {}
    kinds: list[tuple[str, int, Any, bool]] = [
        ("linear1d", 1, _linear, True),
        ("bilinear2d", 2, _linear, True),
        ("trilinear3d", 3, _linear, True),
        ("bicubic2d", 2, _cubic_taps, True),
    ]
    for n in (1, 2, 3):
        kinds.append((f"nearest{n}d", n, _nearest(False), False))
        kinds.append((f"_nearest_exact{n}d", n, _nearest(True), False))
    for name, n, make, aligns in kinds:
        op = f"_upsample{name}" if name.startswith("_") else f"upsample_{name}"
        forward, backward = _upsample(n, make, aligns=aligns)
        table[f"aten.{op}.default"] = forward
        table[f"aten.{op}_backward.default"] = backward
    return Rules(table)


RESIZE_RULES = _resizing()


_NEAREST, _CUBIC = 1, 2  # 0: linear
_REFLECTION = 2  # 0: zeros, 1: border


def _reflected(at: Array, size: int, align: bool) -> Array:
    """Fold back at the centers of the outermost pixels, or at their outer edges."""
    low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
    if span == 0:
        return jnp.zeros_like(at)
    far = jnp.abs(at - low)
    turns, rest = jnp.floor(far / span), jnp.fmod(far, span)
    return jnp.where(jnp.fmod(turns, 2) == 0, rest, span - rest) + low


def _padded(at: Array, size: int, padding: int, align: bool) -> Array:
    if padding == _REFLECTION:
        at = _reflected(at, size, align)
    return at if padding == 0 else jnp.clip(at, 0, size - 1)


def _pixels(x: Array, index: Sequence[Array]) -> Array:
    """The pixels at whole-numbered places, 0 outside: (batch, channels, *places)."""
    inside = jnp.ones(index[0].shape, bool)
    places = []
    for at, size in zip(index, x.shape[2:], strict=True):
        inside = inside & (at >= 0) & (at <= size - 1)
        places.append(jnp.clip(at, 0, size - 1).astype(jnp.int32))
    batch = jnp.arange(x.shape[0]).reshape((-1,) + (1,) * (places[0].ndim - 1))
    found = x.transpose(0, *range(2, x.ndim), 1)[(batch.astype(jnp.int32), *places)]
    return jnp.moveaxis(jnp.where(inside[..., None], found, 0), -1, 1)


def _grid_sample(x: Array, grid: Array, mode: int, padding: int, align: bool) -> Array:
    sizes = x.shape[2:]
    ats = []
    for d, size in enumerate(sizes):  # the grid's last number belongs to the first dimension
        at = grid[..., len(sizes) - 1 - d]
        at = (at + 1) / 2 * (size - 1) if align else ((at + 1) * size - 1) / 2
        ats.append(at if mode == _CUBIC else _padded(at, size, padding, align))
    if mode == _NEAREST:
        return _pixels(x, [jnp.round(at) for at in ats])
    total = jnp.zeros((), x.dtype)
    for steps in product(range(-1, 3) if mode == _CUBIC else range(2), repeat=len(sizes)):
        index = [jnp.floor(at) + step for at, step in zip(ats, steps, strict=True)]
        weight = jnp.ones((), x.dtype)
        for at, i in zip(ats, index, strict=True):
            apart = jnp.abs(at - i)
            weight = weight * (_cubic(apart, jnp.where) if mode == _CUBIC else 1 - apart)
        if mode == _CUBIC:
            index = [_padded(i, n, padding, align) for i, n in zip(index, sizes, strict=True)]
        total = total + weight[:, None] * _pixels(x, index)
    return total


def _grid_sample_backward(
    grad: Array, x: Array, grid: Array, mode: int, padding: int, align: bool, mask: Sequence[bool]
) -> list[Array]:
    back = jax.vjp(lambda a, b: _grid_sample(a, b, mode, padding, align), x, grid)[1]
    image, places = back(grad)
    return [image, places] if mask[0] else [places]


def _edge_pad(x: Array, padding: Sequence[int]) -> Array:
    for i in range(len(padding) // 2):
        axis = x.ndim - 1 - i
        size = x.shape[axis]
        index = jnp.clip(jnp.arange(-padding[2 * i], size + padding[2 * i + 1]), 0, size - 1)
        x = jnp.take(x, index, axis=axis)
    return x


GRID_RULES = Rules({
    **{f"aten.grid_sampler_{n}d.default": rounded_once(_grid_sample) for n in (2, 3)},
    **{f"aten.grid_sampler_{n}d_backward.default": rounded_once(_grid_sample_backward)
       for n in (2, 3)},
    **{f"aten.replication_pad{n}d_backward.default": gradient_of(_edge_pad) for n in (1, 2, 3)},
})  # fmt: skip
