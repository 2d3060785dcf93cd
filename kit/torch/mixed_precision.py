"""Autocast and GradScaler of code that names other devices, while device kit stands in for them.

Torch keeps one switch of autocast a device: that of "cuda" or "cpu" would not hold on device kit,
and a step in bfloat16 would be one in float32 there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.amp import autocast_mode

from kit.torch.tensors.private import private

__all__ = ["mixed_precision_follows"]


# What `custom_fwd(cast_inputs=...)` does to each argument.
_cast: Callable[[Any, str, torch.dtype], Any] = private("torch.amp.autocast_mode._cast")


@contextmanager
def mixed_precision_follows(
    accelerators: Collection[str], is_users: Callable[[], bool]
) -> Iterator[None]:
    """Inside the block, the switches of the accelerators, for which kit stands in, are kit's.

    Autocast of the "cpu" holds there as ever, and on device kit, too, if it is the user's: torch
    and packages say it beside that of the device, and mean the CPU.

    Args:
        is_users: is it the user's code that calls?
    """
    autocast, scaler = torch.autocast, torch.amp.GradScaler
    replaced: list[tuple[Any, str, Any]] = [
        (autocast, "__init__", _autocast(autocast.__init__, accelerators, is_users)),
        (autocast, "__enter__", _entered(autocast.__enter__)),
        (autocast, "__exit__", _left(autocast.__exit__)),
        (scaler, "__init__", _scaler(scaler.__init__, accelerators)),
        (torch, "is_autocast_enabled", _asked(torch.is_autocast_enabled, accelerators)),
        (torch, "get_autocast_dtype", _asked(torch.get_autocast_dtype, accelerators)),
        (torch, "get_autocast_gpu_dtype", _asked(torch.get_autocast_dtype, accelerators)),
        (autocast_mode, "_cast", _casting(_cast, accelerators)),
    ]
    with ExitStack() as undo:
        for owner, name, ours in replaced:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, ours)
        yield


def _autocast(
    original: Any, accelerators: Collection[str], is_users: Callable[[], bool]
) -> Callable[..., None]:
    dtype_of = torch.get_autocast_dtype

    @functools.wraps(original)
    def __init__(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type in accelerators:
            original(self, "kit", dtype or dtype_of(device_type), *args, **kwargs)
            return
        original(self, device_type, dtype, *args, **kwargs)
        if device_type == "cpu" and is_users():
            self._on_kit = object.__new__(torch.autocast)
            original(self._on_kit, "kit", self.fast_dtype, self._enabled, self._cache_enabled)

    return __init__


def _entered(original: Any) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __enter__(self: Any) -> Any:
        result = original(self)
        if (on_kit := vars(self).get("_on_kit")) is not None:
            original(on_kit)
        return result

    return __enter__


def _left(original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def __exit__(self: Any, *error: Any) -> Any:
        if (on_kit := vars(self).get("_on_kit")) is not None:
            original(on_kit, *error)
        return original(self, *error)

    return __exit__


def _scaler(original: Any, accelerators: Collection[str]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        original(self, "kit" if device in accelerators else device, *args, **kwargs)

    return __init__


def _asked(original: Any, accelerators: Collection[str]) -> Callable[..., Any]:
    """Asks kit for what an accelerator's switch is; without a device, torch asks CUDA's."""

    @functools.wraps(original)
    def asked(device_type: str = "cuda") -> Any:
        return original("kit" if device_type in accelerators else device_type)

    return asked


def _casting(original: Any, accelerators: Collection[str]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return original(value, "kit" if device_type in accelerators else device_type, dtype)

    return cast
