"""Rules for attention: each torch call is one op, forward and backward.

The backward pass computes the probabilities again from the scores' log-sum-exp, and a dropout mask
again from its random key, so a step keeps nothing of size (queries, keys).
"""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from kit.runtime.rules.layers import layer_norm
from kit.runtime.rules.math import wide
from kit.runtime.rules.random import dropout, thinned
from kit.runtime.rules.table import Rules

__all__ = ["ATTENTION_RULES"]


def _spread(x: Array, heads: int) -> Array:
    """Grouped queries: each head of keys and values serves several heads of queries."""
    return x if x.ndim < 3 or x.shape[-3] == heads else jnp.repeat(x, heads // x.shape[-3], -3)


def _gather(grad: Array, like: Array) -> Array:
    """The transpose of `_spread`."""
    if grad.shape[:-2] == like.shape[:-2]:
        return grad
    heads = like.shape[-3]
    parts = grad.reshape(*grad.shape[:-3], heads, grad.shape[-3] // heads, *grad.shape[-2:])
    return jnp.sum(parts, -3)


def _scores(q: Array, k: Array, bias: Array | None, causal: bool, scale: Any) -> Array:
    """q k^T * scale, with minus infinity where a query may not look."""
    scores = jnp.einsum("...le,...se->...ls", wide(q), wide(k)) * _scale(q, scale)
    if causal:
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        return jnp.where(allowed, scores, -jnp.inf)
    if bias is None:
        return scores
    if bias.dtype == jnp.bool_:
        return jnp.where(bias, scores, -jnp.inf)
    return scores + bias.astype(scores.dtype)


def _scale(q: Array, scale: Any) -> Array:
    dtype = jnp.promote_types(q.dtype, jnp.float32)
    return jnp.asarray(q.shape[-1] ** -0.5 if scale is None else scale, dtype)


def _attention(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    *,
    causal: bool,
    scale: Any = None,
    p: Any = None,
    seed: Any = None,
    call: Any = None,
) -> list[Array]:
    """The output, the scores' log-sum-exp, and with dropout the random key."""
    heads = q.shape[-3] if q.ndim > 2 else 1
    scores = _scores(q, _spread(k, heads), bias, causal, scale)
    top = jnp.max(scores, -1, keepdims=True)
    top = jnp.where(top == -jnp.inf, 0, top)  # a row that may look nowhere gives zeros
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, -1, keepdims=True)
    nowhere = total == 0
    weights = weights / jnp.where(nowhere, 1, total)
    lse = jnp.where(nowhere, jnp.inf, top + jnp.log(total))[..., 0]
    if p is not None:
        weights = dropout(weights, p=p, seed=seed, call=call)[0]
    out = jnp.einsum("...ls,...se->...le", weights, wide(_spread(v, heads)))
    key = [] if p is None else [seed.astype(jnp.int64), call.astype(jnp.int64)]
    return [out, lse, *key]


def _attention_backward(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    lse: Array,
    seed: Array | None,
    call: Array | None,
    mask: Sequence[bool],
    *,
    causal: bool,
    scale: Any = None,
    p: Any = None,
) -> list[Array]:
    heads = q.shape[-3] if q.ndim > 2 else 1
    wide_k, wide_v = wide(_spread(k, heads)), wide(_spread(v, heads))
    weights = jnp.exp(_scores(q, wide_k, bias, causal, scale) - lse[..., None])
    d_weights = jnp.einsum("...le,...se->...ls", wide(grad), wide_v)
    used = weights
    if p is not None:
        used, keep = dropout(weights, p=p, seed=seed, call=call)
        d_weights = thinned(d_weights, keep, p)
    dot = jnp.sum(weights * d_weights, -1, keepdims=True)
    d_scores = weights * (d_weights - dot)
    scaled = d_scores * _scale(q, scale)
    grads = (
        lambda: jnp.einsum("...ls,...se->...le", scaled, wide_k),
        lambda: _gather(jnp.einsum("...ls,...le->...se", scaled, wide(q)), k),
        lambda: _gather(jnp.einsum("...ls,...le->...se", used, wide(grad)), v),
        lambda: _sum_to(d_scores, bias),
    )
    return [make() for make, wanted in zip(grads, mask, strict=True) if wanted]  # type: ignore[no-untyped-call]


def _sum_to(grad: Array, like: Array | None) -> Array:
    """The transpose of broadcasting `like` to the gradient's shape."""
    assert like is not None
    extra = grad.ndim - like.ndim
    ones = tuple(i for i, n in enumerate(like.shape) if n == 1 and grad.shape[i + extra] != 1)
    return jnp.sum(jnp.sum(grad, tuple(range(extra))), ones, keepdims=True)


# -- what nn.MultiheadAttention and nn.TransformerEncoderLayer ask for when they only infer --------


def _heads(x: Array, weight: Array, bias: Array, heads: int) -> Array:
    y = x @ weight.T + bias
    return y.reshape(*y.shape[:-1], heads, y.shape[-1] // heads).swapaxes(-2, -3)


def _masked_weights(scores: Array, mask: Array | None, kind: int | None) -> Array:
    """`kind`: 0 for (queries, keys), 1 for (batch, keys), 2 for the scores' own shape."""
    if mask is not None:
        hidden = mask if mask.dtype == jnp.bool_ else mask != 0
        shapes = {0: (1, 1, *mask.shape[-2:]), 1: (mask.shape[0], 1, 1, mask.shape[-1])}
        hidden = hidden.reshape(shapes.get(2 if kind is None else kind, mask.shape))
        scores = jnp.where(hidden, -jnp.inf, scores)
    return jax.nn.softmax(scores, axis=-1)


def _native_attention(
    query: Array,
    key: Array,
    value: Array,
    width: int,
    heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    out_weight: Array,
    out_bias: Array,
    mask: Array | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> list[Array]:
    q, k, v = (
        _heads(x, weight, bias, heads)
        for x, weight, bias in zip(
            (query, key, value), jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3), strict=True
        )
    )
    scores = _scores(q, k, None, causal=False, scale=None)
    weights = _masked_weights(scores, mask, mask_type)
    mixed = jnp.einsum("...ls,...se->...le", weights, wide(v)).astype(query.dtype)
    out = mixed.swapaxes(-2, -3).reshape(*query.shape[:-1], width) @ out_weight.T + out_bias
    if not need_weights:
        return [out]
    return [out, jnp.mean(weights, 1) if average else weights]


def _encoder_layer(
    x: Array,
    width: int,
    heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    out_weight: Array,
    out_bias: Array,
    use_gelu: bool,
    norm_first: bool,
    eps: Any,
    norm1_weight: Array,
    norm1_bias: Array,
    norm2_weight: Array,
    norm2_bias: Array,
    up_weight: Array,
    up_bias: Array,
    down_weight: Array,
    down_bias: Array,
    mask: Array | None = None,
    mask_type: int | None = None,
) -> Array:
    def attend(x: Array) -> Array:
        weights = (qkv_weight, qkv_bias, out_weight, out_bias)
        kind = {"need_weights": False, "mask_type": mask_type}
        return _native_attention(x, x, x, width, heads, *weights, mask, **kind)[0]  # type: ignore[arg-type]

    def feed(x: Array) -> Array:
        inner = x @ up_weight.T + up_bias
        inner = jax.nn.gelu(inner, approximate=False) if use_gelu else jax.nn.relu(inner)
        return inner @ down_weight.T + down_bias

    def norm(x: Array, weight: Array, bias: Array) -> Array:
        return layer_norm(x, x.shape[-1:], weight, bias, eps)[0].astype(x.dtype)

    if norm_first:
        x = x + attend(norm(x, norm1_weight, norm1_bias))
        return x + feed(norm(x, norm2_weight, norm2_bias))
    x = norm(x + attend(x), norm1_weight, norm1_bias)
    return norm(x + feed(x), norm2_weight, norm2_bias)


ATTENTION_RULES = Rules(
    {
        "kit.attention": _attention,
        "kit.attention_backward": _attention_backward,
        "aten._native_multi_head_attention.default": _native_attention,
        "aten._transformer_encoder_layer_fwd.default": _encoder_layer,
    }
)
