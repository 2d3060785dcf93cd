"""Kinds of tensors that device kit does not have: refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.errors import UnsupportedOp
from kit.runtime.recording.sites import format_site
from kit.torch.tensors.tape import Tape

__all__ = ["REFUSED"]


def _refuse(why: str) -> Callable[..., Any]:
    def special(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
        site = format_site(tape.place.sync_frame()[0])
        raise UnsupportedOp(str(func), (), site, why=why)

    return special


_nested = _refuse(
    "device kit has no nested tensors: give nn.TransformerEncoder enable_nested_tensor=False, or "
    "leave its mask_check on"
)
_sparse = _refuse(
    "device kit has no sparse tensors: use nn.Embedding(sparse=False), or x.cpu().to_sparse()"
)

REFUSED: dict[str, Callable[..., Any]] = {
    "aten._nested_tensor_from_mask.default": _nested,
    "aten._sparse_coo_tensor_with_dims_and_tensors.default": _sparse,
    "aten._to_sparse.default": _sparse,
    "aten._to_sparse.sparse_dim": _sparse,
}
