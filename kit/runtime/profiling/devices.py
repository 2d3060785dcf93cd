"""The jax device that a session, a measurement or a native run is on."""

from __future__ import annotations

from typing import Any

import jax

from kit.errors import SettingsError
from kit.runs.settings import GPUS
from kit.runtime.profiling.heap import keep_freed_memory

__all__ = ["bytes_on", "peak_bytes_on", "pick_device"]


def pick_device(wanted: str) -> Any:
    """The jax device for `Settings.device`; on a CPU, freed memory is kept from now on.

    Raises:
        SettingsError: a GPU was asked for and jax sees none.
    """
    if wanted != "gpu":
        keep_freed_memory()  # before XLA starts its threads
    if wanted == "cpu":
        return jax.local_devices(backend="cpu")[0]
    device = jax.local_devices()[0]
    if wanted == "gpu" and device.platform not in GPUS:
        raise SettingsError(
            f"device='gpu', but jax sees only {device.platform}. Install jax with CUDA "
            "(pip install 'overlap-kit[cuda]') or use device='auto'."
        )
    return device


def bytes_on(device: Any) -> int:
    """Bytes of the arrays of this process that are on a jax device now."""
    arrays = jax.live_arrays(device.platform)
    return sum(array.nbytes for array in arrays if device in array.devices())


def peak_bytes_on(device: Any) -> int | None:
    """The largest number of bytes in use there so far, if XLA counts it: on GPUs it does."""
    stats = device.memory_stats() or {}
    return stats.get("peak_bytes_in_use")
