"""Rules for one time step of an LSTM or GRU: torch asks a device for these as one op each.

`workspace` is what the forward pass keeps for the backward pass. Its contents are this file's own
business; only its shape is torch's.
"""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from kit.runtime.rules.table import Rules

__all__ = ["RNN_RULES"]


def _lstm_cell(
    from_input: Array,
    from_hidden: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    gates = from_input + from_hidden
    if input_bias is not None and hidden_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate((i, f, g, o), axis=-1)


def _lstm_cell_backward(
    grad_hy: Array | None,
    grad_cy: Array | None,
    cx: Array,
    cy: Array,
    workspace: Array,
    has_bias: bool,
) -> list[Array]:
    i, f, g, o = jnp.split(workspace, 4, axis=-1)
    grad_hy = jnp.zeros_like(cy) if grad_hy is None else grad_hy
    tanh = jnp.tanh(cy)
    grad = grad_hy * o * (1 - tanh * tanh)
    grad = grad if grad_cy is None else grad + grad_cy
    gates = jnp.concatenate(
        (
            grad * g * i * (1 - i),
            grad * cx * f * (1 - f),
            grad * i * (1 - g * g),
            grad_hy * tanh * o * (1 - o),
        ),
        axis=-1,
    )
    grads = [gates, grad * f]
    return [*grads, jnp.sum(gates, axis=0)] if has_bias else grads


def _gru_cell(
    from_input: Array,
    from_hidden: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    if input_bias is not None and hidden_bias is not None:
        from_input, from_hidden = from_input + input_bias, from_hidden + hidden_bias
    input_r, input_z, input_n = jnp.split(from_input, 3, axis=-1)
    hidden_r, hidden_z, hidden_n = jnp.split(from_hidden, 3, axis=-1)
    r, z = jax.nn.sigmoid(input_r + hidden_r), jax.nn.sigmoid(input_z + hidden_z)
    n = jnp.tanh(input_n + r * hidden_n)
    return n + z * (hx - n), jnp.concatenate((r, z, n, hx, hidden_n), axis=-1)


def _gru_cell_backward(grad: Array, workspace: Array, has_bias: bool) -> list[Array]:
    r, z, n, hx, hidden_n = jnp.split(workspace, 5, axis=-1)
    grad_z = grad * (hx - n) * z * (1 - z)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r = grad_n * hidden_n * r * (1 - r)
    from_input = jnp.concatenate((grad_r, grad_z, grad_n), axis=-1)
    from_hidden = jnp.concatenate((grad_r, grad_z, grad_n * r), axis=-1)
    grads = [from_input, from_hidden, grad * z]
    biases = [jnp.sum(from_input, axis=0), jnp.sum(from_hidden, axis=0)]
    return [*grads, *biases] if has_bias else grads


RNN_RULES = Rules(
    {
        "aten._thnn_fused_lstm_cell.default": _lstm_cell,
        "aten._thnn_fused_lstm_cell_backward_impl.default": _lstm_cell_backward,
        "aten._thnn_fused_gru_cell.default": _gru_cell,
        "aten._thnn_fused_gru_cell_backward.default": _gru_cell_backward,
    }
)
