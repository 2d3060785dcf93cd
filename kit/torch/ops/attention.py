"""Attention as one op: `scaled_dot_product_attention` reaches the rules whole where it can.

torch would take the call apart into some fifty ops, forward and backward. It has an op for devices
with an attention of their own, `_scaled_dot_product_fused_attention_overrideable`, and knows its
derivative: this file sends what it can there, and the rest to torch's own decomposition
(second derivatives too: `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)` asks for that one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kit.runtime.recording.template import HOLE, Scalar
from kit.torch.ops.random import KEY, random_key
from kit.torch.ops.schema import handed_over, recorded
from kit.torch.tensors.private import private
from kit.torch.tensors.spec import Spec
from kit.torch.tensors.tape import Tape
from kit.torch.tensors.tensor import KitTensor

__all__ = ["ATTENTION", "ATTENTION_SHAPES", "register_attention"]

_aten = torch.ops.aten
_may_override = private("torch._C._get_overrideable_sdp_enabled")


def register_attention() -> torch.library.Library:
    """Install the choice below; the library must be kept alive."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _choose, "AutogradPrivateUse1")
    return library


def _choose(
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if _is_plain(q, k, v, attn_mask, is_causal, enable_gqa):
        return _aten._scaled_dot_product_fused_attention_overrideable(
            q, k, v, attn_mask, dropout_p, is_causal, scale=scale
        )[0]
    if len({q.dtype, k.dtype, v.dtype}) > 1 or (
        attn_mask is not None and attn_mask.dtype not in (torch.bool, q.dtype)
    ):
        _refuse_types(q, k, v, attn_mask)
    return _aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _refuse_types(q: Any, k: Any, v: Any, mask: Any) -> None:
    """Let torch's CPU raise its own error for these types, on one element of each."""
    query, key, value = (torch.zeros((1, 1, 1, 1), dtype=x.dtype, device="cpu") for x in (q, k, v))
    masks = None if mask is None else torch.zeros((1, 1), dtype=mask.dtype, device="cpu")
    torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=masks)


def _is_plain(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, grouped: bool) -> bool:
    """True for calls that mean the same to the rule as to torch; torch refuses some others."""
    if not (q.__class__ is k.__class__ is v.__class__ is KitTensor) or q.dim() < 3:
        return False
    batch, heads = (q.shape[:-3], q.shape[-3])
    same_heads = k.shape[:-2] == v.shape[:-2] == q.shape[:-2]
    some_heads = k.shape[:-2] == v.shape[:-2] and k.shape[:-3] == batch
    fits = same_heads or (grouped and some_heads and k.shape[-3] and heads % k.shape[-3] == 0)
    return bool(
        fits
        and q.dtype is k.dtype is v.dtype
        and q.is_floating_point()
        and q.shape[-1] == k.shape[-1]
        and k.shape[-2] == v.shape[-2]
        and 0 not in q.shape
        and 0 not in k.shape
        and (mask is None or (not is_causal and _mask_fits(mask, q, k)))
        and _may_override()
    )


def _mask_fits(mask: Any, q: Any, k: Any) -> bool:
    full = (*q.shape[:-1], k.shape[-2])
    return (
        mask.__class__ is KitTensor
        and mask.dtype in (torch.bool, q.dtype)
        and 2 <= mask.dim() <= q.dim()
        and all(m in (1, n) for m, n in zip(mask.shape[::-1], full[::-1], strict=False))
    )


def _attention(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    q, k, v, bias, p, causal = (*args, *(None, 0.0, False)[len(args) - 3 :])[:6]
    lifted = _Lifted.of(kwargs.get("scale"), p, q.dtype)
    out = tape.cached_spec(("attention", q.spec.kind, v.shape[-1]), lambda: _like_query(q, v))
    outputs = [out, _plain_spec(tape, q.shape[:-1], torch.promote_types(q.dtype, torch.float32))]
    if p:
        lifted.numbers += random_key(tape.session)
        lifted.holes |= KEY
        outputs += [_plain_spec(tape, (), torch.int64)] * 2
    results = _record(tape, "kit.attention", [q, k, v, bias], lifted, [], causal, outputs)
    key = results[2:] or [None, None]
    return (*results[:2], None, None, q.shape[-2], k.shape[-2], *key, None)


def _attention_backward(tape: Tape, func: Any, args: Any, kwargs: Any) -> Any:
    grad, q, k, v, bias, wanted, _, lse, _, _, _, _, p, causal, seed, call = args
    lifted = _Lifted.of(kwargs.get("scale"), p, q.dtype)
    wanted = [bool(w) and x is not None for w, x in zip(wanted, (q, k, v, bias), strict=True)]
    outputs = [
        tape.spec_like(x.spec)
        for x, is_wanted in zip((q, k, v, bias), wanted, strict=True)
        if is_wanted
    ]
    tensors = [grad, q, k, v, bias, lse, seed, call]
    name = "kit.attention_backward"
    results = iter(_record(tape, name, tensors, lifted, [wanted], causal, outputs))
    return tuple(next(results) if is_wanted else None for is_wanted in wanted)


@dataclass
class _Lifted:
    """Numbers that are inputs of the program, so that a new one compiles nothing; and their
    places in the template."""

    numbers: list[float]
    holes: dict[str, Any]

    @classmethod
    def of(cls, scale: float | None, p: float, dtype: torch.dtype) -> _Lifted:
        """The scale and the share of what is dropped, as far as they are given."""
        given = {name: x for name, x in (("scale", scale), ("p", p or None)) if x is not None}
        exact = "float64" if dtype is torch.float64 else "float32"
        return cls([*map(float, given.values())], {name: Scalar(exact) for name in given})


def _record(
    tape: Tape,
    name: str,
    tensors: list[Any],
    lifted: _Lifted,
    static: list[list[bool]],
    causal: bool,
    outputs: list[Spec],
) -> list[Any]:
    """Record one op; `static` are its arguments after the tensors."""
    holes = [None if t is None else HOLE for t in tensors]
    template = ((*holes, *static), {**lifted.holes, "causal": causal})
    given = [t for t in tensors if t is not None]
    return recorded(tape, name, template, given, lifted.numbers, outputs)


def _plain_spec(tape: Tape, shape: Any, dtype: torch.dtype) -> Spec:
    key = ("plain", tuple(shape), dtype)
    return tape.cached_spec(key, lambda: torch.empty(shape, dtype=dtype, device="meta"))


def _like_query(q: KitTensor, v: KitTensor) -> torch.Tensor:
    """Dimensions lie in memory as the query's do, so that `out.transpose(1, 2).view(...)` works."""
    order = sorted(range(q.dim()), key=lambda d: (-q.spec.stride[d], d))
    shape = (*q.shape[:-1], v.shape[-1])
    back = [order.index(d) for d in range(q.dim())]
    return torch.empty([shape[d] for d in order], dtype=q.dtype, device="meta").permute(back)


def _not_nested(tape: Tape, func: Any, args: Any, kwargs: Any) -> bool:
    """`nn.TransformerEncoder` asks whether padding may be cut off; a padded batch stays padded."""
    return False


ATTENTION: dict[str, Callable[..., Any]] = {
    "aten.scaled_dot_product_attention.default": handed_over(_choose),
    "aten._scaled_dot_product_fused_attention_overrideable.default": _attention,
    "aten._scaled_dot_product_fused_attention_overrideable_backward.default": _attention_backward,
    "aten._nested_tensor_from_mask_left_aligned.default": _not_nested,
}


def _native_attention(
    query: Any, key: Any, value: Any, width: int, heads: int, *rest: Any, **named: Any
) -> tuple[Any, Any]:
    names = ("qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "mask", "need_weights")
    given = {**dict(zip((*names, "average_attn_weights"), rest, strict=False)), **named}
    batch, length = query.shape[0], query.shape[1]
    out = query.new_empty(query.shape)
    if not given.get("need_weights", True):
        return out, None
    if given.get("average_attn_weights", True):
        return out, query.new_empty((batch, length, key.shape[1]))
    return out, query.new_empty((batch, heads, length, key.shape[1]))


def _encoder_layer(x: Any, *more: Any, **kwargs: Any) -> Any:
    return torch.empty_like(x)


ATTENTION_SHAPES: dict[str, Callable[..., Any]] = {
    # torch's own meta kernel gives an empty tensor where its CPU kernel gives no weights at all
    "aten._native_multi_head_attention.default": _native_attention,
    # torch 2.11 has no meta kernel of it
    "aten._transformer_encoder_layer_fwd.default": _encoder_layer,
}
