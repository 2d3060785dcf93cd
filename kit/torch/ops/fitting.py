"""Shapes that torch's CPU refuses where its meta kernels take any, or where kit asks none of them.

XLA would refuse them too, but in jax's words and only when the segment is compiled, or spread one
number over several places. Asked once for each kind of call; the user is told in the words of
torch's CPU, by `kit.torch.ops.host.raise_as_cpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kit.torch.ops.schema import flat_tensors, on_meta

__all__ = ["check_fit", "check_whole"]

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
