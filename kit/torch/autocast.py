"""`torch.autocast("kit", dtype=...)`: which ops run in the lower precision, and which never do.

Source of the lists: torch's autocast policy for CUDA
(https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference).
"""

from __future__ import annotations

from typing import Any

import torch

from kit.torch.tensors.private import private

__all__ = ["register_autocast"]

LOWER = (
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "addmv", "addbmm", "baddbmm", "chain_matmul",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "scaled_dot_product_attention", "prelu",
    "lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data",
    "rnn_relu.input", "rnn_relu.data",
)  # fmt: skip
FLOAT32 = (
    "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "tan", "acos", "asin",
    "cosh", "sinh", "erfinv", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "group_norm", "nll_loss", "nll_loss_nd", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "binary_cross_entropy_with_logits", "cosine_similarity",
    "logsumexp", "softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "prod", "cumsum",
    "cumprod", "linalg_vector_norm", "cdist", "dist",
)  # fmt: skip
_KEYS = private("torch._C.DispatchKeySet")(private("torch._C.DispatchKey.AutocastPrivateUse1"))
_without = private("torch._C._ExcludeDispatchKeyGuard")


def register_autocast() -> tuple[torch.library.Library, ...]:
    """Install the policy; the libraries must be kept alive."""
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")
    for name in LOWER:
        aten.impl(name, _cast_first(_overload(name), None), "AutocastPrivateUse1")
    for name in FLOAT32:
        aten.impl(name, _cast_first(_overload(name), torch.float32), "AutocastPrivateUse1")
    return every, aten


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _cast_first(op: Any, dtype: torch.dtype | None) -> Any:
    """Run `op` with its float tensors cast to `dtype`, or to the autocast dtype if that is None."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        target = dtype or torch.get_autocast_dtype("kit")
        with _without(_KEYS):
            return op(
                *(_cast(a, target) for a in args),
                **{k: _cast(v, target) for k, v in kwargs.items()},
            )

    return kernel


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        eligible = value.is_floating_point() and value.dtype is not torch.float64
        return value.to(dtype) if eligible and value.device.type == "kit" else value
    if isinstance(value, list | tuple):
        return type(value)(_cast(v, dtype) for v in value)
    return value
