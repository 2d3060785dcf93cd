"""Tensors of joined processes: their sums and all of them, by jax's own collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["Tensors"]

_NARROW = (jnp.float16, jnp.bfloat16)  # gloo adds up neither


class Tensors:
    """Combines arrays over so many processes, once jax has begun in all of them.

    All must call the same in the same order, with arrays of the same shapes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._mesh: Any = None
        self._programs: dict[str, Any] = {}

    def sum(self, arrays: Sequence[Any]) -> list[Any]:
        """The sum of each array over the processes, on this one's first device: the same bits."""
        sums = self._over_all("sum", [a if a.ndim else a[None] for a in arrays])
        return [s if a.ndim else s[0] for s, a in zip(sums, arrays, strict=True)]

    def gather(self, arrays: Sequence[Any]) -> list[list[Any]]:
        """Every process's arrays, by rank, on this one's first device."""
        every = self._over_all("gather", [a[None] for a in arrays])
        return [every[i * len(arrays) : (i + 1) * len(arrays)] for i in range(self._count)]

    @property
    def home(self) -> Any:
        """The device that arrays must be on for `sum` and `gather`."""
        return jax.local_devices()[0]

    def _over_all(self, name: str, arrays: Sequence[Any]) -> list[Any]:
        own = PartitionSpec("process")
        if self._mesh is None:
            first = {d.process_index: d for d in reversed(jax.devices())}
            self._mesh = Mesh(np.array([first[i] for i in range(self._count)]), ("process",))
            everywhere = NamedSharding(self._mesh, PartitionSpec())
            each = jax.shard_map(_sum, mesh=self._mesh, in_specs=own, out_specs=own)
            self._programs["sum"] = jax.jit(each)
            self._programs["gather"] = jax.jit(_gather, out_shardings=everywhere)
        sharding = NamedSharding(self._mesh, own)
        given = [
            jax.make_array_from_single_device_arrays(
                (self._count * len(a), *a.shape[1:]), sharding, [a]
            )
            for a in arrays
        ]
        return [made.addressable_data(0) for made in self._programs[name](given)]


def _sum(arrays: list[Any]) -> list[Any]:
    """One process's arrays, added up over all: as one vector a type, because messages are few then.

    Large arrays alone, without these copies, are quicker in a program that does nothing else (4 of
    2.6 MB: 10 ms, not 17), and slower in a step that computes (50 ms, not 38; 2 processes).
    """
    sums: list[Any] = [None] * len(arrays)
    by_type: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        by_type.setdefault(array.dtype, []).append(i)
    for dtype, which in by_type.items():
        vector = jnp.concatenate([arrays[i].reshape(-1) for i in which])
        wide = vector.astype(jnp.float32) if dtype in _NARROW else vector
        total, start = jax.lax.psum(wide, "process").astype(dtype), 0
        for i in which:
            stop = start + arrays[i].size
            sums[i] = total[start:stop].reshape(arrays[i].shape)
            start = stop
    return sums


def _gather(columns: list[Any]) -> list[Any]:
    return [column[i] for i in range(len(columns[0])) for column in columns]
