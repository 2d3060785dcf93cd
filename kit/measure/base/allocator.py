"""What a device's allocator has counted before and after a run: the run's `memory.*` metrics.

    before = of_xla(device)      or of_torch(torch.cuda.memory_stats())
    ...                          build the step, warm up, measure
    memory_metrics(before, of_xla(device))

XLA and torch count the bytes in use, and the most so far in the process. That cannot be asked for a
part of it without taking the count away from the user's program, so a run's own peak is known only
where it is higher than what was before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Allocated", "memory_metrics", "of_torch", "of_xla"]


class Allocated(NamedTuple):
    """Bytes that an allocator has given out, of this process."""

    in_use: int
    most: int  # since the process began


def of_xla(device: Any) -> Allocated | None:
    """What XLA counts on a jax device; None where it does not, as on a CPU."""
    return _counted(device.memory_stats() or {}, "bytes_in_use", "peak_bytes_in_use")


def of_torch(stats: Mapping[str, Any]) -> Allocated | None:
    """What torch counts, from `torch.cuda.memory_stats()`; None before it is first used."""
    return _counted(stats, "allocated_bytes.all.current", "allocated_bytes.all.peak")


def _counted(stats: Mapping[str, Any], in_use: str, most: str) -> Allocated | None:
    if in_use not in stats or most not in stats:
        return None
    return Allocated(int(stats[in_use]), int(stats[most]))


def memory_metrics(before: Allocated | None, after: Allocated | None) -> dict[str, float]:
    """`memory.live_bytes` after the measured steps, and `memory.peak_bytes` of all until then.

    Where something before the run has used as much, its own peak is not known, and
    `memory.peak_bound` says what it did not go beyond. Empty where nothing counts.
    """
    if after is None:
        return {}
    is_own = before is None or after.most > before.most
    name = "memory.peak_bytes" if is_own else "memory.peak_bound"
    return {"memory.live_bytes": float(after.in_use), name: float(after.most)}
