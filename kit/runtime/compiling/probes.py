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
from functools import partial
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from jax import Array

from kit.errors import BadIndexError, BadMatrixError, BadValueError, DeviceCheckError

__all__ = ["PROBES", "Probe", "ProbeOf"]


@dataclass(frozen=True, slots=True)
class Probe:
    """Numbers of one op, and what torch says where they are bad."""

    is_bad: Array
    values: Array  # of the same shape
    error: type[DeviceCheckError]  # of torch's type
    says: str  # torch's sentence, with {value} and {at}, its place among the values
    allowed: str  # "0 to 9"


ProbeOf = Callable[..., Sequence[Probe]]

_DIVISIONS = (
    "aten.floor_divide.default", "aten.floor_divide.Scalar", "aten.remainder.Tensor",
    "aten.remainder.Scalar", "aten.fmod.Tensor", "aten.fmod.Scalar", "aten.div.Tensor_mode",
    "aten.div.Scalar_mode",
)  # fmt: skip
_OUT_OF_SELF = "index out of range in self"
_OUT_OF_DIMENSION = "index {{value}} is out of bounds for dimension {dim} with size {size}"
_COPIED = f"index_copy_(): {_OUT_OF_DIMENSION}"
_OUT_OF_ELEMENTS = "out of range: tried to access index {{value}} on a tensor of {size} elements."


def _index(
    index: Any, size: int, says: str, *, wraps: bool = False,
    error: type[DeviceCheckError] = BadIndexError,
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


def _along(
    x: Array, dim: int, index: Array, *_: Any, says: str = _OUT_OF_DIMENSION, wraps: bool = False,
    error: type[DeviceCheckError] = BadIndexError, **__: Any,
) -> list[Probe]:  # fmt: skip
    size = _length(x, dim)
    says = says.format(dim=dim % max(x.ndim, 1), size=size)
    return _index(index, size, says, wraps=wraps, error=error)


_gather = partial(_along, error=BadValueError)


def _added(x: Array, dim: int, index: Array, *_: Any, **__: Any) -> list[Probe]:
    """Torch has another kernel for one dimension."""
    return (_gather if x.ndim > 1 else _select)(x, dim, index)


_filled = partial(_along, wraps=True)


def _subscript(x: Array, indices: Sequence[Array | None], *_: Any, **__: Any) -> list[Probe]:
    found: list[Probe] = []
    for dim, index in enumerate(indices):
        if index is not None and index.dtype != jnp.bool_:
            says = _OUT_OF_DIMENSION.format(dim=dim, size=x.shape[dim])
            found += _index(index, x.shape[dim], says, wraps=True)
    return found


def _put(x: Array, index: Array, *_: Any, **__: Any) -> list[Probe]:
    return _index(index, x.size, _OUT_OF_ELEMENTS.format(size=x.size), wraps=True)


def _pixel_label(logp: Array, *rest: Any) -> list[Probe]:
    return _label(jnp.moveaxis(logp, 1, -1), *rest)


# -- other numbers -----------------------------------------------------------------------------


def _between(x: Array, name: str) -> Probe:
    """Numbers from 0 to 1; NaN is none."""
    says = f"all elements of {name} should be between 0 and 1"
    return Probe(~((x >= 0) & (x <= 1)), x, BadValueError, says, f"0 to 1, as {name}")


def _binary_cross_entropy(x: Array, target: Array, *_: Any, **__: Any) -> list[Probe]:
    return [_between(x, "input"), _between(target, "target")]


def _probability(p: Array, **_: Any) -> list[Probe]:
    says = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    return [Probe(~((p >= 0) & (p <= 1)), p, BadValueError, says, "0 to 1")]


def _weights(weights: Array, **_: Any) -> list[Probe]:
    is_bad = ~(jnp.isfinite(weights) & (weights >= 0))
    says = "probability tensor contains either `inf`, `nan` or element < 0"
    total = jnp.sum(jnp.where(is_bad, 1, weights), -1)
    empty = "invalid multinomial distribution (sum of probabilities <= 0)"
    return [
        Probe(is_bad, weights, BadValueError, says, "0 and up"),
        Probe(total <= 0, total, BadValueError, empty, "a sum above 0"),
    ]


def _deviations(std: Array) -> list[Probe]:
    says = "normal expects all elements of std >= 0.0"
    return [Probe(~(std >= 0), std, BadValueError, says, "0 and up")]


def _ends(x: Array, bins: int = 100, low: Any = 0, high: Any = 0) -> list[Probe]:
    """Of a histogram: the numbers' own if none are given."""
    if not x.size or not jnp.issubdtype(x.dtype, jnp.inexact):
        return []
    given = jnp.stack([jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)])
    ends = jnp.where(given[0] == given[1], jnp.stack([x.min(), x.max()]), given)
    says = "torch.histc: range of [min, max] is not finite"
    return [Probe(~jnp.isfinite(ends), ends, BadValueError, says, "finite numbers")]


def _matrix(a: Array, *_: Any, **__: Any) -> list[Probe]:
    """Of a batch, each; LAPACK takes infinities, and gives NaN."""
    has_nan = jnp.any(jnp.isnan(a), (-2, -1))
    element = "(Batch element {at}): " if a.ndim > 2 else ""
    says = (
        f"linalg.svd: {element}The algorithm failed to converge because the input matrix "
        "contained non-finite values."
    )
    shown = jnp.where(has_nan, jnp.nan, 0.0)
    return [Probe(has_nan, shown, BadMatrixError, says, "matrices without NaN")]


def _divisor(x: Any, y: Any, *, rounding_mode: str | None = "floor") -> list[Probe]:
    """Integers divided by zero; floats give inf or NaN, as torch's do."""
    is_whole = all(jnp.issubdtype(jnp.result_type(v), jnp.integer) for v in (x, y))
    if not is_whole or rounding_mode is None or (isinstance(y, int) and y != 0):
        return []
    y = jnp.asarray(y)
    return [Probe(y == 0, y, BadValueError, "ZeroDivisionError", "any divisor but 0")]


def _taken_by_mask(x: Array, mask: Array, source: Array) -> list[Probe]:
    asked = jnp.sum(jnp.broadcast_to(mask, jnp.broadcast_shapes(x.shape, mask.shape)))
    says = "Number of elements of source < number of ones in mask"
    return [Probe(asked > source.size, asked, BadValueError, says, f"0 to {source.size} ones")]


def _classes(x: Array, num_classes: int) -> list[Probe]:
    allowed = f"0 to {num_classes - 1}"
    negative = "Class values must be non-negative."
    large = "Class values must be smaller than num_classes."
    return [
        Probe(x < 0, x, BadValueError, negative, allowed),
        Probe(x >= num_classes, x, BadValueError, large, allowed),
    ]


def _margin_labels(x: Array, target: Array, *_: Any, **__: Any) -> list[Probe]:
    """-1 ends a list of labels; what stands after it is looked at, too."""
    most = max(x.shape[-1:], default=1) - 1
    says = "argument #2 'target' is out of range"
    return [Probe((target < -1) | (target > most), target, BadValueError, says, f"-1 to {most}")]


def _margin_label(x: Array, target: Array, *_: Any, **__: Any) -> list[Probe]:
    size = max(x.shape[-1:], default=1)
    return _index(target, size, "target out of range", error=BadValueError)


def _ctc(logp: Array, targets: Array, times: Array, lengths: Array, *_: Any) -> list[Probe]:
    """Lengths; torch's kernel for the CPU looks at them before it begins."""
    longest, labels = logp.shape[0], targets.shape[-1]
    while_checking = " (while checking arguments for ctc_loss_allocate_outputs)"
    size = f"but got size {labels} for argument #2 'targets'{while_checking}"
    value = f"but got value {{value}}{while_checking}"
    at_most = f"Expected input_lengths to have value at most {longest}, {value}"
    at_least = f"Expected target_lengths to have value at least 0, {value}"
    used, is_bad, fits = lengths, lengths > labels, f"0 to {labels}"
    says = f"Expected tensor to have size at least {{value}} at dimension 1, {size}"
    if targets.ndim == 1:
        used = jnp.sum(lengths)
        is_bad, fits = used != labels, f"a sum of {labels}"
        says = f"Expected tensor to have size {{value}} at dimension 0, {size}"
    return [
        Probe((times > longest) | (times < 0), times, BadValueError, at_most, f"0 to {longest}"),
        Probe(lengths < 0, lengths, BadValueError, at_least, "0 and up"),
        Probe(is_bad, used, BadValueError, says, fits),
    ]


PROBES: Mapping[str, ProbeOf] = MappingProxyType({
    "aten.embedding.default": _embedding,
    "aten._embedding_bag.default": _embedding_bag,
    "aten._embedding_bag_forward_only.default": _embedding_bag,
    "aten.nll_loss_forward.default": _label,
    "aten.index_select.default": _select, "aten.index_reduce.default": _select,
    "aten.gather.default": _gather,
    "aten.scatter.src": _gather, "aten.scatter.value": _gather,
    "aten.scatter.reduce": _gather, "aten.scatter.value_reduce": _gather,
    "aten.scatter_add.default": _gather, "aten.scatter_reduce.two": _gather,
    "aten.index.Tensor": _subscript, "aten.index_put.default": _subscript,
    "aten.put.default": _put, "aten.take.default": _put,
    "aten.index_fill.int_Scalar": _filled, "aten.index_fill.int_Tensor": _filled,
    "aten.index_add.default": _added, "aten.index_copy.default": partial(_along, says=_COPIED),
    "aten.nll_loss2d_forward.default": _pixel_label,
    "aten.binary_cross_entropy.default": _binary_cross_entropy,
    "aten.multi_margin_loss.default": _margin_label,
    "aten.multilabel_margin_loss_forward.default": _margin_labels,
    "aten.one_hot.default": _classes, "aten._ctc_loss.Tensor": _ctc,
    "kit.bernoulli": _probability, "kit.multinomial": _weights,
    "kit.deviations": _deviations, "aten.histc.default": _ends,
    "aten._linalg_svd.default": _matrix,
    "aten.masked_scatter.default": _taken_by_mask,
    **dict.fromkeys(_DIVISIONS, _divisor),
})  # fmt: skip
