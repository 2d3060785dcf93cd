"""A tensor's geometry: its shape, strides, offset and dtype, with no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import copysign, prod

import torch

from kit.ir import Aval

__all__ = ["Spec", "check_dtype", "dtype_name", "is_lifted"]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Spec:
    """A tensor's geometry and dtype; of equal ones a tape has one, so that identity is equality."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    aval: Aval
    reach: int = field(init=False)  # elements of memory from the offset to the last one, inclusive
    repeats: bool = field(init=False)  # do several elements share one place in memory?

    def __post_init__(self) -> None:
        self.reach = _reach_of(self.shape, self.stride)
        self.repeats = _repeats(self.shape, self.stride)

    @property
    def kind(self) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
        """All but the offset, as numbers: what new memory for a tensor like it depends on."""
        return self.shape, self.stride, self.dtype

    @property
    def is_dense(self) -> bool:
        """True if each place in memory, from the offset on, is one element: no gaps."""
        return not self.repeats and self.reach == prod(self.shape)

    def check_inside(self, memory: Spec) -> None:
        """Refuse strides that lead out of the memory that a buffer has, in torch's own words.

        Raises:
            RuntimeError: they do, or the memory is not counted in elements of this type.
        """
        if any(s < 0 for s in self.stride):
            raise RuntimeError(
                "as_strided: Negative strides are not supported at the moment, got strides: "
                f"{list(self.stride)}"
            )
        if memory.dtype is not self.dtype or not memory.is_dense:
            raise RuntimeError(
                f"as_strided on device kit counts in memory without gaps of {memory.dtype}, and "
                f"this tensor shows it as {self.dtype}: take .contiguous() or .clone() first"
            )
        size, needed = memory.dtype.itemsize, self.offset + self.reach
        if self.reach and needed > memory.reach:
            raise RuntimeError(
                f"setStorage: sizes {list(self.shape)}, strides {list(self.stride)}, storage "
                f"offset {self.offset}, and itemsize {size} requiring a storage size of "
                f"{needed * size} are out of bounds for storage of size {memory.reach * size}"
            )

    def meta(self) -> torch.Tensor:
        """A meta tensor of this geometry, for shape inference."""
        base = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        if self.offset:
            whole = torch.empty(self.offset + self.reach, dtype=self.dtype, device="meta")
            return whole.as_strided(self.shape, self.stride, self.offset)
        return base


def _reach_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many places of memory such a tensor spans."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _repeats(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Do several elements share one place? Where nothing quicker tells, the places are counted."""
    if 0 in shape:
        return False
    spanned = 0  # by the dimensions so far, from the fastest to the slowest
    for step, count in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step <= spanned:
            if step == 0 or prod(shape) > _reach_of(shape, stride):
                return True
            memory = torch.arange(_reach_of(shape, stride), device="cpu")
            places = memory.as_strided(shape, stride)
            return bool(places.unique().numel() < places.numel())
        spanned += step * (count - 1)
    return False


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> "float32"."""
    return str(dtype).removeprefix("torch.")


# XLA has none of these, or makes other numbers of them: float8 of 500 is NaN there, 448 in torch.
_MISSING = {
    "complex32": "complex64", "float8": "bfloat16", "float4": "bfloat16", "bits": "uint8",
    **dict.fromkeys(("qint", "quint"), "int8"),
}  # fmt: skip


def check_dtype(dtype: torch.dtype) -> None:
    """Refuse a type that device kit has no tensors of.

    Raises:
        RuntimeError: it is one of the rare ones.
    """
    name = dtype_name(dtype)
    for start, instead in _MISSING.items():
        if name.startswith(start):
            raise RuntimeError(f"device kit has no tensors of {name}: use {instead}")


def is_lifted(number: float) -> bool:
    """True for floats that become inputs of the program; 0 and 1 stay constants, -0.0 does not."""
    return number not in (0.0, 1.0) or (number == 0.0 and copysign(1.0, number) < 0)
