"""Rules for recurrent layers: one direction of a layer is one loop over its time steps.

Forward, the inputs of all time steps are multiplied by their weights at once; what is left for the
loop is the product with the hidden state. Backward, the loop gives the gradients of the gates, and
all gradients of weights are products over all time steps at once.

Torch asks a device for a single time step as one op, too. The `workspace` of such a cell is what
the forward pass keeps for the backward pass: torch knows the shape only, the contents are decided
here.

Source: the equations and the order of the gates are those of torch's `nn.RNN`, `nn.LSTM`, `nn.GRU`.
"""

# Operators of a jax array give Any to mypy; that a rule returns an array is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from kit.runtime.rules.math import rounded_once, wide
from kit.runtime.rules.table import Rules

__all__ = ["RECURRENT"]

State = tuple[Array, ...]  # (hidden,), or (hidden, cell) of an LSTM


@dataclass(frozen=True)
class _Weights:
    """The weights of one direction of a layer, in torch's order in its list."""

    input: Array  # (gates, inputs)
    hidden: Array  # (gates, hidden)
    biases: tuple[Array, ...]  # of the input's and of the hidden state's product, or none
    project: Array | None  # (hidden, cell), of an LSTM with `proj_size`

    @classmethod
    def of(cls, weights: Sequence[Array]) -> _Weights:
        """Two weights, then two biases if there are any, then the projection if there is one."""
        biases = tuple(weights[2:4]) if len(weights) > 3 else ()
        return cls(weights[0], weights[1], biases, weights[-1] if len(weights) % 2 else None)


@dataclass(frozen=True)
class _Kind:
    """What differs between the layers, in one time step.

    Attributes:
        forward: (the input's part of the gates, the hidden state's part, the old state) -> the new
            state, and the gates if the backward pass asks for them.
        backward: (gradients of the new state, the old state, the new one, the gates) -> the
            gradients of both parts of the gates, and of the old state by ways that pass no weight.
    """

    forward: Callable[[Array, Array, State], tuple[State, tuple[Array, ...]]]
    backward: Callable[[State, State, State, Sequence[Array]], tuple[Array, Array, State]]


def _lstm_step(given: Array, from_hidden: Array, old: State) -> tuple[State, tuple[Array, ...]]:
    i, f, g, o = jnp.split(given + from_hidden, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cell = f * old[1] + i * g
    return (o * jnp.tanh(cell), cell), (jnp.concatenate((i, f, g, o), axis=-1),)


def _lstm_step_backward(
    grads: State, old: State, new: State, gates: Sequence[Array]
) -> tuple[Array, Array, State]:
    i, f, g, o = jnp.split(gates[0], 4, axis=-1)
    tanh = jnp.tanh(new[1])
    grad = grads[1] + grads[0] * o * (1 - tanh * tanh)
    parts = (
        grad * g * i * (1 - i),
        grad * old[1] * f * (1 - f),
        grad * i * (1 - g * g),
        grads[0] * tanh * o * (1 - o),
    )
    both = jnp.concatenate(parts, axis=-1)
    return both, both, (jnp.zeros_like(old[0]), grad * f)


def _gru_step(given: Array, from_hidden: Array, old: State) -> tuple[State, tuple[Array, ...]]:
    input_r, input_z, input_n = jnp.split(given, 3, axis=-1)
    hidden_r, hidden_z, hidden_n = jnp.split(from_hidden, 3, axis=-1)
    r, z = jax.nn.sigmoid(input_r + hidden_r), jax.nn.sigmoid(input_z + hidden_z)
    n = jnp.tanh(input_n + r * hidden_n)
    return (n + z * (old[0] - n),), (jnp.concatenate((r, z, n, hidden_n), axis=-1),)


def _gru_step_backward(
    grads: State, old: State, new: State, gates: Sequence[Array]
) -> tuple[Array, Array, State]:
    r, z, n, hidden_n = jnp.split(gates[0], 4, axis=-1)
    grad_z = grads[0] * (old[0] - n) * z * (1 - z)
    grad_n = grads[0] * (1 - z) * (1 - n * n)
    grad_r = grad_n * hidden_n * r * (1 - r)
    from_input = jnp.concatenate((grad_r, grad_z, grad_n), axis=-1)
    from_hidden = jnp.concatenate((grad_r, grad_z, grad_n * r), axis=-1)
    return from_input, from_hidden, (grads[0] * z,)


def _plain(activate: Callable[[Array], Array], pull: Callable[[Array, Array], Array]) -> _Kind:
    """A layer without gates; `pull` takes a gradient back, given what `activate` gave."""

    def forward(given: Array, from_hidden: Array, old: State) -> tuple[State, tuple[Array, ...]]:
        return (activate(given + from_hidden),), ()

    def backward(
        grads: State, old: State, new: State, gates: Sequence[Array]
    ) -> tuple[Array, Array, State]:
        grad = pull(grads[0], new[0])
        return grad, grad, (jnp.zeros_like(old[0]),)

    return _Kind(forward, backward)


_KINDS = {
    "lstm": _Kind(_lstm_step, _lstm_step_backward),
    "gru": _Kind(_gru_step, _gru_step_backward),
    "rnn_tanh": _plain(jnp.tanh, lambda grad, y: grad * (1 - y * y)),
    "rnn_relu": _plain(jax.nn.relu, lambda grad, y: jnp.where(y <= 0, 0, grad)),
}


def _running(lengths: Array | None, time_steps: int) -> Array | None:
    """Which rows are within their length at each time step, of shape (time, batch, 1)."""
    if lengths is None:
        return None
    return (jnp.arange(time_steps)[:, None] < lengths)[..., None]


def _where(running: Array | None, new: Sequence[Array], old: Sequence[Array]) -> State:
    """`new` where a row is within its length."""
    if running is None:
        return tuple(new)
    return tuple(jnp.where(running, a, b) for a, b in zip(new, old, strict=True))


def _layer(
    kind: _Kind,
    x: Array,
    state: Sequence[Array],
    weights: Sequence[Array],
    lengths: Array | None,
    *,
    time_steps: int,
    reverse: bool,
    keeps: bool,
) -> list[Array]:
    """The outputs, the last state, and with `keeps` what else the backward pass needs: the cells of
    an LSTM, and the gates.

    A row past its length keeps its state.

    Shape:
        x (time, batch, inputs) to outputs (time, batch, hidden)
    """
    w = _Weights.of(weights)
    given = wide(x @ w.input.T)
    given = given + wide(w.biases[0]) if w.biases else given
    to_gates = w.hidden.T

    def step(old: State, now: tuple[Array, Array | None]) -> tuple[State, tuple[Array, ...]]:
        given, running = now
        from_hidden = wide(old[0].astype(x.dtype) @ to_gates)
        from_hidden = from_hidden + wide(w.biases[1]) if w.biases else from_hidden
        new, gates = kind.forward(given, from_hidden, old)
        if w.project is not None:
            new = (wide(new[0].astype(x.dtype) @ w.project.T), *new[1:])
        new = _where(running, new, old)
        return new, tuple(a.astype(x.dtype) for a in (*new, *gates))

    now = given, _running(lengths, time_steps)
    last, (outputs, *kept) = lax.scan(step, tuple(map(wide, state)), now, reverse=reverse)
    return [outputs, *last, *(kept if keeps else ())]


def _before(sequence: Array, first: Array, reverse: bool) -> Array:
    """The states that each time step began with."""
    first = first[None]
    return jnp.concatenate((sequence[1:], first) if reverse else (first, sequence[:-1]))


def _layer_backward(
    kind: _Kind,
    grads: Sequence[Array | None],
    x: Array,
    state: Sequence[Array],
    weights: Sequence[Array],
    lengths: Array | None,
    kept: Sequence[Array],
    *,
    time_steps: int,
    reverse: bool,
    wanted: Sequence[bool],
) -> list[Array]:
    """The gradients of the inputs, of the first state and of the weights, each if it is wanted.

    `kept` begins with the outputs.
    """
    w = _Weights.of(weights)
    after, gates = tuple(kept[: len(state)]), tuple(kept[len(state) :])
    before = tuple(_before(s, s0, reverse) for s, s0 in zip(after, state, strict=True))

    def step(later: State, now: Any) -> tuple[State, tuple[Array, ...]]:
        grad, running, *kept = now
        old, new, gates = (tuple(map(wide, arrays)) for arrays in kept)
        later = later if grad is None else (later[0] + wide(grad), *later[1:])
        inner = later
        if w.project is not None:
            inner = (wide(later[0].astype(x.dtype) @ w.project), *later[1:])
        from_input, from_hidden, to_old = kind.backward(inner, old, new, gates)
        both = (from_input,) if from_hidden is from_input else (from_input, from_hidden)
        parts = _where(running, both, [jnp.zeros_like(p) for p in both])
        by_weight = wide(parts[-1].astype(x.dtype) @ w.hidden)
        earlier = _where(running, (to_old[0] + by_weight, *to_old[1:]), later)
        projected = (
            () if w.project is None else _where(running, later[:1], [jnp.zeros_like(later[0])])
        )
        return earlier, tuple(p.astype(x.dtype) for p in (*parts, *projected))

    last = [jnp.zeros_like(s) if g is None else g for g, s in zip(grads[1:], state, strict=True)]
    now = grads[0], _running(lengths, time_steps), before, after, gates
    first, parts = lax.scan(step, tuple(map(wide, last)), now, reverse=not reverse)
    projected = parts[-1:] if w.project is not None else ()
    parts = parts[:-1] if w.project is not None else parts
    found: list[Array] = []
    if wanted[0]:
        found.append(parts[0] @ w.input)
    if wanted[1]:
        found += first
    if wanted[2]:
        found += [_product(parts[0], x), _product(parts[-1], before[0])]
        if w.biases:
            found += [jnp.sum(wide(part), (0, 1)) for part in (parts[0], parts[-1])]
        for grad in projected:
            out = jnp.split(gates[0], 4, axis=-1)[3]
            found.append(_product(grad, out * jnp.tanh(after[1])))
    return found


def _product(grads: Array, factors: Array) -> Array:
    """The gradient of a weight, summed over all time steps and rows."""
    return grads.reshape(-1, grads.shape[-1]).T @ factors.reshape(-1, factors.shape[-1])


def _biased(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias


def _lstm_cell(
    from_input: Array, from_hidden: Array, cx: Array, input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    given, from_hidden = _biased(from_input, input_bias), _biased(from_hidden, hidden_bias)
    new, gates = _lstm_step(given, from_hidden, (cx, cx))  # the old hidden state is not read
    return *new, *gates


def _lstm_cell_backward(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, workspace: Array,
    has_bias: bool,
) -> list[Array]:  # fmt: skip
    grads = tuple(jnp.zeros_like(cy) if g is None else g for g in (grad_hy, grad_cy))
    gates, _, (_, grad_cx) = _lstm_step_backward(grads, (cx, cx), (cy, cy), (workspace,))
    return [gates, grad_cx, *([jnp.sum(gates, axis=0)] if has_bias else [])]


def _gru_cell(
    from_input: Array, from_hidden: Array, hx: Array, input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The workspace holds five blocks, as torch's: the gates, and the old hidden state."""
    given, from_hidden = _biased(from_input, input_bias), _biased(from_hidden, hidden_bias)
    (hy,), (gates,) = _gru_step(given, from_hidden, (hx,))
    return hy, jnp.concatenate((gates, hx), axis=-1)


def _gru_cell_backward(grad: Array, workspace: Array, has_bias: bool) -> list[Array]:
    gates, hx = jnp.split(workspace, [workspace.shape[-1] // 5 * 4], axis=-1)
    from_input, from_hidden, to_old = _gru_step_backward((grad,), (hx,), (hx,), (gates,))
    biases = [jnp.sum(from_input, axis=0), jnp.sum(from_hidden, axis=0)]
    return [from_input, from_hidden, *to_old, *(biases if has_bias else [])]


RECURRENT = Rules({
    **{f"kit.{name}.default": partial(_layer, kind) for name, kind in _KINDS.items()},
    **{f"kit.{name}_backward.default": partial(_layer_backward, kind)
       for name, kind in _KINDS.items()},
    "aten._thnn_fused_lstm_cell.default": rounded_once(_lstm_cell),
    "aten._thnn_fused_lstm_cell_backward_impl.default": rounded_once(_lstm_cell_backward),
    "aten._thnn_fused_gru_cell.default": rounded_once(_gru_cell),
    "aten._thnn_fused_gru_cell_backward.default": rounded_once(_gru_cell_backward),
})  # fmt: skip
