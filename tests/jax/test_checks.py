"""Checks of numbers in steps of jax: what the code itself writes is given, and no finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kit
from kit.errors import BadNumberError

JAX_MASKS: dict[str, Callable[[Any], Any]] = {
    "a mask": lambda x: jax.nn.softmax(
        jnp.where(jnp.tril(jnp.ones((4, 4), bool)), x, -jnp.inf)
    ).sum(),
    "a median": jnp.median,
    "a start": lambda x: x.max(where=x > 0, initial=-jnp.inf),
    "a bound": lambda x: jnp.minimum(x, jnp.full(x.shape, jnp.inf)).sum(),
}


@pytest.mark.parametrize("name", JAX_MASKS)
def test_an_infinity_that_jax_code_writes_is_given_and_no_finding(name: str) -> None:
    with kit.Session(kit.Settings(mode="lazy", check_numbers=True)):
        found = kit.jax.step(JAX_MASKS[name])(np.ones((4, 4), np.float32))
        assert float(found) == float(JAX_MASKS[name](jnp.ones((4, 4))))


def test_a_nan_that_jax_code_makes_is_found_beside_a_literal() -> None:
    step = kit.jax.step(lambda x: jnp.log(jnp.minimum(x, -1.0)).sum())
    with (
        pytest.raises(BadNumberError, match=r"jax\.log"),
        kit.Session(kit.Settings(mode="lazy", check_numbers=True)),
    ):
        float(step(np.ones((4, 4), np.float32)))
