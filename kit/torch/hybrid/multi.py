"""Multi-tensor ops: one dispatch for a whole list of tensors of any shapes.

All but `reset_arrays` are plain loops made one op by `hybridize`, and so on a CPU or CUDA tensor
they are those loops. The models are MXNet's `reset_arrays`, `multi_sum_sq`, `multi_all_finite`,
`multi_sgd_update`, `_multi_adamw_update` and `_multi_lamb_update`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from kit.errors import SettingsError
from kit.runtime.recording.bulk import Value
from kit.text import check_number
from kit.torch.hybrid.hybrid import hybridize, written
from kit.torch.tensors.buffer import Buffer
from kit.torch.tensors.tensor import KitTensor

__all__ = ["all_finite", "clip_by_global_norm", "global_norm", "multi_adamw", "multi_lamb",
           "multi_sgd", "reset_arrays"]  # fmt: skip

_ref = attrgetter("ref")
_ALL_BUFFERS, _ALL_KIT = {Buffer}, {KitTensor}


def reset_arrays(arrays: Sequence[Tensor], *, share: bool = True) -> None:
    """Set every element of every tensor to zero, in place.

    Args:
        arrays: tensors of any shapes, dtypes and devices.
        share: buffers on device "kit" are immutable, so all tensors of a shape and dtype can show
            one buffer of zeros: nothing is computed. False writes each, as one op.

    Raises:
        RuntimeError: one is a leaf that requires grad, and gradients are recorded.
    """
    if not arrays:
        return
    if set(map(type, arrays)) != _ALL_KIT:
        ours = [a for a in arrays if isinstance(a, KitTensor)]
        torch._foreach_zero_([a for a in arrays if not isinstance(a, KitTensor)])
        reset_arrays(ours, share=share)
        return
    tensors: Sequence[KitTensor] = arrays  # type: ignore[assignment]
    if not share:
        torch._foreach_zero_(list(tensors))
        return
    refs = list(map(_ref, tensors))
    written(tensors)
    tape = tensors[0].tape
    with tape.session.lock:
        zeros = tape.shared_zeros
        whole = set(map(type, refs)) == _ALL_BUFFERS
        for tensor, ref in zip(tensors, refs, strict=True):
            spec = ref.spec if whole else tensor.spec
            value = zeros.get(spec)
            if value is None:
                value = zeros[spec] = _shared_zero(tensor)
                value.is_shared = True
            ref.write(tape, value)


def _shared_zero(tensor: KitTensor) -> Value:
    tape = tensor.tape
    stream = tape.session.stream
    stream.begin(tape.place.follow())
    return tape.full(tensor.spec, 0)


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all elements of all tensors: a 0-d float32 tensor, unread, without gradient."""
    return _global_norm(_some(tensors))


def clip_by_global_norm(tensors: Sequence[Tensor], max_norm: float, eps: float = 1e-6) -> Tensor:
    """Scale the tensors in place so that their global norm is at most `max_norm`.

    Returns the norm of before, a 0-d tensor, unread: as `torch.nn.utils.clip_grad_norm_` does.
    """
    return _clip(_some(tensors), _checked("max_norm", max_norm), _checked("eps", eps))


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """True if no element of any tensor is infinite or nan: a 0-d bool tensor, unread."""
    return _all_finite(_some(tensors))


@torch.no_grad()
def multi_sgd(params: Sequence[Tensor], grads: Sequence[Tensor], momenta: Sequence[Tensor] = (), *,
              lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:  # fmt: skip
    """One step of SGD on every parameter, in place, as `torch.optim.SGD` takes it.

    `momenta` start as zeros; they are needed if `momentum` is not 0.
    """
    if momentum and len(momenta) != len(params):
        raise SettingsError(f"momentum={momentum} needs one momentum tensor for each parameter")
    _sgd(
        list(params),
        list(grads),
        list(momenta),
        _rate(lr, params),
        _checked("momentum", momentum),
        _checked("weight_decay", weight_decay),
    )


@torch.no_grad()
def multi_adamw(params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
                exp_avg_sqs: Sequence[Tensor], step: Tensor, *, lr: float = 1e-3,
                betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                weight_decay: float = 1e-2) -> None:  # fmt: skip
    """One step of AdamW on every parameter, in place, as `torch.optim.AdamW` takes it.

    Args:
        step: 0-d float32 tensor, the number of steps before this one; it is counted up in place, on
            the device, so that no step is a new program.
    """
    _adamw(list(params), list(grads), list(exp_avgs), list(exp_avg_sqs), step, _rate(lr, params),
           *_moments(betas, eps, weight_decay))  # fmt: skip


@torch.no_grad()
def multi_lamb(params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor],
               exp_avg_sqs: Sequence[Tensor], step: Tensor, *, lr: float = 1e-3,
               betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
               weight_decay: float = 1e-2) -> None:  # fmt: skip
    """One step of LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2) on every parameter.

    The trust ratio is the parameter's norm over the update's, 1 where either is zero. `step` as in
    `multi_adamw`.
    """
    _lamb(list(params), list(grads), list(exp_avgs), list(exp_avg_sqs), step, _rate(lr, params),
          *_moments(betas, eps, weight_decay))  # fmt: skip


def _rate(value: float, like: Sequence[Tensor]) -> Any:
    """A learning rate, which may change at each call: on device "kit" a tensor, else itself."""
    rate = _checked("lr", value)
    if like and isinstance(like[0], KitTensor):
        return torch.full((), rate, device=like[0].device)
    return rate


def _moments(
    betas: tuple[float, float], eps: float, weight_decay: float
) -> tuple[float, float, float, float]:
    first, second = (_checked("each of betas", beta) for beta in betas)
    return first, second, _checked("eps", eps), _checked("weight_decay", weight_decay)


def _checked(name: str, value: float | Tensor) -> float:
    """As torch's optimizers: a number of at least 0, or a tensor that holds one."""
    number = float(value) if isinstance(value, Tensor) else value
    if number != math.inf:  # a norm without a bound
        check_number(SettingsError, name, number, at_least=0)
    return float(number)


def _some(tensors: Sequence[Tensor]) -> list[Tensor]:
    found = list(tensors)
    if not found:
        raise SettingsError("a norm needs at least one tensor; the list is empty")
    return found


def _norms(tensors: list[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(t.detach().float()) for t in tensors])


@hybridize
def _global_norm(tensors: list[Tensor]) -> Tensor:
    with torch.no_grad():
        norm: Tensor = torch.linalg.vector_norm(_norms(tensors))
    return norm


@hybridize
def _clip(tensors: list[Tensor], max_norm: float, eps: float) -> Tensor:
    with torch.no_grad():
        norm: Tensor = torch.linalg.vector_norm(_norms(tensors))
        scale = (max_norm / (norm + eps)).clamp(max=1.0)
        for t in tensors:
            t.mul_(scale.to(t.dtype))
    return norm


@hybridize
def _all_finite(tensors: list[Tensor]) -> Tensor:
    return torch.stack([torch.isfinite(t.detach()).all() for t in tensors]).all()


@hybridize
def _sgd(params: list[Tensor], grads: list[Tensor], momenta: list[Tensor], lr: Any,
         momentum: float, weight_decay: float) -> None:  # fmt: skip
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        d = g + weight_decay * p if weight_decay else g
        if momentum:
            d = momenta[i].mul_(momentum).add_(d)
        p.sub_(lr * d)


@hybridize
def _adamw(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor],
           exp_avg_sqs: list[Tensor], step: Tensor, lr: Any, beta1: float, beta2: float,
           eps: float, weight_decay: float) -> None:  # fmt: skip
    step.add_(1)
    size = lr / (1 - beta1**step)
    scale = (1 - beta2**step).sqrt()
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        p.mul_(1 - lr * weight_decay).sub_(size * m / (v.sqrt() / scale + eps))


@hybridize
def _lamb(params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor],
          exp_avg_sqs: list[Tensor], step: Tensor, lr: Any, beta1: float, beta2: float,
          eps: float, weight_decay: float) -> None:  # fmt: skip
    step.add_(1)
    first, second = 1 - beta1**step, 1 - beta2**step
    for p, g, m, v in zip(params, grads, exp_avgs, exp_avg_sqs, strict=True):
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        update = (m / first) / ((v / second).sqrt() + eps) + weight_decay * p
        sizes = torch.linalg.vector_norm(p), torch.linalg.vector_norm(update)
        ratio = torch.where((sizes[0] > 0) & (sizes[1] > 0), sizes[0] / sizes[1], 1.0)
        p.sub_(lr * ratio * update)
