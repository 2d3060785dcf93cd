"""Memory of a step over program order, modelled from the graph: what is live, and by which op.

Nothing here is measured. A value lives from the node that makes it: one that another segment reads
or that outlives the step until the last segment that reads it has ended, because a program holds
its inputs until it returns; any other until its last use. A view has no memory of its own and keeps
what it shows alive. What the graph wants outlives the step, unless a later segment reads it: then
it is taken to end with that, since the recording alone may have kept it. Parameters and inputs are
there all the time. XLA may need less inside a program, where fusion makes values disappear, and
more, for scratch; on a GPU an input without further use gives its memory to a result
(donation), which is not modelled. What an op makes for itself, as a loop or a hybridized function
does inside, is not seen either. Which variables are parameters, and which the optimizer's state,
`kit.ir.roles` tells from what reads them.

What an op makes, it writes: buffers are immutable, so bytes allocated and bytes written are one.
`memory` is about the order of the program, `memory_by_op` and `variant_memory` put the bytes
beside the time that was measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.errors import GraphError
from kit.ir import Graph, roles
from kit.ir.graph import is_view
from kit.runs.analysis.nodes import node_ns
from kit.runs.given import one_run
from kit.runs.run import Run
from kit.text import format_bytes, format_count

__all__ = ["Holder", "MemoryReport", "OpMemory", "VariantMemory", "memory", "memory_by_op",
           "variant_memory"]  # fmt: skip

Value = tuple[int, int]  # node id, output index
Bytes = NDArray[np.int64]  # at each place of the program order


@dataclass(frozen=True, slots=True)
class Holder:
    """A value, and from which to which node it is live."""

    node: int
    output: int
    op: str
    site: str
    scope: str
    bytes: int
    first: int  # node id; 0 for variables
    last: int  # node id; the number of nodes if it outlives the step
    is_kept: bool  # between segments; False: inside one only
    role: str = ""  # of a variable: one of `kit.ir.ROLES`, such as "parameter"


@dataclass(frozen=True)
class MemoryReport:
    """The memory of one step, modelled; see `kit.runs.analysis.memory`.

    Units:
        bytes; `live`, `temporary`, `written` and `buffers` have an entry for each of `nodes`, the
        first two just after it was executed
    """

    nodes: tuple[int, ...]  # the executed nodes, program order
    live: tuple[int, ...]  # all that is live
    temporary: tuple[int, ...]  # of that, what no other segment will see
    written: tuple[int, ...]  # what the node makes
    buffers: tuple[int, ...]  # in how many pieces; 0 for a view
    variables: int  # parameters, optimizer state, inputs and numbers
    peak: int
    peak_node: int  # -1 if nothing is executed
    holders: tuple[Holder, ...]  # of the peak, the largest first
    values: tuple[Holder, ...]  # all that have memory of their own, program order
    allocations: int  # values that are made in a step
    allocated: int  # their bytes together

    origin: str = "modelled"

    def __repr__(self) -> str:
        values = format_count(self.allocations, "value")
        return (
            f"MemoryReport(at most {format_bytes(self.peak)} live, {values} of "
            f"{format_bytes(self.allocated)} made a step, {self.origin})"
        )


@dataclass(frozen=True, slots=True)
class OpMemory:
    """What all uses of one op in one phase write, and the device's time for them.

    Units:
        bytes and nanoseconds of one step; nan if no kernel was seen
    """

    phase: str
    op: str
    nodes: tuple[int, ...]
    buffers: int
    written: int
    device_ns: float  # their shares of the kernels that compute them


@dataclass(frozen=True, slots=True)
class VariantMemory:
    """One of several runs side by side: what it writes and holds, next to its time.

    Units:
        bytes and nanoseconds of one step; nan is what the run cannot say: bytes without a graph,
        device times without kernels
    """

    step_ms: float  # median untraced step, wall time
    device_ns: float  # of the phases below and the update
    forward_ns: float
    backward_ns: float
    ops: float  # executed, views included
    buffers: float
    written: float
    forward_written: float
    backward_written: float
    peak: float
    temporary: float  # most that is live at once and no other segment will see


def memory(run: Run) -> MemoryReport:
    """What is live over the program order of a step, where the peak is, and which values make it.

    Raises:
        GraphError: the run has no graph: mode "torch", or nothing was recorded; or another one than
            its segments are of.
    """
    if not one_run(run).graphs:
        raise GraphError(
            "memory is modelled from the recorded graph, and this run has none. Run the workload "
            "in mode 'lazy', 'bulked' or 'imperative'."
        )
    graph = run.graphs[0]
    home = _segment_of(run, graph)
    if max(home, default=0) >= len(graph):
        raise GraphError("the segments of this run name nodes that its graph does not have")
    holders = _holders(graph, home)
    size = len(graph) + 1
    live = _live(holders, size)
    inside = _live([h for h in holders if not h.is_kept], size)
    ops = np.array(graph.ops, dtype=np.intp)
    at = int(ops[live[ops].argmax()]) if len(ops) else -1
    made = [h for h in holders if h.first == h.node and not graph.nodes[h.node].is_variable]
    variables = sum(h.bytes for h in holders if graph.nodes[h.node].is_variable)
    written, buffers = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for h in made:
        written[h.node] += h.bytes
        buffers[h.node] += 1
    return MemoryReport(
        nodes=graph.ops,
        live=tuple(live[ops].tolist()),
        temporary=tuple(inside[ops].tolist()),
        written=tuple(written[ops].tolist()),
        buffers=tuple(buffers[ops].tolist()),
        variables=variables,
        peak=int(live[at]) if at >= 0 else 0,
        peak_node=at,
        holders=tuple(
            sorted(
                (h for h in holders if h.first <= at <= h.last),
                key=lambda h: (-h.bytes, h.node, h.output),
            )
        ),
        values=tuple(holders),
        allocations=len(made),
        allocated=sum(h.bytes for h in made),
    )


def _live(holders: Sequence[Holder], size: int) -> Bytes:
    """The bytes that these hold at each place of the program order."""
    changes = np.zeros(size + 1, np.int64)
    for h in holders:
        changes[h.first] += h.bytes
        changes[min(h.last + 1, size)] -= h.bytes
    return np.cumsum(changes)[:size]


def memory_by_op(run: Run) -> tuple[OpMemory, ...]:
    """A row for each op of each phase; what writes most comes first. Views are left out.

    Raises:
        GraphError: the run has no graph.
    """
    found, graph, times = memory(run), run.graphs[0], node_ns(run)
    places: dict[tuple[str, str], list[int]] = defaultdict(list)  # in `found.nodes`
    for at, i in enumerate(found.nodes):
        if found.buffers[at]:
            places[graph.nodes[i].phase, graph.nodes[i].op].append(at)
    rows = [
        OpMemory(
            phase,
            op,
            tuple(found.nodes[at] for at in chosen),
            sum(found.buffers[at] for at in chosen),
            sum(found.written[at] for at in chosen),
            sum(times.get(found.nodes[at], 0.0) for at in chosen) if times else math.nan,
        )
        for (phase, op), chosen in places.items()
    ]
    return tuple(sorted(rows, key=lambda r: (-r.written, r.phase, r.op)))


def variant_memory(run: Run) -> VariantMemory:
    """The row of a run among variants; one without a graph has its step time only."""
    if not run.graphs:
        return VariantMemory(run.step_ms, *[math.nan] * 10)
    found, nodes = memory(run), run.graphs[0].nodes
    # `node_ns` numbers the nodes of all traced steps, of which the first one's come first
    times = {i: ns for i, ns in node_ns(run).items() if i < len(nodes)}

    def device(phase: str) -> float:
        return sum(ns for i, ns in times.items() if nodes[i].phase == phase) if times else math.nan

    def written(phase: str) -> int:
        return sum(
            w for i, w in zip(found.nodes, found.written, strict=True) if nodes[i].phase == phase
        )

    return VariantMemory(
        run.step_ms, sum(times.values()) if times else math.nan, device("forward"),
        device("backward"), len(found.nodes), found.allocations, found.allocated,
        written("forward"), written("backward"), found.peak, max(found.temporary, default=0),
    )  # fmt: skip


def _segment_of(run: Run, graph: Graph) -> dict[int, tuple[int, int]]:
    """Node -> its segment, and the last node of that; without segments the step is one."""
    groups = [(s.index, s.nodes) for s in run.segments if s.nodes] or [(-1, graph.ops)]
    return {i: (index, nodes[-1]) for index, nodes in groups for i in nodes}


def _holders(graph: Graph, home: dict[int, tuple[int, int]]) -> list[Holder]:
    """Every value that has memory of its own, with how long it lives."""
    nodes = graph.nodes
    shown: dict[Value, Value] = {}  # a view's value -> the value whose memory it shows
    users: dict[Value, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes):
        sources = [shown.get(v, v) for v in node.inputs]
        for v in sources:
            users[v].append(i)
        if is_view(node.op) and sources:
            shown.update({(i, k): sources[0] for k in range(len(node.avals))})
    wanted = {shown.get(v, v) for v in graph.wanted}
    role_of = roles(graph)
    found = []
    for i, node in enumerate(nodes):
        for k, aval in enumerate(node.avals):
            if (i, k) in shown:
                continue
            if node.is_variable:
                first, last, is_kept = 0, len(nodes), True
            else:
                own = home.get(i, (-1, i))
                ends = [home.get(u, (-1, u)) for u in users[i, k]]
                later = [end for segment, end in ends if segment != own[0]]
                is_kept = bool(later) or (i, k) in wanted
                first, last = i, max([i, *users[i, k]])
                if is_kept:
                    last = max(later) if later else len(nodes)
            role = role_of.get(i, "")
            found.append(
                Holder(
                    i, k, node.op, node.site, node.scope, aval.size_bytes, first, last, is_kept,
                    role,
                )
            )  # fmt: skip
    return found
