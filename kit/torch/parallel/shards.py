"""A batch and its parts: what is split between the replicas of a `DataParallel`, and how."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from kit.errors import SettingsError
from kit.runtime.replicas.group import replicas
from kit.torch.tensors.containers import mapped, values_of
from kit.torch.tensors.tensor import KitTensor

__all__ = [
    "Shards",
    "detached",
    "known_sizes",
    "others_in",
    "part_of",
    "sizes_of",
    "tensors_in",
    "to_kit",
]


class Shards(tuple[Any, ...]):
    """One thing for each replica, in their order; as an argument each replica gets its own.

    Attributes:
        sizes: how many items of a batch each replica of all processes has in it, by rank; empty if
            it is not of a batch.
    """

    sizes: Sequence[int] = ()

    @classmethod
    def of(cls, things: Iterable[Any], sizes: Sequence[int]) -> Shards:
        """Things that belong to parts of these sizes."""
        made = cls(things)
        made.sizes = sizes
        return made


def known_sizes(item: Any) -> Sequence[int]:
    """Those of the first `Shards` in lists, tuples and dicts that has some; else empty."""
    if isinstance(item, Shards):
        return item.sizes
    return next(filter(None, map(known_sizes, values_of(item) or ())), ())


def sizes_of(batch: Any, count: int) -> list[int]:
    """How many items of a batch each replica gets; nothing if there is nothing to split.

    Parts differ by at most one item, the last ones are the smaller.

    Raises:
        SettingsError: there are fewer items than replicas, or tensors of different lengths.
    """
    lengths = {len(t) for t in tensors_in(batch) if t.dim() and not isinstance(t, KitTensor)}
    if not lengths:
        return []
    if len(lengths) > 1:
        raise SettingsError(
            f"the tensors of a batch have different lengths, {sorted(lengths)}: dimension 0 "
            "is split, and must be the same for all"
        )
    length = lengths.pop()
    if length < count:
        raise SettingsError(
            f"a batch of {length} cannot be split over {count} devices: "
            f"{replicas(range(length, count))} would have nothing to do. Take a larger "
            "batch (or drop the last one of an epoch), or fewer devices"
        )
    return [(length + count - 1 - r) // count for r in range(count)]


def part_of(item: Any, rank: int, sizes: Sequence[int], place: int = 0) -> Any:
    """One replica's part: tensors on the host are cut, `Shards` give its own, the rest stays.

    Args:
        rank: among the replicas of all processes.
        place: among those of this one, which is what `Shards` have.
    """
    if isinstance(item, Shards):
        return item[place]
    if isinstance(item, Tensor):
        if not item.dim() or isinstance(item, KitTensor):
            return item
        start = sum(sizes[:rank])
        return item[start : start + sizes[rank]]
    return mapped(item, lambda value: part_of(value, rank, sizes, place))


def to_kit(item: Any) -> Any:
    """CPU tensors go to the device of the thread that calls; the rest stays."""
    if isinstance(item, Tensor):
        return item if isinstance(item, KitTensor) else item.to("kit")
    return mapped(item, to_kit)


def detached(item: Any) -> Any:
    """The same outside of autograd."""
    if isinstance(item, Tensor):
        return item.detach() if item.requires_grad else item
    return mapped(item, detached)


def tensors_in(item: Any) -> Iterator[Any]:
    """Every tensor in a batch; not in `Shards`, which are split already."""
    if isinstance(item, Tensor):
        yield item
    elif not isinstance(item, Shards):
        for value in values_of(item) or ():
            yield from tensors_in(value)


def others_in(item: Any) -> Iterator[Any]:
    """What is in a batch and is no tensor on the host, as something to compare.

    A tensor that is on a device already is told by what it holds now.
    """
    if isinstance(item, KitTensor):
        yield id(item), id(item.kit_value().cell)
    elif isinstance(item, dict | UserDict):
        yield from others_in(list(item.items()))
    elif (inside := values_of(item)) is not None:
        for value in inside:
            yield from others_in(value)
    elif not isinstance(item, Tensor):
        yield item if isinstance(item, Hashable) else id(item)
