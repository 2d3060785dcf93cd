"""Which implementation of an optimizer runs: its fused one, or one that counts on the device.

Torch chooses its multi-tensor ("foreach") implementation on CUDA when a program says neither
`foreach=` nor `fused=`. On device "kit" Adam and AdamW are better off with the fused one: it is one
op to record, and it counts its steps in a tensor. The others compute Python numbers from a Python
count, new ones in each step, so that no step could be replayed or guessed.

Plain torch: a scaler makes optimizers fused on any device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kit.errors import SettingsError
from kit.torch.tensors.private import private

__all__ = [
    "HOOKS_OF_ALL",
    "counted_on_device",
    "has_new_hooks",
    "hooks_of",
    "make_fused",
    "note_good_step",
    "prefer_fused",
    "stepped",
    "stepped_whatever_found",
]

HOOKS_OF_ALL: list[dict[int, Any]] = [  # of optimizers
    private("torch.optim.optimizer._global_optimizer_pre_hooks"),
    private("torch.optim.optimizer._global_optimizer_post_hooks"),
]
_BY_KIT = "_made_fused_by_kit"  # the attribute of such an optimizer
_KNOWN_HOOKS = "_hooks_known_to_kit"  # its attribute: numbers of those that ran in a good step
_SUPPORTS = "_step_supports_amp_scaling"  # torch's, of one that gets `found_inf` itself


def stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that a step would change: those that have a gradient."""
    return [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]


def prefer_fused(optimizer: torch.optim.Optimizer) -> None:
    """Before a step on device kit: choose `fused=True` if the program chose nothing."""
    if not isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        return
    for group in optimizer.param_groups:
        if group.get("fused", False) is None and _is_free(group):  # a class of one's own has none
            _fuse(optimizer, group)


def _is_free(group: dict[str, Any]) -> bool:
    if group["foreach"] is not None or group["capturable"] or group["differentiable"]:
        return False
    return all(p.device.type == "kit" and p.is_floating_point() for p in group["params"])


def make_fused(optimizer: torch.optim.Optimizer) -> None:
    """What `fused=True` at construction would have done, where the optimizer has that choice.

    Before each step: the program may have added a group, or loaded a state, since the last one.
    """
    if "fused" not in optimizer.defaults or optimizer.defaults.get("differentiable"):
        return
    of_amp: Any = optimizer
    is_fused = getattr(of_amp, _SUPPORTS, False)
    if is_fused and not getattr(of_amp, _BY_KIT, False):
        return  # made so by the program
    # A fused step skips its own writes only, not those of hooks or of a step around it. Torch
    # 2.13's fused SGD leaves its momentum unwritten if the first step is skipped.
    has_momentum = any(group.get("momentum") for group in optimizer.param_groups)
    may = not has_momentum and not hooks_of(optimizer) and _steps_as_torchs(optimizer)
    for group in optimizer.param_groups if may else ():
        if not group.get("fused"):
            group["foreach"] = False
            _fuse(optimizer, group)
    if may or is_fused:
        setattr(of_amp, _SUPPORTS, may)
        of_amp._need_device_dtype_check_for_fused = may
        setattr(of_amp, _BY_KIT, may)


def hooks_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The hooks of the program's that its step calls: the optimizer's own, and every one's."""
    return [*_hooks_by_id(optimizer).values()]


def has_new_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Has it hooks that have run in no good step yet?

    In its first one a hook may make what it keeps, as an average of the weights: what that was
    before is known to nobody, so that a bad step is skipped as a whole.
    """
    return not _hooks_by_id(optimizer).keys() <= {*getattr(optimizer, _KNOWN_HOOKS, ())}


def note_good_step(optimizer: torch.optim.Optimizer) -> None:
    """Its hooks run in a good step now."""
    setattr(optimizer, _KNOWN_HOOKS, tuple(_hooks_by_id(optimizer)))


def _hooks_by_id(optimizer: torch.optim.Optimizer) -> dict[int, Any]:
    """By the number that torch has given each, and gives to no other."""
    tables = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # none in some wrappers
    own = [getattr(optimizer, x, None) or {} for x in tables]
    of_all = {i: hook for table in HOOKS_OF_ALL for i, hook in list(table.items())}
    found = {i: hook for table in own for i, hook in table.items()}
    return found | {i: hook for i, hook in of_all.items() if not _is_kits(hook)}


def _is_kits(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("kit.")


def _steps_as_torchs(optimizer: torch.optim.Optimizer) -> bool:
    return str(type(optimizer).step.__module__).startswith("torch.optim.")


def _fuse(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """A fused implementation counts its steps as float32, on the device of each parameter."""
    group["fused"] = True
    for p in group["params"]:
        step = optimizer.state.get(p, {}).get("step")
        if isinstance(step, torch.Tensor):
            optimizer.state[p]["step"] = step.to(device=p.device, dtype=torch.float32)


@contextmanager
def stepped_whatever_found(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside the block torch's scaler hands no `found_inf` over: each step is taken."""
    was_fused = getattr(optimizer, _SUPPORTS, False)
    setattr(optimizer, _SUPPORTS, False)
    try:
        yield
    finally:
        setattr(optimizer, _SUPPORTS, was_fused)


@contextmanager
def counted_on_device(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """A step counter on the host would count a step that the device takes back.

    It is "capturable" inside the block only: elsewhere torch refuses a checkpoint that says so.

    Raises:
        SettingsError: it keeps something in Python that a step changes.
    """
    prefer_fused(optimizer)  # first: no group that is capturable is made fused
    groups = [g for g in optimizer.param_groups if "capturable" in g and not g["capturable"]]
    _count_on_device(optimizer)
    try:
        for group in groups:
            group["capturable"] = any(p.device.type != "cpu" for p in group["params"])
        yield
    finally:
        for group in groups:
            group["capturable"] = False


def _count_on_device(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() == 0:
                    state[key] = value.to(p.device)
                elif isinstance(value, int | float | list | dict):
                    kind = "number" if isinstance(value, int | float) else type(value).__name__
                    raise SettingsError(
                        f"{type(optimizer).__name__} keeps {key!r} in a Python {kind}, which "
                        "cannot be taken back on the device; use loss_scaling='dynamic, host "
                        "check', or an optimizer with fused=True or capturable=True"
                    )
