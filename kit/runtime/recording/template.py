"""What stands in an op's template where a value goes: a tensor, or a number that was lifted."""

from __future__ import annotations

__all__ = ["HOLE", "Hole", "Scalar"]


class Hole:
    """Stands for a tensor argument in `Op.template`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "_"


class Scalar:
    """Stands for a Python float that was lifted to an input, of this dtype inside the program."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and other.dtype == self.dtype

    def __hash__(self) -> int:
        return hash(("Scalar", self.dtype))

    def __repr__(self) -> str:
        return f"float:{self.dtype}"


HOLE = Hole()
