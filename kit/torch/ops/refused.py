"""Kinds of tensors that device kit does not have: refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kit.errors import UnsupportedOp
from kit.runtime.recording.sites import format_site
from kit.torch.tensors.tape import Tape

__all__ = ["REFUSED", "register_refused"]


def _refuse(why: str) -> Callable[..., Any]:
    def special(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
        site = format_site(tape.place.sync_frame()[0])
        raise UnsupportedOp(str(func), (), site, why=why)

    return special


_NESTED = (
    "device kit has no nested tensors: give nn.TransformerEncoder enable_nested_tensor=False, or "
    "leave its mask_check on; elsewhere pad, torch.nn.utils.rnn.pad_sequence"
)
_SPARSE = "device kit has no sparse tensors: use nn.Embedding(sparse=False), or x.cpu().to_sparse()"
_QUANTIZED = "device kit has no quantized tensors: quantize on the CPU, x.cpu()"
_ONE_DNN = "device kit has no tensors of oneDNN: take x.cpu().to_mkldnn()"

REFUSED: dict[str, Callable[..., Any]] = {
    f"aten.{name}": _refuse(why)
    for why, names in {
        _NESTED: (
            "_nested_tensor_from_mask.default", "_nested_tensor_from_tensor_list.default",
            "_nested_view_from_jagged.default",
        ),
        _SPARSE: (
            "_sparse_coo_tensor_with_dims_and_tensors.default", "_to_sparse.default",
            "_to_sparse.sparse_dim", "_to_sparse_csr.default", "_to_sparse_csc.default",
            "_to_sparse_bsr.default", "_to_sparse_bsc.default",
            "sparse_compressed_tensor.comp_plain_value", "_sparse_compressed_tensor_unsafe.default",
        ),
        _QUANTIZED: ("quantize_per_tensor.default", "quantize_per_channel.default"),
        _ONE_DNN: ("to_mkldnn.default",),
    }.items()
    for name in names
}  # fmt: skip


def register_refused() -> torch.library.Library:
    """Refuse tensors of such kinds that come from elsewhere; the library must be kept alive."""

    def refusing(why: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(why)

        return call

    library = torch.library.Library("_", "IMPL")
    for kind, why in {
        "Sparse": _SPARSE, "SparseCsr": _SPARSE, "NestedTensor": _NESTED, "Quantized": _QUANTIZED,
    }.items():  # fmt: skip
        library.fallback(refusing(why), f"{kind}PrivateUse1")
    return library
