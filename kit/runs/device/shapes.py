"""Arithmetic and bytes of an op of a foreign trace, from the shapes that its file names.

The arithmetic is that of `kit.runs.device.flops`, where each op has its formula; here is only
what it takes to ask it: which arguments are which, and the shape of the result, which torch does
not write. What is not in these tables is not known, and is never taken for nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from kit.ir import Aval
from kit.runs.device.flops import COUNTED
from kit.trace.imported import NOT_AN_ARRAY, Caller

__all__ = ["CallCost", "call_cost"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallCost:
    """Of one call of an op; nan is what cannot be known from its shapes.

    Units:
        operations, bytes
    """

    flops: float = math.nan
    bytes_read: float = math.nan  # of each input once, whatever caches hold
    bytes_written: float = math.nan


_UNKNOWN_COST = CallCost()


def call_cost(caller: Caller) -> CallCost:
    """What one call of the caller's op computes and moves."""
    name = caller.op.removeprefix("aten::")
    if name == caller.op or not caller.inputs:
        return _UNKNOWN_COST
    try:
        if name in _PRODUCTS:
            formula, at, result = _PRODUCTS[name]
            return _product(caller, COUNTED[formula], at, result)
        if name in _CONVOLUTIONS:
            return _convolution(caller, _CONVOLUTIONS[name])
        if name == "convolution_backward":
            return _convolution_backward(caller)
        if name in _ATTENTIONS:
            return _attention(caller, _ATTENTIONS[name])
        return _elementwise(caller, name)
    except (IndexError, ValueError, ZeroDivisionError, KeyError):
        return _UNKNOWN_COST  # not the op that its name says, or fewer arguments


def _shapes(caller: Caller, first: int, count: int) -> list[Shape]:
    """Shapes of arguments that must be arrays."""
    found = caller.inputs[first : first + count]
    if len(found) < count or NOT_AN_ARRAY in found:
        raise IndexError
    return [aval.shape for aval in found]


def _bytes(avals: tuple[Aval, ...]) -> int:
    return sum(aval.size_bytes for aval in avals if aval != NOT_AN_ARRAY)


def _product(
    caller: Caller, count: Callable[..., float], at: int, result: Callable[[Shape, Shape], Shape]
) -> CallCost:
    """A product of two matrices, which are the arguments at this place and after it."""
    left, right = _shapes(caller, at, 2)
    out = result(left, right)
    if min(len(left), len(right)) == 0:
        return _UNKNOWN_COST
    before = [aval.shape for aval in caller.inputs[:at]]
    flops = count([*before, left, right], [out], {})
    if caller.op == "aten::_scaled_mm":  # the dtype of its result is an argument of its own
        return CallCost(flops, _bytes(caller.inputs))
    written = Aval(out, caller.inputs[at].dtype).size_bytes
    return CallCost(flops, _bytes(caller.inputs), written)


def _of_matrices(left: Shape, right: Shape) -> Shape:
    if len(left) < 2 or left[-1] != right[-2 if len(right) > 1 else -1]:
        raise ValueError
    return (*left[:-1], *right[-1:]) if len(right) > 1 else left[:-1]


def _of_vectors(left: Shape, right: Shape) -> Shape:
    if left != right:
        raise ValueError
    return ()


def _of_layer(left: Shape, right: Shape) -> Shape:
    if left[-1] != right[-1]:
        raise ValueError
    return (*left[:-1], *right[:-1])


_PRODUCTS = MappingProxyType(
    {
        **{name: (f"aten.{name}", 0, _of_matrices) for name in ("mm", "bmm", "mv")},
        **{name: (f"aten.{name}", 0, _of_vectors) for name in ("dot", "vdot")},
        **{name: (f"aten.{name}", 1, _of_matrices) for name in ("addmm", "baddbmm")},
        "addmm_": ("aten.addmm", 1, _of_matrices),
        "_addmm_activation": ("aten.addmm", 1, _of_matrices),
        "_scaled_mm": ("aten.mm", 0, _of_matrices),
        "linear": ("aten.linear", 0, _of_layer),
    }
)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a convolution has its arguments."""

    stride: int
    padding: int
    dilation: int = -1  # -1: it has none
    is_transposed: bool = False
    transposed: int = -1  # the argument that says it; -1: none does


_CONVOLUTIONS = MappingProxyType(
    {
        **dict.fromkeys(("convolution", "_convolution"), _Places(3, 4, 5, transposed=6)),
        **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _Places(3, 4, 5)),
        "cudnn_convolution": _Places(3, 2, 4),
        **dict.fromkeys(("miopen_convolution", "mkldnn_convolution"), _Places(4, 3, 5)),
        **dict.fromkeys(("_slow_conv2d_forward", "thnn_conv2d"), _Places(4, 5)),
        **dict.fromkeys(
            ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
            _Places(3, 4, is_transposed=True),
        ),
        "cudnn_convolution_transpose": _Places(4, 2, is_transposed=True),
        "miopen_convolution_transpose": _Places(5, 3, is_transposed=True),
    }
)


def _convolution(caller: Caller, at: _Places) -> CallCost:
    x, weight = _shapes(caller, 0, 2)
    if len(x) != len(weight) or len(x) < 3:
        return _UNKNOWN_COST
    is_transposed = at.is_transposed or (
        at.transposed >= 0 and caller.others[at.transposed] == "True"
    )
    count = COUNTED["aten.convolution"]
    if is_transposed:  # needs no result
        return CallCost(count([x, weight], [()], {"arg6": "True"}))
    space = len(x) - 2
    stride, padding = (_numbers(caller.others[i], space) for i in (at.stride, at.padding))
    dilation = _numbers(caller.others[at.dilation], space) if at.dilation >= 0 else [1] * space
    kernel = weight[2:]
    out = tuple(
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, p, d, k, s in zip(x[2:], padding, dilation, kernel, stride, strict=True)
    )
    if min(out) < 0:
        return _UNKNOWN_COST
    shape = (x[0], weight[0], *out)
    written = Aval(shape, caller.inputs[0].dtype).size_bytes
    return CallCost(count([x, weight], [shape], {}), _bytes(caller.inputs), written)


def _convolution_backward(caller: Caller) -> CallCost:
    """Of torch's arguments 7 says "transposed", and 10 which gradients are made."""
    grad, x, weight = _shapes(caller, 0, 3)
    mask = re.findall(r"True|False", caller.others[10])
    made = [shape for shape, word in zip((x, weight), mask, strict=False) if word == "True"]
    if len(mask) != 3 or caller.others[7] not in ("True", "False"):
        return _UNKNOWN_COST
    flops = COUNTED["aten.convolution_backward"](
        [grad, x, weight], made, {"arg7": caller.others[7]}
    )
    written = sum(Aval(shape, caller.inputs[1].dtype).size_bytes for shape in made)
    return CallCost(flops, _bytes(caller.inputs), written)


def _numbers(text: str, count: int) -> list[int]:
    """A list of numbers as torch writes it, "[2, 2]"; a single one counts for all dimensions."""
    if not re.fullmatch(r"\[? ?\d{1,9}(, ?\d{1,9}){0,9} ?\]?", text):
        raise ValueError
    found = [int(x) for x in re.findall(r"\d+", text)]
    if len(found) not in (1, count):
        raise ValueError
    return found * count if len(found) == 1 else found


@dataclass(frozen=True, slots=True)
class _Queries:
    """Where attention has its queries, keys and values."""

    at: int = 0
    is_backward: bool = False
    lengths: int = -1  # the argument that packs sequences of many lengths; -1: none does
    is_heads_last: bool = False  # (B, L, H, E), not (B, H, L, E)


_SDPA = "_scaled_dot_product_"
_ATTENTIONS = MappingProxyType(
    {
        "scaled_dot_product_attention": _Queries(),
        **{
            f"{_SDPA}{kind}_attention{where}{way}": _Queries(len(way) and 1, bool(way))
            for kind, where in (
                ("flash", ""), ("flash", "_for_cpu"), ("efficient", ""), ("cudnn", ""),
            )
            for way in ("", "_backward")
        },
        "_flash_attention_forward": _Queries(0, lengths=3, is_heads_last=True),
        "_efficient_attention_forward": _Queries(0, lengths=4, is_heads_last=True),
        "_flash_attention_backward": _Queries(1, True, 6, True),
        "_efficient_attention_backward": _Queries(1, True, 6, True),
    }
)  # fmt: skip


def _attention(caller: Caller, at: _Queries) -> CallCost:
    q, k, v = _shapes(caller, at.at, 3)
    if any(len(shape) != 4 for shape in (q, k, v)):
        return _UNKNOWN_COST
    if 0 <= at.lengths < len(caller.inputs) and caller.inputs[at.lengths] != NOT_AN_ARRAY:
        return _UNKNOWN_COST
    if at.is_heads_last:
        q, k, v = ((b, h, n, e) for b, n, h, e in (q, k, v))
    if not (q[0] == k[0] == v[0] and q[3] == k[3] and k[1:3] == v[1:3]):
        return _UNKNOWN_COST
    name = "aten._scaled_dot_product_fused_attention_overrideable"
    arrays = caller.inputs[at.at : at.at + 3]
    read = _bytes(arrays)
    if at.is_backward:
        return CallCost(COUNTED[f"{name}_backward"]([(), q, k, v], [], {}))
    written = Aval((*q[:-1], v[-1]), arrays[0].dtype).size_bytes
    return CallCost(COUNTED[name]([q, k, v], [], {}), read, written)


# The result has the shape of the inputs together, and the type of the widest.
_ALIKE = frozenset({
    "add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "pow", "sin",
    "cos", "relu", "gelu", "silu", "tanh", "sigmoid", "clamp", "clamp_min", "clamp_max", "hardtanh",
    "leaky_relu", "elu", "addcmul", "addcdiv", "lerp", "maximum", "minimum", "reciprocal",
    "threshold_backward", "gelu_backward", "silu_backward", "tanh_backward", "sigmoid_backward",
    "_softmax", "_log_softmax", "softmax", "log_softmax",
})  # fmt: skip
# The result has the shape of the first input.
_NORMS = frozenset({
    "native_layer_norm", "layer_norm", "native_batch_norm", "batch_norm", "cudnn_batch_norm",
    "miopen_batch_norm", "native_group_norm", "group_norm", "rms_norm", "_fused_rms_norm",
})  # fmt: skip
_FILLS = frozenset({"fill_", "zero_"})


def _elementwise(caller: Caller, name: str) -> CallCost:
    """Bytes only: arithmetic counts nothing beside them."""
    arrays = tuple(aval for aval in caller.inputs if aval != NOT_AN_ARRAY)
    first = caller.inputs[0]
    if not arrays or first == NOT_AN_ARRAY:
        return _UNKNOWN_COST
    if name in _FILLS:
        return CallCost(math.nan, 0, first.size_bytes)
    if name == "copy_":
        return CallCost(math.nan, _bytes(caller.inputs[1:2]), first.size_bytes)
    if name in _NORMS or (name.endswith("_") and name[:-1] in _ALIKE):
        return CallCost(math.nan, _bytes(arrays), first.size_bytes)
    if name not in _ALIKE:
        return _UNKNOWN_COST
    sized = [aval for aval in arrays if aval.shape] or arrays  # a number does not widen an array
    widest = max(sized, key=lambda aval: Aval((), aval.dtype).size_bytes)
    shape = _together([aval.shape for aval in arrays])
    return CallCost(math.nan, _bytes(arrays), Aval(shape, widest.dtype).size_bytes)


def _together(shapes: list[Shape]) -> Shape:
    """Broadcast, as numpy and torch do."""
    most = max(map(len, shapes))
    padded = [(1,) * (most - len(shape)) + shape for shape in shapes]
    sizes = [{size for size in column if size != 1} for column in zip(*padded, strict=True)]
    if any(len(found) > 1 for found in sizes):
        raise ValueError
    return tuple(next(iter(found), 1) for found in sizes)
