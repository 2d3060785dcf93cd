"""`torch.autocast("kit", dtype=...)`: which ops run in the lower precision, and which never do.

Source of the lists: torch's autocast policy for CUDA
(https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch

from kit.torch.tensors.private import private

__all__ = ["register_autocast"]

LOWER = (
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addr", "addbmm", "baddbmm",
    "chain_matmul", "einsum", "linalg_multi_dot", "linalg_vecdot",
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "convolution", "scaled_dot_product_attention", "prelu",
    "lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data",
    "rnn_relu.input", "rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
)  # fmt: skip
FLOAT32 = (
    "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "tan", "acos", "asin",
    "cosh", "sinh", "erfinv", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "rms_norm", "group_norm", "renorm", "norm.Scalar",
    "norm.ScalarOpt_dim", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim",
    "linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord",
    "nll_loss", "nll_loss2d", "nll_loss_nd", "poisson_nll_loss", "kl_div", "l1_loss", "mse_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "hinge_embedding_loss",
    "cosine_embedding_loss", "margin_ranking_loss", "multilabel_margin_loss", "multi_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "cosine_similarity", "cdist", "pdist", "dist",
    "logsumexp", "softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "prod",
    "prod.dim_int", "cumsum", "cumprod",
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)  # fmt: skip
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
)  # fmt: skip
_BANNED = "binary_cross_entropy"
_KEYS = private("torch._C.DispatchKeySet")(private("torch._C.DispatchKey.AutocastPrivateUse1"))
_without = private("torch._C._ExcludeDispatchKeyGuard")


def register_autocast() -> tuple[torch.library.Library, ...]:
    """Install the policy; the libraries must be kept alive."""
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for names, dtype_for in ((LOWER, _lower), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            aten.impl(name, _cast_first(_overload(name), dtype_for), "AutocastPrivateUse1")
    aten.impl(_BANNED, _refuse, "AutocastPrivateUse1")
    return every, aten


def _refuse(*args: Any, **kwargs: Any) -> Any:
    """As on CUDA: in half precision, a probability near 1 is 1, and its loss no longer right."""
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using "
        "torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    )


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _lower(args: Iterable[Any]) -> torch.dtype:
    return torch.get_autocast_dtype("kit")


def _float32(args: Iterable[Any]) -> torch.dtype:
    return torch.float32


def _widest(args: Iterable[Any]) -> torch.dtype:
    tensors = chain.from_iterable(a if isinstance(a, list | tuple) else [a] for a in args)
    if any(_is_cast(t) and t.dtype is torch.float32 for t in tensors):
        return torch.float32
    return torch.get_autocast_dtype("kit")


def _cast_first(op: Any, dtype_for: Callable[[Iterable[Any]], torch.dtype]) -> Any:
    """Run `op` with its float tensors cast to the dtype that the policy chooses for them."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = dtype_for([*args, *kwargs.values()])
        with _without(_KEYS):
            return op(
                *(_cast(a, dtype) for a in args),
                **{k: _cast(v, dtype) for k, v in kwargs.items()},
            )

    return kernel


def _is_cast(value: Any) -> bool:
    """Whether it is a tensor that autocast concerns: not one of doubles, nor of another device."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "kit"
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_cast(v, dtype) for v in value)
    return value.to(dtype) if _is_cast(value) else value
