"""Rules for special functions, and for elementwise ops that torch has no decomposition for."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy import special

from kit.runtime.rules.math import cast, floating, rounded_once, two_sided
from kit.runtime.rules.table import Rules

__all__ = ["SPECIAL_RULES", "logaddexp"]


def _of_floats(function: Callable[..., Any]) -> Callable[..., Array]:
    """Integers and numbers become floats first, all of one type."""

    def rule(*args: Any) -> Array:
        floats = [floating(a) for a in args]
        tensors = [a.dtype for a in floats if a.ndim] or [a.dtype for a in floats]
        common = jnp.result_type(*tensors)
        return function(*jnp.broadcast_arrays(*[a.astype(common) for a in floats]))

    return rule


def _digamma(x: Array) -> Array:
    """As in torch, infinite at 0 and not a number at the other poles."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), lax.digamma(x))


def _polygamma(n: Any, x: Any) -> Array:
    """Jax's is wrong below -9: from a half down another way is taken."""
    if not isinstance(n, int):  # `polygamma_` has the order last
        n, x = x, n
    x = floating(x)
    if n == 0:
        return _digamma(x)
    is_low = x < 0.5
    if n == 1:  # by reflection, as in torch
        high = special.polygamma(1, jnp.where(is_low, 1 - x, x))
        high = jnp.where(jnp.isposinf(x), 0, high)
        wave = jnp.square(jnp.pi / jnp.sin(jnp.pi * (x - jnp.round(x))))
        return jnp.where(is_low, wave - high, high)
    is_pole = (x <= 0) & (x == jnp.floor(x))

    def up(state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, terms = state
        return jnp.where(x < 0.5, x + 1, x), jnp.where(x < 0.5, terms + x ** -(n + 1.0), terms)

    start = jnp.where(is_pole, 1, x), jnp.zeros_like(x)
    high, terms = lax.while_loop(lambda state: jnp.any(state[0] < 0.5), up, start)
    sign = (-1) ** (n + 1)
    value = special.polygamma(n, high) + sign * math.factorial(n) * terms
    return jnp.where(is_pole, sign * jnp.inf, value)


def _mvlgamma(x: Array, p: int) -> Array:
    return special.multigammaln(floating(x), p)


def _logit(x: Array, eps: float | None = None) -> Array:
    x = floating(x)
    x = x if eps is None else jnp.clip(x, eps, 1 - eps)
    return jnp.log(x) - jnp.log1p(-x)


def _heaviside(x: Array, value: Array) -> Array:
    return jnp.where(x == 0, value, cast(x > 0, x.dtype))


def logaddexp(x: Array, y: Array) -> Array:
    """log(exp(x) + exp(y)); of complex numbers, on the branch of the one with the larger real part.

    Source: torch's kernel of logcumsumexp.
    """
    if not jnp.iscomplexobj(x):
        return jnp.logaddexp(x, y)
    is_less = jnp.real(x) < jnp.real(y)
    least, most = jnp.where(is_less, x, y), jnp.where(is_less, y, x)
    end = jnp.real(most)
    ends = jnp.where(end < 0, least, jnp.log(jnp.exp(least) + jnp.exp(most)))
    sums = most + jnp.log1p(jnp.exp(least - most))
    return jnp.where(jnp.isinf(end) & (end == jnp.real(least)), ends, sums)


def _nan_to_num(x: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    """Each number is looked at once: NaN may become an infinity, and remains one."""
    filled = jnp.nan_to_num(x, posinf=posinf, neginf=neginf)
    return filled if nan is None else jnp.where(jnp.isnan(x), jnp.asarray(nan, x.dtype), filled)


def _gcd(x: Array, y: Array) -> Array:
    """Without signs: the least number has no opposite, and jax's loop would never end with it."""
    common = jnp.result_type(x, y)
    unsigned = common if jnp.issubdtype(common, jnp.unsignedinteger) else f"u{common}"
    return jnp.gcd(*[jnp.abs(v.astype(common)).astype(unsigned) for v in (x, y)]).astype(common)


def _lcm(x: Array, y: Array) -> Array:
    divisor = _gcd(x, y)
    return jnp.abs(jnp.where(divisor == 0, 0, x // jnp.where(divisor == 0, 1, divisor) * y))


def _polynomial(
    start: Callable[[Array], Array], step: Callable[..., Array]
) -> Callable[..., Array]:
    """An orthogonal family by its recurrence."""

    def rule(x: Any, n: Any) -> Array:
        x, n = floating(x), jnp.asarray(n)
        if jnp.issubdtype(n.dtype, jnp.inexact):
            x = x.astype(jnp.promote_types(x.dtype, n.dtype))
        x, n = jnp.broadcast_arrays(x, n)
        n = n.astype(jnp.int32)

        def body(k: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            before, now, out = state
            after = step(x, k, now, before)
            return now, after, jnp.where(n == k + 1, after, out)

        one, first = jnp.ones_like(x), start(x)
        out = jnp.where(n < 0, 0, jnp.where(n == 0, one, first))
        return lax.fori_loop(1, jnp.max(n, initial=1), body, (one, first, out))[2]

    return rule


def _zeta(x: Any, q: Any) -> Array:
    pole = (jnp.asarray(q) <= 0) & (jnp.floor(q) == q)
    return jnp.where(jnp.asarray(x) < 1, jnp.nan, jnp.where(pole, jnp.inf, special.zeta(x, q)))


def _chebyshev(x: Array, k: Array, now: Array, before: Array) -> Array:
    return 2 * x * now - before


_POLYNOMIALS = {
    "special_chebyshev_polynomial_u": _polynomial(lambda x: 2 * x, _chebyshev),
    "special_chebyshev_polynomial_v": _polynomial(lambda x: 2 * x - 1, _chebyshev),
    "special_chebyshev_polynomial_w": _polynomial(lambda x: 2 * x + 1, _chebyshev),
    "special_hermite_polynomial_h": _polynomial(
        lambda x: 2 * x, lambda x, k, now, before: 2 * x * now - 2 * k * before
    ),
    "special_hermite_polynomial_he": _polynomial(
        lambda x: x, lambda x, k, now, before: x * now - k * before
    ),
}

_asin = two_sided(jnp.arcsin)


def _asinh(x: Array) -> Array:
    """By the arc sine of i x, whose cut it has."""
    if not jnp.iscomplexobj(x):
        return jnp.arcsinh(x)
    turned = _asin(lax.complex(-x.imag, x.real))
    return lax.complex(turned.imag, -turned.real)


_UNARY: dict[str, Callable[..., Any]] = {
    "i0": special.i0, "special_i0e": special.i0e, "special_i1": special.i1,
    "special_i1e": special.i1e, "special_ndtri": special.ndtri,
    "special_log_ndtr": special.log_ndtr, "special_entr": special.entr, "lgamma": lax.lgamma,
    "digamma": _digamma, "erfc": special.erfc, "erfinv": lax.erf_inv, "exp2": jnp.exp2,
    "sinh": jnp.sinh, "cosh": jnp.cosh, "asinh": _asinh, "acosh": two_sided(jnp.arccosh),
    "atanh": jnp.arctanh, "asin": _asin, "acos": two_sided(jnp.arccos), "atan": jnp.arctan,
    "sinc": jnp.sinc,
}  # fmt: skip
_BINARY: dict[str, Callable[..., Any]] = {
    "logaddexp": logaddexp, "logaddexp2": jnp.logaddexp2, "hypot": jnp.hypot,
    "igamma": lax.igamma, "igammac": lax.igammac,
    "copysign.Tensor": jnp.copysign, "copysign.Scalar": jnp.copysign,
    "special_zeta": _zeta, "special_zeta.self_scalar": _zeta,
    "special_zeta.other_scalar": _zeta, "special_xlog1py": special.xlog1py,
    "special_xlog1py.other_scalar": special.xlog1py, "special_xlog1py.self_scalar": special.xlog1py,
    "xlogy.Tensor": special.xlogy, "xlogy.Scalar_Other": special.xlogy,
    "xlogy.Scalar_Self": special.xlogy,
}  # fmt: skip


def _cdist(x: Array, y: Array, p: float) -> Array:
    gap = jnp.abs(x[..., :, None, :] - y[..., None, :, :])
    if p == 0:
        return jnp.sum(gap != 0, -1).astype(x.dtype)
    if p == jnp.inf:
        return jnp.max(gap, -1, initial=0)
    if p == 1:
        return jnp.sum(gap, -1)
    total = jnp.sum(gap**p, -1)
    safe = jnp.where(total == 0, 1, total)  # the gradient at distance 0 is 0
    return jnp.where(total == 0, 0, safe ** (1 / p))


def _cdist_backward(grad: Array, x: Array, y: Array, p: float) -> Array:
    """Source: torch's kernel; the sign of 0 is 0, so a distance of 0 gives no gradient."""
    gap = x[..., :, None, :] - y[..., None, :, :]
    size = jnp.abs(gap)
    if p == 0:
        return jnp.zeros(
            jnp.broadcast_shapes(grad.shape[:-1], x.shape[:-1]) + x.shape[-1:], x.dtype
        )
    if p == 1:
        part = jnp.sign(gap)
    elif p == jnp.inf:
        part = jnp.sign(gap) * cast(size == jnp.max(size, -1, keepdims=True), x.dtype)
    else:
        dist = _cdist(x, y, p)[..., None]
        safe = jnp.where(dist == 0, 1, dist)
        powers = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** (p - 1))
        part = jnp.where(dist == 0, 0, jnp.sign(gap) * powers / safe ** (p - 1))
    return jnp.sum(grad[..., None] * part, -2)


def _overload(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


SPECIAL_RULES = Rules({
    **{_overload(name): _of_floats(rounded_once(rule))
       for name, rule in {**_UNARY, **_BINARY}.items()},
    "aten.nextafter.default": _of_floats(jnp.nextafter),  # of the dtype's own numbers
    **{_overload(f"{name}{n}"): rule for name, rule in _POLYNOMIALS.items()
       for n in ("", ".n_scalar")},
    "aten.mvlgamma.default": _mvlgamma,
    "aten.polygamma.default": rounded_once(_polygamma),
    "aten.logit.default": rounded_once(_logit), "aten.heaviside.default": _heaviside,
    "aten.nan_to_num.default": _nan_to_num,
    "aten.gcd.default": _gcd, "aten.lcm.default": _lcm,
    "aten.fmax.default": jnp.fmax, "aten.fmin.default": jnp.fmin,
    "aten.frexp.Tensor": jnp.frexp, "aten.signbit.default": jnp.signbit,
    "aten._cdist_forward.default": lambda x, y, p, mode: _cdist(x, y, p),
    "aten._cdist_backward.default": lambda grad, x, y, p, dist: _cdist_backward(grad, x, y, p),
})  # fmt: skip
