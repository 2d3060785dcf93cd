"""Rules for layers: softmax, norms, embeddings, and two losses."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kit.runtime.rules.math import added_at, rounded_once, wide
from kit.runtime.rules.table import Rules

__all__ = ["LAYERS", "layer_norm", "layer_norm_backward"]


def _softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    return jax.nn.softmax(x, axis=dim)


def _log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    return jax.nn.log_softmax(x, axis=dim)


def _softmax_backward(grad: Array, y: Array, dim: int, dtype: str) -> Array:
    scaled = grad * y
    return scaled - y * jnp.sum(scaled, axis=dim, keepdims=True)


def _log_softmax_backward(grad: Array, y: Array, dim: int, dtype: str) -> Array:
    return grad - jnp.exp(y) * jnp.sum(grad, axis=dim, keepdims=True)


def layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: Any
) -> tuple[Array, Array, Array]:
    """The result, and the mean and 1 / deviation over the last dimensions, those of `shape`."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    x = wide(x)
    mean = jnp.mean(x, axes, keepdims=True)
    rstd = lax.rsqrt(jnp.mean(jnp.square(x - mean), axes, keepdims=True) + eps)
    y = (x - mean) * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, rstd


def layer_norm_backward(
    grad: Array, x: Array, shape: Sequence[int], mean: Array, rstd: Array, weight: Array | None,
    bias: Array | None, mask: Sequence[bool],
) -> list[Array]:  # fmt: skip
    """The gradients of the input, the weight and the bias, each if it is wanted."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    batch = tuple(range(x.ndim - len(shape)))
    normed = (x - mean) * rstd
    inner = grad if weight is None else grad * weight
    dx = rstd * (
        inner
        - jnp.mean(inner, axes, keepdims=True)
        - normed * jnp.mean(inner * normed, axes, keepdims=True)
    )
    grads = (dx, jnp.sum(grad * normed, batch), jnp.sum(grad, batch))
    return [g for g, wanted in zip(grads, mask, strict=True) if wanted]


def _embedding(
    weight: Array, index: Array, padding: int = -1, scale: bool = False, sparse: bool = False
) -> Array:
    return jnp.take(weight, index, axis=0)


def _embedding_backward(grad: Array, index: Array, rows: int, padding: int, scale: bool) -> Array:
    flat, where = grad.reshape(-1, grad.shape[-1]), index.reshape(-1)
    if padding >= 0:
        flat = jnp.where((where == padding)[:, None], 0, flat)
    if scale:  # by how often the batch asks for the row
        flat = flat / jnp.zeros(rows, jnp.int32).at[where].add(1)[where][:, None]
    return added_at(jnp.zeros((rows, grad.shape[-1]), grad.dtype), where, flat)


def _nll_weights(target: Array, weight: Array | None, ignore: int, dtype: Any) -> Array:
    keep = target != ignore
    weights = 1 if weight is None else weight[jnp.where(keep, target, 0)]
    return jnp.where(keep, weights, 0).astype(dtype)


def _nll_loss(
    logp: Array, target: Array, weight: Array | None, reduction: int, ignore: int
) -> tuple[Array, Array]:
    target = target.astype(jnp.int64)  # -100 is no byte
    w = _nll_weights(target, weight, ignore, logp.dtype)
    safe = jnp.where(target == ignore, 0, target)
    losses = -jnp.take_along_axis(logp, jnp.expand_dims(safe, -1), -1)[..., 0] * w
    losses = jnp.where(target == ignore, 0, losses)  # not 0 * inf
    if reduction == 0:
        return losses, jnp.zeros((), logp.dtype)
    total = jnp.sum(w)
    return jnp.sum(losses) / (total if reduction == 1 else 1), total


def _nll_loss_backward(
    grad: Array,
    logp: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore: int,
    total: Array,
) -> Array:
    target = target.astype(jnp.int64)
    w = _nll_weights(target, weight, ignore, logp.dtype)
    scale = -grad * w / total if reduction == 1 else -grad * w
    scale = jnp.where(target == ignore, 0, scale)  # not 0 / 0, nor 0 * nan
    safe = jnp.where(target == ignore, 0, target)
    hot = jnp.expand_dims(safe, -1) == jnp.arange(logp.shape[-1])
    return jnp.where(hot, jnp.expand_dims(jnp.broadcast_to(scale, target.shape), -1), 0)


def _labels_last(logp: Array) -> Array:
    """Scores of an image, with the classes in the second dimension, as `_nll_loss` takes them."""
    return jnp.moveaxis(logp, 1, -1)


def _nll_loss2d(logp: Array, *rest: Any) -> tuple[Array, Array]:
    return _nll_loss(_labels_last(logp), *rest)


def _nll_loss2d_backward(grad: Array, logp: Array, *rest: Any) -> Array:
    return jnp.moveaxis(_nll_loss_backward(grad, _labels_last(logp), *rest), -1, 1)


def _mse(x: Array, y: Array, reduction: int = 1) -> Array:
    square = jnp.square(x - y)
    return square if reduction == 0 else jnp.mean(square) if reduction == 1 else jnp.sum(square)


def _mse_backward(grad: Array, x: Array, y: Array, reduction: int) -> Array:
    return grad * 2 * (x - y) / (prod(x.shape) if reduction == 1 else 1)


def _safe_softmax(x: Array, dim: int, dtype: str | None = None) -> Array:
    """A row that is masked altogether gives zeros, where softmax gives nan."""
    empty = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(empty, 0, jax.nn.softmax(x if dtype is None else x.astype(dtype), axis=dim))


def _weight_norm_backward(grad: Array, v: Array, g: Array, norms: Array, dim: int) -> Any:
    """Of `w = g * v / norms`, where there is a norm for each place along `dim`."""
    axes = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    norms = wide(norms)
    along = jnp.sum(grad * v, axis=axes, keepdims=True).astype(norms.dtype) / norms
    to_v = (g / norms) * (grad - v * (along / norms))
    return to_v.astype(v.dtype), along.astype(g.dtype)


LAYERS = Rules({
    "aten._weight_norm_interface_backward.default": _weight_norm_backward,
    "aten._safe_softmax.default": rounded_once(_safe_softmax),
    "aten._softmax.default": rounded_once(_softmax),
    "aten._log_softmax.default": rounded_once(_log_softmax),
    "aten._softmax_backward_data.default": rounded_once(_softmax_backward),
    "aten._log_softmax_backward_data.default": rounded_once(_log_softmax_backward),
    "aten.native_layer_norm.default": layer_norm,
    "aten.native_layer_norm_backward.default": layer_norm_backward,
    "aten.embedding.default": _embedding,
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.nll_loss_forward.default": _nll_loss,
    "aten.nll_loss_backward.default": _nll_loss_backward,
    "aten.nll_loss2d_forward.default": _nll_loss2d,
    "aten.nll_loss2d_backward.default": _nll_loss2d_backward,
    "aten.mse_loss.default": _mse, "aten.mse_loss_backward.default": _mse_backward,
})  # fmt: skip
