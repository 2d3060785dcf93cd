"""The step of `mlp` in plain jax: no library, Adam by hand, and loss scaling in every mode.

With "dynamic, host check" the program itself decides whether to step, which is a sync point; with
"dynamic, on device" the same decision is a `where` in the graph.
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
from kit.measure.base.context import Context, workload
from kit.runs.loss_scaling import LossScaling

__all__ = ["jax_mlp"]

WIDTH = 16
LAYERS = 8
RATE, BETA1, BETA2, TINY = 1e-2, 0.9, 0.999, 1e-8
GROWTH_STEPS = 2000

State = dict[str, Any]


@workload(framework="jax")
def jax_mlp(ctx: Context) -> Callable[[], Any]:
    """Eight narrow layers learn a fixed function of random points; plain jax, Adam by hand."""
    random = np.random.default_rng(ctx.seed)
    scaling = ctx.settings.scaling
    state = device_put(_initial(random, scaling))
    points = random.standard_normal((max(256, ctx.batch_size), WIDTH)).astype(np.float32)
    data: Any = (points, np.tanh(points[:, :1]))
    batches = ctx.loader(data)
    dtype = jnp.dtype(ctx.settings.dtype)
    gradients = jax_step(_gradients(dtype, ctx.accumulate))
    update = jax_step(_update(scaling), phase="update")
    skip = jax_step(_skip, phase="update")

    def step() -> Any:
        nonlocal state
        loss, grads, finite = gradients(state, [next(batches) for _ in range(ctx.accumulate)])
        if scaling.waits_for_check and not bool(finite):
            state = skip(state)
        else:
            state = update(state, grads, finite)
        return loss

    return step


def _initial(random: np.random.Generator, scaling: LossScaling) -> State:
    sizes = [(WIDTH, WIDTH)] * LAYERS + [(WIDTH, 1)]
    params = [
        {
            "w": (random.standard_normal(s) / np.sqrt(s[0])).astype(np.float32),
            "b": np.zeros(s[1], np.float32),
        }
        for s in sizes
    ]
    zeros = jax.tree.map(np.zeros_like, params)
    return {
        "params": params,
        "mean": zeros,
        "square": jax.tree.map(np.zeros_like, params),
        "steps": np.float32(0),
        "scale": np.float32(scaling.first_scale),
        "good": np.int32(0),
    }


def _gradients(dtype: Any, accumulate: int) -> Callable[..., Any]:
    """The mean loss over the micro-batches, its gradients, and whether all of them are finite."""

    def gradients(state: State, batches: list[Any]) -> tuple[Any, Any, Any]:
        def scaled_loss(params: Any, x: Any, y: Any) -> Any:
            loss = jnp.mean(jnp.square(_predict(params, x, dtype) - y)) / accumulate
            return loss * state["scale"], loss

        parts = [
            jax.value_and_grad(scaled_loss, has_aux=True)(state["params"], x, y) for x, y in batches
        ]
        loss = sum(loss for (_, loss), _ in parts)
        grads = jax.tree.map(lambda *g: sum(g) / state["scale"], *(g for _, g in parts))
        with jax.named_scope("check"):
            finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
        return loss, grads, finite

    return gradients


def _predict(params: Any, x: Any, dtype: Any) -> Any:
    x = x.astype(dtype)
    for i, layer in enumerate(params):
        with jax.named_scope(f"layer{i}"):
            x = x @ layer["w"].astype(dtype) + layer["b"].astype(dtype)
            if i < len(params) - 1:
                x = jnp.tanh(x)
    return x.astype(jnp.float32)


def _adam(state: State, grads: Any) -> State:
    """One step of Adam, Kingma and Ba, https://arxiv.org/abs/1412.6980, algorithm 1."""
    steps = state["steps"] + 1
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["mean"], grads)
    square = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state["square"], grads)
    at = RATE / (1 - BETA1**steps)
    rescale = 1 / (1 - BETA2**steps)
    params = jax.tree.map(
        lambda p, m, v: p - at * m / (jnp.sqrt(v * rescale) + TINY), state["params"], mean, square
    )
    return {**state, "params": params, "mean": mean, "square": square, "steps": steps}


def _grown(state: State) -> State:
    """The scale doubles after so many good steps in a row, as torch's `GradScaler` does."""
    good = state["good"] + 1
    grows = good >= GROWTH_STEPS
    scale = jnp.where(grows, state["scale"] * 2, state["scale"])
    return {**state, "scale": scale, "good": jnp.where(grows, 0, good)}


def _skip(state: State) -> State:
    """A step with an infinite gradient: nothing is learnt, and the scale is halved."""
    return {**state, "scale": state["scale"] / 2, "good": state["good"] * 0}


def _update(scaling: LossScaling) -> Callable[..., State]:
    def update(state: State, grads: Any, finite: Any) -> State:
        if not scaling.is_dynamic:
            return _adam(state, grads)
        taken = _grown(_adam(state, grads))
        if scaling.waits_for_check:  # the program has looked
            return taken
        chosen: State = jax.tree.map(partial(jnp.where, finite), taken, _skip(state))
        return chosen

    return update
