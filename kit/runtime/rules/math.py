"""Rules for elementwise math, comparisons and reductions."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kit.runtime.rules.table import Rule, Rules

__all__ = [
    "BINARY",
    "MATH_RULES",
    "TERNARY",
    "UNARY",
    "added_at",
    "bound",
    "cast",
    "div",
    "floating",
    "followed",
    "gradient_of",
    "rounded_once",
    "two_sided",
    "var",
    "vector_norm",
    "wide",
]

Dims = int | Sequence[int] | None


def cast(x: Array, dtype: Any) -> Array:
    """The array in another dtype.

    Floats become integers of 64 bits, or of 32 and then fewer: what those cannot hold, and NaN,
    becomes the smallest one, as x86 does it. XLA alone takes the nearest integer.

    Truths become floats by a choice: XLA makes `choose(truth, x, 0)` of `x * convert(truth)`, and
    so 0 of NaN and infinity, in those programs in which both ops are.
    """
    dtype = jnp.dtype(dtype)
    if x.dtype == jnp.bool_ and jnp.issubdtype(dtype, jnp.inexact):
        return jnp.where(x, jnp.ones((), dtype), jnp.zeros((), dtype))
    if jnp.iscomplexobj(x) and not jnp.issubdtype(dtype, jnp.complexfloating):
        x = x != 0 if dtype == jnp.bool_ else jnp.real(x)
    is_cut = jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer)
    if not is_cut or (dtype.name.startswith("uint") and dtype.itemsize > 1):
        return x.astype(dtype)
    wide = jnp.dtype("int64" if dtype.itemsize == 8 else "int32")
    if x.dtype.itemsize < 4:
        x = x.astype(jnp.float32)
    end = 2.0 ** (8 * wide.itemsize - 1)
    fits = (x >= -end) & (x < end)
    return jnp.where(fits, x, -end).astype(wide).astype(dtype)


def bound(dtype: Any, *, least: bool) -> Any:
    """The least or the largest number of a dtype."""
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf if least else jnp.inf
    if dtype == jnp.bool_:
        return not least
    info = np.iinfo(dtype)
    return info.min if least else info.max


def floating(x: Any) -> Array:
    """Torch computes float functions of integers in float32."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else cast(x, jnp.float32)


def _widened(x: Any, *others: Any) -> Any:
    """An array in the type that it and the others have together; numbers stay what they are."""
    return cast(x, jnp.result_type(x, *others)) if isinstance(x, Array) else x


def _both(x: Any, y: Any) -> tuple[Any, Any]:
    """Each of two in the type that they have together."""
    return _widened(x, y), _widened(y, x)


def _names(op: str, *overloads: str) -> list[str]:
    return [f"aten.{op}.{overload}" for overload in overloads]


def _table(functions: dict[str, Rule], *overloads: str) -> Rules:
    return Rules({name: f for op, f in functions.items() for name in _names(op, *overloads)})


def wide(x: Array) -> Array:
    """At least float32: what scores, states and statistics are computed in."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def rounded_once(rule: Rule) -> Rule:
    """A rule of several operations, for halves: in float32, as torch does; the result is rounded.

    Only for ops whose result has the dtype that torch promises, to which each is cast in the end.
    """

    def in_float32(*args: Any, **kwargs: Any) -> Any:
        return rule(*[_wide_half(x) for x in args], **kwargs)

    return in_float32


def gradient_of(rule: Rule) -> Rule:
    """The gradient by a rule's first argument; aten gives that of the result before them all."""

    def backward(grad: Array, x: Array, *args: Any, **kwargs: Any) -> Array:
        y, pull = jax.vjp(lambda x: rule(x, *args, **kwargs), x)
        return pull(jnp.broadcast_to(grad, y.shape).astype(y.dtype))[0]

    return backward


def _wide_half(x: Any) -> Any:
    return x.astype(jnp.float32) if isinstance(x, Array) and _is_half(x) else x


def _is_half(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4


def followed(product: Rule, a: Array, b: Array, add: Callable[[Array], Array]) -> Array:
    """`add(product(a, b))`, for halves on a CPU rounded after both, as torch does.

    On a GPU XLA's kernel of a product adds a bias before it rounds (seen on an H100, whose error
    was torch's), and a product in float32 takes a pass more to round: there it keeps its dtype.
    """
    if not _is_half(a):
        return add(product(a, b))

    def narrow(a: Array, b: Array) -> Array:
        return add(product(a, b)).astype(a.dtype)

    def in_float32(a: Array, b: Array) -> Array:
        return add(product(a, b, preferred_element_type=jnp.float32)).astype(a.dtype)

    return lax.platform_dependent(a, b, cpu=in_float32, default=narrow)


def two_sided(function: Rule) -> Rule:
    """A function with f(conj z) = conj f(z): on its cut a zero's sign tells the side, as in torch.

    XLA and jax take each number on the cut for one above it.
    """

    def rule(z: Array) -> Array:
        if not jnp.iscomplexobj(z):
            return function(z)
        above = function(lax.complex(z.real, jnp.abs(z.imag)))
        return jnp.where(jnp.signbit(z.imag), jnp.conj(above), above)

    return rule


_sqrt = two_sided(jnp.sqrt)
UNARY = _table(
    {
        "abs": jnp.abs, "neg": jnp.negative, "exp": lambda x: jnp.exp(floating(x)),
        "expm1": lambda x: jnp.expm1(floating(x)), "log": lambda x: jnp.log(floating(x)),
        "log1p": lambda x: jnp.log1p(floating(x)), "sqrt": lambda x: _sqrt(floating(x)),
        "log2": rounded_once(lambda x: jnp.log2(floating(x))),
        "log10": rounded_once(lambda x: jnp.log10(floating(x))),
        "rsqrt": lambda x: lax.rsqrt(floating(x)), "sin": lambda x: jnp.sin(floating(x)),
        "cos": lambda x: jnp.cos(floating(x)), "tan": lambda x: jnp.tan(floating(x)),
        "tanh": lambda x: jnp.tanh(floating(x)),
        "sigmoid": rounded_once(lambda x: jax.nn.sigmoid(floating(x))),
        "erf": lambda x: lax.erf(floating(x)), "reciprocal": lambda x: 1 / floating(x),
        "floor": jnp.floor, "ceil": jnp.ceil, "trunc": jnp.trunc, "round": jnp.round,
        "sign": lambda x: x if x.dtype == bool else jnp.where((x > 0) | (x < 0), jnp.sign(x), 0),
        "relu": lambda x: jnp.maximum(x, 0), "silu": rounded_once(jax.nn.silu),
        "isnan": jnp.isnan, "isinf": jnp.isinf, "isfinite": jnp.isfinite,
        "logical_not": jnp.logical_not, "bitwise_not": jnp.bitwise_not, "square": jnp.square,
        "clone": lambda x, **_: x,
        "lift_fresh_copy": lambda x: x, "_to_copy": lambda x, **_: x,
        "zero": jnp.zeros_like,
    },
    "default",
)  # fmt: skip


def _times(alpha: Any, x: Any, *others: Any) -> Any:
    """Alpha times x, in the type that x and the others have together, as torch widens first."""
    x = _widened(x, *others)
    return x if isinstance(alpha, int) and alpha == 1 else alpha * x


def _add(x: Array, y: Any, alpha: Any = 1) -> Array:
    return _widened(x, y) + _times(alpha, y, x)


def _sub(x: Array, y: Any, alpha: Any = 1) -> Array:
    return x - _times(alpha, y, x)


def _rsub(x: Array, y: Any, alpha: Any = 1) -> Any:
    return y - _times(alpha, x, y)


def _mul(x: Any, y: Any) -> Any:
    x, y = _both(x, y)
    return x * y


def _addcmul(x: Array, a: Array, b: Array, *, value: Any = 1) -> Array:
    """Of integers, the factor is one: torch takes 0.5 for 0."""
    product = _widened(a, x, b) * _widened(b, x, a)
    if not jnp.issubdtype(product.dtype, jnp.inexact):
        value = cast(jnp.asarray(value), product.dtype)
    return x + _times(value, product)


def _floor_divide(x: Any, y: Any) -> Array:
    """A quotient of 0 has the sign of x / y, as torch's, and not that of what was rounded."""
    x, y = _both(x, y)
    found = jnp.floor_divide(x, y)
    if not jnp.issubdtype(found.dtype, jnp.floating):
        return found
    return jnp.where(found == 0, jnp.copysign(found, jnp.asarray(x) / y), found)


def div(x: Array, y: Any, *, rounding_mode: str | None = None) -> Array:
    """Torch's; to "trunc" is to round towards zero."""
    x, y = _both(x, y)
    if rounding_mode is None:  # XLA may multiply by a reciprocal, which halves would round, too
        return jnp.true_divide(_wide_half(x), _wide_half(y))
    if rounding_mode == "floor":
        return _floor_divide(x, y)
    common = jnp.result_type(x, y)
    if not jnp.issubdtype(common, jnp.integer):
        return jnp.trunc(x / y)
    return lax.div(*jnp.broadcast_arrays(jnp.asarray(x, common), jnp.asarray(y, common)))


def _compare(function: Rule) -> Rule:
    """Compare in torch's common type: a number or a 0-d tensor does not widen a float tensor."""

    def rule(x: Any, y: Any) -> Array:
        x, y = jnp.asarray(x), jnp.asarray(y)
        if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(y.dtype, jnp.floating):
            if y.ndim == 0 and x.ndim:
                y = y.astype(x.dtype)
            elif x.ndim == 0 and y.ndim:
                x = x.astype(y.dtype)
        return function(x, y)

    return rule


def _lerp(x: Array, y: Array, w: Any) -> Array:
    """Source: torch's lerp kernel, which is exact at both ends."""
    return jnp.where(jnp.abs(w) < 0.5, x + w * (y - x), y - (y - x) * (1 - w))


def _pow(x: Any, y: Any) -> Array:
    if isinstance(y, float) and y == 0.5:  # torch's root of -inf is not a number
        return _sqrt(floating(x))
    integers = all(jnp.issubdtype(jnp.result_type(v), jnp.integer) for v in (x, y))
    if integers and isinstance(y, Array):
        return _integer_pow(x, y)
    found = jnp.power(_widened(x, y), y)
    if jnp.iscomplexobj(found):  # XLA's power of 0j is not a number where y is complex
        found = jnp.where((x == 0) & (jnp.real(y) > 0), 0, found)
    return found


def _integer_pow(x: Any, y: Array) -> Array:
    """By squaring, modulo 2**64 as in torch; jnp.power looks at six bits of the exponent only."""
    x, y = jnp.broadcast_arrays(jnp.asarray(x).astype(jnp.int64), y.astype(jnp.int64))

    def square(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        out, base, rest = state
        return jnp.where(rest & 1 == 1, out * base, out), base * base, rest >> 1

    start = (jnp.ones_like(x), x, jnp.maximum(y, 0))
    out: Array = lax.while_loop(lambda state: jnp.any(state[2] > 0), square, start)[0]
    fraction = jnp.where(x == 1, 1, jnp.where(x == -1, jnp.where(y & 1 == 1, -1, 1), 0))
    return jnp.where(y < 0, fraction, out)


BINARY = _table(
    {
        "add": _add, "sub": _sub, "rsub": _rsub, "mul": _mul, "div": div,
        "eq": _compare(jnp.equal), "ne": _compare(jnp.not_equal), "lt": _compare(jnp.less),
        "le": _compare(jnp.less_equal), "gt": _compare(jnp.greater),
        "ge": _compare(jnp.greater_equal), "remainder": jnp.remainder,
        "fmod": jnp.fmod, "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or,
        "bitwise_xor": jnp.bitwise_xor,
    },
    "Tensor", "Scalar",
) | Rules({
    "aten.div.Tensor_mode": div, "aten.div.Scalar_mode": div,
    "aten.pow.Tensor_Scalar": _pow, "aten.pow.Tensor_Tensor": _pow, "aten.pow.Scalar": _pow,
    "aten.maximum.default": jnp.maximum, "aten.minimum.default": jnp.minimum,
    "aten.logical_and.default": jnp.logical_and, "aten.logical_or.default": jnp.logical_or,
    "aten.logical_xor.default": jnp.logical_xor, "aten.atan2.default": jnp.arctan2,
    "aten.floor_divide.default": _floor_divide, "aten.floor_divide.Scalar": _floor_divide,
})  # fmt: skip


def _clamp(x: Array, low: Any = None, high: Any = None) -> Array:
    if low is not None:
        x = jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


def _gelu(x: Array, *, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


TERNARY = Rules({
    "aten.addcmul.default": _addcmul,
    "aten.addcdiv.default": rounded_once(lambda x, a, b, *, value=1: x + value * div(a, b)),
    "aten.lerp.Scalar": rounded_once(_lerp),
    "aten.lerp.Tensor": rounded_once(_lerp),
    "aten.where.self": jnp.where,
    "aten.clamp.default": _clamp, "aten.clamp.Tensor": _clamp,
    "aten.clamp_min.default": lambda x, low: jnp.maximum(x, low),
    "aten.clamp_max.default": lambda x, high: jnp.minimum(x, high),
    "aten.masked_fill.Scalar": lambda x, m, v: jnp.where(m, cast(jnp.asarray(v), x.dtype), x),
    "aten.masked_fill.Tensor": lambda x, m, v: jnp.where(m, cast(v, x.dtype), x),
    "aten.gelu.default": rounded_once(_gelu),
    "aten.gelu_backward.default": rounded_once(gradient_of(_gelu)),
    "aten.threshold_backward.default": lambda g, x, t: jnp.where(x <= t, 0, g),
    "aten.tanh_backward.default": rounded_once(lambda g, y: g * jnp.conj(1 - y * y)),
    "aten.sigmoid_backward.default": rounded_once(lambda g, y: g * jnp.conj(y * (1 - y))),
    "aten.silu_backward.default": rounded_once(gradient_of(jax.nn.silu)),
})  # fmt: skip


def _axes(dim: Dims) -> Any:
    if dim is None or (isinstance(dim, Sequence) and not len(dim)):
        return None
    return tuple(dim) if isinstance(dim, Sequence) else dim


def _accumulated(x: Array, dtype: str | None) -> Array:
    """In the dtype that torch accumulates in."""
    if dtype is not None:
        return cast(x, dtype)
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.int64)


def _cumulative(function: Rule) -> Rule:
    """In at least float32: jax adds halves up in halves, where a sum of ones ends at 256."""

    def rule(x: Array, dim: int, *, dtype: str | None = None) -> Array:
        return function(_wide_half(_accumulated(x, dtype)), dim)

    return rule


def added_at(x: Array, where: Any, values: Array) -> Array:
    """`x` with the values added at these places; of truths, "or".

    Halves are summed in float32, as on torch's GPUs: a sum of ones in bfloat16 ends at 256.
    """
    if x.dtype == jnp.bool_:
        return x.at[where].max(values.astype(x.dtype))
    sums = _wide_half(x)
    return sums.at[where].add(values.astype(sums.dtype)).astype(x.dtype)


def _sum(x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: str | None = None) -> Array:
    return jnp.sum(_accumulated(x, dtype), axis=_axes(dim), keepdims=keepdim)


def _mean(x: Array, dim: Dims = None, keepdim: bool = False, *, dtype: str | None = None) -> Array:
    return jnp.mean(_accumulated(x, dtype), axis=_axes(dim), keepdims=keepdim)


def var(x: Array, dim: Dims = None, *, correction: Any = 1, keepdim: bool = False) -> Array:
    """The variance over these dimensions, over all if there are none."""
    axes = _axes(dim)
    square = jnp.square(jnp.abs(x - jnp.mean(x, axis=axes, keepdims=True)))
    total = jnp.sum(square, axis=axes, keepdims=keepdim)
    count = x.size // max(total.size, 1)
    return total / jnp.maximum(count - (1 if correction is None else correction), 0)


def _arg(function: Any) -> Rule:
    def rule(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        return function(x, axis=dim, keepdims=keepdim)

    return rule


def _extreme(reduce: Any, arg: Any) -> Rule:
    def rule(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        return reduce(x, axis=dim, keepdims=keepdim), arg(x, axis=dim, keepdims=keepdim)

    return rule


def vector_norm(
    x: Array, p: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: str | None = None
) -> Array:
    """The p-norm, accumulated in at least float32, as torch does; p is a Python number."""
    x = x if dtype is None else x.astype(dtype)
    size = jnp.abs(wide(x))
    axes = _axes(dim)
    if p == 2:
        return jnp.sqrt(jnp.sum(jnp.square(size), axis=axes, keepdims=keepdim))
    if p == float("inf"):
        return jnp.max(size, axis=axes, keepdims=keepdim)
    if p == float("-inf"):
        return jnp.min(size, axis=axes, keepdims=keepdim)
    if p == 0:
        return jnp.sum(size != 0, axis=axes, keepdims=keepdim)
    return jnp.sum(size**p, axis=axes, keepdims=keepdim) ** (1 / p)


_REDUCTIONS = Rules({
    "aten.sum.default": _sum, "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean, "aten.mean.dim": _mean,
    "aten.var.correction": rounded_once(var),
    "aten.std.correction": rounded_once(lambda *a, **k: jnp.sqrt(var(*a, **k))),
    "aten.amax.default": lambda x, dim=(), keepdim=False: jnp.max(x, _axes(dim), keepdims=keepdim),
    "aten.amin.default": lambda x, dim=(), keepdim=False: jnp.min(x, _axes(dim), keepdims=keepdim),
    "aten.max.default": jnp.max, "aten.min.default": jnp.min,
    "aten.max.dim": _extreme(jnp.max, jnp.argmax), "aten.min.dim": _extreme(jnp.min, jnp.argmin),
    "aten.argmax.default": _arg(jnp.argmax), "aten.argmin.default": _arg(jnp.argmin),
    "aten.prod.default": lambda x, *, dtype=None: jnp.prod(_accumulated(x, dtype)),
    "aten.any.default": jnp.any, "aten.all.default": jnp.all,
    "aten._is_any_true.default": jnp.any, "aten._is_all_true.default": jnp.all,
    "aten.any.dim": lambda x, d, k=False: jnp.any(x, d, keepdims=k),
    "aten.all.dim": lambda x, d, k=False: jnp.all(x, d, keepdims=k),
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.cumsum.default": _cumulative(jnp.cumsum),
    "aten.cumprod.default": _cumulative(jnp.cumprod),
})  # fmt: skip

MATH_RULES = UNARY | BINARY | TERNARY | _REDUCTIONS
