"""A replayed step of jax: what the step keeps in jax's arrays, and jax's settings, still count."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from kit.runs.settings import Settings
from kit.runtime.session.session import Session
from kit.runtime.steps.look import Look

REPLAY = Settings(mode="lazy", step_mode="replay")


def counted(kind: str) -> tuple[list[float], list[str]]:
    """The losses of a step that starts again where its count, an array of jax, says so."""
    own = SimpleNamespace(count=jnp.zeros((), jnp.int32), box=[jnp.zeros((), jnp.int32)])
    count, key = jnp.zeros((), jnp.int32), jax.random.key(0)

    def by_variable() -> bool:
        nonlocal count
        count = count + 1
        return int(count) % 5 == 0

    def by_attribute() -> bool:
        own.count = own.count + 1
        return int(own.count) % 5 == 0

    def by_item() -> bool:
        own.box[0] = own.box[0] + 1
        return int(own.box[0]) % 5 == 0

    def by_key() -> bool:
        nonlocal key
        key, now = jax.random.split(key)
        return float(jax.random.uniform(now)) < 0.3

    is_due: Callable[[], bool] = locals()[f"by_{kind}"]
    train = kit.jax.step(lambda p: (p + 1, p.sum()))
    start = kit.jax.step(lambda p: p * 0)
    with Session(REPLAY) as session:
        params = kit.jax.device_put(np.ones(4, np.float32))

        def step() -> Any:
            nonlocal params
            params, loss = train(params)
            if is_due():
                params = start(params)
            return loss

        losses = [float(session.run_step(step)) for _ in range(16)]
        return losses, list(session.stepper.reasons)


@pytest.mark.parametrize("kind", ["variable", "attribute", "item"])
def test_a_count_in_an_array_of_jax_is_state_that_a_step_changes(kind: str) -> None:
    losses, reasons = counted(kind)
    assert losses == [4, 8, 12, 16, 20, *[0, 4, 8, 12, 16] * 2, 0]
    assert any("changes" in why for why in reasons)


def test_a_key_that_a_step_splits_is_state_that_it_changes() -> None:
    losses, reasons = counted("key")
    assert losses.count(0) > 3
    assert any("the step changes key" in why for why in reasons)


class OnGpu:
    """What a look asks of a tensor of torch's on a GPU."""

    device, _version = "cuda:0", 0

    def __array__(self) -> Any:
        raise AssertionError("it is read")

    def detach(self) -> OnGpu:
        return self


def test_a_tensor_of_a_gpu_is_another_one_or_written_to() -> None:
    own = SimpleNamespace(x=OnGpu())
    before = Look("own", own)
    assert before.change(Look("own", own)) == ""
    own.x._version += 1
    after = Look("own", own)
    assert before.change(after) == "own.x"
    own.x = OnGpu()
    own.x._version += 1
    assert after.change(Look("own", own)) == "own.x"


def test_a_setting_of_jax_counts_in_the_very_next_step() -> None:
    train = kit.jax.step(lambda x: (x + 1, jax.random.normal(jax.random.key(1), (3,))))
    with Session(REPLAY) as session:
        x = kit.jax.device_put(np.zeros(3, np.float32))

        def step() -> Any:
            nonlocal x
            x, noise = train(x)
            return noise

        for _ in range(8):
            before = np.asarray(session.run_step(step))
        assert session.metrics()["replay.steps"] > 2
        with jax.threefry_partitionable(False):
            after = np.asarray(session.run_step(step))
        assert not np.allclose(before, after)
        assert any("jax's partitionable threefry" in why for why in session.stepper.reasons)


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_state_with_the_loss_that_is_returned_is_replayed_with_its_copy(is_copied: bool) -> None:
    """The cure was torch's word, which no array of jax has."""
    train = kit.jax.step(lambda s: {"x": s["x"] + 1, "loss": s["x"].sum()})
    with Session(REPLAY) as session:
        state = kit.jax.device_put({"x": np.ones(4, np.float32), "loss": np.float32(0)})

        def step() -> Any:
            nonlocal state
            state = train(state)
            return state["loss"].copy() if is_copied else state["loss"]

        assert [float(session.run_step(step)) for _ in range(8)] == [4 * i for i in range(1, 9)]
        assert (session.metrics().get("replay.steps", 0) > 2) == is_copied
        why = [why for why in session.stepper.reasons if "keep or return its .copy()" in why]
        assert bool(why) != is_copied
