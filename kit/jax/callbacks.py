"""Host callbacks of a jaxpr: they run under the settings of jax that held where it was traced.

Programs are compiled and run under the kit's own, with 64-bit types, so that rules mean what they
say; a callback's results are then refused if Python's numbers are float64, and jax code within it
would compute in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core

__all__ = ["as_traced"]

_CALLBACK = "callback"  # the parameter of pure_callback, io_callback and debug_callback


@dataclass(frozen=True)
class _AsTraced:
    """A callback with its settings; two are equal if both are."""

    callback: Any
    is_x64: bool
    keys: str  # the implementation of random keys
    is_partitionable: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with (
            jax.enable_x64(self.is_x64),
            jax.default_prng_impl(self.keys),
            jax.threefry_partitionable(self.is_partitionable),
        ):
            return jax.tree.map(self._array, self.callback(*args, **kwargs))

    def _array(self, result: Any) -> Any:
        array = np.asarray(result)
        if array.dtype.kind not in "iufc":
            return array
        return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def as_traced(equation: Any) -> Any:
    """The equation, whose callbacks, also those in its bodies, run as jax is set now."""
    params = {name: _params(name, value) for name, value in equation.params.items()}
    if all(params[name] is value for name, value in equation.params.items()):
        return equation
    return equation.replace(params=params)


def _params(name: str, value: Any) -> Any:
    if name == _CALLBACK:
        config: Any = jax.config
        return _AsTraced(
            value,
            config.jax_enable_x64,
            config.jax_default_prng_impl,
            config.jax_threefry_partitionable,
        )
    if isinstance(value, core.ClosedJaxpr):
        body = _body(value.jaxpr)
        return value if body is value.jaxpr else value.replace(jaxpr=body)
    if isinstance(value, core.Jaxpr):
        return _body(value)
    if isinstance(value, tuple):
        parts = tuple(_params("", part) for part in value)
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else parts
    return value


def _body(jaxpr: Any) -> Any:
    equations = [as_traced(equation) for equation in jaxpr.eqns]
    is_same = all(a is b for a, b in zip(equations, jaxpr.eqns, strict=True))
    return jaxpr if is_same else jaxpr.replace(eqns=equations)
