"""Batch normalisation over the batches of all replicas: `SyncBatchNorm`.

The statistics are those of the whole batch, however unevenly it was split: mean and sum of squared
deviations of each replica are combined with their counts, which loses no digits as E[x^2] - E[x]^2
does.

Source:
    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    variances", 1979. Backward: Ioffe and Szegedy, "Batch normalization", 2015, with the two sums
    taken over all replicas.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from kit.errors import SettingsError
from kit.runtime.replicas.session import ReplicaSession
from kit.torch.parallel.barrier import all_sum, gathered, keep_error, replica_here
from kit.torch.tensors.tensor import KitTensor

__all__ = ["SyncBatchNorm", "share_batch_norms"]


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm` whose training statistics are those of all replicas' batches together.

    Takes (batch, channels, ...) of any rank from 2. Outside of a `kit.DataParallel`, with one
    device and in evaluation it is an ordinary batch normalisation. `kit.DataParallel(...,
    sync_batch_norm=True)` puts it in the place of every batch normalisation of a model, and always
    in that of torch's own `nn.SyncBatchNorm`, which runs on a GPU only.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; in training also move the running statistics."""
        replica = replica_here()
        is_training = self.training or self.running_mean is None
        if replica is None or not is_training or not isinstance(input, KitTensor):
            return super().forward(input)
        self._check_input_dim(input)
        mean, square, count = _statistics(replica, input.detach())
        if self.training and self.track_running_stats:
            self._move(mean, square, count)
        apply: Any = _Normalise.apply
        made: Tensor = apply(
            input, self.weight, self.bias, mean, square / count, count, self.eps, replica
        )
        return made

    @torch.no_grad()
    def _move(self, mean: Tensor, square: Tensor, count: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        assert self.running_mean is not None
        assert self.running_var is not None
        part: Any = self.momentum
        if part is None:  # the mean of all batches so far
            part = 1.0 / self.num_batches_tracked.to(mean.dtype)
        self.running_mean.add_((mean.to(self.running_mean.dtype) - self.running_mean) * part)
        variance = (square / (count - 1)).to(self.running_var.dtype)
        self.running_var.add_((variance - self.running_var) * part)


def share_batch_norms(module: nn.Module, *, every: bool) -> nn.Module:
    """Make torch's `nn.SyncBatchNorm`, or every batch norm in the module, a `SyncBatchNorm`.

    Each gets another class and stays the same object: other code that has it, its hooks, its
    parameters and buffers and what a subclass has added are as before.

    Raises:
        SettingsError: a subclass has a forward of its own, which would never be called.
    """
    for name, part in module.named_modules():
        if isinstance(part, SyncBatchNorm) or not isinstance(part, _BatchNorm):
            continue
        is_torchs = isinstance(part, nn.SyncBatchNorm)
        if every or is_torchs:
            if _has_own_forward(part):
                raise SettingsError(_own_forward(name, part, is_torchs))
            kind: Any = type(part)
            part.__class__ = SyncBatchNorm if kind in _PLAIN else _shared(kind)
    return module


_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@functools.cache
def _shared(kind: Any) -> type[_BatchNorm]:
    """The subclass of a batch norm, with `SyncBatchNorm`'s forward and all else that it has."""

    def reduce(self: Any, protocol: int) -> tuple[Any, ...]:
        return _blank, (kind,), self.__getstate__()  # this class has no name to be found by

    members = {
        "forward": SyncBatchNorm.forward,
        "__reduce_ex__": reduce,
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
    }
    return type(kind.__name__, (kind, SyncBatchNorm), members)


def _blank(kind: Any) -> _BatchNorm:
    made = _shared(kind)
    return made.__new__(made)


def _has_own_forward(module: nn.Module) -> bool:
    known = (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    return "forward" in vars(module) or type(module).forward not in known


def _own_forward(name: str, module: nn.Module, is_torchs: bool) -> str:
    where = f"{name!r} of the model" if name else "the model"
    text = (
        f"{where} is a {type(module).__name__} with a forward of its own, which would not be "
        "called once its statistics are shared: "
    )
    if is_torchs:
        return f"{text}make it call kit.SyncBatchNorm, not torch's nn.SyncBatchNorm"
    return f"{text}make it call kit.SyncBatchNorm, or leave sync_batch_norm off"


def _over(x: Tensor) -> list[int]:
    """The dimensions that a channel's statistics are taken over."""
    return [d for d in range(x.dim()) if d != 1]


def _wide(x: Tensor, like: Tensor) -> Tensor:
    """One number a channel, shaped to go with `like`."""
    return x.reshape([1, -1] + [1] * (like.dim() - 2))


@torch.no_grad()
def _statistics(replica: ReplicaSession, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, sum of squared deviations and count, over the batches of all replicas."""
    exact = torch.float64 if x.dtype is torch.float64 else torch.float32
    x = x.to(exact)
    own = x.mean(_over(x))
    squares = (x - _wide(own, x)).square().sum(_over(x))
    number = torch.full((1,), float(x.numel() // x.shape[1]), dtype=exact, device="kit")
    mine = torch.cat([own, squares, number])
    ranks = replica.collectives.group.total
    meta = torch.empty(mine.shape, dtype=exact, device="meta")
    every = torch.stack(gathered(replica, [mine], [meta] * ranks))
    c = x.shape[1]
    means, squared, counts = every[:, :c], every[:, c : 2 * c], every[:, 2 * c :]
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    square = (squared + counts * (means - mean).square()).sum(0)
    return mean, square, count


class _Normalise(torch.autograd.Function):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`; mean and variance depend on all x."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, count: Any,
                eps: float, replica: Any) -> Any:  # fmt: skip
        """The normalised batch of this replica."""
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, mean, scale, count)
        ctx.replica, ctx.has_bias = replica, bias is not None
        normal = (x.to(mean.dtype) - _wide(mean, x)) * _wide(scale, x)
        if weight is not None:
            normal = normal * _wide(weight, x)
        if bias is not None:
            normal = normal + _wide(bias, x)
        return normal.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of x, weight and bias: those of the whole batch, as far as x is concerned."""
        x, weight, mean, scale, count = ctx.saved_tensors
        given = grads[0]
        gradient = given.to(mean.dtype)
        normal = (x.to(mean.dtype) - _wide(mean, x)) * _wide(scale, x)
        sums = torch.stack([gradient.sum(_over(x)), (gradient * normal).sum(_over(x))])
        try:
            total = all_sum(ctx.replica, sums)
        except Exception as error:  # noqa: BLE001 - inside backward it would end the process
            keep_error(ctx.replica, error)
            total = sums
        inner = gradient - (_wide(total[0], x) + normal * _wide(total[1], x)) / count
        factor = scale if weight is None else scale * weight
        return (
            (inner * _wide(factor, x)).to(given.dtype),
            None if weight is None else sums[1].to(weight.dtype),
            sums[0].to(mean.dtype) if ctx.has_bias else None,
            None,
            None,
            None,
            None,
            None,
        )
