"""Errors inside a backward pass: kept until the pass is over, then raised.

An exception that leaves `__torch_dispatch__` under one of autograd's own nodes ends the process:
torch's stream guard calls Python while the error is still set (tried with torch 2.13). So the op
gives stand-ins, which no code will see, and the error is raised by `backward()` or by the next op.
"""

from __future__ import annotations

from typing import Any

import torch

from kit.torch.ops.schema import on_meta, with_tensors
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import empty

__all__ = ["stand_ins"]


def stand_ins(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """Tensors of the shapes that the op would have given, as far as torch knows them."""
    try:
        meta = func(*on_meta(args), **on_meta(kwargs or {}))
    except Exception:  # noqa: BLE001 - the op's own error is kept already
        return _like_first(tape, func, args)
    return with_tensors(meta, lambda x: empty(tape, tuple(x.shape), x.dtype), "kit")


def _like_first(tape: Tape, func: Any, args: Any) -> Any:
    first = next(x for x in args if isinstance(x, torch.Tensor))
    made = [empty(tape, tuple(first.shape), first.dtype) for _ in func._schema.returns]
    return made[0] if len(made) == 1 else tuple(made)
