"""What losses return that have no meta kernel in torch: shapes and dtypes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["LOSS_SHAPES"]


def _like_input(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _trilinear(a: Any, b: Any, c: Any, *dims: Any) -> torch.Tensor:
    expanded = [_expand(x, axes) for x, axes in zip((a, b, c), dims[:3], strict=True)]
    shape = torch.broadcast_shapes(*[x.shape for x in expanded])
    return a.new_empty([n for i, n in enumerate(shape) if i not in dims[3]])  # type: ignore[no-any-return]


def _expand(x: torch.Tensor, axes: Any) -> torch.Tensor:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def _ctc(log_probs: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The second one, alpha, is left empty: the backward pass computes it again."""
    return log_probs.new_empty(log_probs.shape[1]), log_probs.new_empty(0)


LOSS_SHAPES: dict[str, Callable[..., Any]] = {
    "aten.multi_margin_loss_backward.default": _like_input,
    "aten.multilabel_margin_loss_backward.default": _like_input,
    "aten._trilinear.default": _trilinear,
    "aten._ctc_loss.default": _ctc,
    "aten._ctc_loss.Tensor": _ctc,
    "aten._ctc_loss_backward.default": _like_input,
    "aten._ctc_loss_backward.Tensor": _like_input,
}
