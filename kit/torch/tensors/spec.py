"""A tensor's geometry: its shape, strides, offset and dtype, with no data."""

from __future__ import annotations

from dataclasses import dataclass
from math import copysign

import torch

from kit.ir import Aval

__all__ = ["Spec", "dtype_name", "is_lifted"]


@dataclass(slots=True, eq=False)
class Spec:
    """A tensor's geometry and dtype; a tape makes each one once, so that identity is equality."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    aval: Aval

    def meta(self) -> torch.Tensor:
        """A meta tensor of this geometry, for shape inference."""
        base = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        if self.offset:
            reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)) + 1
            whole = torch.empty(self.offset + max(reach, 0), dtype=self.dtype, device="meta")
            return whole.as_strided(self.shape, self.stride, self.offset)
        return base


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> "float32"."""
    return str(dtype).removeprefix("torch.")


def is_lifted(number: float) -> bool:
    """True for floats that become inputs of the program; 0 and 1 stay constants, -0.0 does not."""
    return number not in (0.0, 1.0) or (number == 0.0 and copysign(1.0, number) < 0)
