"""Determinants from factors that torch's gradients take too, and errors of what has no factor."""

from __future__ import annotations

from typing import Any

import torch

from kit.torch.ops.schema import Special, on_meta
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import to_host

__all__ = ["LINALG"]

_aten = torch.ops.aten


def _check(tape: Tape, func: Any, args: Any, kwargs: Any) -> None:
    """Torch reads LAPACK's flag after each factorisation, to raise: a sync point on any device."""
    func(to_host(args[0], cause="linalg error check"), *args[1:], **kwargs)


def _cholesky(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    """A factor that is known to be one: programs catch the error of a matrix that has none."""
    func(*on_meta(args), **kwargs)  # which looks at the shape, in its own words
    upper = any((*args[1:], *kwargs.values()))
    factor, info = _aten.linalg_cholesky_ex.default(args[0], upper=upper)
    _aten._linalg_check_errors.default(info, "cholesky", is_matrix=args[0].dim() == 2)
    return factor


def _det(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    factors, pivots, diagonal, sign = _factored(func, args)
    product = diagonal.prod(-1) * sign
    return torch.where((diagonal == 0).any(-1), 0, product), factors, pivots


def _slogdet(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    factors, pivots, diagonal, sign = _factored(func, args)
    is_singular = (diagonal == 0).any(-1)
    signs = torch.where(is_singular, 0, diagonal.sgn().prod(-1) * sign)
    logs = torch.where(is_singular, -torch.inf, diagonal.abs().log().sum(-1))
    return signs, logs, factors, pivots


def _factored(func: Any, args: Any) -> tuple[torch.Tensor, ...]:
    """The LU factors of which torch's gradient takes the inverse, their pivots, the diagonal, and
    the sign of the rows' permutation.

    Torch factors the transpose of a contiguous real matrix, which is as its LAPACK wants it, and
    its gradient asks for the same.
    """
    x = args[0]
    func(*on_meta(args))  # which looks at shape and type, in its own words
    is_turned = x.is_contiguous() and not x.is_complex()
    factors, pivots, _ = _aten.linalg_lu_factor_ex.default(x.mT if is_turned else x)
    diagonal = factors.diagonal(0, -2, -1)
    places = torch.arange(1, x.shape[-1] + 1, dtype=pivots.dtype, device=x.device)
    swaps = (pivots != places).sum(-1)
    return factors, pivots, diagonal, 1 - 2 * (swaps % 2).to(x.dtype)


LINALG: dict[str, Special] = {
    "aten._linalg_check_errors.default": _check, "aten.cholesky.default": _cholesky,
    "aten._linalg_det.default": _det, "aten._linalg_slogdet.default": _slogdet,
}  # fmt: skip
