"""What an op's schema and its arguments say: what it writes, which tensors go in, which floats
are constants. And what all that handles a call needs: its types, and how an op is recorded by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from kit.torch.tensors.private import private
from kit.torch.tensors.spec import Spec
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor, wrap

__all__ = [
    "DROPPED",
    "Recipe",
    "Special",
    "decomposed",
    "decomposition_of",
    "flat_tensors",
    "handed_over",
    "has_static_floats",
    "on_meta",
    "recorded",
    "with_tensors",
    "write_slots",
    "written_tensors",
]

# (tape, args, kwargs, tensors among them, floats among them that are inputs) -> the call's result
Recipe = Callable[[Tape, Any, Any, list[KitTensor], list[float]], Any]
Special = Callable[[Tape, Any, Any, Any], Any]  # (tape, op, args, kwargs) -> the call's result
WriteSlots = list[tuple[int, str]]

# Arguments that no rule is given.
DROPPED = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)
# floats that the op's shape or exactness depends on: kept as constants
STATIC_FLOATS = frozenset(
    {
        "aten.pow.Tensor_Scalar",
        "aten.arange.start_out",
        "aten.linspace.out",
        "aten.native_layer_norm",
        "aten.linalg_vector_norm",
        "aten._foreach_norm.Scalar",
        "aten._foreach_pow.Scalar",
        "aten._cdist_forward",
        "aten._cdist_backward",
        "aten.logit",
        "aten.logit_backward",
        "aten.renorm",
    }
)


def has_static_floats(func: Any) -> bool:
    """True for an op whose Python floats are constants. Slow: ask once for each op."""
    name = str(func).removesuffix(".default")
    resizes = name.startswith(("aten.upsample", "aten._upsample"))  # by a factor
    return resizes or name in STATIC_FLOATS


def write_slots(func: Any) -> WriteSlots:
    """Position and name of the arguments that an op writes. Slow: ask once for each recipe."""
    return [
        (i, a.name)
        for i, a in enumerate(func._schema.arguments)
        if a.alias_info and a.alias_info.is_write
    ]


def written_tensors(slots: WriteSlots, args: Any, kwargs: Any) -> list[KitTensor]:
    """The tensors in these arguments, flat, in the order of the op's signature."""
    found: list[Any] = []
    for i, name in slots:
        found.extend(flat_tensors([args[i] if i < len(args) else kwargs.get(name)]))
    return found


def flat_tensors(args: Any) -> list[torch.Tensor]:
    """All tensors among the arguments and in lists of them, in order."""
    flat: list[torch.Tensor] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            flat.append(a)
        elif isinstance(a, list | tuple):
            flat.extend(flat_tensors(a))
    return flat


def handed_over(call: Callable[..., Any]) -> Special:
    """For an op that torch hands over itself in inference mode, where there is no autograd."""
    return lambda tape, func, args, kwargs: call(*args, **kwargs)


def with_tensors(item: Any, change: Callable[[torch.Tensor], Any], device: str) -> Any:
    """Arguments with what `change` makes of each tensor, and this device where they name one."""
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, dict):
        return {name: with_tensors(value, change, device) for name, value in item.items()}
    if isinstance(item, list | tuple):
        return type(item)([with_tensors(value, change, device) for value in item])
    return torch.device(device) if isinstance(item, torch.device) else item


def on_meta(item: Any) -> Any:
    """Arguments with meta tensors of the same geometry, for shape inference."""
    return with_tensors(item, _meta, "meta")


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.spec.meta() if isinstance(tensor, KitTensor) else tensor.to("meta")


@lru_cache(maxsize=4096)
def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """Torch's own decomposition of an op; None if it has none."""
    known = private("torch._decomp.decomposition_table")
    found = None if write_slots(func) else known.get(func)
    return func.decompose if found is None and func._can_decompose() else found


def decomposed(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Any:
    """What the decomposition of an op gives; what has no rule in it is reported as this op."""
    decomposition = decomposition_of(func)
    assert decomposition is not None, func
    outer, tape.decomposing = tape.decomposing, tape.decomposing or func
    try:
        return decomposition(*args, **kwargs)
    finally:
        tape.decomposing = outer


def recorded(
    tape: Tape,
    name: str,
    template: tuple[Any, Any],
    tensors: Sequence[Any],
    numbers: list[float],
    outputs: Sequence[Spec],
) -> list[KitTensor]:
    """Record one op on these tensors; gives its results, of the geometries `outputs`."""
    op = tape.session.intern(
        name,
        template,
        tuple(tensor.spec.aval for tensor in tensors),
        tuple(spec.aval for spec in outputs),
        len(numbers),
    )
    values = tape.record(op, [tensor.ref.read(tape) for tensor in tensors], numbers)
    return [wrap(tape, value, spec) for value, spec in zip(values, outputs, strict=True)]
