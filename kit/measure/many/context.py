"""The context that a workload's builder is given for one of several replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kit.errors import SettingsError
from kit.measure.base.context import Context
from kit.measure.many.common import Common
from kit.torch.parallel.own_step import OwnStepParallel
from kit.torch.parallel.shards import part_of, sizes_of, tensors_in
from kit.torch.tensors.tensor import KitTensor

__all__ = ["ReplicaContext"]


class ReplicaContext(Context):
    """The context of one replica: its loader yields its part of every batch.

    Attributes:
        batch_size: of its part; the settings' is that of the whole batch.
    """

    def __init__(self, net: OwnStepParallel, rank: int, common: Common) -> None:
        super().__init__(net.settings, "kit")
        self._net, self._rank, self._common = net, rank, common
        self._place = rank - net.ranks.start
        self._loaders = 0  # so far
        self._sizes = sizes_of(torch.empty(net.settings.batch_size), net.count)
        self.batch_size = self._sizes[rank]
        net.take(rank, self._sizes)

    def loader(self, dataset: Any) -> Iterator[Any]:
        """As any context's: the whole batches are those of one device, in the same order."""
        part, self.batch_size = self.batch_size, self.settings.batch_size
        try:
            made: Iterator[Any] = super().loader(dataset)
        finally:
            self.batch_size = part
        return made

    def part(self, batch: Any) -> Any:
        """The replica's part of a batch of all replicas, as any context's says.

        Raises:
            SettingsError: there is no tensor on the CPU to cut, or it is shorter than the replicas.
        """
        sizes = sizes_of(batch, self._net.count)
        if not sizes or any(isinstance(tensor, KitTensor) for tensor in tensors_in(batch)):
            raise SettingsError(
                "ctx.part cuts a batch of tensors on the CPU, and got others: send what it gives "
                "to the device, ctx.part(x).to(ctx.device)"
            )
        self._net.take(self._rank, sizes)
        return part_of(batch, self._rank, sizes)

    def mean(self, loss: Any) -> Any:
        """The loss of the whole batch, as any context's says."""
        return self._common.barrier.wait(loss.detach() * self._net.weights[self._place])

    def _on_device(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._loaders += 1  # now, and not when the first batch is asked for
        drawn = self._common.batches(self._loaders, self._place, batches)
        return self._taken(super()._on_device(self._parts(drawn)))

    def _taken(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch, sizes in batches:
            self._net.take(self._rank, sizes, batch)
            yield batch

    def _parts(self, batches: Iterator[Any]) -> Iterator[tuple[Any, list[int]]]:
        """With the sizes of all parts: a replayed step has them as constants, and looks."""
        sizes = self._sizes
        for batch in batches:
            found = sizes_of(batch, self._net.count)
            if not found and _is_opaque(batch):
                raise SettingsError(
                    f"ctx.loader gives a batch of type {type(batch).__name__}, in which there is "
                    "no tensor to split between the devices: give tensors, in tuples, lists, dicts "
                    "or dataclasses (torch.from_numpy makes one of an array)"
                )
            sizes = found or sizes
            yield part_of(batch, self._rank, sizes), sizes


def _is_opaque(batch: Any) -> bool:
    """It holds arrays, or objects that know how to go to a device, instead of tensors."""
    if isinstance(batch, dict | list | tuple):
        inside = batch.values() if isinstance(batch, dict) else batch
        return any(map(_is_opaque, inside))
    return hasattr(batch, "shape") or hasattr(batch, "to")
