"""Device time by graph node: each kernel's time shared among the nodes that it computes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from kit.runs.run import Run
from kit.trace import KINDS
from kit.trace.kinds import ON_DEVICE

__all__ = ["node_kernels", "node_ns"]


def node_ns(run: Run) -> dict[int, float]:
    """Device time of each node in one step, where it is known.

    A fused kernel's time is shared equally among its nodes: no profiler sees inside it. So the
    shares of all nodes add up to the time of the kernels that are known, each counted whole even
    where several run at a time; busy time is `kit.trace.busy_fraction`.

    Units:
        nanoseconds, the mean of the traced steps
    """
    t = run.timeline
    mask = t.where(kind=ON_DEVICE) & ((t.node >= 0) | (t.segment >= 0))
    steps = max(int((t.kind == KINDS.index("step")).sum()), 1)
    keys = np.stack([t.segment[mask], t.name[mask], t.node[mask]], axis=1)
    kernels, group = np.unique(keys, axis=0, return_inverse=True)
    times = np.bincount(group.reshape(-1), weights=(t.stop_ns - t.start_ns)[mask])
    found: dict[int, float] = defaultdict(float)
    for (segment, name, node), total in zip(kernels.tolist(), times.tolist(), strict=True):
        nodes = run.nodes_of(segment, t.names[name], node)
        for i in nodes:
            found[i] += total / steps / len(nodes)
    return {i: ns for i, ns in found.items() if ns}


def node_kernels(run: Run) -> dict[int, list[tuple[str, int]]]:
    """The kernels that compute each node: their names, and how many nodes each computes."""
    t = run.timeline
    mask = t.where(kind=ON_DEVICE) & ((t.node >= 0) | (t.segment >= 0))
    keys = np.unique(np.stack([t.segment[mask], t.name[mask], t.node[mask]], axis=1), axis=0)
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for segment, name, node in keys.tolist():
        nodes = run.nodes_of(segment, t.names[name], node)
        for i in nodes:
            found[i].append((t.names[name], len(nodes)))
    return dict(found)
