"""Gradient scalers for the loss-scaling modes, with `torch.amp.GradScaler`'s interface.

Plain torch: they serve native runs on CPU and CUDA as well as device "kit".

    none                   the loss as it is
    static                 a constant scale; no check, every step is taken
    dynamic, host check    torch's own `GradScaler`: it reads one number a step, a sync point
    dynamic, on device     the same scale and the same weights, and nothing is read
    dynamic, deferred      the same again, for any optimizer: `kit.torch.scaling.deferred`

Source of the update rule: torch/amp/grad_scaler.py; Micikevicius et al., Mixed Precision Training,
https://arxiv.org/abs/1710.03740.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kit.errors import ScalerError, SettingsError

__all__ = [
    "CheckedScaler",
    "OnDeviceScaler",
    "StaticScaler",
    "check_gradients",
    "check_scale",
    "count_for_fused",
    "count_on_device",
    "counts_in_groups",
    "make_fused",
    "refuse_counts",
    "starts_from_zero",
    "stepped",
]


def check_scale(scale: Any) -> None:
    """A scale of 0 loses every gradient, an infinite one makes them all infinite.

    Raises:
        SettingsError: it is not a positive finite number.
    """
    if not (isinstance(scale, int | float) and scale > 0 and math.isfinite(scale)):
        raise SettingsError(f"a loss scale must be a positive finite number, not {scale!r}")


def check_gradients(optimizer: torch.optim.Optimizer) -> None:
    """A step without gradients does nothing, and is a mistake of the program.

    Raises:
        ScalerError: no parameter of the optimizer has one.
    """
    if not stepped(optimizer):
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        raise ScalerError(
            f"scaler.step() got an {type(optimizer).__name__} of {count} parameters none of "
            "which has a gradient: call scaler.scale(loss).backward() before it, with a loss that "
            "depends on them, and zero_grad() after it"
        )


def stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that a step would change: those that have a gradient."""
    return [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]


class StaticScaler:
    """Multiplies the loss, divides the gradients; does not look for infinities."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._unscaled: set[int] = set()  # ids of optimizers whose gradients are true already
        self._stepped: set[int] = set()  # and of those that have stepped since the last `update`

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list of them, times the scale."""
        if isinstance(outputs, list | tuple):
            return type(outputs)(self.scale(x) for x in outputs)
        return outputs * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place.

        Raises:
            ScalerError: it was done already since the last `update`, or after `step`.
        """
        if id(optimizer) in self._stepped:
            raise ScalerError("unscale_() is being called after step().")
        if id(optimizer) in self._unscaled:
            raise ScalerError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        self._unscaled.add(id(optimizer))
        grads: Any = [p.grad for p in stepped(optimizer)]
        if grads:
            # The inverse of 2^127 is a number that XLA's code for CPUs takes for 0: two factors.
            halves = (1.0,) if self._scale <= 2.0**126 else (2.0**-64, 2.0**64)
            for factor in halves[:-1]:
                torch._foreach_mul_(grads, factor)
            torch._foreach_mul_(grads, halves[-1] / self._scale)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale if that has not been done, then step.

        Raises:
            ScalerError: it has stepped already since the last `update`, or has no gradients.
        """
        if id(optimizer) in self._stepped:
            raise ScalerError("step() has already been called since the last update().")
        check_gradients(optimizer)
        if id(optimizer) not in self._unscaled:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return optimizer.step(*args, **kwargs)

    def update(self) -> None:
        """The scale stays; the next step may unscale again."""
        self._unscaled.clear()
        self._stepped.clear()

    def get_scale(self) -> float:
        """The scale."""
        return self._scale

    def is_enabled(self) -> bool:
        """True."""
        return True

    def state_dict(self) -> dict[str, float]:
        """What `load_state_dict` needs."""
        return {"scale": self._scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over a saved scale.

        Raises:
            SettingsError: it is not a positive finite number.
        """
        check_scale(state["scale"])
        self._scale = float(state["scale"])


class CheckedScaler(torch.amp.GradScaler):
    """`GradScaler` that looks at the scales that it is given, where they are Python numbers."""

    def update(self, new_scale: Any = None) -> None:
        """The next scale; see torch.

        Raises:
            SettingsError: `new_scale` is a number, and not a positive finite one.
        """
        if new_scale is not None and not isinstance(new_scale, torch.Tensor):
            check_scale(new_scale)
        super().update(new_scale)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; see torch.

        Raises:
            SettingsError: its scale is not a positive finite number.
        """
        if "scale" in state:
            check_scale(state["scale"])
        super().load_state_dict(state)


class OnDeviceScaler(CheckedScaler):
    """`GradScaler` that decides on the device: no number is read, so nothing waits.

    Optimizers with a fused implementation are switched to it: torch hands `found_inf` to those as
    a tensor. Any other steps for real, and where there was an infinity the old values are selected
    back. An optimizer that counts its steps on the host cannot do that, and is refused.

    One number is read, once, where an optimizer not in `_STARTS_FROM_ZERO` makes its state: what
    that state was before a skipped first step is known to the optimizer only.
    """

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step unless a gradient is infinite or not a number; the choice is made on the device."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        check_gradients(optimizer)
        make_fused(optimizer)
        return super().step(optimizer, *args, **kwargs)

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found = list(optimizer_state["found_inf_per_device"].values())
        count_on_device(optimizer)
        params = stepped(optimizer)
        weights = [p.detach().clone() for p in params]
        states = [_copied(optimizer.state.get(p, {})) for p in params]
        counts = counts_in_groups(optimizer)
        result = optimizer.step(*args, **kwargs)
        with torch.no_grad():
            bad = torch.stack([f.to(found[0].device) for f in found]).sum() > 0
            for p, weight, before in zip(params, weights, states, strict=True):
                _select(bad, weight, p)
                for key, old in before.items():
                    if isinstance(old, torch.Tensor):
                        _select(bad, old, optimizer.state[p][key])
            _take_back_new_state(optimizer, dict(zip(params, states, strict=True)), bad)
        refuse_counts(optimizer, counts)
        return result


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """A parameter's state, with its tensors copied."""
    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for key, value in state.items()
    }


def _select(bad: torch.Tensor, old: torch.Tensor, tensor: torch.Tensor) -> None:
    tensor.copy_(torch.where(bad.to(tensor.device), old, tensor))


def _take_back_new_state(
    optimizer: torch.optim.Optimizer, before: dict[torch.Tensor, dict[str, Any]], bad: torch.Tensor
) -> None:
    """State that a first step has made is as if that step had not been, where it was bad."""
    fresh = [
        (p, key)
        for p, old in before.items()
        for key, value in optimizer.state.get(p, {}).items()
        if isinstance(value, torch.Tensor) and not isinstance(old.get(key), torch.Tensor)
    ]
    if not fresh:
        return
    if starts_from_zero(optimizer):
        for p, key in fresh:
            tensor = optimizer.state[p][key]
            _select(bad, torch.zeros_like(tensor), tensor)
    elif bool(bad):  # the one read
        for p in {p for p, _ in fresh}:
            optimizer.state[p] = before[p]


_BY_KIT = "_made_fused_by_kit"  # the attribute of such an optimizer

# Their state before the first step is zeros. Not so: NAdam, Rprop and ASGD, which keep a rate.
_STARTS_FROM_ZERO = frozenset({"Adadelta", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop", "SGD"})


def starts_from_zero(optimizer: torch.optim.Optimizer) -> bool:
    """True if the state that its first step makes was zeros before that step."""
    kind = type(optimizer)
    if kind.__name__ not in _STARTS_FROM_ZERO or not kind.__module__.startswith("torch.optim."):
        return False
    return not any(group.get("dampening") for group in optimizer.param_groups)  # spares the first


def make_fused(optimizer: torch.optim.Optimizer) -> None:
    """What `fused=True` at construction would have done, where the optimizer has that choice.

    Before each step: the program may have added a group, or loaded a state, since the last one.
    """
    if "fused" not in optimizer.defaults or optimizer.defaults.get("differentiable"):
        return
    of_amp: Any = optimizer
    is_fused = getattr(of_amp, "_step_supports_amp_scaling", False)
    if is_fused and not getattr(of_amp, _BY_KIT, False):
        return  # made so by the program
    # Torch 2.13's fused SGD leaves its momentum unwritten if the first step is skipped.
    may = not any(group.get("momentum") for group in optimizer.param_groups)
    for group in optimizer.param_groups if may else ():
        if not group.get("fused"):
            group["fused"], group["foreach"] = True, False
            count_for_fused(optimizer, group)
    if may or is_fused:
        of_amp._step_supports_amp_scaling = may
        of_amp._need_device_dtype_check_for_fused = may
        setattr(of_amp, _BY_KIT, may)


def count_for_fused(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    """A fused implementation counts its steps as float32, on the device of each parameter."""
    for p in group["params"]:
        step = optimizer.state.get(p, {}).get("step")
        if isinstance(step, torch.Tensor):
            optimizer.state[p]["step"] = step.to(device=p.device, dtype=torch.float32)


def count_on_device(optimizer: torch.optim.Optimizer) -> None:
    """A step counter on the host would count a step that the device takes back.

    Raises:
        SettingsError: it counts in a Python number.
    """
    for group in optimizer.param_groups:
        if "capturable" in group and not group["capturable"]:
            group["capturable"] = any(p.device.type != "cpu" for p in group["params"])
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() == 0:
                    state[key] = value.to(p.device)
                elif isinstance(value, int | float):
                    raise SettingsError(
                        f"{type(optimizer).__name__} keeps {key!r} in a Python number, which "
                        "cannot be taken back on the device; use loss_scaling='dynamic, host "
                        "check', or an optimizer with fused=True or capturable=True"
                    )


def counts_in_groups(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    """The numbers of each parameter group; of a tensor, which it is, and its count of writes."""
    return {
        (i, key): (id(value), value._version) if isinstance(value, torch.Tensor) else value
        for i, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool)
    }


def refuse_counts(optimizer: torch.optim.Optimizer, before: dict[tuple[int, str], Any]) -> None:
    """After a step: what it has changed in its groups stays, also where the step is taken back.

    Raises:
        SettingsError: it has changed a number there.
    """
    for place, value in counts_in_groups(optimizer).items():
        if place not in before or before[place] != value:
            raise SettingsError(
                f"{type(optimizer).__name__}.step() changes {place[1]!r} of its parameter groups, "
                "which cannot be taken back on the device; use loss_scaling='dynamic, host check'"
            )
