"""Rules that order, search and move elements: sort, scatter with reduction, cumulative ops."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kit.runtime.rules.math import added_at, bound, cast
from kit.runtime.rules.shape import along, scattered
from kit.runtime.rules.special_functions import logaddexp
from kit.runtime.rules.table import Rule, Rules

__all__ = ["INDEX_RULES"]


def _take(x: Array, where: Array, dim: int) -> Array:
    return jnp.take_along_axis(x, where, dim)


def _sort(
    x: Array, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Array, Array]:
    """Always stable, nan last; descending keeps the order of equal elements too, as torch does."""
    if not descending:
        where = jnp.argsort(x, dim, stable=True)
    else:
        turned = jnp.flip(x, dim)
        where = x.shape[dim] - 1 - jnp.flip(jnp.argsort(turned, dim, stable=True), dim)
    return _take(x, where, dim), where


def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, in_order: bool = True) -> Any:
    return [lax.slice_in_dim(part, 0, k, axis=dim % x.ndim) for part in _sort(x, dim, largest)]


def _kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    values, where = _sort(x, dim)
    index = (slice(None),) * (dim % x.ndim) + (k - 1,)
    picked = values[index], where[index]
    return tuple(jnp.expand_dims(p, dim) for p in picked) if keepdim else picked  # type: ignore[return-value]


def _median_dim(skip_nan: bool) -> Rule:
    def rule(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        """The lower of two middle elements; nan is the median unless it is skipped."""
        values, where = _sort(x, dim)
        missing = jnp.sum(jnp.isnan(x), dim, keepdims=True)
        count = x.shape[dim] - (missing if skip_nan else jnp.zeros_like(missing))
        at = jnp.maximum(count - 1, 0) // 2
        if not skip_nan:
            at = jnp.where(missing > 0, x.shape[dim] - missing, at)
        picked = _take(values, at, dim), _take(where, at, dim)
        return picked if keepdim else tuple(jnp.squeeze(p, dim) for p in picked)  # type: ignore[return-value]

    return rule


def _median(skip_nan: bool) -> Rule:
    def rule(x: Array) -> Array:
        if not x.size:
            return cast(jnp.full((), jnp.nan), x.dtype)
        return _median_dim(skip_nan)(x.reshape(-1), 0)[0]

    return rule


def _mode(x: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """The smallest of the most frequent elements, and the place of its last occurrence."""
    line = jnp.moveaxis(_sort(x, dim)[0], dim, -1)
    places = lax.broadcasted_iota(jnp.int64, line.shape, line.ndim - 1)
    is_new = jnp.roll(line, 1, -1) != line
    begun = lax.cummax(jnp.where(is_new, places, 0), axis=line.ndim - 1)  # its run of equal ones
    best = jnp.take_along_axis(line, jnp.argmax(places - begun, -1, keepdims=True), -1)
    same = jnp.moveaxis(x, dim, -1) == best
    last = x.shape[dim] - 1 - jnp.argmax(jnp.flip(same, -1), -1, keepdims=True)
    picked = jnp.moveaxis(best, -1, dim), jnp.moveaxis(last, -1, dim)
    return picked if keepdim else tuple(jnp.squeeze(p, dim) for p in picked)  # type: ignore[return-value]


def _cumulative_extreme(larger: bool) -> Rule:
    def better(a: Any, b: Any) -> Any:
        """The later of two equal elements; nan wins."""
        (u, i), (v, j) = a, b
        wins = (v >= u) if larger else (v <= u)
        second = jnp.isnan(v) | (wins & ~jnp.isnan(u))
        return jnp.where(second, v, u), jnp.where(second, j, i)

    def rule(x: Array, dim: int) -> Any:
        dim = dim % x.ndim
        places = lax.broadcasted_iota(jnp.int64, x.shape, dim)
        return lax.associative_scan(better, (x, places), axis=dim)

    return rule


def _logcumsumexp(x: Array, dim: int) -> Array:
    return lax.associative_scan(logaddexp, x, axis=dim % x.ndim)


def _searchsorted(
    edges: Array, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Array | None = None,
) -> Array:  # fmt: skip
    x = jnp.asarray(x)
    if sorter is not None:
        edges = jnp.take_along_axis(edges, sorter, -1)
    where = "right" if right or side == "right" else "left"
    common = jnp.promote_types(edges.dtype, x.dtype)
    edges, x = edges.astype(common), x.astype(common)
    if edges.ndim == 1:
        return jnp.searchsorted(edges, x, side=where)
    rows = jax.vmap(lambda e, v: jnp.searchsorted(e, v, side=where))
    flat = rows(edges.reshape(-1, edges.shape[-1]), x.reshape(-1, x.shape[-1]))
    return flat.reshape(x.shape)


def _bucketize(x: Any, edges: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    return _searchsorted(edges, x, right=right)


def _scatter_reduce(
    x: Array, dim: int, index: Array, src: Any, reduce: str, *, include_self: bool = True
) -> Array:
    """Source: torch's scatter_reduce; with `include_self` False the first src replaces x."""
    where = along(dim % x.ndim, index)
    reduce = {"add": "sum", "multiply": "prod"}.get(reduce, reduce)
    if x.dtype == jnp.bool_:
        reduce = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
    values = scattered(src, index, x.dtype)
    if not include_self:
        neutral = {"sum": 0, "mean": 0, "prod": 1}
        is_extreme = reduce not in neutral
        start = bound(x.dtype, least=reduce == "amax") if is_extreme else neutral[reduce]
        x = x.at[where].set(jnp.asarray(start, x.dtype))
    if reduce == "prod":
        return x.at[where].multiply(values)
    if reduce == "amax":
        return x.at[where].max(values)
    if reduce == "amin":
        return x.at[where].min(values)
    total = added_at(x, where, values)
    if reduce != "mean":
        return total
    ones = jnp.full(x.shape, 1 if include_self else 0, jnp.int64)
    count = jnp.maximum(ones.at[where].add(1), 1)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.floor_divide(total, count.astype(x.dtype))
    return total / count.astype(x.dtype)


def _scatter_with(x: Array, dim: int, index: Array, src: Any, *, reduce: str) -> Array:
    return _scatter_reduce(x, dim, index, src, reduce)


def _put(x: Array, index: Array, src: Array, accumulate: bool = False) -> Array:
    flat, where, values = x.reshape(-1), index.reshape(-1), src.reshape(-1)
    put = added_at(flat, where, values) if accumulate else flat.at[where].set(values)
    return put.reshape(x.shape)


def _rows(x: Array, dim: int, index: Array) -> Any:
    """The places of an index into one dimension."""
    return (slice(None),) * (dim % x.ndim) + (index.reshape(-1),)


def _index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1) -> Array:
    is_one = isinstance(alpha, int) and alpha == 1
    return added_at(x, _rows(x, dim, index), source if is_one else alpha * source)


def _index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    return x.at[_rows(x, dim, index)].set(source)


def _index_fill(x: Array, dim: int, index: Array, value: Any) -> Array:
    return x.at[_rows(x, dim, index)].set(cast(jnp.asarray(value), x.dtype))


def _masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    """The i-th true element of the mask takes the i-th element of the source."""
    x, mask = jnp.broadcast_arrays(x, mask)
    if not source.size:
        return x
    number = jnp.cumsum(mask.reshape(-1)) - 1
    values = source.reshape(-1)[jnp.clip(number, 0, max(source.size - 1, 0))]
    return jnp.where(mask, values.reshape(x.shape).astype(x.dtype), x)


def _masked_scatter_backward(grad: Array, mask: Array, sizes: Sequence[int]) -> Array:
    mask = jnp.broadcast_to(mask, grad.shape).reshape(-1)
    size = prod(sizes)
    where = jnp.where(mask, jnp.cumsum(mask) - 1, size)
    return jnp.zeros(size, grad.dtype).at[where].set(grad.reshape(-1), mode="drop").reshape(sizes)


def _index_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    dim = dim % x.ndim
    shape = [1] * source.ndim
    shape[dim] = index.size
    wide = jnp.broadcast_to(index.reshape(shape), source.shape)
    return _scatter_reduce(x, dim, wide, source, reduce, include_self=include_self)


def _unfold_backward(grad: Array, sizes: Sequence[int], dim: int, size: int, step: int) -> Array:
    if not sizes:
        return jnp.sum(grad)
    x = jnp.zeros(tuple(sizes), grad.dtype)
    dim = dim % x.ndim
    starts = jnp.arange(grad.shape[dim]) * step
    index = starts[:, None] + jnp.arange(size)[None, :]
    moved = jnp.moveaxis(jnp.moveaxis(grad, -1, 0), dim + 1, 0)  # (windows, size, others)
    flat = jnp.moveaxis(x, dim, 0).at[index].add(moved)
    return jnp.moveaxis(flat, 0, dim)


def _histc(x: Array, bins: int = 100, low: Any = 0, high: Any = 0) -> Array:
    if not x.size:
        return jnp.zeros(bins, x.dtype)
    low, high = jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)
    span = low == high
    low, high = jnp.where(span, x.min(), low), jnp.where(span, x.max(), high)
    wider = low == high
    low, high = jnp.where(wider, low - 1, low), jnp.where(wider, high + 1, high)
    if jnp.issubdtype(x.dtype, jnp.integer):
        width = (high - low).astype(jnp.int64)
        at = (x - low).astype(jnp.int64) * bins // width
    else:
        # in float64, as XLA may multiply by a rounded reciprocal; then rounded as torch's quotient
        part = ((x - low) * bins).astype(jnp.float64) / (high - low).astype(jnp.float64)
        at = part.astype(x.dtype).astype(jnp.int64)
    at = jnp.where(at == bins, bins - 1, at)
    inside = (x >= low) & (x <= high)
    counts = jnp.zeros(bins, x.dtype)
    return counts.at[jnp.where(inside, at, bins).reshape(-1)].add(1, mode="drop")


INDEX_RULES = Rules({
    "aten.sort.default": _sort, "aten.sort.stable": _sort, "aten.topk.default": _topk,
    "aten.argsort.default": lambda x, dim=-1, descending=False: _sort(x, dim, descending)[1],
    "aten.kthvalue.default": _kthvalue, "aten.mode.default": _mode,
    "aten.median.default": _median(False), "aten.median.dim": _median_dim(False),
    "aten.nanmedian.default": _median(True), "aten.nanmedian.dim": _median_dim(True),
    "aten.cummax.default": _cumulative_extreme(True),
    "aten.cummin.default": _cumulative_extreme(False),
    "aten.logcumsumexp.default": _logcumsumexp,
    "aten.searchsorted.Tensor": _searchsorted, "aten.searchsorted.Scalar": _searchsorted,
    "aten.bucketize.Tensor": _bucketize, "aten.bucketize.Scalar": _bucketize,
    "aten.scatter_reduce.two": _scatter_reduce, "aten.scatter.reduce": _scatter_with,
    "aten.scatter.value_reduce": _scatter_with, "aten.index_reduce.default": _index_reduce,
    "aten.one_hot.default": lambda x, classes: x[..., None] == jnp.arange(classes),
    "aten.take.default": lambda x, index: x.reshape(-1)[index],
    "aten.index_fill.int_Scalar": _index_fill, "aten.index_fill.int_Tensor": _index_fill,
    "aten.index_add.default": _index_add, "aten.index_copy.default": _index_copy,
    "aten.put.default": _put, "aten.masked_scatter.default": _masked_scatter,
    "aten.masked_scatter_backward.default": _masked_scatter_backward,
    "aten.unfold_backward.default": _unfold_backward, "aten.histc.default": _histc,
})  # fmt: skip
