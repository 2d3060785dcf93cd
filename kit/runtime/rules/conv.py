"""Rules for convolutional networks: convolution, pooling, normalisation over channels."""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kit.runtime.rules.layers import layer_norm, layer_norm_backward
from kit.runtime.rules.math import bound, followed, gradient_of, wide
from kit.runtime.rules.table import Rule, Rules

__all__ = ["CONV_RULES"]

Ints = Sequence[int]


def _each(value: Any, n: int) -> list[int]:
    """One number for each spatial dimension."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * n if len(numbers) == 1 else numbers


def _convolution(
    x: Array, weight: Array, bias: Array | None, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, output_padding: Ints, groups: int,
) -> Array:  # fmt: skip
    """x: (batch, channels, *space); weight: (out, in / groups, *kernel), in and out swapped if
    transposed."""
    n = x.ndim - 2
    steps, pads, gaps = _each(stride, n), _each(padding, n), _each(dilation, n)
    options: dict[str, Any] = {"rhs_dilation": gaps, "feature_group_count": groups}
    sides = [(p, p) for p in pads]
    if transposed:
        kernel = weight.shape[2:]
        grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        swapped = jnp.swapaxes(grouped, 1, 2).reshape(-1, weight.shape[0] // groups, *kernel)
        weight = jnp.flip(swapped, range(2, n + 2))
        extra = _each(output_padding, n)
        reach = [d * (k - 1) - p for d, k, p in zip(gaps, kernel, pads, strict=True)]
        sides = [(r, r + e) for r, e in zip(reach, extra, strict=True)]
        options["lhs_dilation"], steps = steps, [1] * n

    def convolve(x: Array, weight: Array, **more: Any) -> Array:
        return lax.conv_general_dilated(x, weight, steps, sides, **options, **more)

    if bias is None:
        return convolve(x, weight)
    return followed(convolve, x, weight, lambda y: y + bias.reshape(-1, *[1] * n))


def _convolution_backward(
    grad: Array, x: Array, weight: Array, bias_sizes: Ints | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, mask: Sequence[bool],
) -> list[Array]:  # fmt: skip
    def forward(x: Array, weight: Array) -> Array:
        return _convolution(
            x, weight, None, stride, padding, dilation, transposed, output_padding, groups
        )

    _, pull = jax.vjp(forward, x, weight)
    dx, dw = pull(grad)
    db = jnp.sum(grad, (0, *range(2, grad.ndim)))
    return [g for g, wanted in zip((dx, dw, db), mask, strict=True) if wanted]


# -- pooling ---------------------------------------------------------------------------------------


class _Windows(NamedTuple):
    """Where the windows of a pooling op lie along one spatial dimension."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    out: int  # how many there are


def _windows(
    x: Array, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> list[_Windows]:
    """Along each of the last `n` dimensions; without a stride they lie side by side."""
    given = [_each(v, n) for v in (kernel, stride or kernel, padding, dilation)]
    found = []
    for size, k, s, p, d in zip(x.shape[x.ndim - n :], *given, strict=True):
        found.append(_Windows(size, k, s, p, d, _length(size, k, s, p, d, ceil_mode)))
    return found


def _arguments(windows: Sequence[_Windows], lead: int) -> dict[str, Any]:
    """Of `lax.reduce_window`, for an array with `lead` other dimensions."""
    ones = [1] * lead
    ends = [(w.out - 1) * w.stride + w.dilation * (w.kernel - 1) + 1 for w in windows]
    sides = [(w.padding, end - w.size - w.padding) for w, end in zip(windows, ends, strict=True)]
    return {
        "window_dimensions": (*ones, *(w.kernel for w in windows)),
        "window_strides": (*ones, *(w.stride for w in windows)),
        "padding": [(0, 0)] * lead + sides,
        "window_dilation": (*ones, *(w.dilation for w in windows)),
    }


def _counts(windows: Sequence[_Windows], count_padding: bool) -> np.ndarray[Any, Any]:
    """How many elements each window averages; torch counts padding, but not beyond it."""
    total: Any = np.ones(())
    for w in windows:
        start = np.arange(w.out) * w.stride - w.padding
        stop = np.minimum(start + w.kernel, w.size + w.padding)
        if not count_padding:
            start, stop = np.maximum(start, 0), np.minimum(stop, w.size)
        total = np.multiply.outer(total, stop - start)
    return np.asarray(total)


def _length(size: int, kernel: int, stride: int, padding: int, dilation: int, up: bool) -> int:
    """Source: torch's pooling_output_shape."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    out = (span + (stride - 1 if up else 0)) // stride + 1
    if up and (out - 1) * stride >= size + padding:  # the last window starts inside
        out -= 1
    return out


def _max_pool(n: int) -> Rule:
    def rule(x: Array, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
             ceil_mode: bool = False) -> tuple[Array, Array]:  # fmt: skip
        space = x.shape[x.ndim - n :]
        place = jnp.arange(prod(space), dtype=jnp.int32).reshape(space)
        places = jnp.broadcast_to(place, x.shape)

        def larger(a: Any, b: Any) -> Any:
            """The larger value, the first of equal ones; nan wins."""
            (u, i), (v, j) = a, b
            second = jnp.where(
                jnp.isnan(u) == jnp.isnan(v), (v > u) | ((v == u) & (j < i)), jnp.isnan(v)
            )
            return jnp.where(second, v, u), jnp.where(second, j, i)

        start = (
            jnp.array(bound(x.dtype, least=True), x.dtype),
            jnp.array(bound(jnp.int32, least=False), jnp.int32),
        )
        windows = _windows(x, n, kernel, stride, padding, dilation, ceil_mode)
        arguments = _arguments(windows, x.ndim - n)
        _, where = lax.reduce_window((x, places), start, larger, **arguments)
        # apart, so that the places, eight times as slow, are left out where nobody wants them
        return lax.reduce_window(x, start[0], lax.max, **arguments), where

    return rule


def _max_pool_backward(n: int) -> Rule:
    def rule(grad: Array, x: Array, *rest: Any) -> Array:
        """Send each gradient to the place that its value came from, as the last argument says."""
        lead = prod(x.shape[: x.ndim - n])
        flat = jnp.zeros((lead, prod(x.shape[x.ndim - n :])), grad.dtype)
        rows, columns = jnp.arange(lead)[:, None], rest[-1].reshape(lead, -1)
        return flat.at[rows, columns].add(grad.reshape(lead, -1)).reshape(x.shape)

    return rule


def _avg_pool(n: int) -> Rule:
    def rule(x: Array, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
             count_include_pad: bool = True,
             divisor_override: int | None = None) -> Array:  # fmt: skip
        x, windows = wide(x), _windows(x, n, kernel, stride, padding, 1, ceil_mode)
        zero = np.zeros((), x.dtype)  # concrete: jax knows the gradient of a sum only
        total = lax.reduce_window(x, zero, lax.add, **_arguments(windows, x.ndim - n))
        if divisor_override is not None:
            return total / divisor_override
        return total / jnp.asarray(_counts(windows, count_include_pad), x.dtype)

    return rule


def _bins(size: int, out: int) -> list[tuple[int, int]]:
    """Source: torch's adaptive pooling: bin i goes from floor(i s / o) to ceil((i + 1) s / o)."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive_avg_pool(n: int) -> Rule:
    def rule(x: Array, output_size: Ints) -> Array:
        y = wide(x)
        for axis, out in zip(range(x.ndim - n, x.ndim), output_size, strict=True):
            size = x.shape[axis]
            if out and size % out == 0:  # bins of one size
                parts = (*y.shape[:axis], out, size // out, *y.shape[axis + 1 :])
                y = jnp.mean(y.reshape(parts), axis + 1)
                continue
            # Gathered, not a product with a matrix: there 0 x nan would spoil every bin.
            starts, stops = np.array(_bins(size, out), int).reshape(-1, 2).T[..., None]
            read = starts + np.arange((stops - starts).max(initial=1))
            apart = (-1, read.shape[1], *[1] * (x.ndim - 1 - axis))
            found = jnp.take(y, np.minimum(read, size - 1), axis)
            kept = jnp.where((read < stops).reshape(apart), found, 0)
            counts = (stops - starts).reshape(-1, *apart[2:])
            y = jnp.sum(kept, axis + 1) / jnp.asarray(counts, y.dtype)
        return y

    return rule


def _adaptive_avg_pool_backward(n: int) -> Rule:
    def rule(grad: Array, x: Array) -> Array:
        return gradient_of(_adaptive_avg_pool(n))(grad, x, grad.shape[grad.ndim - n :])

    return rule


def _adaptive_max_pool(n: int) -> Rule:
    def rule(x: Array, output_size: Ints) -> tuple[Array, Array]:
        space = x.shape[x.ndim - n :]
        lead = x.shape[: x.ndim - n]
        place = np.arange(prod(space)).reshape(space)
        columns = []
        for bins in np.ndindex(*output_size):
            parts = [_bins(s, o)[i] for s, o, i in zip(space, output_size, bins, strict=True)]
            inside = place[tuple(slice(*part) for part in parts)].ravel()
            values = x.reshape(*lead, -1)[..., inside]
            best = jnp.argmax(values, -1)
            largest = jnp.take_along_axis(values, best[..., None], -1)[..., 0]
            columns.append((largest, jnp.asarray(inside)[best]))
        shape = (*lead, *output_size)
        if not columns:
            return jnp.zeros(shape, x.dtype), jnp.zeros(shape, jnp.int64)
        values, where = (jnp.stack(part, -1).reshape(shape) for part in zip(*columns, strict=True))
        return values, where

    return rule


POOLING = Rules({
    **{f"aten.max_pool{n}d_with_indices.default": _max_pool(n) for n in (2, 3)},
    **{f"aten.max_pool{n}d_with_indices_backward.default": _max_pool_backward(n) for n in (2, 3)},
    **{f"aten.avg_pool{n}d.default": _avg_pool(n) for n in (2, 3)},
    **{f"aten.avg_pool{n}d_backward.default": gradient_of(_avg_pool(n)) for n in (2, 3)},
    **{f"aten._adaptive_avg_pool{n}d.default": _adaptive_avg_pool(n) for n in (2, 3)},
    **{f"aten._adaptive_avg_pool{n}d_backward.default": _adaptive_avg_pool_backward(n)
       for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d.default": _adaptive_max_pool(n) for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d_backward.default": _max_pool_backward(n) for n in (2, 3)},
})  # fmt: skip


# -- normalisation over channels -------------------------------------------------------------------


def _batch_norm_train(
    x: Array, weight: Array | None, bias: Array | None, running_mean: Array | None,
    running_var: Array | None, *, momentum: Any, eps: Any,
) -> list[Array]:  # fmt: skip
    """The result, the batch's mean and 1 / deviation, and the running statistics after it."""
    axes = (0, *range(2, x.ndim))
    x, count = wide(x), x.size // x.shape[1]
    mean, var = jnp.mean(x, axes), jnp.var(x, axes)
    invstd = lax.rsqrt(var + eps)
    out = [_scaled(x, mean, invstd, weight, bias), mean, invstd]
    if running_mean is not None:
        out.append((1 - momentum) * running_mean + momentum * mean)
    if running_var is not None:
        out.append((1 - momentum) * running_var + momentum * (var * count / max(count - 1, 1)))
    return out


def _batch_norm_eval(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, *, eps: Any
) -> Array:
    return _scaled(wide(x), mean, lax.rsqrt(var + eps), weight, bias)


def _scaled(x: Array, mean: Array, invstd: Array, weight: Any, bias: Any) -> Array:
    y = (x - _channels(mean, x)) * _channels(invstd, x)
    y = y if weight is None else y * _channels(weight, x)
    return y if bias is None else y + _channels(bias, x)


def _channels(values: Array, like: Array) -> Array:
    return values.reshape(1, -1, *[1] * (like.ndim - 2))


def _batch_norm_backward(
    grad: Array, x: Array, weight: Array | None, running_mean: Array | None,
    running_var: Array | None, mean: Array | None, invstd: Array | None, train: bool, eps: Any,
    mask: Sequence[bool],
) -> list[Array]:  # fmt: skip
    axes = (0, *range(2, x.ndim))
    grad, x = wide(grad), wide(x)
    if not train:
        assert running_mean is not None
        assert running_var is not None
        mean, invstd = running_mean, lax.rsqrt(running_var + eps)
    assert mean is not None
    assert invstd is not None
    normed = (x - _channels(mean, x)) * _channels(invstd, x)
    dbias, dweight = jnp.sum(grad, axes), jnp.sum(grad * normed, axes)
    scale = invstd if weight is None else invstd * weight
    inner = grad
    if train:
        count = x.size // x.shape[1]
        inner = grad - (_channels(dbias, x) + normed * _channels(dweight, x)) / count
    grads = (inner * _channels(scale, x), dweight, dbias)
    # Torch counts the gradient of the input among the results, though nothing may ask for it.
    return [g for g, wanted in zip(grads, (True, *mask[1:]), strict=True) if wanted]


def _group_norm(
    x: Array, weight: Array | None, bias: Array | None, batch: int, channels: int, space: int,
    groups: int, eps: Any,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """A group is normed as the last dimension of a layer is."""
    rows = x.reshape(batch, groups, channels // groups * space)
    y, mean, rstd = layer_norm(rows, rows.shape[-1:], None, None, eps)
    y = y.reshape(x.shape)
    y = y if weight is None else y * _channels(weight, x)
    return y if bias is None else y + _channels(bias, x), mean[..., 0], rstd[..., 0]


def _group_norm_backward(
    grad: Array, x: Array, mean: Array, rstd: Array, weight: Array | None, batch: int,
    channels: int, space: int, groups: int, mask: Sequence[bool],
) -> list[Array]:  # fmt: skip
    grad, rows = wide(grad), wide(x).reshape(batch, groups, channels // groups * space)
    mean, rstd = (v.reshape(batch, groups, 1) for v in (mean, rstd))
    inner = (grad if weight is None else grad * _channels(weight, x)).reshape(rows.shape)
    only_x = (True, False, False)
    (dx,) = layer_norm_backward(inner, rows, rows.shape[-1:], mean, rstd, None, None, only_x)
    normed = ((rows - mean) * rstd).reshape(x.shape)
    axes = (0, *range(2, x.ndim))
    grads = (dx.reshape(x.shape), jnp.sum(grad * normed, axes), jnp.sum(grad, axes))
    return [g for g, wanted in zip(grads, mask, strict=True) if wanted]


CONV_RULES = POOLING | Rules({
    "aten.convolution.default": _convolution,
    "aten.convolution_overrideable.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.convolution_backward_overrideable.default": _convolution_backward,
    "kit.batch_norm_train": _batch_norm_train,
    "kit.batch_norm_eval": _batch_norm_eval,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.native_group_norm.default": _group_norm,
    "aten.native_group_norm_backward.default": _group_norm_backward,
})  # fmt: skip
