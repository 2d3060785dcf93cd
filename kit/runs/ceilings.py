"""The best rates of a device, against which the kernels of a run are held."""

from __future__ import annotations

from dataclasses import dataclass

from kit.errors import SettingsError
from kit.text import check_number

__all__ = ["Ceilings"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device reaches at best, as measured by `kit.measure_ceilings`."""

    gb_s: float  # bytes read and written by a large copy
    gflop_s: float  # of a large matrix product
    device: str = ""

    def __post_init__(self) -> None:
        for name in ("gb_s", "gflop_s"):
            check_number(SettingsError, f"a ceiling's {name}", getattr(self, name), above=0)
