"""Which gradient scaler serves a mode of loss scaling: one builder for each row of the table.

The table of modes is `kit.runs.loss_scaling`. A new mode is one row there, a scaler in
this folder and one builder here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kit.runs.loss_scaling import DEFERRED, HOST_CHECK, NONE, ON_DEVICE, STATIC
from kit.runs.loss_scaling import loss_scaling as row_of
from kit.torch.scaling.scaler import OnDeviceScaler, StaticScaler, check_scale

__all__ = ["BUILDERS", "make_scaler"]

Build = Callable[..., Any]  # (device, init_scale, growth options) -> a scaler


def make_scaler(
    loss_scaling: str, device: str, *, init_scale: float | None = None, **options: Any
) -> Any:
    """The scaler for a loss-scaling mode on a device ("kit", "cuda" or "cpu").

    Args:
        init_scale: first scale (constant for "static"); that of the mode's row if not given.
        options: growth_factor, backoff_factor, growth_interval, as `GradScaler` takes them.

    Raises:
        SettingsError: no such mode, or a scale that is not a positive finite number.
    """
    row = row_of(loss_scaling)
    if init_scale is not None:
        check_scale(init_scale)
    name = row.name if torch.device(device).type == "kit" else row.native
    return BUILDERS[name](device, init_scale or row.first_scale, **options)


def _deferred(device: str, init_scale: float, **options: Any) -> Any:
    from kit.torch.scaling.deferred import DeferredScaler  # loads the runtime, and with it jax

    return DeferredScaler(device, init_scale, **options)


BUILDERS: dict[str, Build] = {
    NONE: lambda device, *_, **__: torch.amp.GradScaler(device, enabled=False),
    STATIC: lambda device, init_scale, **__: StaticScaler(device, init_scale),
    HOST_CHECK: torch.amp.GradScaler,
    ON_DEVICE: OnDeviceScaler,
    DEFERRED: _deferred,
}
