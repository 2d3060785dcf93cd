"""What is traced or compiled again: by a setting of jax's, and how that is said."""

from __future__ import annotations

import contextlib
import gc
from functools import partial
from typing import Any
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import kit
from kit.runs.settings import Settings
from kit.runtime.session.session import Session

X = np.ones((2, 3), np.float32)

SETTINGS: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "jax_random_seed_offset": (7, lambda x: x + jax.random.normal(jax.random.key(1), (3,)), (X,)),
    "jax_softmax_custom_jvp": (True, jax.grad(lambda x: jax.nn.softmax(x)[0, 0]), (X,)),
    "jax_disable_jit": (True, lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c + i, x), (X,)),
}
REFUSING: dict[str, tuple[Any, Any, tuple[Any, ...], str]] = {
    "jax_numpy_rank_promotion": ("raise", jnp.add, (X, X[0]), "rank_promotion"),
    "jax_check_static_indices": (True, lambda x: x[7], (X,), "out of bounds"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_whatever_setting_jax_jit_follows_is_a_new_trace(name: str) -> None:
    value, function, args = SETTINGS[name]
    step, before = kit.jax.step(function), getattr(jax.config, name)
    with Session(Settings(mode="lazy")):
        step(*args)
        jax.config.update(name, value)
        try:
            got = np.asarray(step(*args))
            np.testing.assert_allclose(got, jax.jit(function)(*args), rtol=1e-6)
        finally:
            jax.config.update(name, before)
    assert len(step.traces) == 2


@pytest.mark.parametrize("name", REFUSING)
def test_what_a_setting_of_jaxs_forbids_is_refused_after_the_first_call_too(name: str) -> None:
    value, function, args, what = REFUSING[name]
    step, before = kit.jax.step(function), getattr(jax.config, name)
    with Session(Settings(mode="lazy")):
        step(*args)
        jax.config.update(name, value)
        try:
            with pytest.raises((ValueError, IndexError), match=what):
                step(*args)
        finally:
            jax.config.update(name, before)


def test_why_an_op_without_results_was_compiled_again_is_said() -> None:
    def prints(which: int) -> Any:
        def step(x: Any) -> Any:
            y = jnp.sin(x)
            z = y.sum()
            jax.debug.print("{}", (y, z)[which])
            return z

        return step

    def reports(results: Any) -> Any:
        number = None if results is None else np.float32(0)
        return lambda x: io_callback(lambda _: number, results, jnp.sin(x).sum())

    one = jax.ShapeDtypeStruct((), np.float32)
    with Session(Settings(mode="lazy")) as session:
        for step in (prints(0), prints(1), reports(None), reports(one)):
            kit.jax.step(step)(X)
            session.wait_all()
        assert session.metrics().get("segment.recovered", 0) == 0
        said = session.explain()
    assert "jax.debug_print takes float32[], took float32[2,3]" in said
    assert "jax.io_callback gives float32[], gave nothing" in said


@pytest.mark.parametrize("is_open", [True, False])
def test_however_many_steps_are_made_of_a_function_jax_traces_it_once(is_open: bool) -> None:
    calls = []

    def function(x: Any) -> Any:
        calls.append(1)
        return x * 2

    with Session(Settings(mode="lazy")) if is_open else contextlib.nullcontext():
        for _ in range(3):
            kit.jax.step(function)(X)
    assert len(calls) == 1
    alive = ref(function)
    del function
    gc.collect()
    assert alive() is None


def test_a_partial_has_its_functions_name_and_line_in_jax() -> None:
    def branches(y: Any, x: Any) -> Any:
        return x if x.sum() > 0 else y

    step = kit.jax.step(partial(branches, 1.0))
    assert repr(step) == "kit.jax.step(branches, traced 0 times)"
    with pytest.raises(
        jax.errors.TracerBoolConversionError, match=r"branches at \S*test_again\.py"
    ):
        step(X)
