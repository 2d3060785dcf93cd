"""The models of `benchmarks/step.py` as one would write them in jax: a donated `jax.jit` each.

The shapes are those of `step_models.py`, images have their channels last, and recurrent layers are
a scan: what suits jax best, as far as a user would know it. Weights are drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["MODELS", "encoder", "jit_step"]

WIDTH, HEADS, HIDDEN, TOKENS, BATCH = 128, 4, 512, 32, 8  # of the encoder

Loss = Callable[..., Any]  # (parameters, *batch) -> loss, or with `extra` (loss, new extra)


class Draw:
    """Makes parameters and batches."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def normal(self, *shape: int, scale: float = 1.0) -> Any:
        return jnp.asarray(self.rng.normal(size=shape) * scale, jnp.float32)

    def integers(self, high: int, *shape: int) -> Any:
        return jnp.asarray(self.rng.integers(high, size=shape), jnp.int32)

    def linear(self, i: int, o: int) -> Any:
        return {"w": self.normal(i, o, scale=0.05), "b": jnp.zeros(o)}

    def scale(self, width: int) -> Any:
        return {"g": jnp.ones(width), "b": jnp.zeros(width)}

    def layer(self, width: int, hidden: int) -> Any:
        """A layer of a transformer."""
        return {"qkv": self.linear(width, 3 * width), "out": self.linear(width, width),
                "up": self.linear(width, hidden), "down": self.linear(hidden, width),
                "n1": self.scale(width), "n2": self.scale(width)}  # fmt: skip


def apply(p: Any, x: Any) -> Any:
    return x @ p["w"] + p["b"]


def norm(p: Any, x: Any, eps: float = 1e-5) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + eps) * p["g"] + p["b"]


def attention(p: Any, x: Any, heads: int, is_causal: bool = False) -> Any:
    batch, tokens, width = x.shape
    q, k, v = (
        t.reshape(batch, tokens, heads, -1).transpose(0, 2, 1, 3)
        for t in jnp.split(apply(p["qkv"], x), 3, -1)
    )
    scores = q @ k.transpose(0, 1, 3, 2) / (width // heads) ** 0.5
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores, -1)
    return apply(p["out"], (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape))


def cross_entropy(logits: Any, labels: Any) -> Any:
    logp = jax.nn.log_softmax(logits, -1)
    return -jnp.mean(jnp.take_along_axis(logp, labels[..., None], -1))


def encoder(layers: int = 4) -> tuple[Loss, Any, list[Any]]:
    draw = Draw()
    params = {"layers": [draw.layer(WIDTH, HIDDEN) for _ in range(layers)],
              "head": draw.linear(WIDTH, WIDTH)}  # fmt: skip

    def loss(params: Any, x: Any, y: Any) -> Any:
        for p in params["layers"]:
            x = norm(p["n1"], x + attention(p, x, HEADS))
            x = norm(p["n2"], x + apply(p["down"], jax.nn.relu(apply(p["up"], x))))
        return jnp.mean((apply(params["head"], x) - y) ** 2)

    return loss, params, [draw.normal(BATCH, TOKENS, WIDTH) for _ in range(2)]


def gpt2() -> tuple[Loss, Any, list[Any]]:
    draw = Draw()
    params = {"words": draw.normal(2000, 192, scale=0.02),
              "places": draw.normal(64, 192, scale=0.02),
              "layers": [draw.layer(192, 768) for _ in range(4)],
              "norm": draw.scale(192)}  # fmt: skip

    def loss(params: Any, ids: Any) -> Any:
        x = params["words"][ids] + params["places"]
        for p in params["layers"]:
            x = x + attention(p, norm(p["n1"], x), 4, is_causal=True)
            x = x + apply(p["down"], jax.nn.gelu(apply(p["up"], norm(p["n2"], x))))
        logits = norm(params["norm"], x) @ params["words"].T
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    return loss, params, [draw.integers(2000, 8, 64)]


def bert() -> tuple[Loss, Any, list[Any]]:
    draw = Draw()
    params = {"words": draw.normal(3000, 128, scale=0.02),
              "places": draw.normal(64, 128, scale=0.02),
              "kinds": draw.normal(2, 128, scale=0.02),
              "norm": draw.scale(128),
              "layers": [draw.layer(128, 512) for _ in range(2)],
              "head": draw.linear(128, 128), "head_norm": draw.scale(128),
              "bias": jnp.zeros(3000)}  # fmt: skip

    def loss(params: Any, ids: Any) -> Any:
        x = params["words"][ids] + params["places"] + params["kinds"][0]
        x = norm(params["norm"], x, 1e-12)
        for p in params["layers"]:
            x = norm(p["n1"], x + attention(p, x, 2), 1e-12)
            inner = jax.nn.gelu(apply(p["up"], x), approximate=False)
            x = norm(p["n2"], x + apply(p["down"], inner), 1e-12)
        x = jax.nn.gelu(apply(params["head"], x), approximate=False)
        x = norm(params["head_norm"], x, 1e-12)
        return cross_entropy(x @ params["words"].T + params["bias"], ids)

    return loss, params, [draw.integers(3000, 8, 64)]


def conv() -> tuple[Loss, Any, list[Any]]:
    """Without running statistics, which are 384 numbers of the step."""
    draw = Draw()

    def block(i: int, o: int) -> Any:
        return {"w": draw.normal(3, 3, i, o, scale=0.05), "b": jnp.zeros(o), "n": draw.scale(o)}

    shapes = (3, 32), (32, 32), (32, 64), (64, 64)
    params = {"blocks": [block(i, o) for i, o in shapes], "head": draw.linear(64, 10)}

    def loss(params: Any, x: Any, y: Any) -> Any:
        for i, p in enumerate(params["blocks"]):
            x = p["b"] + jax.lax.conv_general_dilated(
                x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            mean, var = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
            x = jax.nn.relu((x - mean) * jax.lax.rsqrt(var + 1e-5) * p["n"]["g"] + p["n"]["b"])
            if i % 2:
                x = jax.lax.reduce_window(
                    x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
                )
        return cross_entropy(apply(params["head"], jnp.mean(x, (1, 2))), y)

    return loss, params, [draw.normal(16, 32, 32, 3), draw.integers(10, 16)]


def lstm() -> tuple[Loss, Any, list[Any]]:
    draw = Draw()
    params = {"layers": [{"x": draw.linear(i, 512), "h": draw.linear(128, 512)}
                         for i in (64, 128)], "head": draw.linear(128, 10)}  # fmt: skip

    def layer(p: Any, x: Any) -> Any:
        def step(state: Any, given: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(given + apply(p["h"], h), 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], 128))
        return jax.lax.scan(step, (zeros, zeros), apply(p["x"], x))[1]

    def loss(params: Any, x: Any, y: Any) -> Any:
        x = x.transpose(1, 0, 2)
        for p in params["layers"]:
            x = layer(p, x)
        return cross_entropy(apply(params["head"], x[-1]), y)

    return loss, params, [draw.normal(16, 32, 64), draw.integers(10, 16)]


def mlp() -> tuple[Loss, Any, list[Any]]:
    draw = Draw()
    params = [draw.linear(512, 512) for _ in range(6)]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for p in params[:-1]:
            x = jax.nn.relu(apply(p, x))
        return jnp.mean((apply(params[-1], x) - y) ** 2)

    return loss, params, [draw.normal(64, 512), draw.normal(64, 512)]


MODELS = {
    "encoder": encoder, "gpt2": gpt2, "conv": conv, "lstm": lstm, "mlp": mlp, "bert": bert,
}  # fmt: skip


def jit_step(
    loss_of: Loss, params: Any, batch: list[Any]
) -> tuple[Callable[..., Any], list[Any], Any]:
    """A whole step with AdamW: a donated jit, the state that it takes and gives, and its batch."""

    def step(p: Any, m: Any, v: Any, count: Any, *batch: Any) -> Any:
        loss, g = jax.value_and_grad(loss_of)(p, *batch)
        count = count + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        c1, c2 = 1 - 0.9**count, 1 - 0.999**count
        p = jax.tree.map(
            lambda p, m, v: p * (1 - 1e-5) - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-8), p, m, v
        )
        return p, m, v, count, loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    state = [params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.float32(0)]
    return jax.jit(step, donate_argnums=(0, 1, 2, 3)), state, batch
