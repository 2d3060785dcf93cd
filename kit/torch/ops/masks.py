"""`x[mask] = number`: the one use of a boolean index whose shapes do not depend on the data."""

from __future__ import annotations

from typing import Any

import torch

from kit.torch.ops.schema import Recipe
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["masked_write"]


def masked_write(func: Any, args: Any) -> Recipe | None:
    """The recipe for an `index_put` of one number by one mask; None for anything else."""
    fills = {
        "aten.index_put.default": torch.ops.aten.masked_fill,
        "aten.index_put_.default": torch.ops.aten.masked_fill_,
    }
    fill = fills.get(str(func))
    if fill is None or any(args[3:]):
        return None
    x, indices, number = args[:3]
    given = [i for i, index in enumerate(indices) if index is not None]
    first = given[0]
    mask = indices[first]
    after = first + mask.dim()
    fits = mask.dtype is torch.bool and mask.shape == x.shape[first:after]
    if len(given) > 1 or not fits or number.numel() != 1 or number.dtype is not x.dtype:
        return None
    shape = (*mask.shape, *(1,) * (x.dim() - after))

    def recipe(tape: Tape, args: Any, kwargs: Any, tensors: Any, numbers: Any) -> Any:
        mask, value = args[1][first].to("kit").reshape(shape), args[2]
        # An overload is named: torch prints a tensor that it tries to pass as a number, a sync.
        if isinstance(value, KitTensor):
            return fill.Tensor(args[0], mask, value.reshape(()))
        return fill.Scalar(args[0], mask, value.item())

    return recipe
