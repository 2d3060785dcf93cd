"""The best rates of a device, against which the kernels of a run are held."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Ceilings"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device reaches at best, as measured by `kit.measure_ceilings`."""

    gb_s: float  # bytes read and written by a large copy
    gflop_s: float  # of a large matrix product
    device: str = ""
