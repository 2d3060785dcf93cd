"""Probes: numbers that an op is given and that must lie in a range; XLA has no error for others.

XLA clamps an index that is out of bounds, drops a write there, or gives NaN. So a program that has
such an op also looks at the index, and returns what it found beside its results. Nothing waits for
that. A probe has the signature of the op, as the rule has; names are those of `Op.name`.
"""

# Operators of a jax array give Any to mypy; that a probe finds what torch finds is tested instead.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import Array

from kit.errors import BadIndexError, BadInputError, BadValueError

__all__ = ["PROBES", "Probe", "ProbeOf"]


@dataclass(frozen=True, slots=True)
class Probe:
    """Numbers of one op, and what torch says where they are bad."""

    is_bad: Array
    values: Array  # of the same shape
    error: type[BadInputError]  # of torch's type
    says: str  # torch's sentence, with {value} and {at}, its place among the values
    allowed: str  # "0 to 9"


ProbeOf = Callable[..., Sequence[Probe]]

_OUT_OF_SELF = "index out of range in self"
_OUT_OF_DIMENSION = "index {{value}} is out of bounds for dimension {dim} with size {size}"
_OUT_OF_ELEMENTS = "out of range: tried to access index {{value}} on a tensor of {size} elements."


def _index(
    index: Any, size: int, says: str, *, wraps: bool = False,
    error: type[BadInputError] = BadIndexError,
) -> list[Probe]:  # fmt: skip
    """An index into `size` places; `wraps`: negative ones count from the end."""
    wide = jnp.asarray(index).astype(jnp.int64)
    least = -size if wraps else 0
    allowed = f"{least} to {size - 1}" if size else "none, as there are no elements"
    return [Probe((wide < least) | (wide >= size), wide, error, says, allowed)]


def _length(x: Array, dim: int) -> int:
    return x.shape[dim] if x.ndim else 1


def _embedding(weight: Array, index: Array, *_: Any, **__: Any) -> list[Probe]:
    return _index(index, weight.shape[0], _OUT_OF_SELF)


def _embedding_bag(weight: Array, index: Array, *_: Any, **__: Any) -> list[Probe]:
    size = weight.shape[0]
    says = (
        f"Index {{at}} of input takes value {{value}} which is not in the valid range [0, {size})"
    )
    return _index(index, size, says, error=BadValueError)


def _label(
    logp: Array, target: Array, weight: Array | None, reduction: int, ignore: int
) -> list[Probe]:
    (probe,) = _index(target, logp.shape[-1], "Target {value} is out of bounds.")
    is_bad = probe.is_bad & (probe.values != ignore)
    allowed = f"{probe.allowed}, or {ignore} to ignore"
    return [Probe(is_bad, probe.values, probe.error, probe.says, allowed)]


def _select(x: Array, dim: int, index: Array, *_: Any, **__: Any) -> list[Probe]:
    return _index(index, _length(x, dim), _OUT_OF_SELF)


def _along(x: Array, dim: int, index: Array, *_: Any, **__: Any) -> list[Probe]:
    size = _length(x, dim)
    says = _OUT_OF_DIMENSION.format(dim=dim % max(x.ndim, 1), size=size)
    return _index(index, size, says, error=BadValueError)


def _subscript(x: Array, indices: Sequence[Array | None], *_: Any, **__: Any) -> list[Probe]:
    found: list[Probe] = []
    for dim, index in enumerate(indices):
        if index is not None and index.dtype != jnp.bool_:
            says = _OUT_OF_DIMENSION.format(dim=dim, size=x.shape[dim])
            found += _index(index, x.shape[dim], says, wraps=True)
    return found


def _put(x: Array, index: Array, *_: Any, **__: Any) -> list[Probe]:
    return _index(index, x.size, _OUT_OF_ELEMENTS.format(size=x.size), wraps=True)


PROBES: Mapping[str, ProbeOf] = MappingProxyType({
    "aten.embedding.default": _embedding,
    "aten._embedding_bag.default": _embedding_bag,
    "aten._embedding_bag_forward_only.default": _embedding_bag,
    "aten.nll_loss_forward.default": _label,
    "aten.index_select.default": _select, "aten.index_reduce.default": _select,
    "aten.gather.default": _along,
    "aten.scatter.src": _along, "aten.scatter.value": _along,
    "aten.scatter.reduce": _along, "aten.scatter.value_reduce": _along,
    "aten.scatter_add.default": _along, "aten.scatter_reduce.two": _along,
    "aten.index.Tensor": _subscript, "aten.index_put.default": _subscript,
    "aten.put.default": _put,
})  # fmt: skip
