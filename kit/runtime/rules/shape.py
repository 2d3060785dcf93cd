"""Rules for views, copies into views, indexing, joining and making arrays."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from kit.runtime.rules.math import added_at, cast
from kit.runtime.rules.table import Rules

__all__ = ["REORDERINGS", "SHAPE_RULES", "VIEW_RULES", "along", "scattered"]


def _view(x: Array, size: Sequence[int]) -> Array:
    return jnp.reshape(x, size)


def _transpose(x: Array, a: int, b: int) -> Array:
    return jnp.swapaxes(x, a, b) if x.ndim else x


def _t(x: Array) -> Array:
    return x.T


def _expand(x: Array, size: Sequence[int], **_: Any) -> Array:
    old = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [o if s == -1 else s for s, o in zip(size, old, strict=True)])


def _squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(d for d in dims if x.ndim and x.shape[d] == 1))


def _select(x: Array, dim: int, index: int) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


def _slice(
    x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


def _diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    return jnp.diagonal(x, offset, dim1, dim2)


def _unfold(x: Array, dim: int, size: int, step: int) -> Array:
    length = x.shape[dim] if x.ndim else 1
    starts = jnp.arange(0, length - size + 1, step)
    windows = jnp.take(x, starts[:, None] + jnp.arange(size), axis=dim)
    return jnp.moveaxis(windows, dim % max(x.ndim, 1) + 1, -1)


def _as_strided(
    x: Array,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
    *,
    order: Sequence[int] = (),
) -> Array:
    """`order` lists the base's dimensions from the slowest to the fastest in memory."""
    flat = jnp.transpose(x, order).reshape(-1) if order else x.reshape(-1)
    index = jnp.full(tuple(size), offset or 0)
    for d, (n, s) in enumerate(zip(size, stride, strict=True)):
        index = index + jnp.expand_dims(jnp.arange(n) * s, [k for k in range(len(size)) if k != d])
    return flat[index]


VIEW_RULES = Rules({
    "aten.view.default": _view, "aten._unsafe_view.default": _view,
    "aten.reshape.default": _view,
    "aten._reshape_alias.default": lambda x, size, stride: _view(x, size),
    "aten.t.default": _t, "aten.transpose.int": _transpose,
    "aten.permute.default": lambda x, dims: jnp.transpose(x, dims),
    "aten.expand.default": _expand, "aten.unsqueeze.default": lambda x, d: jnp.expand_dims(x, d),
    "aten.squeeze.default": _squeeze, "aten.squeeze.dim": _squeeze, "aten.squeeze.dims": _squeeze,
    "aten.select.int": _select, "aten.slice.Tensor": _slice, "aten.diagonal.default": _diagonal,
    "aten.unfold.default": _unfold, "aten.as_strided.default": _as_strided,
    "aten.view.dtype": lambda x, dtype: x.view(dtype),
    "aten._conj.default": jnp.conj, "aten._neg_view.default": jnp.negative,
    "aten.view_as_real.default": lambda x: jnp.stack([jnp.real(x), jnp.imag(x)], -1),
    "aten.view_as_complex.default": lambda x: lax.complex(x[..., 0], x[..., 1]),
})  # fmt: skip

_BACK = {  # what a view shows, as what it is a view of
    "aten._conj.default": jnp.conj,
    "aten._neg_view.default": jnp.negative,
    "aten.view_as_real.default": VIEW_RULES["aten.view_as_complex.default"],
    "aten.view_as_complex.default": VIEW_RULES["aten.view_as_real.default"],
}


def _write_view(
    base: Array, new: Array, *, view: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Array:
    """`base` with the elements that the view shows replaced by `new`."""
    rule = VIEW_RULES[view]
    if view in REORDERINGS:
        if view.startswith(("aten.t.", "aten.transpose")):
            return rule(new, *args, **kwargs)
        if view.startswith("aten.permute"):
            inverse = sorted(range(base.ndim), key=lambda i: args[0][i] % base.ndim)
            return jnp.transpose(new, inverse)
        return jnp.reshape(new, base.shape)
    if view in _BACK:
        return _BACK[view](new)
    if view == "aten.view.dtype":
        return new.view(base.dtype).reshape(base.shape)
    if view in ("aten.select.int", "aten.slice.Tensor"):
        dim = (args[0] if args else 0) % base.ndim
        start, end, step = (*args[1:], None, None)[:3] if len(args) < 4 else args[1:4]
        where = start if view == "aten.select.int" else slice(start, end, step)
        return base.at[(slice(None),) * dim + (where,)].set(new)
    index = rule(jnp.arange(prod(base.shape)).reshape(base.shape), *args, **kwargs)
    return base.reshape(-1).at[index.reshape(-1)].set(new.reshape(-1)).reshape(base.shape)


def _write_through(
    base: Array, new: Array, *, views: Sequence[tuple[str, tuple[Any, ...], dict[str, Any]]]
) -> Array:
    """`base` with `new` at the places that the last of these views shows, each one on another.

    A place that is shown several times is given one number several times.
    """
    memory = base.reshape(-1)
    places = jnp.arange(base.size).reshape(base.shape)
    negative = conjugate = turned = False  # turned: the imaginary parts among real numbers are
    for view, args, kwargs in views:
        if view == "aten._conj.default":
            conjugate = not conjugate
        elif view == "aten._neg_view.default":
            negative = not negative
        elif view == "aten.view_as_real.default":
            memory = VIEW_RULES[view](memory).reshape(-1)
            places = jnp.stack([2 * places, 2 * places + 1], -1)
            turned, conjugate = conjugate, False
        elif view == "aten.view_as_complex.default":
            memory, places = lax.complex(memory[::2], memory[1::2]), places[..., 0] // 2
        elif view == "aten.view.dtype":
            before, memory = memory.size, memory.view(*args)
            places = _recast_places(places, memory.size, before)
        else:
            places = VIEW_RULES[view](places, *args, **kwargs)
    new = jnp.conj(new) if conjugate else new
    new = -new if negative else new
    new = jnp.where(places % 2 == 1, -new, new) if turned else new
    memory = memory.at[places.reshape(-1)].set(new.reshape(-1))
    return memory.view(base.dtype).reshape(base.shape)


def _recast_places(places: Array, now: int, before: int) -> Array:
    """Where the numbers lie, once the memory is `now` numbers of another type, not `before`."""
    if now == before:
        return places
    if now > before:
        each = now // before
        parts = each * places[..., None] + jnp.arange(each)
        return parts.reshape(*places.shape[:-1], -1)
    each = before // now
    return places[..., ::each] // each


# Views that show each element of what they show once.
REORDERINGS = frozenset({
    "aten.view.default", "aten._unsafe_view.default", "aten._reshape_alias.default",
    "aten.reshape.default", "aten.t.default", "aten.transpose.int", "aten.permute.default",
    "aten.unsqueeze.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
})  # fmt: skip


def _subscript(indices: Sequence[Array | None]) -> Any:
    return tuple(slice(None) if i is None else i for i in indices)


def _index_put(
    x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    where = _subscript(indices)
    return added_at(x, where, values) if accumulate else x.at[where].set(values.astype(x.dtype))


def _gather(x: Array, dim: int, index: Array, **_: Any) -> Array:
    if not index.size:
        return jnp.zeros(index.shape, x.dtype)
    return x[along(dim, index)] if x.ndim else jnp.broadcast_to(x, index.shape)


def along(dim: int, index: Array) -> tuple[Array, ...]:
    """The places that an index into one dimension names, as torch's `gather` takes it."""
    grid = [lax.broadcasted_iota(jnp.int64, index.shape, d) for d in range(index.ndim)]
    grid[dim] = index.astype(jnp.int64)
    return tuple(grid)


def scattered(src: Any, index: Array, dtype: Any) -> Array:
    """What torch's `scatter` writes: a part of `src`, or one number everywhere."""
    if jnp.ndim(src) == 0:
        return jnp.broadcast_to(cast(jnp.asarray(src), dtype), index.shape)
    return src[tuple(slice(n) for n in index.shape)].astype(dtype)


def _scatter(x: Array, dim: int, index: Array, src: Any) -> Array:
    return x.at[along(dim, index)].set(scattered(src, index, x.dtype)) if index.size else x


def _scatter_add(x: Array, dim: int, index: Array, src: Array) -> Array:
    return added_at(x, along(dim, index), scattered(src, index, x.dtype)) if index.size else x


def _slice_backward(
    grad: Array, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Array:
    dim %= len(sizes)
    start, _, _ = slice(start, end, step).indices(sizes[dim])
    padding = [(0, 0, 0)] * len(sizes)
    if grad.shape[dim]:
        last = start + (grad.shape[dim] - 1) * step
        padding[dim] = (start, sizes[dim] - 1 - last, step - 1)
    else:
        padding[dim] = (0, sizes[dim], 0)
    # Four of these, summed, are one kernel of XLA; scatters into zeros made five.
    return lax.pad(grad, jnp.zeros((), grad.dtype), padding)


def _select_backward(grad: Array, sizes: Sequence[int], dim: int, index: int) -> Array:
    return jnp.zeros(sizes, grad.dtype).at[(slice(None),) * (dim % len(sizes)) + (index,)].set(grad)


def _diagonal_scatter(
    x: Array, source: Array, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Array:
    new, args = source.astype(x.dtype), (offset, dim1, dim2)
    return _write_view(x, new, view="aten.diagonal.default", args=args, kwargs={})


def _diagonal_backward(
    grad: Array, sizes: Sequence[int], offset: int, dim1: int, dim2: int
) -> Array:
    return _diagonal_scatter(jnp.zeros(sizes, grad.dtype), grad, offset, dim1, dim2)


def _triangle(keep_lower: bool) -> Any:
    def rule(x: Array, diagonal: int = 0) -> Array:
        return jnp.tril(x, diagonal) if keep_lower else jnp.triu(x, diagonal)

    return rule


def _part_at(x: Array, place: Array, *, dim: int, length: int, step: int, drops: bool) -> Array:
    """`length` numbers of a dimension from `place` on; `drops`: one, without its dimension.

    The place is an input of the program. That it is within the tensor is known on the host, so
    XLA's dynamic slices never clamp it.
    """
    span = (length - 1) * step + 1 if length else 0
    part = lax.dynamic_slice_in_dim(x, place, span, dim)
    part = lax.slice_in_dim(part, 0, span, step, dim)
    return jnp.squeeze(part, dim) if drops else part


def _write_at(
    base: Array, new: Array, place: Array, *, dim: int, length: int, step: int, drops: bool
) -> Array:
    """`base` with `new` there."""
    new = jnp.expand_dims(new, dim) if drops else new
    if step > 1 and length:
        span = lax.dynamic_slice_in_dim(base, place, (length - 1) * step + 1, dim)
        new = span.at[(slice(None),) * dim + (slice(None, None, step),)].set(new)
    return lax.dynamic_update_slice_in_dim(base, new, place, dim)


def _part_at_backward(
    grad: Array, place: Array, *, sizes: Sequence[int], dim: int, length: int, step: int,
    drops: bool,
) -> Array:  # fmt: skip
    """The gradient of `_part_at`: zeros elsewhere."""
    zeros = jnp.zeros(sizes, grad.dtype)
    return _write_at(zeros, grad, place, dim=dim, length=length, step=step, drops=drops)


def _arange(start: Any, length: int, step: Any, *, dtype: str) -> Array:
    """Torch computes in the widest type of the kind, and counts the numbers itself."""
    wide = jnp.float64 if jnp.issubdtype(dtype, jnp.inexact) else jnp.int64
    return (start + step * jnp.arange(length, dtype=wide)).astype(dtype)


SHAPE_RULES = VIEW_RULES | Rules({
    "kit.write_view": _write_view, "kit.write_through": _write_through,
    "kit.full": lambda value, *, size, dtype: jnp.full(size, value, dtype),
    "kit.arange": _arange,
    "kit.part_at": _part_at, "kit.write_at": _write_at, "kit.part_at_backward": _part_at_backward,
    "aten.fill.Scalar": lambda x, v: jnp.full(x.shape, v, x.dtype),
    "aten.fill.Tensor": lambda x, v: jnp.broadcast_to(cast(v, x.dtype), x.shape),
    "aten.copy.default": lambda x, y, non_blocking=False: jnp.broadcast_to(
        cast(y, x.dtype), x.shape),
    "aten.cat.default": lambda xs, dim=0: jnp.concatenate(
        [x for x in xs if x.shape != (0,)] or xs, dim),
    "aten.stack.default": lambda xs, dim=0: jnp.stack(xs, dim),
    "aten.flip.default": lambda x, dims: jnp.flip(x, tuple(dims)),
    "aten.roll.default": lambda x, shifts, dims=(): jnp.roll(x, tuple(shifts), tuple(dims) or None),
    "aten.repeat.default": lambda x, n: jnp.tile(x, tuple(n)),
    "aten.constant_pad_nd.default": lambda x, pad, value=0: lax.pad(
        x, cast(jnp.asarray(value), x.dtype), [(0, 0, 0)] * (x.ndim - len(pad) // 2)
        + [(pad[i], pad[i + 1], 0) for i in range(len(pad) - 2, -1, -2)]),
    "aten.tril.default": _triangle(True), "aten.triu.default": _triangle(False),
    "aten.index.Tensor": lambda x, indices: x[_subscript(indices)],
    "aten.index_put.default": _index_put,
    "aten.index_select.default": lambda x, dim, i: jnp.take(x, i, axis=dim),
    "aten.gather.default": _gather,
    "aten.scatter.src": _scatter, "aten.scatter.value": _scatter,
    "aten.scatter_add.default": _scatter_add,
    "aten.slice_backward.default": _slice_backward,
    "aten.select_backward.default": _select_backward,
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.diagonal_backward.default": _diagonal_backward,
})  # fmt: skip
