"""Which implementation of an optimizer runs on device "kit", where the program leaves it open.

Torch chooses its multi-tensor ("foreach") implementation on CUDA when a program says neither
`foreach=` nor `fused=`. Here Adam and AdamW are better off with the fused one: it is one op to
record, and it counts its steps in a tensor. The others compute Python numbers from a Python count,
new ones in each step, so that no step could be replayed or guessed.
"""

from __future__ import annotations

from typing import Any

import torch

from kit.torch.scaling.scaler import count_for_fused
from kit.torch.tensors.tensor import KitTensor

__all__ = ["makes_state", "prefer_fused"]


def prefer_fused(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step: choose `fused=True` if the program chose nothing."""
    if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        return
    for group in optimizer.param_groups:
        if group["fused"] is None and _is_free(group):
            group["fused"] = True
            count_for_fused(optimizer, group)


def makes_state(optimizer: torch.optim.Optimizer) -> bool:
    """True before a step that updates a parameter for the first time."""
    state = optimizer.state
    if len(state) >= sum(len(group["params"]) for group in optimizer.param_groups):
        return False
    return any(
        p.grad is not None and p not in state
        for group in optimizer.param_groups
        for p in group["params"]
    )


def _is_free(group: dict[str, Any]) -> bool:
    if group["foreach"] is not None or group["capturable"] or group["differentiable"]:
        return False
    return all(isinstance(p, KitTensor) and p.is_floating_point() for p in group["params"])
