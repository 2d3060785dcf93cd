"""Train steps in jax that the tests share: plain jax with Adam by hand, and flax with optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

BATCH = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)
LABELS = np.array([0, 1, 2, 0, 1, 2], np.int32)


def plain_state(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    params = {
        "up": random.standard_normal((4, 8)).astype(np.float32),
        "down": random.standard_normal((8, 3)).astype(np.float32),
    }
    zeros = jax.tree.map(np.zeros_like, params)
    return {"params": params, "mean": zeros, "steps": 0, "key": jax.random.key(seed)}


def plain_step(state: dict[str, Any], x: Any, labels: Any) -> tuple[dict[str, Any], Any]:
    """relu is a custom_jvp, dropout draws from a typed key, the loss gathers by label."""
    key, noise = jax.random.split(state["key"])

    def loss_of(params: Any) -> Any:
        with jax.named_scope("hidden"):
            h = jax.nn.relu(x @ params["up"])
            h = jnp.where(jax.random.bernoulli(noise, 0.9, h.shape), h / 0.9, 0.0)
        scores = jax.nn.log_softmax(h @ params["down"])
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    loss, grads = jax.value_and_grad(loss_of)(state["params"])
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
    params = jax.tree.map(lambda p, m: p - 0.5 * m, state["params"], mean)
    return {"params": params, "mean": mean, "steps": state["steps"] + 1, "key": key}, loss


class Net(nn.Module):
    """Two dense layers with a norm between them."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.gelu(nn.LayerNorm(name="norm")(nn.Dense(8, name="up")(x)))
        return nn.Dense(3, name="down")(x)


def flax_state() -> TrainState:
    net = Net()
    params = net.init(jax.random.key(0), BATCH)
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(1e-2))


def flax_step(state: TrainState, x: Any, labels: Any) -> tuple[TrainState, Any]:
    def loss_of(params: Any) -> Any:
        scores = state.apply_fn(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


class Dropped(nnx.Module):
    """A layer, dropout that draws from the module's own key, and another layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.down = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(self.dropout(nnx.relu(self.up(x))))


def nnx_model() -> tuple[Any, Callable[..., Any]]:
    """The state of model and optimizer, and a pure step over it."""
    model = Dropped(nnx.Rngs(0))
    definition, state = nnx.split((model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)))

    def step(state: Any, x: Any, labels: Any) -> tuple[Any, Any]:
        model, optimizer = nnx.merge(definition, state)

        def loss_of(model: Any) -> Any:
            scores = model(x)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        loss, grads = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return state, step
