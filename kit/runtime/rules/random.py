"""Rules for random numbers: each draw is a function of the seed and of the call's number."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kit.runtime.rules.math import cast
from kit.runtime.rules.table import Rules

__all__ = ["RANDOM", "dropout", "thinned"]


def _key(seed: Any, call: Any) -> Array:
    """The random key of one draw."""
    return jax.random.fold_in(jax.random.key(seed.astype(jnp.uint32)), call.astype(jnp.uint32))


def _wide(dtype: Any) -> Any:
    """The type to draw in: bfloat16 has 128 numbers between 1/2 and 1, and so no tails."""
    return jnp.promote_types(dtype, jnp.float32)


def _bernoulli(p: Array, *, seed: Any, call: Any) -> Array:
    return jax.random.uniform(_key(seed, call), p.shape, jnp.float32) < p


def thinned(x: Array, keep: Array, p: Any) -> Array:
    """What dropout makes of the numbers: 0 times NaN and infinity is NaN, as in torch."""
    return jnp.where(keep, x / (1 - p), x * 0)


def dropout(x: Array, *, p: Any, seed: Any, call: Any) -> tuple[Array, Array]:
    """The numbers that are left, and which ones they are."""
    keep = jax.random.bernoulli(_key(seed, call), 1 - p, x.shape)
    return thinned(x, keep, p), keep


def _uniform(
    *, low: Any, high: Any, seed: Any, call: Any, size: Sequence[int], dtype: str
) -> Array:
    wide = _wide(dtype)
    if jnp.issubdtype(wide, jnp.complexfloating):  # both parts are drawn
        real = jnp.float32 if wide == jnp.complex64 else jnp.float64
        parts = jax.random.uniform(_key(seed, call), (2, *size), real) * (high - low) + low
        return lax.complex(*parts.astype(real))
    drawn = jax.random.uniform(_key(seed, call), tuple(size), wide) * (high - low) + low
    last = jnp.nextafter(high.astype(dtype), low.astype(dtype))  # a narrower type may round to high
    return jnp.minimum(drawn.astype(dtype), last)


def _normal(*, mean: Any, std: Any, seed: Any, call: Any, size: Sequence[int], dtype: str) -> Array:
    return jax.random.normal(_key(seed, call), tuple(size), _wide(dtype)) * std + mean


def _randint(
    *, low: int, high: int, seed: Any, call: Any, size: Sequence[int], dtype: str
) -> Array:
    return jax.random.randint(_key(seed, call), tuple(size), low, high, jnp.int64).astype(dtype)


def _exponential(*, rate: Any, seed: Any, call: Any, size: Sequence[int], dtype: str) -> Array:
    wide = _wide(dtype)
    drawn = jax.random.exponential(_key(seed, call), tuple(size), wide)
    return jnp.maximum(drawn, jnp.finfo(wide).eps / 2) / rate  # never 0, as torch promises


def _cauchy(
    *, median: Any, sigma: Any, seed: Any, call: Any, size: Sequence[int], dtype: str
) -> Array:
    return jax.random.cauchy(_key(seed, call), tuple(size), _wide(dtype)) * sigma + median


def _geometric(*, p: Any, seed: Any, call: Any, size: Sequence[int], dtype: str) -> Array:
    """How many tries the first success takes: 1, 2, ..."""
    return jax.random.geometric(_key(seed, call), p, tuple(size)).astype(dtype)


def _multinomial(weights: Array, *, count: int, replacement: bool, seed: Any, call: Any) -> Array:
    key, logits = _key(seed, call), jnp.log(weights.astype(_wide(weights.dtype)))
    if replacement:
        shape = (count, *weights.shape[:-1])
        return jnp.moveaxis(jax.random.categorical(key, logits, shape=shape), 0, -1)
    noise = jax.random.gumbel(key, logits.shape, logits.dtype)  # the largest are a fair draw
    return lax.top_k(logits + noise, count)[1]


RANDOM = Rules({
    "kit.bernoulli": _bernoulli, "kit.dropout": dropout, "kit.uniform": _uniform,
    "kit.normal": _normal, "kit.randint": _randint,
    "kit.log_normal": lambda **k: jnp.exp(_normal(**k)), "kit.exponential": _exponential,
    "kit.cauchy": _cauchy, "kit.geometric": _geometric, "kit.multinomial": _multinomial,
    "kit.deviations": lambda std: std,
    "aten.native_dropout_backward.default": lambda g, mask, scale: (
        g * cast(mask, g.dtype) * scale),
})  # fmt: skip
