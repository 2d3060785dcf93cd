"""Shapes: what an op returns, by torch's meta kernels, and what its CPU refuses where those do not.

XLA would refuse them too, but in jax's words and only when the segment is compiled, or spread one
number over several places. Asked once for each kind of call; the user is told in the words of
torch's CPU, by `kit.torch.ops.host.raise_as_cpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kit.torch.ops.attention import ATTENTION_SHAPES
from kit.torch.ops.losses import LOSS_SHAPES
from kit.torch.ops.schema import flat_tensors, on_meta
from kit.torch.ops.sequences import CELL_SHAPES

__all__ = ["check_fit", "check_whole", "infer"]

Shape = Sequence[int]
_aten = torch.ops.aten


def check_fit(name: str, args: Any) -> None:
    """Refuse a call of the op `name` whose tensors do not fit each other.

    Raises:
        RuntimeError: they do not.
    """
    base = name.rpartition(".")[0]
    if base.startswith("aten._foreach_"):
        _foreach(base, args)
    elif base in _FITS and not _FITS[base](args):
        shapes = [list(x.shape) for x in args if isinstance(x, torch.Tensor)]
        raise RuntimeError(f"{base} takes no tensors of these shapes together: {shapes}")


def check_whole(written: Shape, result: Shape) -> None:
    """What is written in place must be as large as what is written into.

    Raises:
        RuntimeError: it is not, in torch's own words.
    """
    if tuple(written) != tuple(result):
        raise RuntimeError(
            f"output with shape {list(written)} doesn't match the broadcast shape {list(result)}"
        )


def _spreads(source: Shape, target: Shape) -> bool:
    """Can the first shape be spread over the second one?"""
    pairs = zip(reversed(source), reversed(target), strict=False)
    return len(source) <= len(target) and all(n in (1, wanted) for n, wanted in pairs)


def _foreach(base: str, args: Any) -> None:
    lists = [a for a in args if isinstance(a, list | tuple) and len(flat_tensors(a)) == len(a)]
    for tensors in zip(*lists, strict=True):
        shapes = [tuple(t.shape) for t in tensors]
        whole = torch.broadcast_shapes(*shapes)
        if base.endswith("_"):
            check_whole(shapes[0], whole)


def _index_put(args: Any) -> bool:
    x, indices, values = args[:3]
    if values.dim() == 0:
        return True
    shown = _aten.index.Tensor(on_meta(x), on_meta(list(indices)))
    return _spreads(values.shape, shown.shape)


def _index_add(args: Any) -> bool:
    x, dim, index, source = args[:4]
    if not x.dim() or not source.dim():
        return True
    wanted = list(x.shape)
    wanted[dim] = index.numel()
    return wanted == list(source.shape)


def _convolution(args: Any) -> bool:
    x, weight, bias, is_transposed, groups = args[0], args[1], args[2], args[6], args[8]
    taken, given = weight.shape[1] * groups, weight.shape[0]
    if is_transposed:
        taken, given = given, taken
    fits = x.dim() == weight.dim() and x.shape[1] == taken
    return fits and (bias is None or tuple(bias.shape) == (given,))


def _weights(args: Any) -> bool:
    """Of a loss: they must not be larger than what they weigh, as torch weighs in place."""
    x, target, weight, of_true = (*args, None, None)[:4]
    spreads = [(x, target)]
    if weight is not None:
        spreads.append((weight, target))
    if of_true is not None:
        spreads += [(of_true, x), (target, x)]
    return all(_spreads(small.shape, large.shape) for small, large in spreads)


def _ctc_loss(args: Any) -> bool:
    log_probs, targets, *lengths = args[:4]
    counts = [x.numel() if isinstance(x, torch.Tensor) else len(x) for x in lengths]
    batch = log_probs.shape[1]
    fits = targets.dim() == 1 or (targets.dim() == 2 and targets.shape[0] == batch)
    return fits and counts == [batch] * 2


def _product(first: torch.Tensor, second: torch.Tensor) -> Shape:
    """The shape of the matrices' or batches' product."""
    return (*first.shape[:-1], *second.shape[first.dim() - 1 :])


def _added(args: Any) -> bool:
    """What a product is added to is spread over it."""
    return _spreads(args[0].shape, _product(*args[1:3]))


def _added_in_place(args: Any) -> bool:
    return tuple(args[0].shape) == _product(*args[1:3])


_FITS: dict[str, Callable[[Any], bool]] = {
    "aten.copy_": lambda args: _spreads(args[1].shape, args[0].shape),
    "aten.fill_": lambda args: not isinstance(args[1], torch.Tensor) or args[1].dim() == 0,
    "aten.index_put": _index_put,
    "aten.index_put_": _index_put,
    "aten.index_reduce": _index_add,
    "aten.index_reduce_": _index_add,
    "aten.index_add": _index_add,
    "aten.index_add_": _index_add,
    "aten.put": lambda args: args[1].numel() == args[2].numel(),
    "aten.put_": lambda args: args[1].numel() == args[2].numel(),
    "aten.convolution": _convolution,
    "aten.soft_margin_loss": lambda args: _spreads(args[1].shape, args[0].shape),
    "aten.binary_cross_entropy_with_logits": _weights,
    "aten._ctc_loss": _ctc_loss,
    **dict.fromkeys(("aten.addmm", "aten.addmv", "aten.baddbmm"), _added),
    **dict.fromkeys(("aten.addmm_", "aten.addmv_", "aten.baddbmm_"), _added_in_place),
    "aten.bucketize": lambda args: args[1].dim() == 1,
}


def _linear_backward(x: Any, grad: Any, weight: Any, mask: Any) -> Any:
    shapes = (tuple(x.shape), tuple(weight.shape), tuple(weight.shape[:1]))
    return tuple(
        grad.new_empty(shape) if wanted else None
        for shape, wanted in zip(shapes, mask, strict=True)
    )


def _grouped_mm(x: Any, y: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Torch's own shape function asks for what one of its CUDA kernels wants."""
    shape = [x.shape[-2], y.shape[-1]]
    if x.dim() == y.dim():
        shape.insert(0, x.shape[0] if offs is None else offs.shape[0])
    return x.new_empty(shape, dtype=out_dtype or x.dtype)


def _nearest(name: str) -> Callable[..., Any]:
    """Torch's own shape function fails on a batch that is empty: asked for a batch of one."""
    own = getattr(torch.ops.aten, name).default

    def shape(x: Any, *sizes: Any) -> Any:
        if x.shape[0]:
            return own(x, *sizes)
        return own(x.new_empty((1, *x.shape[1:])), *sizes)[:0]

    return shape


def _weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    return torch.empty_like(v), torch.empty_like(g)


def _label(name: str) -> Callable[..., Any]:
    """Torch's own shape function gathers by labels, and so refuses bytes; its kernels do not."""
    own = getattr(torch.ops.aten, name).default
    return lambda *args: own(*(x.long() if _is_bytes(x) else x for x in args))


def _is_bytes(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype is torch.uint8


def _histc(x: Any, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:
    """Torch's own shape function refuses integers, as its CPU does; CUDA takes them."""
    return torch.histc(x if x.is_floating_point() else x.float(), bins, min, max).to(x.dtype)


# what ops return that have no meta kernel in torch
_META: dict[str, Callable[..., Any]] = {
    "aten.linear_backward.default": _linear_backward,
    "aten._grouped_mm.default": _grouped_mm,
    "aten.histc.default": _histc,
    "aten.nll_loss_forward.default": _label("nll_loss_forward"),
    "aten.nll_loss_backward.default": _label("nll_loss_backward"),
    "aten._weight_norm_interface_backward.default": _weight_norm_backward,
    **{
        f"aten.{kind}{dims}d.default": _nearest(f"{kind}{dims}d")
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for dims in (1, 2, 3)
    },
    "aten._is_all_true.default": torch.all,
    "aten._is_any_true.default": torch.any,
    **CELL_SHAPES,
    **ATTENTION_SHAPES,
    **LOSS_SHAPES,
}


def infer(func: Any, args: Any, kwargs: Any) -> Any:
    """What an op would return, as meta tensors."""
    return _META.get(str(func), func)(*on_meta(args), **on_meta(kwargs))
