"""Rules for ops over lists of tensors: `aten._foreach_*`, fused optimizers, loss scaling."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from kit.runtime.rules.math import BINARY, TERNARY, UNARY, vector_norm
from kit.runtime.rules.special_functions import SPECIAL_RULES
from kit.runtime.rules.table import Rule, Rules

__all__ = ["MULTI_TENSOR", "OPTIMIZERS"]


def _to(number: Any, like: Array) -> Array:
    return jnp.asarray(number).astype(like.dtype)


def _fused_adam(decoupled: bool) -> Rule:
    """torch's fused Adam(W): if `found_inf` is not 0, nothing changes; grads are unscaled."""

    def rule(
        params: Any,
        grads: Any,
        m: Any,
        v: Any,
        vmax: Any,
        steps: Any,
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> list[Array]:
        outs: list[list[Array]] = [[], [], [], [], []]
        for i, (p, raw, m0, v0, t) in enumerate(zip(params, grads, m, v, steps, strict=True)):
            # Numbers are float64 here, as in torch: 1 - beta2 loses half its digits in float32.
            rest1, rest2 = (_to(1 - b, p) for b in (beta1, beta2))
            bias1, bias2 = (_to(1 - b ** t.astype(jnp.float64), p) for b in (beta1, beta2))
            rate, decay, tiny = _to(lr, p), _to(weight_decay, p), _to(eps, p)
            g = raw if grad_scale is None else raw / grad_scale.astype(raw.dtype)
            outs[1].append(g)
            g = (-g if maximize else g).astype(p.dtype)
            p1 = p * _to(1 - lr * weight_decay, p) if decoupled else p
            g = g if decoupled else g + decay * p
            m1 = m0 + rest1 * (g - m0)
            v1 = _to(beta2, p) * v0 + rest2 * g * g
            top = jnp.maximum(vmax[i], v1) if amsgrad else v1
            p1 = p1 - (rate / bias1) * m1 / (jnp.sqrt(top) / jnp.sqrt(bias2) + tiny)
            for out, old, new in ((outs[0], p, p1), (outs[2], m0, m1), (outs[3], v0, v1)):
                out.append(new if found_inf is None else jnp.where(found_inf > 0, old, new))
            if amsgrad:
                keep = top if found_inf is None else jnp.where(found_inf > 0, vmax[i], top)
                outs[4].append(keep)
        return [x for out in outs for x in out]

    return rule


def _fused_sgd(
    params: Any,
    grads: Any,
    momenta: Any,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> list[Array]:
    outs: list[list[Array]] = [[], [], []]
    for i, (p, raw) in enumerate(zip(params, grads, strict=True)):
        lr, momentum, dampening, weight_decay = (
            _to(x, p) for x in (lr, momentum, dampening, weight_decay)
        )
        unscaled = raw if grad_scale is None else raw / grad_scale.astype(raw.dtype)
        outs[1].append(unscaled)
        g = (-unscaled if maximize else unscaled).astype(p.dtype) + weight_decay * p
        if momenta:
            new = g if is_first_step else momentum * momenta[i] + (1 - dampening) * g
            g = g + momentum * new if nesterov else new
            outs[2].append(new if found_inf is None else jnp.where(found_inf > 0, momenta[i], new))
        p1 = p - lr * g
        outs[0].append(p1 if found_inf is None else jnp.where(found_inf > 0, p, p1))
    return [x for out in outs for x in out]


def _fused_adagrad(
    params: Any,
    grads: Any,
    sums: Any,
    steps: Any,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> list[Array]:
    outs: list[list[Array]] = [[], [], [], list(steps)]  # only one overload writes the steps
    for p, raw, s0, t in zip(params, grads, sums, steps, strict=True):
        g = raw if grad_scale is None else raw / grad_scale.astype(raw.dtype)
        outs[1].append(g)
        g = (-g if maximize else g).astype(p.dtype) + _to(weight_decay, p) * p
        later = 1 + (t.astype(jnp.float64) - 1) * lr_decay
        rate = _to(jnp.asarray(lr).astype(jnp.float64) / later, p)
        s1 = s0 + g * g
        p1 = p - rate * g / (jnp.sqrt(s1) + _to(eps, p))
        for out, old, new in ((outs[0], p, p1), (outs[2], s0, s1)):
            out.append(new if found_inf is None else jnp.where(found_inf > 0, old, new))
    return [x for out in outs for x in out]


def _unscale(grads: Any, found_inf: Array, inv_scale: Array) -> list[Array]:
    bad = jnp.stack([jnp.any(~jnp.isfinite(g)) for g in grads]).any() if grads else False
    bad |= (
        inv_scale == 0
    ).any()  # of 2^127, on a CPU: the gradients are lost, so the scale is too large
    return [*(g * inv_scale.astype(g.dtype) for g in grads), jnp.where(bad, 1.0, found_inf)]


def _update_scale(
    scale: Array, tracker: Array, found_inf: Array, growth: Any, backoff: Any, interval: int
) -> list[Array]:
    """Source: torch's amp_update_scale kernel: grow after `interval` clean steps in a row."""
    clean = tracker + 1
    grown = jnp.where(jnp.isfinite(scale * growth), scale * growth, scale)
    good_scale = jnp.where(clean == interval, grown, scale)
    good_tracker = jnp.where(clean == interval, 0, clean)
    bad = found_inf > 0
    return [jnp.where(bad, scale * backoff, good_scale), jnp.where(bad, 0, good_tracker)]


OPTIMIZERS = Rules({
    "aten._fused_adam.default": _fused_adam(False), "aten._fused_adamw.default": _fused_adam(True),
    "aten._fused_adam.tensor_lr": _fused_adam(False),
    "aten._fused_adamw.tensor_lr": _fused_adam(True),
    "aten._fused_adagrad.default": _fused_adagrad,
    "aten._fused_adagrad.tensor_lr": lambda *a, **k: _fused_adagrad(*a, **k)[: -len(a[3])],
    "aten._fused_sgd.default": _fused_sgd, "aten._fused_sgd.tensor_lr": _fused_sgd,
    "aten._amp_foreach_non_finite_check_and_unscale.default": _unscale,
    "aten._amp_update_scale.default": _update_scale,
})  # fmt: skip


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
        "aten._foreach_copy.default": lambda xs, ys, non_blocking=False: [
            jnp.broadcast_to(y, x.shape) for x, y in zip(xs, ys, strict=True)
        ],
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
