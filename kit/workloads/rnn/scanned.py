"""The jax half of `rnn_gates`: the same cells in one `lax.scan` over the time steps.

jax has no views, so "view" is `lax.dynamic_slice`, whose adjoint updates a matrix of zeros; "slice"
is `x[:, a:b]`, whose adjoint pads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kit.jax.frontend import device_put
from kit.jax.steps import step as jax_step
from kit.measure.base.context import Context

__all__ = ["GATES", "build", "cell_of", "predict"]

RATE = 0.1
GATES = {"lstm": 4, "gru": 3}  # in one matrix

Arrays = tuple[Any, ...]


def _slice(x: Any, n: int) -> Arrays:
    h = x.shape[-1] // n
    return tuple(x[:, k * h : (k + 1) * h] for k in range(n))


def _view(x: Any, n: int) -> Arrays:
    h = x.shape[-1] // n
    return tuple(jax.lax.dynamic_slice_in_dim(x, k * h, h, 1) for k in range(n))


def _chunk(x: Any, n: int) -> Arrays:
    return tuple(jnp.split(x, n, -1))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _multigate(x: Any, n: int) -> Arrays:
    return _chunk(x, n)


def _multigate_forward(x: Any, n: int) -> tuple[Arrays, None]:
    return _chunk(x, n), None


def _multigate_backward(n: int, kept: None, grads: Arrays) -> Arrays:
    return (jnp.concatenate(grads, -1),)


_multigate.defvjp(_multigate_forward, _multigate_backward)

SPLITS: dict[str, Callable[[Any, int], Arrays]] = {
    "slice": _slice,
    "view": _view,
    "chunk": _chunk,
    "multigate": _multigate,
}


def _lstm(
    split: Callable[[Any, int], Arrays],
    given: Any,
    hidden_part: Any,
    state: Arrays,
) -> Arrays:
    i, f, g, o = split(given + hidden_part, 4)
    cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru(
    split: Callable[[Any, int], Arrays],
    given: Any,
    hidden_part: Any,
    state: Arrays,
) -> Arrays:
    input_r, input_z, input_n = split(given, 3)
    hidden_r, hidden_z, hidden_n = split(hidden_part, 3)
    reset, keep = jax.nn.sigmoid(input_r + hidden_r), jax.nn.sigmoid(input_z + hidden_z)
    new = jnp.tanh(input_n + reset * hidden_n)
    return (new + keep * (state[0] - new),)


@jax.custom_vjp
def _fused_lstm(given: Any, hidden_part: Any, state: Arrays) -> Arrays:
    return _lstm(_chunk, given, hidden_part, state)


def _fused_lstm_forward(given: Any, hidden_part: Any, state: Arrays) -> tuple[Arrays, Arrays]:
    i, f, g, o = _chunk(given + hidden_part, 4)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cell = f * state[1] + i * g
    tanh = jnp.tanh(cell)
    return (o * tanh, cell), (i, f, g, o, state[1], tanh)


def _fused_lstm_backward(kept: Arrays, grads: Arrays) -> Arrays:
    i, f, g, o, cell, tanh = kept
    grad_hidden, grad_cell = grads
    grad = grad_cell + grad_hidden * o * (1 - tanh * tanh)
    parts = (
        grad * g * i * (1 - i),
        grad * cell * f * (1 - f),
        grad * i * (1 - g * g),
        grad_hidden * tanh * o * (1 - o),
    )
    gates = jnp.concatenate(parts, -1)
    return gates, gates, (jnp.zeros_like(grad), grad * f)  # the old hidden state is not read here


_fused_lstm.defvjp(_fused_lstm_forward, _fused_lstm_backward)


@jax.custom_vjp
def _fused_gru(given: Any, hidden_part: Any, state: Arrays) -> Arrays:
    return _gru(_chunk, given, hidden_part, state)


def _fused_gru_forward(given: Any, hidden_part: Any, state: Arrays) -> tuple[Arrays, Arrays]:
    input_r, input_z, input_n = _chunk(given, 3)
    hidden_r, hidden_z, hidden_n = _chunk(hidden_part, 3)
    reset, keep = jax.nn.sigmoid(input_r + hidden_r), jax.nn.sigmoid(input_z + hidden_z)
    new = jnp.tanh(input_n + reset * hidden_n)
    return (new + keep * (state[0] - new),), (reset, keep, new, hidden_n, state[0])


def _fused_gru_backward(kept: Arrays, grads: Arrays) -> Arrays:
    reset, keep, new, hidden_n, hidden = kept
    (grad,) = grads
    grad_keep = grad * (hidden - new) * keep * (1 - keep)
    grad_new = grad * (1 - keep) * (1 - new * new)
    grad_reset = grad_new * hidden_n * reset * (1 - reset)
    return (
        jnp.concatenate((grad_reset, grad_keep, grad_new), -1),
        jnp.concatenate((grad_reset, grad_keep, grad_new * reset), -1),
        (grad * keep,),
    )


_fused_gru.defvjp(_fused_gru_forward, _fused_gru_backward)


def cell_of(cell: str, gates: str) -> Callable[..., Arrays]:
    """One time step after its two products: (from input, from hidden, state) to the new state."""
    if gates == "fused":
        return _fused_lstm if cell == "lstm" else _fused_gru
    return partial(_lstm if cell == "lstm" else _gru, SPLITS[gates])


def predict(params: Any, x: Any, *, cell: str, gates: str) -> Any:
    """The last layer's output at each time.

    Shape:
        (batch, time, inputs) to (time, batch, hidden)
    """
    run = cell_of(cell, gates)
    sequence = jnp.swapaxes(x, 0, 1)
    for i, layer in enumerate(params):
        with jax.named_scope(f"layer{i}"):
            zeros = jnp.zeros((x.shape[0], layer["w_hidden"].shape[0]), x.dtype)
            state = (zeros, zeros) if cell == "lstm" else (zeros,)

            def at_a_time(state: Arrays, now: Any, layer: Any = layer) -> tuple[Arrays, Any]:
                given = now @ layer["w_input"] + layer["b_input"]
                state = run(given, state[0] @ layer["w_hidden"] + layer["b_hidden"], state)
                return state, state[0]

            _, sequence = jax.lax.scan(at_a_time, state, sequence)
    return sequence


def build(
    ctx: Context, *, cell: str, gates: str, layers: int, hidden: int, length: int
) -> Callable[[], Any]:
    """The step: loss and gradients in one call, SGD in another."""
    random = np.random.default_rng(ctx.seed)
    bound = hidden**-0.5
    wide = GATES[cell] * hidden

    def uniform(*shape: int) -> Any:
        return random.uniform(-bound, bound, shape).astype(np.float32)

    params = device_put([
        {"w_input": uniform(hidden, wide), "w_hidden": uniform(hidden, wide),
         "b_input": uniform(wide), "b_hidden": uniform(wide)}
        for _ in range(layers)
    ])  # fmt: skip
    x = random.standard_normal((ctx.batch_size, length, hidden)).astype(np.float32)
    batch = device_put((x, np.tanh(x.mean(1))))  # to fetch it is no part of the step
    dtype = jnp.dtype(ctx.settings.dtype)

    def mean_loss(params: Any, x: Any, y: Any) -> Any:
        cast = partial(jax.tree.map, lambda a: a.astype(dtype))
        last = predict(cast(params), cast(x), cell=cell, gates=gates)[-1]
        return jnp.mean(jnp.square(last.astype(jnp.float32) - y)) / ctx.accumulate

    @jax_step
    def gradients(params: Any, batches: list[Any]) -> tuple[Any, Any]:
        parts = [jax.value_and_grad(mean_loss)(params, x, y) for x, y in batches]
        grads = jax.tree.map(lambda *g: sum(g), *(g for _, g in parts))
        return sum(loss for loss, _ in parts), grads

    @partial(jax_step, phase="update")
    def update(params: Any, grads: Any) -> Any:
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads)

    def step() -> Any:
        nonlocal params
        loss, grads = gradients(params, [batch] * ctx.accumulate)
        params = update(params, grads)
        return loss

    return step
