"""What the next line of a program may use: its tensors as they are now, shapes, numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any

import torch

__all__ = ["DTYPES", "Draw", "NoLine", "forms", "is_dense", "shares_memory", "undefined_overlap"]

SHAPES = ((), (4,), (2, 3), (3, 1), (2, 3, 2), (2, 2), (0, 3))


def forms(text: str) -> list[str]:
    """The lines in a block of text, where two spaces or a line's end stand between them."""
    return re.split(r"\s{2,}", text.strip())


DTYPES = forms("""
    float32  float32  float32  float64  float16  bfloat16  int64  int32  int16  int8  uint8  bool
    complex64  complex128
""")


class NoLine(Exception):
    """No line of this kind fits the tensors that there are."""


@dataclass
class Draw:
    """Draws what one line needs. The tensors are those of the program's run on the CPU."""

    random: Random
    dtypes: list[str]  # that this program uses
    held: str = ""  # the name of a number that the program holds
    names: dict[str, torch.Tensor] = field(default_factory=dict)

    def tensor(self, accept: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """The name of a tensor that will do; the newest are the likeliest."""
        fit = [name for name, t in self.names.items() if accept(t)]
        if not fit:
            raise NoLine
        if len(fit) > 3 and self.random.random() < 0.5:
            fit = fit[-3:]
        return self.random.choice(fit)

    def floating(self) -> str:
        return self.tensor(lambda t: t.is_floating_point())

    def real(self) -> str:
        return self.tensor(lambda t: not t.is_complex())

    def number_like(self) -> str:
        return self.tensor(lambda t: t.dtype is not torch.bool)

    def with_dims(self, least: int = 1, most: int = 9, *, real: bool = False) -> str:
        return self.tensor(
            lambda t: least <= t.dim() <= most and t.numel() > 0 and not (real and t.is_complex())
        )

    def of_shape(self, shape: Any, dtype: torch.dtype | None = None) -> str:
        """A tensor that broadcasts to this shape."""
        return self.tensor(
            lambda t: _broadcasts(t.shape, shape) and (dtype is None or t.dtype is dtype)
        )

    def partner(self, name: str) -> str:
        """A tensor that broadcasts with this one."""
        x = self.names[name]
        return self.tensor(lambda t: _broadcasts(t.shape, x.shape) or _broadcasts(x.shape, t.shape))

    def source(self, name: str) -> str:
        """A tensor that may be written into this one: CPU torch says what comes out."""
        x = self.names[name]

        def fits(t: torch.Tensor) -> bool:
            return _broadcasts(t.shape, x.shape) and not undefined_overlap(t, x)

        return self.tensor(fits)

    def dim(self, name: str) -> int:
        """A dimension of a tensor, from either end."""
        count = self.names[name].dim()
        return self.random.randrange(-count, count) if count else 0

    def places(self, length: int, *, distinct: bool = False) -> list[int]:
        """Some indices into a dimension."""
        if length == 0:
            raise NoLine
        count = self.random.randint(1, min(length, 3))
        if distinct:
            return self.random.sample(range(length), count)
        return [self.random.randrange(length) for _ in range(count)]

    def number(self, name: str | None = None) -> str:
        """A number, mostly of the tensor's own kind."""
        r, dtype = self.random, None if name is None else self.names[name].dtype
        if self.held and r.random() < 0.3:
            return self.held
        if dtype is torch.bool and r.random() < 0.8:
            return r.choice(["True", "False"])
        if dtype is torch.uint8:
            return str(r.randint(0, 3))
        if dtype is not None and not dtype.is_floating_point and r.random() < 0.8:
            return str(r.randint(-2, 3))
        if dtype is not None and dtype.is_complex and r.random() < 0.3:
            return r.choice(["1j", "(1-2j)"])
        return r.choice(["0", "1", "2", "-1", "0.5", "-1.5", "2.0", "0.25", "True"])

    def shape_of(self, count: int) -> tuple[int, ...]:
        """A shape with so many elements."""
        shapes = {
            (count,),
            (1, count),
            (count, 1),
            *((k, count // k) for k in (2, 3, 4) if count and count % k == 0),
            *((2, k, count // k // 2) for k in (2, 3) if count and count % (2 * k) == 0),
        }
        return self.random.choice(sorted(shapes))

    def shape(self) -> tuple[int, ...]:
        return self.random.choice(SHAPES)

    def dtype(self) -> str:
        return f"torch.{self.random.choice(self.dtypes)}"

    def start(self) -> str:
        """A new tensor, made of small numbers that every dtype has."""
        shape, dtype = self.shape(), self.dtype()
        count, first = prod(shape), self.random.randint(-3, 1)
        text = f"(torch.arange({count}) % 5 + {first}).reshape({shape}).to({dtype})"
        if dtype == "torch.bool":
            text = f"(torch.arange({count}) % {self.random.randint(2, 3)} == 0).reshape({shape})"
        if self.names and self.random.random() < 0.15:
            return f"torch.full({shape}, {count % 3}, dtype={dtype}, device=device)"
        return f"{text}.to(device, copy=True)"  # on the CPU, too: a view of nothing


def _broadcasts(small: Any, large: Any) -> bool:
    """Can a tensor of the one shape be expanded to the other?"""
    try:
        return torch.broadcast_shapes(small, large) == tuple(large)
    except RuntimeError:
        return False


def shares_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() and x.numel() > 0


def is_dense(x: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(x))


def undefined_overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Do they share memory in part? Torch refuses it where it can tell; device kit computes."""
    same = (x.data_ptr(), x.shape, x.stride()) == (y.data_ptr(), y.shape, y.stride())
    return shares_memory(x, y) and not same
