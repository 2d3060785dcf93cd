"""Rules for ops over lists of tensors: `aten._foreach_*`, fused optimizers, loss scaling."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from kit.runtime.rules.math import BINARY, TERNARY, UNARY, vector_norm, wide
from kit.runtime.rules.special_functions import SPECIAL_RULES
from kit.runtime.rules.table import Rule, Rules

__all__ = ["MULTI_TENSOR", "OPTIMIZERS"]


def _to(number: Any, like: Array) -> Array:
    return jnp.asarray(number).astype(like.dtype)


def _kept(found_inf: Array | None, old: Array, new: Array) -> Array:
    """The new value, but the old one in a step whose gradients are not finite."""
    return new if found_inf is None else jnp.where(found_inf > 0, old, new)


def _computed_wide(rule: Rule) -> Rule:
    """As torch's fused kernels: they compute in float32 what they read and write in less.

    In float16 a scale of 65,520 is infinite, and `eps` is 0.
    """

    def computed(*lists: Any, **options: Any) -> list[Array]:
        made = rule(*([wide(x) for x in each] for each in lists), **options)
        given = [x for each in lists for x in each]  # a result for each of them, in this order
        return [new.astype(old.dtype) for new, old in zip(made, given, strict=False)]

    return computed


def _unscaled(grad: Array, grad_scale: Array | None) -> Array:
    return grad if grad_scale is None else grad / grad_scale.astype(grad.dtype)


def _fused_adam(decoupled: bool) -> Rule:
    """torch's fused Adam(W): if `found_inf` is not 0, nothing changes; grads are unscaled."""

    def rule(
        params: Any, grads: Any, m: Any, v: Any, vmax: Any, steps: Any, *, lr: Any, beta1: Any,
        beta2: Any, weight_decay: Any, eps: Any, amsgrad: bool, maximize: bool,
        grad_scale: Array | None = None, found_inf: Array | None = None,
    ) -> list[Array]:  # fmt: skip
        outs: list[list[Array]] = [[], [], [], [], []]
        for i, (p, raw, m0, v0, t) in enumerate(zip(params, grads, m, v, steps, strict=True)):
            # Numbers are float64 here, as in torch: 1 - beta2 loses half its digits in float32.
            rest1, rest2 = (_to(1 - b, p) for b in (beta1, beta2))
            bias1, bias2 = (_to(1 - b ** t.astype(jnp.float64), p) for b in (beta1, beta2))
            rate, decay, tiny = _to(lr, p), _to(weight_decay, p), _to(eps, p)
            g = _unscaled(raw, grad_scale)
            outs[1].append(g)
            g = (-g if maximize else g).astype(p.dtype)
            p1 = p * _to(1 - lr * weight_decay, p) if decoupled else p
            g = g if decoupled else g + decay * p
            m1 = m0 + rest1 * (g - m0)
            v1 = _to(beta2, p) * v0 + rest2 * g * g
            top = jnp.maximum(vmax[i], v1) if amsgrad else v1
            p1 = p1 - (rate / bias1) * m1 / (jnp.sqrt(top) / jnp.sqrt(bias2) + tiny)
            for out, old, new in ((outs[0], p, p1), (outs[2], m0, m1), (outs[3], v0, v1)):
                out.append(_kept(found_inf, old, new))
            if amsgrad:
                outs[4].append(_kept(found_inf, vmax[i], top))
        return [x for out in outs for x in out]

    return rule


def _fused_sgd(
    params: Any, grads: Any, momenta: Any, *, weight_decay: Any, momentum: Any, lr: Any,
    dampening: Any, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Array | None = None, found_inf: Array | None = None,
) -> list[Array]:  # fmt: skip
    outs: list[list[Array]] = [[], [], []]
    for i, (p, raw) in enumerate(zip(params, grads, strict=True)):
        lr, momentum, dampening, weight_decay = (
            _to(x, p) for x in (lr, momentum, dampening, weight_decay)
        )
        g = _unscaled(raw, grad_scale)
        outs[1].append(g)
        g = (-g if maximize else g).astype(p.dtype) + weight_decay * p
        if momenta:
            new = g if is_first_step else momentum * momenta[i] + (1 - dampening) * g
            g = g + momentum * new if nesterov else new
            outs[2].append(_kept(found_inf, momenta[i], new))
        outs[0].append(_kept(found_inf, p, p - lr * g))
    return [x for out in outs for x in out]


def _fused_adagrad(
    params: Any, grads: Any, sums: Any, steps: Any, *, lr: Any, lr_decay: Any, weight_decay: Any,
    eps: Any, maximize: bool, grad_scale: Array | None = None, found_inf: Array | None = None,
) -> list[Array]:  # fmt: skip
    outs: list[list[Array]] = [[], [], [], list(steps)]  # only one overload writes the steps
    for p, raw, s0, t in zip(params, grads, sums, steps, strict=True):
        g = _unscaled(raw, grad_scale)
        outs[1].append(g)
        g = (-g if maximize else g).astype(p.dtype) + _to(weight_decay, p) * p
        later = 1 + (t.astype(jnp.float64) - 1) * lr_decay
        rate = _to(jnp.asarray(lr).astype(jnp.float64) / later, p)
        s1 = s0 + g * g
        p1 = p - rate * g / (jnp.sqrt(s1) + _to(eps, p))
        for out, old, new in ((outs[0], p, p1), (outs[2], s0, s1)):
            out.append(_kept(found_inf, old, new))
    return [x for out in outs for x in out]


def _unscale(grads: Any, found_inf: Array, inv_scale: Array) -> list[Array]:
    bad = jnp.stack([jnp.any(~jnp.isfinite(g)) for g in grads]).any() if grads else False
    # The inverse of 2^127 is 0 on a CPU: the gradients are lost, so the scale is too large.
    bad |= (inv_scale == 0).any()
    unscaled = ((wide(g) * inv_scale).astype(g.dtype) for g in grads)
    return [*unscaled, jnp.where(bad, 1.0, found_inf)]


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


_FUSED: dict[str, Rule] = {
    "aten._fused_adam.default": _fused_adam(False), "aten._fused_adamw.default": _fused_adam(True),
    "aten._fused_adam.tensor_lr": _fused_adam(False),
    "aten._fused_adamw.tensor_lr": _fused_adam(True),
    "aten._fused_adagrad.default": _fused_adagrad,
    "aten._fused_adagrad.tensor_lr": lambda *a, **k: _fused_adagrad(*a, **k)[: -len(a[3])],
    "aten._fused_sgd.default": _fused_sgd, "aten._fused_sgd.tensor_lr": _fused_sgd,
}  # fmt: skip

OPTIMIZERS = Rules({
    **{name: _computed_wide(rule) for name, rule in _FUSED.items()},
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


_FOREACH_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "clone", "cos", "cosh", "erf", "erfc", "exp", "expm1",
    "floor", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def _factors(rule: Rule) -> Rule:
    """`addcmul`, `addcdiv`: one factor for all tensors, or for each, in a list or in a tensor."""

    def multi(xs: Any, a: Any, b: Any, value: Any = 1) -> list[Array]:
        is_shared = not isinstance(value, list | tuple) and jnp.ndim(value) == 0
        values = [value] * len(xs) if is_shared else value
        return [rule(*row, value=v) for *row, v in zip(xs, a, b, values, strict=True)]

    return multi


def _power_sum(x: Array, p: Any = 2, dtype: str | None = None) -> Array:
    return jnp.sum(jnp.abs(x if dtype is None else x.astype(dtype)) ** p)


# Op and overloads -> the rule of one tensor, or of one from each list.
_FOREACH: dict[tuple[str, ...], Rule] = {
    ("add", "List", "Scalar", "ScalarList", "Tensor"): BINARY["aten.add.Tensor"],
    ("sub", "List", "Scalar", "ScalarList"): BINARY["aten.sub.Tensor"],
    ("mul", "List", "Scalar", "ScalarList", "Tensor"): BINARY["aten.mul.Tensor"],
    ("div", "List", "Scalar", "ScalarList", "Tensor"): BINARY["aten.div.Tensor"],
    ("maximum", "List", "Scalar", "ScalarList"): jnp.maximum,
    ("minimum", "List", "Scalar", "ScalarList"): jnp.minimum,
    ("pow", "List", "Scalar", "ScalarList"): BINARY["aten.pow.Tensor_Tensor"],
    ("clamp_min", "List", "Scalar", "ScalarList"): jnp.maximum,
    ("clamp_max", "List", "Scalar", "ScalarList"): jnp.minimum,
    ("lerp", "List", "Scalar", "ScalarList"): TERNARY["aten.lerp.Scalar"],
    ("copy", "default"): lambda x, y, non_blocking=False: jnp.broadcast_to(y, x.shape),
    ("norm", "Scalar"): lambda x, p=2, dtype=None: vector_norm(x, p, dtype=dtype),
    ("powsum", "Scalar"): _power_sum,
    ("frac", "default"): lambda x: x - jnp.trunc(x),
    ("max", "default"): jnp.max,
    ("mm", "default"): jnp.matmul,
    ("zero", "default"): jnp.zeros_like,
    **{(op, "default"): (UNARY | SPECIAL_RULES)[f"aten.{op}.default"] for op in _FOREACH_UNARY},
}

MULTI_TENSOR = Rules({
    **{f"aten._foreach_{op}.{overload}": _each(rule)
       for (op, *overloads), rule in _FOREACH.items() for overload in overloads},
    **{f"aten._foreach_{op}.{overload}": _factors(TERNARY[f"aten.{op}.default"])
       for op in ("addcmul", "addcdiv") for overload in ("Scalar", "ScalarList", "Tensor")},
    "aten._foreach_pow.ScalarAndTensor": lambda base, xs: [
        BINARY["aten.pow.Scalar"](base, x) for x in xs],
})  # fmt: skip
