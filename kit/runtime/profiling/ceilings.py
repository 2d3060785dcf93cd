"""What this device reaches at best: one large copy and one large matrix product, measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from kit.errors import SettingsError
from kit.runs.settings import Settings
from kit.runtime.profiling.devices import pick_device
from kit.text import check_whole_number
from kit.trace.kernels import Ceilings

__all__ = ["measure_ceilings"]

_CPU = (1024, 1 << 24)  # side of the matrices, elements of the copy: 64 MiB, beyond any cache
_GPU = (8192, 1 << 28)


def measure_ceilings(device: str = "auto", *, repeats: int = 5) -> Ceilings:
    """Measure what `kit.kernel_table` holds kernels against; takes under a second on a laptop.

    Both are in float32, with all of its digits, as the kit's own products are: an NVIDIA GPU
    computes some times as fast in TF32. A copy reads and writes each of its bytes once.

    Args:
        device: as in `Settings.device`.
        repeats: of which the median is taken.

    Raises:
        SettingsError: no such device, a GPU was asked for and jax sees none, or `repeats` is no
            number of times.
    """
    check_whole_number(SettingsError, "repeats", repeats)
    target = pick_device(Settings(device=device).device)
    side, elements = _CPU if target.platform == "cpu" else _GPU
    with jax.default_device(target):
        matrix = jnp.ones((side, side), jnp.float32)
        line = jnp.ones((elements,), jnp.float32)
        product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
        product_s = _median(product, matrix, repeats)
        copy_s = _median(jax.jit(lambda x: x + jnp.float32(1)), line, repeats)
    return Ceilings(
        gb_s=2 * 4 * elements / copy_s / 1e9,
        gflop_s=2 * side**3 / product_s / 1e9,
        device=str(target.device_kind),
    )


def _median(program: Callable[[Any], Any], argument: Any, repeats: int) -> float:
    """Seconds of one call, after one that compiles."""
    jax.block_until_ready(program(argument))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(program(argument))
        times.append(time.perf_counter() - start)
    return median(times)
