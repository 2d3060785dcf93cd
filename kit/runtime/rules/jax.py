"""The rule for every op that comes from a jaxpr: evaluate its one equation.

Typed random keys travel through the stream as the integers that they are made of: the runtime
knows arrays of numbers only. The rule makes keys of them again, and integers of its results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from kit.runtime.rules.table import Rules

__all__ = ["JAX", "OneEquation", "Static", "has_effects"]


class Static:
    """Part of an op's template that is no array: `text` says exactly what it is.

    Ops are interned by the text of their template, so equal texts must mean equal values.
    """

    __slots__ = ("text", "value")

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, eq=False)
class OneEquation:
    """A closed jaxpr of one equation, and for each operand the kind of key it is, if it is one."""

    jaxpr: Any
    keys: tuple[str | None, ...]


def has_effects(equation: object) -> bool:
    """True if running this argument of an op once more would be noticed: it calls back, say."""
    return isinstance(equation, Static) and bool(equation.value.jaxpr.effects)


def evaluate(equation: Static, *operands: Any, **params: Static) -> list[Any]:
    """Compute one equation.

    `params` are the equation's own, there to be seen in the graph and in the op's key.
    """
    one: OneEquation = equation.value
    arrays = [x.value if isinstance(x, Static) else x for x in operands]
    for i, kind in enumerate(one.keys):
        if kind is not None:
            arrays[i] = jax.random.wrap_key_data(arrays[i], impl=kind)
    results = jaxpr_as_fun(one.jaxpr)(*arrays)
    return [_numbers(x) for x in results]


def _numbers(array: Any) -> Any:
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(array)
    return array


JAX = Rules({"jax.*": evaluate})
