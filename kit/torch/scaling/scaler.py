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
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import ref

import torch

from kit.errors import ScalerError, SettingsError
from kit.torch.scaling.fused import (
    counted_on_device,
    has_new_hooks,
    hooks_of,
    make_fused,
    note_good_step,
    stepped,
    stepped_whatever_found,
)

__all__ = [
    "CheckedScaler",
    "OnDeviceScaler",
    "StaticScaler",
    "check_scale",
    "counts_of",
    "refuse_counts",
    "starts_from_zero",
]


def check_scale(scale: Any) -> None:
    """A scale of 0 loses every gradient, an infinite one makes them all infinite.

    Raises:
        SettingsError: it is not a positive finite number.
    """
    if not (isinstance(scale, int | float) and scale > 0 and math.isfinite(scale)):
        raise SettingsError(f"a loss scale must be a positive finite number, not {scale!r}")


def _check_gradients(optimizer: torch.optim.Optimizer) -> None:
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


class CheckedScaler(torch.amp.GradScaler):
    """`GradScaler` that looks at the scales that it is given, where they are Python numbers."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale if that has not been done, then step as the scaler does it.

        Raises:
            ScalerError, RuntimeError: no gradients; a second step before `update`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        _check_gradients(optimizer)
        with self._stepping(optimizer):
            return super().step(optimizer, *args, **kwargs)

    def _stepping(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        """Get the optimizer ready for a step; gives what this is taken in."""
        return nullcontext()

    def scale(self, outputs: Any) -> Any:
        """The outputs times the scale; see torch."""
        self._tell()
        return super().scale(outputs)

    def _tell(self) -> None:
        """A replay of the step that runs now has this scaler's numbers as constants."""
        if self._enabled and torch.device(self._device).type == "kit":
            from kit.runtime.session.session import current_session  # loads jax

            if (session := current_session()) is not None:
                session.stepper.watch(self, _of_scaler)

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


def _of_scaler(scaler: CheckedScaler) -> Any:
    """Asks a scaler for its numbers, and which tensors its scale and its count of steps are."""
    from kit.runtime.steps.recording import Watched

    known = ref(scaler)

    def look() -> Any:
        alive = known()
        return alive and [x for x in vars(alive).values() if isinstance(x, int | float)]

    def bound() -> Any:
        alive = known()
        return alive and [id(alive._scale), id(alive._growth_tracker)]

    return Watched(look, bound)


class StaticScaler(CheckedScaler):
    """Multiplies the loss, divides the gradients; does not look for infinities.

    Torch's tensor of the scale is on the host, and so of no session.
    """

    def _stepping(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        return stepped_whatever_found(optimizer)

    def update(self, new_scale: Any = None) -> None:
        """The scale stays, unless another is given; the next step may unscale again.

        Raises:
            SettingsError: `new_scale` is not a positive finite number.
        """
        if new_scale is not None:
            check_scale(scale := float(new_scale))
            self._init_scale, self._scale, self._growth_tracker = scale, None, None
        self._per_optimizer_states.clear()

    def get_scale(self) -> float:
        """The scale: no number is read."""
        self._tell()
        return float(self._init_scale)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs."""
        return {"scale": self.get_scale()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the scale of a saved state, of this or of another scaler.

        Raises:
            SettingsError: it is not a positive finite number.
        """
        check_scale(state["scale"])
        self.update(state["scale"])

    def _lazy_init_scale_growth_tracker(self, _: torch.device) -> None:
        super()._lazy_init_scale_growth_tracker(torch.device("cpu"))

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[torch.Tensor, torch.Tensor]:
        if self._scale is None:  # the program has scaled by `get_scale()`
            self._lazy_init_scale_growth_tracker(torch.device("cpu"))
        return super()._check_scale_growth_tracker(funcname)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, _: Any, found_inf: torch.Tensor, __: bool
    ) -> dict[torch.device, torch.Tensor]:
        grads: Any = [p.grad for p in stepped(optimizer)]
        # The inverse of 2^127 is a number that XLA's code for CPUs takes for 0: two factors.
        scale = self.get_scale()
        factors = (1 / scale,) if scale <= 2.0**126 else (2.0**-64, 2.0**64 / scale)
        for factor in factors if grads else ():
            torch._foreach_mul_(grads, factor)
        return {found_inf.device: found_inf}

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return optimizer.step(*args, **kwargs)


class OnDeviceScaler(CheckedScaler):
    """`GradScaler` that decides on the device: no number is read, so nothing waits.

    Optimizers with a fused implementation are switched to it: torch hands `found_inf` to those as
    a tensor. Any other steps for real, and where there was an infinity the old values are selected
    back, on device kit also those of what its hooks write. An optimizer that counts its steps on
    the host cannot do that, and is refused.

    One number is read, once, where an optimizer not in `_STARTS_FROM_ZERO` makes its state: what
    that state was before a skipped first step is known to the optimizer only. And until a hook has
    run in a good step, see `has_new_hooks`.
    """

    def _stepping(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        make_fused(optimizer)
        return nullcontext()

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found = list(optimizer_state["found_inf_per_device"].values())
        noted = _other_writes(optimizer)
        if has_new_hooks(optimizer):
            if any(map(bool, found)):
                return None
            note_good_step(optimizer)
        params = stepped(optimizer)
        weights = [p.detach().clone() for p in params]
        states = [_copied(optimizer.state.get(p, {})) for p in params]
        counts = counts_of(optimizer)
        with counted_on_device(optimizer), noted as others:
            result = optimizer.step(*args, **kwargs)
        with torch.no_grad():
            bad = torch.stack([f.to(found[0].device) for f in found]).sum() > 0
            for p, weight, before in zip(params, weights, states, strict=True):
                _select(bad, weight, p)
                for key, old in before.items():
                    if isinstance(old, torch.Tensor):
                        _select(bad, old, optimizer.state[p][key])
            _take_back_new_state(optimizer, dict(zip(params, states, strict=True)), bad)
            for tensor, old in () if others is None else others.tensors():
                _select(bad, old, tensor)
        refuse_counts(optimizer, counts)
        return result


def _other_writes(optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    """Notes what a step writes beside parameters and state: an average of a hook's, say.

    Raises:
        SettingsError: it has hooks, and is not on device kit, where nothing is noted.
    """
    tape = getattr(stepped(optimizer)[0], "tape", None)
    if tape is not None:
        from kit.torch.scaling.writes import other_writes  # loads the runtime, and with it jax

        return other_writes(tape, optimizer)
    if hooks_of(optimizer):
        raise SettingsError(
            f"a step of this {type(optimizer).__name__} runs hooks, and what they write cannot be "
            "taken back natively; use loss_scaling='dynamic, host check', or device kit"
        )
    return nullcontext()


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


# Their state before the first step is zeros. Not so: NAdam, Rprop and ASGD, which keep a rate.
_STARTS_FROM_ZERO = frozenset({"Adadelta", "Adam", "AdamW", "Adamax", "RAdam", "RMSprop", "SGD"})


def starts_from_zero(optimizer: torch.optim.Optimizer) -> bool:
    """True if the state that its first step makes was zeros before that step."""
    kind = type(optimizer)
    if kind.__name__ not in _STARTS_FROM_ZERO or not kind.__module__.startswith("torch.optim."):
        return False
    return not any(group.get("dampening") for group in optimizer.param_groups)  # spares the first


def counts_of(optimizer: torch.optim.Optimizer) -> dict[tuple[str, int, str], Any]:
    """Numbers of its own and of its groups; of a tensor there, which it is, and its writes."""
    found: dict[tuple[str, int, str], Any] = {
        ("the optimizer", 0, key): value
        for key, value in vars(optimizer).items()
        if _is_number(value)
    }
    for i, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                found["its parameter groups", i, key] = id(value), value._version
            elif _is_number(value):
                found["its parameter groups", i, key] = value
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def refuse_counts(
    optimizer: torch.optim.Optimizer, before: dict[tuple[str, int, str], Any]
) -> None:
    """After a step: a number that it has changed stays so, also where the step is taken back.

    Raises:
        SettingsError: it has changed one of its own, or of its groups.
    """
    for place, value in counts_of(optimizer).items():
        if place not in before or before[place] != value:
            raise SettingsError(
                f"{type(optimizer).__name__}.step() changes {place[-1]!r} of {place[0]}, "
                "which cannot be taken back on the device; use loss_scaling='dynamic, host check'"
            )
