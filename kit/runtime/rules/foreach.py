"""Rules for torch's multi-tensor ops, `aten._foreach_*`: one rule over lists of tensors."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from kit.runtime.rules.math import BINARY, TERNARY, UNARY, vector_norm
from kit.runtime.rules.special_functions import SPECIAL_RULES
from kit.runtime.rules.table import Rule, Rules

__all__ = ["MULTI_TENSOR"]


def _each(rule: Rule) -> Rule:
    """A multi-tensor op: the rule of one tensor over lists; what is not a list is shared."""

    def multi(*args: Any, **kwargs: Any) -> list[Array]:
        count = len(args[0])
        rows = [[a[i] if isinstance(a, list | tuple) else a for a in args] for i in range(count)]
        return [rule(*row, **kwargs) for row in rows]

    return multi


def _foreach_add(xs: Any, ys: Any, alpha: Any = 1) -> list[Array]:
    return _each(BINARY["aten.add.Tensor"])(xs, ys, alpha=alpha)


_FOREACH_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "clone", "cos", "cosh", "erf", "erfc", "exp", "expm1",
    "floor", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def _foreach_table() -> dict[str, Rule]:
    table: dict[str, Rule] = {
        "aten._foreach_add.List": _foreach_add,
        "aten._foreach_add.Tensor": _foreach_add,
        "aten._foreach_sub.List": lambda xs, ys, *, alpha=1: _each(BINARY["aten.sub.Tensor"])(
            xs, ys, alpha=alpha
        ),
        "aten._foreach_norm.Scalar": lambda xs, p=2, dtype=None: [
            vector_norm(x, p, dtype=dtype) for x in xs
        ],
        "aten._foreach_copy.default": lambda xs, ys, non_blocking=False: list(ys),
        "aten._foreach_pow.ScalarAndTensor": lambda base, xs: [jnp.power(base, x) for x in xs],
        "aten._foreach_frac.default": lambda xs: [x - jnp.trunc(x) for x in xs],
        "aten._foreach_max.default": lambda xs: [jnp.max(x) for x in xs],
        "aten._foreach_mm.default": lambda xs, ys: list(map(jnp.matmul, xs, ys)),
        "aten._foreach_powsum.Scalar": lambda xs, p, dtype=None: [
            jnp.sum(jnp.abs(x if dtype is None else x.astype(dtype)) ** p) for x in xs
        ],
        "aten._foreach_zero.default": lambda xs: [jnp.zeros_like(x) for x in xs],
    }
    for op in ("mul", "div"):
        rule = BINARY[f"aten.{op}.Tensor"]
        for overload in ("List", "Scalar", "ScalarList", "Tensor"):
            table[f"aten._foreach_{op}.{overload}"] = _each(rule)
    for op in ("add", "sub"):
        for overload in ("Scalar", "ScalarList"):
            table[f"aten._foreach_{op}.{overload}"] = _each(BINARY[f"aten.{op}.Tensor"])
    for op in _FOREACH_UNARY:
        table[f"aten._foreach_{op}.default"] = _each((UNARY | SPECIAL_RULES)[f"aten.{op}.default"])
    for op, rule in (
        ("maximum", jnp.maximum),
        ("minimum", jnp.minimum),
        ("pow", jnp.power),
        ("clamp_min", jnp.maximum),
        ("clamp_max", jnp.minimum),
    ):
        for overload in ("List", "Scalar", "ScalarList"):
            table[f"aten._foreach_{op}.{overload}"] = _each(rule)
    for op in ("addcmul", "addcdiv"):
        table[f"aten._foreach_{op}.Scalar"] = _foreach_addc(TERNARY[f"aten.{op}.default"])
        table[f"aten._foreach_{op}.ScalarList"] = _foreach_addc(TERNARY[f"aten.{op}.default"])
        table[f"aten._foreach_{op}.Tensor"] = _foreach_addc(TERNARY[f"aten.{op}.default"])
    for overload in ("List", "Scalar", "ScalarList"):
        table[f"aten._foreach_lerp.{overload}"] = _each(TERNARY["aten.lerp.Scalar"])
    return table


def _foreach_addc(rule: Rule) -> Rule:
    def multi(xs: Any, a: Any, b: Any, value: Any = 1) -> list[Array]:
        values = (
            value
            if isinstance(value, list | tuple)
            else [value if jnp.ndim(value) == 0 else value[i] for i in range(len(xs))]
        )
        return [rule(*row, value=v) for *row, v in zip(xs, a, b, values, strict=True)]

    return multi


MULTI_TENSOR = Rules(_foreach_table())
