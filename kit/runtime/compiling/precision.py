"""With how many bits a GPU multiplies float32 numbers, as the program's own library would.

XLA takes TF32 (10 of 23 bits) for every product unless told otherwise; torch, by its defaults, for
convolutions and recurrent layers only. A step that is compared with native torch does the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

import jax

from kit.runtime.recording.bulk import Op

__all__ = ["XLAS", "Precision", "precise"]

_WIDE = ("float32", "complex64")  # of all others a GPU's matrix units take the bits as they are
_FAMILIES = {"convolution": "convolutions", "lstm": "recurrent", "gru": "recurrent",
             "rnn": "recurrent"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Precision:
    """Which ops may round the factors of a product to TF32; what may is left to jax's settings."""

    products: bool = True
    convolutions: bool = True
    recurrent: bool = True

    def __str__(self) -> str:
        exact = [field.name for field in fields(self) if not getattr(self, field.name)]
        return f"float32 in full: {', '.join(exact)}" if exact else "TF32 where a GPU has it"

    def is_exact(self, op: Op) -> bool:
        """Has this op to use all bits of its factors?"""
        if not any(aval.dtype in _WIDE for aval in op.avals):
            return False
        kinds = (kind for word, kind in _FAMILIES.items() if word in op.name)
        return not getattr(self, next(kinds, "products"))


XLAS = Precision()  # what XLA does unless it is told otherwise


@contextlib.contextmanager
def precise(precision: Precision, op: Op) -> Iterator[None]:
    """What the rule of this op multiplies meanwhile is compiled for as many bits as it shall use.

    An op of jax has its precision in itself.
    """
    if op.name.startswith("jax.") or not precision.is_exact(op):
        yield
        return
    with jax.default_matmul_precision("highest"):
        yield
