"""Device time by graph node: each kernel's time shared among the nodes that it computes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from kit.runs.run import Run
from kit.trace.kernels import charged_ns, computes_nothing, distinct_kernels, in_steps
from kit.trace.kinds import ON_DEVICE

__all__ = ["node_kernels", "node_ns"]


def node_ns(run: Run) -> dict[int, float]:
    """Device time of each node in one step, where it is known.

    A fused kernel's time is shared equally among its nodes: no profiler sees inside it; an instant
    in which several kernels run, equally among these. So the shares of all nodes add up to what the
    kernels that are known have of the busy time, as in `kit.trace.kernel_table`.

    Units:
        nanoseconds, the mean of the traced steps
    """
    if not run.graphs:
        return {}
    t = run.timeline
    spans, inside = in_steps(t, np.flatnonzero(t.where(kind=ON_DEVICE)))
    if not len(spans):
        return {}
    charged = charged_ns(inside, computes_nothing(t, spans))
    is_known = (t.node[spans] >= 0) | (t.segment[spans] >= 0)
    steps = max(t.steps, 1)
    kernels, group = distinct_kernels(t, spans[is_known])
    times = np.bincount(group, weights=charged[is_known])
    found: dict[int, float] = defaultdict(float)
    for (segment, name, node), total in zip(kernels.tolist(), times.tolist(), strict=True):
        nodes = run.nodes_of(segment, t.names[name], node)
        for i in nodes:
            found[i] += total / steps / len(nodes)
    return {i: ns for i, ns in found.items() if ns}


def node_kernels(run: Run) -> dict[int, list[tuple[str, int]]]:
    """The kernels that compute each node: their names, and how many nodes each computes."""
    if not run.graphs:
        return {}
    t = run.timeline
    known = t.where(kind=ON_DEVICE) & ((t.node >= 0) | (t.segment >= 0))
    kernels, _ = distinct_kernels(t, np.flatnonzero(known))
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for segment, name, node in kernels.tolist():
        nodes = run.nodes_of(segment, t.names[name], node)
        for i in nodes:
            found[i].append((t.names[name], len(nodes)))
    return dict(found)
