"""Long calls of a GPU's runtime that neither launch, copy nor wait by name, such as `cudaMalloc`.

Pure: events of torch's profiler in, spans and sync points out. A file of a trace is read by the
same rules, in `kit.formats.chrome`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kit.trace import Span, SyncPoint
from kit.trace.devices import device_of, is_free, is_launch, is_runtimes, is_transfer, is_wait
from kit.trace.host import LONG_NS, idle_in
from kit.trace.intervals import Ints

__all__ = ["FREE", "is_other_call", "spent_in_calls"]

FREE = "free"  # the cause of a wait to give memory back


def is_other_call(name: str) -> bool:
    """Is it a call of CUDA's or HIP's that neither launches, copies nor waits by its name?"""
    return is_runtimes(name) and not (is_launch(name) or is_transfer(name) or is_wait(name))


def spent_in_calls(
    names: Sequence[str], times: Ints, kernels: Iterable[Span]
) -> tuple[list[Span], list[SyncPoint]]:
    """What such calls took, under their names; of those that give memory back first their wait.

    Args:
        times: of each call, on the clock of the kernels.

    Shape:
        times (calls, 2)
    """
    work: dict[str, list[tuple[int, int]]] = {}
    for s in kernels:
        work.setdefault(device_of(s.lane), []).append((s.start_ns, s.stop_ns))
    idle = [idle_in(times, np.array(ends, np.int64)) for ends in work.values()]
    done = np.where([is_free(name) for name in names], np.max([times[:, 0], *idle], 0), times[:, 0])
    spans: list[Span] = []
    syncs: list[SyncPoint] = []
    for name, (start, stop), at in zip(names, times.tolist(), done.tolist(), strict=True):
        if stop - start < LONG_NS:  # there are many short ones
            continue
        if at > start:
            syncs.append(SyncPoint(start, at - start, FREE))
        if at < stop:
            spans.append(Span("host/main", name, "elsewhere", at, stop))
    return spans, syncs
