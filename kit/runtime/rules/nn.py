"""Rules for neural-network layers, losses, optimizers, loss scaling and random numbers."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kit.runtime.rules.math import BINARY, TERNARY, UNARY, vector_norm
from kit.runtime.rules.special_functions import SPECIAL_RULES
from kit.runtime.rules.table import Rule, Rules

__all__ = ["LAYERS", "MULTI_TENSOR", "NN_RULES", "OPTIMIZERS", "RANDOM"]


def _softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.softmax(x.astype(jnp.float32) if half_to_float else x, axis=dim)


def _log_softmax(x: Array, dim: int, half_to_float: bool = False) -> Array:
    return jax.nn.log_softmax(x.astype(jnp.float32) if half_to_float else x, axis=dim)


def _softmax_backward(grad: Array, y: Array, dim: int, dtype: str) -> Array:
    scaled = grad * y
    return scaled - y * jnp.sum(scaled, axis=dim, keepdims=True)


def _log_softmax_backward(grad: Array, y: Array, dim: int, dtype: str) -> Array:
    return grad - jnp.exp(y) * jnp.sum(grad, axis=dim, keepdims=True)


def _layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: Any
) -> tuple[Array, Array, Array]:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = jnp.mean(wide, axes, keepdims=True)
    rstd = lax.rsqrt(jnp.mean(jnp.square(wide - mean), axes, keepdims=True) + eps)
    y = (wide - mean) * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, rstd


def _layer_norm_backward(
    grad: Array,
    x: Array,
    shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    mask: Sequence[bool],
) -> list[Array]:
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
        flat = flat / jnp.zeros(rows, flat.dtype).at[where].add(1)[where][:, None]
    return jnp.zeros((rows, grad.shape[-1]), grad.dtype).at[where].add(flat)


def _nll_weights(target: Array, weight: Array | None, ignore: int, dtype: Any) -> Array:
    keep = target != ignore
    return jnp.where(keep, 1 if weight is None else weight[jnp.where(keep, target, 0)], 0).astype(
        dtype
    )


def _nll_loss(
    logp: Array, target: Array, weight: Array | None, reduction: int, ignore: int
) -> tuple[Array, Array]:
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
    w = _nll_weights(target, weight, ignore, logp.dtype)
    scale = -grad * w / total if reduction == 1 else -grad * w
    safe = jnp.where(target == ignore, 0, target)
    hot = jnp.expand_dims(safe, -1) == jnp.arange(logp.shape[-1])
    return jnp.where(hot, jnp.expand_dims(jnp.broadcast_to(scale, target.shape), -1), 0)


def _mse(x: Array, y: Array, reduction: int = 1) -> Array:
    square = jnp.square(x - y)
    return square if reduction == 0 else jnp.mean(square) if reduction == 1 else jnp.sum(square)


def _mse_backward(grad: Array, x: Array, y: Array, reduction: int) -> Array:
    return grad * 2 * (x - y) / (prod(x.shape) if reduction == 1 else 1)


def _safe_softmax(x: Array, dim: int, dtype: str | None = None) -> Array:
    """A row that is masked altogether gives zeros, where softmax gives nan."""
    empty = jnp.all(x == -jnp.inf, axis=dim, keepdims=True)
    return jnp.where(empty, 0, jax.nn.softmax(x if dtype is None else x.astype(dtype), axis=dim))


LAYERS = Rules({
    "aten._safe_softmax.default": _safe_softmax,
    "aten._softmax.default": _softmax, "aten._log_softmax.default": _log_softmax,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _log_softmax_backward,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.embedding.default": _embedding,
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.nll_loss_forward.default": _nll_loss,
    "aten.nll_loss_backward.default": _nll_loss_backward,
    "aten.mse_loss.default": _mse, "aten.mse_loss_backward.default": _mse_backward,
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


def _key(seed: Any, call: Any) -> Array:
    return jax.random.fold_in(jax.random.key(seed.astype(jnp.uint32)), call.astype(jnp.uint32))


def _wide(dtype: str) -> Any:
    """The type to draw in: bfloat16 has 128 numbers between 1/2 and 1, and so no tails."""
    return jnp.promote_types(dtype, jnp.float32)


def _bernoulli(p: Any, *, seed: Any, call: Any, size: Sequence[int]) -> Array:
    return jax.random.bernoulli(_key(seed, call), p, tuple(size))


def _dropout(x: Array, *, p: Any, seed: Any, call: Any) -> tuple[Array, Array]:
    keep = jax.random.bernoulli(_key(seed, call), 1 - p, x.shape)
    return jnp.where(keep, x / (1 - p), 0), keep


def _uniform(
    *, low: Any, high: Any, seed: Any, call: Any, size: Sequence[int], dtype: str
) -> Array:
    return jax.random.uniform(_key(seed, call), tuple(size), _wide(dtype)) * (high - low) + low


def _normal(*, mean: Any, std: Any, seed: Any, call: Any, size: Sequence[int], dtype: str) -> Array:
    return jax.random.normal(_key(seed, call), tuple(size), _wide(dtype)) * std + mean


def _randint(
    *, low: int, high: int, seed: Any, call: Any, size: Sequence[int], dtype: str
) -> Array:
    return jax.random.randint(_key(seed, call), tuple(size), low, high, jnp.int64).astype(dtype)


def _exponential(*, rate: Any, seed: Any, call: Any, size: Sequence[int], dtype: str) -> Array:
    return jax.random.exponential(_key(seed, call), tuple(size), _wide(dtype)) / rate


def _cauchy(
    *, median: Any, sigma: Any, seed: Any, call: Any, size: Sequence[int], dtype: str
) -> Array:
    return jax.random.cauchy(_key(seed, call), tuple(size), _wide(dtype)) * sigma + median


def _geometric(*, p: Any, seed: Any, call: Any, size: Sequence[int], dtype: str) -> Array:
    """How many tries the first success takes: 1, 2, ..."""
    return jax.random.geometric(_key(seed, call), p, tuple(size)).astype(dtype)


def _multinomial(weights: Array, *, count: int, replacement: bool, seed: Any, call: Any) -> Array:
    key, logits = _key(seed, call), jnp.log(weights)
    if replacement:
        shape = (count, *weights.shape[:-1])
        return jnp.moveaxis(jax.random.categorical(key, logits, shape=shape), 0, -1)
    noise = jax.random.gumbel(key, weights.shape, weights.dtype)  # the largest are a fair draw
    return lax.top_k(logits + noise, count)[1]


RANDOM = Rules({
    "kit.bernoulli": _bernoulli, "kit.dropout": _dropout, "kit.uniform": _uniform,
    "kit.normal": _normal, "kit.randint": _randint,
    "kit.log_normal": lambda **k: jnp.exp(_normal(**k)), "kit.exponential": _exponential,
    "kit.cauchy": _cauchy, "kit.geometric": _geometric, "kit.multinomial": _multinomial,
    "aten.native_dropout_backward.default": lambda g, mask, scale: g * mask * scale,
})  # fmt: skip

NN_RULES = LAYERS | MULTI_TENSOR | OPTIMIZERS | RANDOM
