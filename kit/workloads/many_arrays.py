"""The workload of MXNet PR 16716: set 500 arrays of 100x100 to zero, ten times.

The step is nothing but small ops, so all of its time is what an op costs: Python, dispatch, launch
and sync. Each way of the thread is here, and two that it asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kit.errors import SettingsError
from kit.measure.base.context import Context, Workload
from kit.torch.hybrid.hybrid import hybridize
from kit.torch.hybrid.multi import reset_arrays

__all__ = ["WAYS", "zero_grad", "zero_grad_by"]

ARRAYS = 500
SHAPE = (100, 100)
REPEATS = 10


def _loop(arrays: Sequence[Tensor]) -> None:
    for a in arrays:
        a.zero_()


def _setitem(arrays: Sequence[Tensor]) -> None:
    for a in arrays:
        a[:] = 0


def _foreach(arrays: Sequence[Tensor]) -> None:
    torch._foreach_zero_(list(arrays))


def _one_program(arrays: Sequence[Tensor]) -> None:
    reset_arrays(arrays, share=False)


@hybridize
def _hybridized(arrays: Sequence[Tensor]) -> None:
    for a in arrays:
        a[()] = 0


# how -> what zeroes the arrays once
WAYS: dict[str, Callable[[Sequence[Tensor]], None]] = {
    "loop": _loop,  # for a in arrays: a.zero_()
    "setitem": _setitem,  # for a in arrays: a[:] = 0
    "foreach": _foreach,  # torch._foreach_zero_: one op
    "one program": _one_program,  # MXNet's reset_arrays: one op that writes 500 buffers
    "reset_arrays": reset_arrays,  # kit's: every array shows one buffer of zeros
    "hybridize": _hybridized,  # the loop itself, made one op
}


def zero_grad_by(how: str, *, arrays: int = ARRAYS, repeats: int = REPEATS) -> Workload:
    """Zero `arrays` tensors of 100x100 `repeats` times a step, in one of `WAYS`.

    Raises:
        SettingsError: there is no such way; the message lists them.
    """
    if how not in WAYS:
        raise SettingsError(f"how must be one of {', '.join(map(repr, WAYS))}, not {how!r}")
    build = partial(_build, how=how, arrays=arrays, repeats=repeats)
    name = "zero_grad" if how == "loop" else f"zero_grad, {how}"
    return Workload(name, build, f"{arrays} tensors of 100x100 set to zero {repeats} times: {how}")


def _build(ctx: Context, *, how: str, arrays: int, repeats: int) -> Callable[[], Any]:
    zero = WAYS[how]
    held = [torch.ones(SHAPE, device=ctx.device) for _ in range(arrays)]

    def step() -> Tensor:
        with torch.no_grad():
            for _ in range(repeats):
                zero(held)
            return held[-1][0, 0].clone()

    return step


zero_grad = zero_grad_by("loop")
