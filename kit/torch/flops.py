"""How many operations the ops take that device kit keeps whole, for torch's `FlopCounterMode`.

Elsewhere torch takes them apart into products of matrices, and counts those.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from kit.errors import but_of_handlers
from kit.ir import RECURRENT

__all__ = ["register_flops"]


def register_flops() -> None:
    """Tell torch's counter; once a process, and where torch has no formula of its own."""
    rows: tuple[tuple[Any, Callable[..., int]], ...] = (
        (torch.ops.aten.linear_backward, _linear_backward),
        (torch.ops.aten._scaled_dot_product_fused_attention_overrideable, _attention),
        (
            torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward,
            _attention_backward,
        ),
        *((getattr(torch.ops.kit, kind), _recurrent) for kind in RECURRENT),
        *((getattr(torch.ops.kit, f"{kind}_backward"), _recurrent_backward) for kind in RECURRENT),
    )
    for op, formula in rows:
        try:
            register_flop_formula([op])(formula)
        except but_of_handlers(RuntimeError):  # "duplicate registrations": a later torch has one
            continue


def _linear_backward(
    x: Any, grad: Any, weight: Any, wanted: Any, *_: Any, out_shape: Any = None
) -> int:
    """A product of matrices for the input's gradient, another for the weight's."""
    return sum(map(bool, wanted[:2])) * 2 * int(prod(grad)) * int(weight[1])


def _attention(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Scores and their product with the values, as torch counts its own fused attention."""
    return int(2 * prod(q[:3]) * k[2] * (q[3] + v[3]))


def _attention_backward(
    grad: Any, q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    """The scores again, and the gradients of both products, as torch counts them."""
    return int(2 * prod(q[:3]) * k[2] * (3 * q[3] + 2 * v[3]))


def _recurrent(x: Any, state: Any, weights: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Each time step and row is multiplied by each weight."""
    return 2 * int(prod(x[:2])) * sum(int(prod(w)) for w in weights if len(w) == 2)


def _recurrent_backward(
    grads: Any, x: Any, state: Any, weights: Any, *_: Any,
    wanted: Any, out_shape: Any = None, **__: Any,
) -> int:  # fmt: skip
    """The gradients of the inputs, of the states, and of the weights."""
    from_input, *others = (int(prod(w)) for w in weights if len(w) == 2)
    made = wanted[0] * from_input + sum(others) + wanted[2] * (from_input + sum(others))
    return 2 * int(prod(x[:2])) * int(made)
