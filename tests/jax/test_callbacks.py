"""Host callbacks run under the settings of jax that held where they were traced."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import kit
from kit.runtime.session.session import Session

FLOAT, INT = (jax.ShapeDtypeStruct((), kind) for kind in (jnp.float32, jnp.int32))
X = np.ones(4, np.float32)
CASES: dict[str, Callable[[Any], Any]] = {
    "a float": lambda x: x.sum() + jax.pure_callback(lambda _: 0.5, FLOAT, x),
    "an int": lambda x: jax.pure_callback(lambda _: 3, INT, x) * 2,
    "numpy's index": lambda x: jax.pure_callback(np.searchsorted, INT, x, 0.5) + 1,
    "an effect": lambda x: x.sum() + io_callback(random.Random(3).random, FLOAT),
    "in a scan": lambda x: jax.lax.scan(
        lambda total, _: (total + jax.pure_callback(lambda _: 0.5, FLOAT, total), None),
        x.sum(), length=3,
    )[0],
    "in a branch": lambda x: jax.lax.cond(
        x[0] > 0, lambda y: jax.pure_callback(lambda _: 0.5, FLOAT, y), lambda y: y[0], x
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_callback_may_return_numbers_of_python(name: str) -> None:
    with Session():
        found = float(kit.jax.step(CASES[name])(X))
    if name != "an effect":
        assert found == float(jax.jit(CASES[name])(X))
    else:
        assert found == pytest.approx(4 + random.Random(3).random())


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_while_a_callback_runs_the_device_is_idle(mode: str) -> None:
    """It was busy for all of it, and only less work would help."""

    def sleep(_: Any) -> Any:
        time.sleep(0.03)
        return np.float32(1)

    @kit.workload(framework="jax")
    def mine(ctx: Any) -> Callable[[], Any]:
        step = kit.jax.step(lambda x: x.sum() * jax.pure_callback(sleep, FLOAT, x))
        return lambda: step(X)

    run = kit.run(mine, kit.Settings(mode=mode, steps=3, warmup=1))
    assert run.idle[0].cause == "host callback"
    assert run.idle[0].total_ms >= 3 * 29
    assert run.headline().device_busy_fraction < 0.5
    assert run.limit_shares["callback"] == max(run.limit_shares.values())


def test_each_way_to_call_python_is_a_callback() -> None:
    """The kernel of `jax.debug.print`, of a name of its own, was busy time."""

    def call(x: Any) -> Any:
        jax.debug.print("{}", x.sum(), ordered=False)
        jax.debug.callback(lambda _: None, x.sum())
        return x.sum() + jax.pure_callback(lambda _: np.float32(1), FLOAT, x)

    @kit.workload(framework="jax")
    def mine(ctx: Any) -> Callable[[], Any]:
        step = kit.jax.step(call)
        return lambda: step(X)

    timeline = kit.run(mine, kit.Settings(mode="lazy", steps=1, warmup=1)).timeline
    found = {s.name.split(".")[0] for s in timeline.spans if s.kind == "callback"}
    assert found == {"debug_print", "debug_callback", "pure_callback"}


@pytest.mark.parametrize("is_x64", [False, True])
def test_jax_code_in_a_callback_computes_as_the_user_set_it(is_x64: bool) -> None:
    seen: list[tuple[bool, str, str]] = []

    def look(_: Any) -> Any:
        found = jax.config.jax_enable_x64, str(jnp.asarray(1.5).dtype), str(jnp.arange(3).dtype)
        seen.append(found)
        return np.float32(0)

    with jax.enable_x64(is_x64), Session():
        float(kit.jax.step(lambda x: jax.pure_callback(look, FLOAT, x))(X))
        float(jax.jit(lambda x: jax.pure_callback(look, FLOAT, x))(X))
    assert seen[0] == seen[1]
    assert seen[0][0] == is_x64


def test_one_callback_under_two_settings_is_two_ops() -> None:
    seen: list[bool] = []

    def look(_: Any) -> Any:
        seen.append(jax.config.jax_enable_x64)
        return np.float32(0)

    step = kit.jax.step(lambda x: jax.pure_callback(look, FLOAT, x))
    with Session():
        for is_x64 in (False, True, False):
            with jax.enable_x64(is_x64):
                float(step(X))
    assert seen == [False, True, False]


def test_a_callback_of_another_type_is_refused_as_by_jax() -> None:
    with Session(), pytest.raises(Exception, match="Expected: float32, Actual: int32"):
        float(kit.jax.step(lambda x: jax.pure_callback(lambda _: 3, FLOAT, x))(X))
