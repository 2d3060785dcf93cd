"""Rules for `prims`: what torch's reference decompositions are written in."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import special

from kit.runtime.rules.math import cast, div, var
from kit.runtime.rules.table import Rules

__all__ = ["PRIMS"]

_SAME_NAME = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cbrt", "ceil", "exp",
    "expm1", "exp2", "floor", "isfinite", "log", "log1p", "log2", "log10", "reciprocal", "round",
    "sign", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "atan2", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bitwise_not", "fmax", "fmin", "fmod", "gcd", "hypot", "maximum",
    "minimum", "nextafter", "remainder",
)  # fmt: skip
_FAR = 20.0  # from here on five terms of the series are exact to 1e-15
_OTHER_NAME: dict[str, Callable[..., Any]] = {
    "neg": jnp.negative, "rsqrt": lax.rsqrt, "erf": lax.erf, "erfc": lax.erfc,
    "erf_inv": lax.erf_inv, "digamma": lax.digamma, "lgamma": lax.lgamma, "ndtri": special.ndtri,
    "bessel_i0": special.i0, "bessel_i0e": special.i0e, "bessel_i1": special.i1,
    "bessel_i1e": special.i1e, "zeta": special.zeta, "igamma": lax.igamma, "igammac": lax.igammac,
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
    "pow": jnp.power, "shift_left": jnp.left_shift, "shift_right_arithmetic": jnp.right_shift,
}  # fmt: skip


def _div(x: Any, y: Any) -> Array:
    """Integers are divided towards zero."""
    is_whole = jnp.issubdtype(jnp.result_type(x, y), jnp.integer)
    return div(x, y, rounding_mode="trunc" if is_whole else None)


def _broadcast_in_dim(x: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    return lax.broadcast_in_dim(x, tuple(shape), tuple(dims))


def _split_dim(x: Array, dim: int, outer: int) -> Array:
    inner = x.shape[dim] // outer if outer else 0
    return x.reshape(*x.shape[:dim], outer, inner, *x.shape[dim + 1 :])


def _collapse(x: Array, start: int, end: int) -> Array:
    return x.reshape(*x.shape[:start], prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _reduce(function: Callable[..., Any]) -> Callable[..., Array]:
    def rule(x: Array, dims: Sequence[int] | None, *, output_dtype: str | None = None) -> Array:
        wide = x if output_dtype is None else x.astype(output_dtype)
        return function(wide, axis=None if dims is None else tuple(dims))

    return rule


def _var(
    x: Array, dims: Sequence[int] | None, correction: Any = 1, *, output_dtype: str | None = None
) -> Array:
    return var(x, dims, correction=correction)


def _bessel_j0(x: Array) -> Array:
    return jnp.where(jnp.isinf(x), 0, jnp.where(x == 0, 1, jnp.sin(x) / x))


def _erfcx(x: Array) -> Array:
    """exp(x²) erfc(x), whose factors leave float32 at 9.4 and float64 at 26.

    Source: Abramowitz and Stegun, 7.1.23, for large numbers.
    """
    wide = x.astype("float64")
    small, large = jnp.minimum(wide, _FAR), jnp.maximum(wide, _FAR)
    t = 1 / (2 * large * large)
    series = 1 - t * (1 - 3 * t * (1 - 5 * t * (1 - 7 * t)))
    near = jnp.exp(small * small) * special.erfc(small)
    return jnp.where(wide > _FAR, series / (large * math.sqrt(math.pi)), near).astype(x.dtype)


PRIMS = Rules({
    **{f"prims.{name}.default": getattr(jnp, name) for name in _SAME_NAME},
    **{f"prims.{name}.default": rule for name, rule in _OTHER_NAME.items()},
    "prims.div.default": _div, "prims.where.default": jnp.where,
    "prims.convert_element_type.default": cast,
    "prims.clone.default": lambda x, **_: x, "prims.view_of.default": lambda x: x,
    "prims.conj_physical.default": jnp.conj,
    "prims.broadcast_in_dim.default": _broadcast_in_dim,
    "prims.split_dim.default": _split_dim, "prims.collapse_view.default": _collapse,
    "prims.collapse.default": _collapse,
    "prims.squeeze.default": lambda x, dims: jnp.squeeze(x, tuple(dims)),
    "prims.transpose.default": lambda x, order: jnp.transpose(x, tuple(order)),
    "prims.reshape.default": lambda x, shape: x.reshape(tuple(shape)),
    "prims.rev.default": lambda x, dims: jnp.flip(x, tuple(dims)),
    "prims.cat.default": lambda xs, dim: jnp.concatenate(xs, dim),
    "prims.fill.default": lambda x, value: jnp.full(x.shape, value, x.dtype),
    "prims.sum.default": _reduce(jnp.sum), "prims.prod.default": _reduce(jnp.prod),
    "prims.amax.default": _reduce(jnp.max), "prims.amin.default": _reduce(jnp.min),
    "prims.var.default": _var,
    "prims.frexp.default": jnp.frexp,
    "prims.spherical_bessel_j0.default": _bessel_j0, "prims.erfcx.default": _erfcx,
})  # fmt: skip
