"""Rules for losses over labels, for bags of embeddings, and for the shrinking activations."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from kit.errors import LoweringError
from kit.runtime.rules.math import added_at, gradient_of, rounded_once
from kit.runtime.rules.table import Rules

__all__ = ["LOSS_RULES"]

_NEVER = -1e30  # log of a probability of zero that still has a gradient


def _reduce(losses: Array, reduction: int) -> Array:
    return losses if reduction == 0 else (jnp.mean, jnp.sum)[reduction - 1](losses)


def _cross_entropy(
    x: Array, target: Array, weight: Array | None = None, reduction: int = 1
) -> Array:
    """Of two classes; the logarithms end at -100, as torch's do, so that 0 and 1 have a loss."""
    inside = (target - 1) * jnp.maximum(jnp.log1p(-x), -100)
    losses = inside - target * jnp.maximum(jnp.log(x), -100)
    return _reduce(losses if weight is None else losses * weight, reduction)


def _cross_entropy_backward(
    grad: Array, x: Array, target: Array, weight: Array | None = None, reduction: int = 1
) -> Array:
    slope = grad * (x - target) / jnp.maximum((1 - x) * x, 1e-12)
    slope = slope if weight is None else slope * weight
    return slope / x.size if reduction == 1 else slope


def _hinge(gap: Array) -> Array:
    return jnp.where(gap > 0, gap, 0)


# -- margins -----------------------------------------------------------------------------------


def _multi_margin(
    x: Array, target: Array, p: Any = 1, margin: Any = 1, weight: Array | None = None,
    reduction: int = 1,
) -> Array:  # fmt: skip
    rows, labels = jnp.atleast_2d(x), target.reshape(-1)
    mine = jnp.take_along_axis(rows, labels[:, None], 1)
    gap = _hinge(jnp.asarray(margin, x.dtype) - mine + rows)
    loss = gap if p == 1 else gap * gap
    if weight is not None:
        loss = loss * weight[labels][:, None]
    others = jnp.arange(rows.shape[1]) != labels[:, None]
    losses = jnp.sum(jnp.where(others, loss, 0), 1) / rows.shape[1]
    return _reduce(losses.reshape(target.shape), reduction)


def _multilabel_margin(x: Array, target: Array, reduction: int, is_target: Array) -> Array:
    rows, labels = jnp.atleast_2d(x), jnp.atleast_2d(target)
    real = jnp.cumprod((labels >= 0).astype(jnp.int32), 1) == 1  # the first -1 ends the list
    mine = jnp.take_along_axis(rows, jnp.where(real, labels, 0), 1)
    gap = _hinge(1 - mine[:, :, None] + rows[:, None, :])
    counts = real[:, :, None] & (jnp.atleast_2d(is_target)[:, None, :] == 0)
    losses = jnp.sum(jnp.where(counts, gap, 0), (1, 2)) / rows.shape[1]
    return _reduce(losses.reshape(x.shape[:-1]), reduction)


def _multilabel_margin_forward(x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    """The loss, and which classes are among the labels.

    Torch's decomposition takes what stands after the first -1 for labels of class 0.
    """
    labels = jnp.atleast_2d(target)
    real = jnp.cumprod((labels >= 0).astype(jnp.int32), 1) == 1
    found = real[:, :, None] & (labels[:, :, None] == jnp.arange(labels.shape[1]))
    is_target = jnp.any(found, 1).astype(x.dtype).reshape(target.shape)
    return _multilabel_margin(x, target, reduction, is_target), is_target


# -- connectionist temporal classification -----------------------------------------------------


def _labels_in_rows(targets: Array, lengths: Array) -> Array:
    """One row of labels for each sample; torch also takes them end to end."""
    if targets.ndim == 2:
        return targets.astype(jnp.int32)
    starts = jnp.cumsum(lengths) - lengths
    at = starts[:, None] + jnp.arange(targets.shape[0])
    return targets.astype(jnp.int32)[jnp.clip(at, 0, max(targets.shape[0] - 1, 0))]


def _ctc(log_probs: Array, labels: Array, times: Array, lengths: Array, blank: int) -> Array:
    """The loss of each sample, by the forward recursion over (time, label or blank)."""
    batch, width = labels.shape
    states = jnp.full((batch, 2 * width + 1), blank).at[:, 1::2].set(labels)
    before = jnp.pad(states, ((0, 0), (2, 0)), constant_values=-1)[:, :-2]
    may_skip = (states != blank) & (states != before)
    last = 2 * lengths[:, None] + jnp.arange(-1, 1)  # it ends in the last label or a blank

    def shifted(alpha: Array, by: int) -> Array:
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=_NEVER)[:, : alpha.shape[1]]

    def step(alpha: Array, now: tuple[Array, Array]) -> tuple[Array, None]:
        at, row = now
        skip = jnp.where(may_skip, shifted(alpha, 2), _NEVER)
        came = jnp.logaddexp(jnp.logaddexp(alpha, shifted(alpha, 1)), skip)
        came = jnp.where((at == 0)[..., None], start, came)
        after = came + jnp.take_along_axis(row, states, 1)
        return jnp.where((at < times)[:, None], after, alpha), None

    places = jnp.arange(2 * width + 1)
    start = jnp.where(places < 2, 0, _NEVER).astype(log_probs.dtype)
    alpha = jnp.where(places == 0, 0, _NEVER).astype(log_probs.dtype)  # with no time at all
    alpha = jnp.broadcast_to(alpha, states.shape)
    alpha, _ = lax.scan(step, alpha, (jnp.arange(log_probs.shape[0]), log_probs))
    ends = jnp.take_along_axis(alpha, jnp.maximum(last, 0), 1)
    ends = jnp.where(last >= 0, ends, _NEVER)
    return -jnp.logaddexp(ends[:, 0], ends[:, 1])


def _ctc_arguments(targets: Array, times: Any, lengths: Any) -> tuple[Array, Array, Array]:
    times, lengths = (jnp.asarray(x).astype(jnp.int32) for x in (times, lengths))
    return _labels_in_rows(targets, lengths), times, lengths


def _ctc_loss(
    log_probs: Array,
    targets: Array,
    times: Any,
    lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    losses = _ctc(log_probs, *_ctc_arguments(targets, times, lengths), blank)
    losses = jnp.where(losses > -_NEVER / 2, 0 if zero_infinity else jnp.inf, losses)
    return losses, jnp.zeros(0, log_probs.dtype)  # the backward pass computes alpha again


def _ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    times: Any,
    lengths: Any,
    losses: Array,
    alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    """As in torch, it holds for log-probabilities that come from a log_softmax."""
    labels, times, lengths = _ctc_arguments(targets, times, lengths)
    slope = gradient_of(_ctc)(grad, log_probs, labels, times, lengths, blank)
    total = slope + jnp.exp(log_probs) * grad[:, None]
    impossible = jnp.isinf(losses) | ((losses == 0) if zero_infinity else False)
    total = jnp.where(impossible[:, None], 0 if zero_infinity else jnp.nan, total)
    real = jnp.arange(log_probs.shape[0])[:, None] < times
    return jnp.where(real[..., None], total, 0)


# -- bags of embeddings ------------------------------------------------------------------------

_SUM, _MEAN, _MAX = range(3)


def _rows(weight: Array, indices: Array) -> Array:
    """XLA takes none of no rows; that each index is out of bounds there, the op's check says."""
    if weight.shape[0]:
        return weight[indices]
    return jnp.zeros((*indices.shape, *weight.shape[1:]), weight.dtype)


def _embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    bags, count = offsets.shape[0] - include_last_offset, indices.shape[0]
    places = jnp.arange(count, dtype=offsets.dtype)
    bag = jnp.searchsorted(offsets[:bags], places, side="right") - 1
    keep = indices != padding_idx
    rows = _rows(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    size = jnp.zeros(offsets.shape, indices.dtype).at[bag].add(keep.astype(indices.dtype))
    filled = jnp.maximum(size[:bags], 1)[:, None]
    shape, largest = (bags, weight.shape[1]), jnp.zeros(0, indices.dtype)
    if mode == _MAX:
        rows = jnp.where(keep[:, None], rows, -jnp.inf)
        out = jnp.full(shape, -jnp.inf, rows.dtype).at[bag].max(rows)
        found = jnp.where(rows == out[bag], places[:, None], count).astype(indices.dtype)
        first = jnp.full(shape, count, indices.dtype).at[bag].min(found)
        empty = size[:bags, None] == 0
        padded = jnp.append(indices, jnp.full(1, -1, indices.dtype))
        largest = jnp.where(empty, -1, padded[first])
        out = jnp.where(empty, 0, out)
    else:
        out = added_at(jnp.zeros(shape, rows.dtype), bag, jnp.where(keep[:, None], rows, 0))
        out = out / filled.astype(out.dtype) if mode == _MEAN else out
    return out, bag.astype(indices.dtype), size, largest


def _embedding_bag_dense_backward(
    grad: Array,
    indices: Array,
    bag: Array,
    size: Array,
    largest: Array,
    rows: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Array | None,
    padding_idx: int = -1,
) -> Array:
    zeros = jnp.zeros((rows, grad.shape[1]), grad.dtype)
    if mode == _MAX:
        columns = jnp.broadcast_to(jnp.arange(grad.shape[1]), grad.shape)
        where = jnp.maximum(largest, 0), columns
        return added_at(zeros, where, jnp.where(largest < 0, 0, grad))
    parts = grad[bag]
    if per_sample_weights is not None:
        parts = parts * per_sample_weights[:, None]
    if mode == _MEAN:
        parts = parts / jnp.maximum(size, 1)[bag][:, None].astype(parts.dtype)
    if scale_grad_by_freq:
        counts = jnp.zeros(rows, jnp.int32).at[indices].add(1)
        parts = parts / _rows(counts, indices)[:, None]
    return added_at(zeros, indices, jnp.where((indices == padding_idx)[:, None], 0, parts))


def _embedding_bag_backward(
    grad: Array, indices: Array, offsets: Array, bag: Array, size: Array, largest: Array, rows: int,
    scale_grad_by_freq: bool, mode: int, sparse: bool, *rest: Any,
) -> Array:  # fmt: skip
    if sparse:
        raise LoweringError("device kit has no sparse gradients: use embedding_bag(sparse=False)")
    return _embedding_bag_dense_backward(
        grad, indices, bag, size, largest, rows, scale_grad_by_freq, mode, *rest
    )


def _embedding_bag_weights_backward(
    grad: Array,
    weight: Array,
    indices: Array,
    offsets: Array,
    bag: Array,
    mode: int,
    padding_idx: int = -1,
) -> Array:
    dots = jnp.sum(grad[bag] * _rows(weight, indices), 1)
    return jnp.where(indices == padding_idx, 0, dots)


# -- the rest ----------------------------------------------------------------------------------


def _trilinear(
    a: Array,
    b: Array,
    c: Array,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    dims: Sequence[int],
    unroll: int = 1,
) -> Array:
    a, b, c = (
        jnp.expand_dims(x, tuple(axes)) for x, axes in ((a, expand_a), (b, expand_b), (c, expand_c))
    )
    return jnp.sum(a * b * c, tuple(dims))


def _shrink_backward(grad: Array, x: Array, lambd: Any) -> Array:
    return jnp.where(jnp.abs(x) <= jnp.asarray(lambd, x.dtype), 0, grad)


def _smooth_l1_backward(grad: Array, x: Array, y: Array, reduction: int, beta: Any) -> Array:
    """NaN gives NaN, where torch's own decomposition gives 0."""
    off = x - y
    slope = jnp.where(jnp.abs(off) < beta, off / beta, jnp.sign(off))
    return slope * grad / (off.size if reduction == 1 else 1)


LOSS_RULES = Rules({
    "aten.smooth_l1_loss_backward.default": rounded_once(_smooth_l1_backward),
    "aten.binary_cross_entropy.default": rounded_once(_cross_entropy),
    "aten.binary_cross_entropy_backward.default": rounded_once(_cross_entropy_backward),
    "aten.multi_margin_loss.default": _multi_margin,
    "aten.multi_margin_loss_backward.default": gradient_of(_multi_margin),
    "aten.multilabel_margin_loss_forward.default": _multilabel_margin_forward,
    "aten.multilabel_margin_loss_backward.default": gradient_of(_multilabel_margin),
    "aten._ctc_loss.default": _ctc_loss, "aten._ctc_loss.Tensor": _ctc_loss,
    "aten._ctc_loss_backward.default": _ctc_loss_backward,
    "aten._ctc_loss_backward.Tensor": _ctc_loss_backward,
    "aten._embedding_bag.default": rounded_once(_embedding_bag),
    "aten._embedding_bag_forward_only.default": rounded_once(_embedding_bag),
    "aten._embedding_bag_backward.default": rounded_once(_embedding_bag_backward),
    "aten._embedding_bag_dense_backward.default": rounded_once(_embedding_bag_dense_backward),
    "aten._embedding_bag_per_sample_weights_backward.default": rounded_once(
        _embedding_bag_weights_backward),
    "aten._trilinear.default": _trilinear,
    "aten.hardshrink_backward.default": _shrink_backward,
    "aten.softshrink_backward.default": _shrink_backward,
})  # fmt: skip
