"""A step that computes in float64 by mistake says at which line it begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kit

ROWS = 200_000


def step_of(target: Any, dtype: torch.dtype, *, casts: str = "") -> kit.Workload:
    """A layer, and a loss beside a target that is of numpy's default dtype, or is not.

    Args:
        casts: where the target is made narrow: "before" the steps, or "inside" each.
    """

    def build(ctx: kit.Context) -> Any:
        model = torch.nn.Linear(8, 8, dtype=dtype).to(ctx.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(ROWS, 8, dtype=dtype).to(ctx.device)
        y = torch.from_numpy(target).to(ctx.device)
        wanted = y.to(dtype) if casts == "before" else y

        def step() -> torch.Tensor:
            error = model(x) - (wanted.float() if casts == "inside" else wanted)
            loss = error.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    return kit.Workload("wide", build)


def jax_step(dtype: str) -> kit.Workload:
    """A layer of jax whose weights are float32, and a batch."""

    def build(ctx: kit.Context) -> Any:
        import jax
        import jax.numpy as jnp

        x = np.ones((20_000, 64), dtype)
        weights = jnp.ones((64, 64), jnp.float32)

        def train(weights: Any, x: Any) -> Any:
            loss, slope = jax.value_and_grad(lambda w: jnp.tanh(x @ w).sum())(weights)
            return loss, weights - (0.1 * slope).astype(weights.dtype)

        step = kit.jax.step(train)

        def one() -> Any:
            nonlocal weights
            loss, weights = step(weights, x)
            return loss

        return one

    return kit.Workload("wide", build, framework="jax")


SETTINGS = [kit.Settings(mode="torch", steps=3, warmup=1), kit.Settings(steps=3, warmup=1)]


@pytest.mark.parametrize("settings", SETTINGS, ids=["native", "kit"])
def test_an_array_of_numpys_that_makes_a_loss_float64_is_named_with_its_line(
    settings: kit.Settings,
) -> None:
    run = kit.run(step_of(np.ones((ROWS, 8)), torch.float32), settings)
    (found,) = [advice for advice in run.advice() if advice.rule == "float64"]
    line = step_of.__code__.co_firstlineno + 15
    assert found.site == f"test_wide.py:{line}"
    assert f"test_wide.py:{line} is the first to compute in float64" in found.text


@pytest.mark.parametrize("settings", SETTINGS, ids=["native", "kit"])
@pytest.mark.parametrize("casts", ["before", "inside", ""])
def test_float64_that_is_meant_or_cast_is_not_named(settings: kit.Settings, casts: str) -> None:
    dtype = torch.float32 if casts else torch.float64
    run = kit.run(step_of(np.ones((ROWS, 8)), dtype, casts=casts), settings)
    assert not [advice for advice in run.advice() if advice.rule == "float64"]


@pytest.mark.parametrize("settings", SETTINGS, ids=["native", "kit"])
def test_a_matrix_product_in_float64_is_meant_whatever_the_weights_are(
    settings: kit.Settings,
) -> None:
    """As to whiten: the advice said that products were narrower, on device kit alone."""

    def build(ctx: kit.Context) -> Any:
        model = torch.nn.Linear(8, 8).to(ctx.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(ROWS, 8).to(ctx.device)
        ones = torch.eye(8, dtype=torch.float64).to(ctx.device)

        def step() -> torch.Tensor:
            wide = model(x).double()
            loss = (wide @ (wide.T @ wide / ROWS + ones)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    run = kit.run(kit.Workload("whitens", build), settings)
    assert not [advice for advice in run.advice() if advice.rule == "float64"]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_float64_batch_makes_products_of_jax_float64_beside_float32_weights(dtype: str) -> None:
    """jax promotes, so a wide product says nothing of what is meant."""
    import jax

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        run = kit.run(jax_step(dtype), kit.Settings(mode="lazy", steps=3, warmup=1))
    found = [advice.text for advice in run.advice() if advice.rule == "float64"]
    assert [("the weights are narrower" in text) for text in found] == [True] * (dtype == "float64")
