"""The kernels of a run with what they compute: ops, lines, bytes, arithmetic, achieved rates."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kit.errors import SettingsError
from kit.ir import Aval, Graph
from kit.runs.device.flops import node_flops, runs_program
from kit.runs.device.shapes import call_cost
from kit.runs.given import one_run
from kit.runs.run import Run
from kit.shown import Column, Rows
from kit.text import format_ns, format_number, format_percent, format_share
from kit.trace import KernelRow, count_devices
from kit.trace.imported import Caller
from kit.trace.kernels import Ceilings, in_steps
from kit.trace.kernels import kernel_table as rows_of
from kit.trace.kinds import ON_DEVICE

__all__ = ["KernelCost", "kernel_table"]

Value = tuple[int, int]
Moved = tuple[float, float, float]  # bytes read, bytes written, arithmetic
_OTHER_DTYPES = frozenset({"bfloat16", "float16", "float64", "complex64", "complex128", "int8"})
_UNKNOWN = (math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of one segment, and what it computes.

    Bytes and arithmetic are modelled, from the shapes of the graph: each value is read once and
    written once, and what stays inside a fused kernel is neither. nan is what cannot be known, as
    of one of several kernels of a loop or a hybridized function, whose body is not in the graph.

    A foreign trace has no graph, but may name the ops that launched a kernel, and their shapes. An
    op that launches several kernels says nothing of what each of them does: only kernels that are
    the only one of their op, in all calls, have bytes and arithmetic there.

    Units:
        bytes and operations of one step; gigabytes and 1e9 operations a second
    """

    kernel: KernelRow
    nodes: tuple[int, ...]  # of the graph; without one places in `run.callers`
    ops: tuple[str, ...]  # in program order, each once
    sites: tuple[str, ...]
    scopes: tuple[str, ...]
    bytes_read: float
    bytes_written: float
    flops: float
    gb_s: float  # over the time in which it ran
    gflop_s: float
    of_ceiling: float  # of the nearer of the two; above 1 if what it reads was in a cache
    limit: str  # "memory" or "arithmetic": which of the two that is; "" without ceilings


class KernelRows(Rows[KernelCost]):
    """The rows of `kernel_table`."""

    noun = "kernel"
    columns = (
        Column("kernel", lambda k: k.kernel.name, is_number=False),
        Column("segment", lambda k: str(k.kernel.segment) if k.kernel.segment >= 0 else "-"),
        Column("of kernel time", lambda k: format_share(k.kernel.share)),
        Column("runs", lambda k: f"{k.kernel.count:,}"),
        Column("mean of one", lambda k: format_ns(k.kernel.mean_us * 1e3)),
        Column("GB/s", lambda k: format_number(k.gb_s)),
        Column("GFLOP/s", lambda k: format_number(k.gflop_s)),
        Column("of ceiling", lambda k: format_percent(k.of_ceiling)),
        Column("ops", lambda k: ", ".join(k.ops), is_number=False),
        Column("lines", lambda k: ", ".join(k.sites), is_number=False),
    )


def kernel_table(run: Run, *, ceilings: Ceilings | None = None) -> tuple[KernelCost, ...]:
    """A row for each kernel of each segment; what had most of the device's time comes first.

    Times are those of `kit.trace.kernel_table`: no sum over kernels exceeds the busy time. A node
    that several kernels of its segment are named after has its bytes and its arithmetic divided
    among them by their time, so that neither adds up to more than the graph says.

    Args:
        ceilings: of the device that the run was measured on, from `kit.measure_ceilings()`.

    Raises:
        SettingsError: `run` is none, or `ceilings` is something else.
    """
    if not isinstance(ceilings, Ceilings | None):
        raise SettingsError(f"ceilings are what kit.measure_ceilings() gives, not {ceilings!r}")
    rows = rows_of(one_run(run).timeline)
    steps = max(run.timeline.steps, 1)
    devices = count_devices(run.timeline)
    if run.callers:
        found = _launched(run, rows, steps, devices, ceilings)
        return KernelRows(found).with_note(run.doubt)
    values = _Values(run.whole)
    nodes = [run.nodes_of(r.segment, r.name, r.node) for r in rows]
    alike: dict[tuple[int, tuple[int, ...]], float] = defaultdict(float)
    named: dict[int, float] = defaultdict(float)
    kernels: Counter[int] = Counter()  # of each node
    for row, members in zip(rows, nodes, strict=True):
        alike[row.segment, members] += row.charged_ms
        for i in members:
            named[i] += row.charged_ms
        kernels.update(members)
    found = []
    for row, members in zip(rows, nodes, strict=True):
        part = _part(row.charged_ms, alike[row.segment, members])
        inside = [i for i in members if runs_program(values.graph.nodes[i])]
        if any(kernels[i] > 1 for i in inside) or (inside and _is_repeated(row, steps, devices)):
            part = math.nan  # what of the body it computes, and how often, is not known
        read, written = (part * size for size in values.moved(members))
        flops = sum(values.flops(i) * _part(row.charged_ms, named[i]) for i in members)
        moved = (read, written, flops) if members else _UNKNOWN
        found.append(_cost(row, members, values.graph, moved, steps, devices, ceilings))
    return KernelRows(found).with_note(run.doubt)


def _part(some: float, whole: float) -> float:
    return some / whole if whole else 1.0


class _Values:
    """Which nodes read each value of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.users: dict[Value, set[int]] = defaultdict(set)
        for i, node in enumerate(graph.nodes):
            for value in node.inputs:
                self.users[value].add(i)
        for value in graph.wanted:
            self.users[value].add(len(graph))  # the code after the step
        self._flops: dict[int, float] = {}
        self._moved: dict[tuple[int, ...], tuple[int, int]] = {}  # many kernels have the same nodes

    def flops(self, i: int) -> float:
        if i not in self._flops:
            self._flops[i] = node_flops(self.graph, i)
        return self._flops[i]

    def moved(self, members: tuple[int, ...]) -> tuple[int, int]:
        """Bytes that these nodes read from outside, and that something outside reads of them."""
        if members not in self._moved:
            self._moved[members] = self._moved_anew(members)
        return self._moved[members]

    def _moved_anew(self, members: tuple[int, ...]) -> tuple[int, int]:
        own = set(members)
        nodes = self.graph.nodes
        reads = {v for i in members for v in nodes[i].inputs if v[0] not in own}
        makes = {(i, k) for i in members for k in range(len(nodes[i].avals))}
        writes = {v for v in makes if self.users[v] - own}
        return self._bytes(reads), self._bytes(writes)

    def _bytes(self, values: Iterable[Value]) -> int:
        return sum(self.graph.nodes[i].avals[k].size_bytes for i, k in values)


def _cost(row: KernelRow, members: tuple[int, ...], graph: Graph, moved: Moved,
          steps: int, devices: int, ceilings: Ceilings | None) -> KernelCost:  # fmt: skip
    flops = moved[-1]
    times = devices * steps if _is_repeated(row, steps, devices) else row.count
    nodes = [graph.nodes[i] for i in sorted(members)]
    avals = (aval for node in nodes for aval in node.avals)
    is_held = not flops or (flops > 0 and _are_float32(avals))  # as the ceilings are
    texts = ([node.op for node in nodes], [n.site for n in nodes], [n.scope for n in nodes])
    ns = _took_ns(row, devices) / times
    return _rated(row, members, texts, moved, ns, ceilings if is_held else None)


def _rated(row: KernelRow, nodes: tuple[int, ...], texts: tuple[Iterable[str], ...], moved: Moved,
           ns: float, ceilings: Ceilings | None) -> KernelCost:  # fmt: skip
    """`texts` are ops, sites and scopes; `ns` is the time in which it moved and computed that."""
    read, written, flops = moved
    gb_s, gflop_s = ((read + written) / ns, flops / ns) if ns else (math.nan, math.nan)
    ops, sites, scopes = (tuple(dict.fromkeys(filter(None, each))) for each in texts)
    share, limit = _of_ceiling(gb_s, gflop_s, ceilings)
    return KernelCost(row, nodes, ops, sites, scopes, *moved, gb_s, gflop_s, share, limit)


def _is_repeated(row: KernelRow, steps: int, devices: int) -> bool:
    """Does it run more often than once a step on each device? The window may cut a step."""
    return row.count > devices * (steps + 1)


def _are_float32(avals: Iterable[Aval]) -> bool:
    """Or of another type in which no device computes faster, or slower."""
    dtypes = {aval.dtype for aval in avals}
    return not (dtypes & _OTHER_DTYPES or any(x.startswith("float8") for x in dtypes))


def _took_ns(row: KernelRow, devices: int) -> float:
    """The time that its runs took a device; `total_ms` has several devices' time at once as one."""
    return row.total_ms * 1e6 if devices == 1 else row.mean_us * 1e3 * row.count


def _of_ceiling(gb_s: float, gflop_s: float, ceilings: Ceilings | None) -> tuple[float, str]:
    """The part of the nearer ceiling, and which that is; of what is known."""
    if ceilings is None:
        return math.nan, ""
    parts = ((gb_s / ceilings.gb_s, "memory"), (gflop_s / ceilings.gflop_s, "arithmetic"))
    return max((part for part in parts if not math.isnan(part[0])), default=(math.nan, ""))


def _launched(
    run: Run, rows: Iterable[KernelRow], steps: int, devices: int, ceilings: Ceilings | None
) -> Iterable[KernelCost]:
    """The kernels of a run without a graph, by what is known of their launches."""
    t = run.timeline
    spans, _ = in_steps(t, np.flatnonzero(t.where(kind=ON_DEVICE)))
    node = t.node[spans].astype(np.int64)
    nodes = int(node.max(initial=-1)) + 2  # -1 is one, too
    keys = t.name[spans].astype(np.int64) * nodes + node + 1  # pairs are sorted 20 times as slowly
    found, counts = np.unique(keys, return_counts=True)
    by_name: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for key, count in zip(found.tolist(), counts.tolist(), strict=True):
        by_name[t.names[key // nodes]].append((key % nodes - 1, count))
    for row in rows:
        launches = by_name[row.name]
        launched = tuple(node for node, _ in launches if run.caller(node) is not None)
        callers = [run.callers[node] for node in launched]
        read, written, flops = _moved_by(callers, [n for _, n in launches], row.count)
        moved = (read / steps, written / steps, flops / steps)
        avals = (aval for caller in callers for aval in caller.inputs)
        is_held = not flops > 0 or _are_float32(avals)  # nan: of ops of which the bytes count alone
        modules = ["/".join(caller.module) for caller in callers]
        texts = ([caller.op for caller in callers], [c.site for c in callers], modules)
        ns = _took_ns(row, devices) / steps
        yield _rated(row, launched, texts, moved, ns, ceilings if is_held else None)


def _moved_by(callers: list[Caller], counts: list[int], whole: int) -> Moved:
    """Bytes read, bytes written and arithmetic of all runs of a kernel; nan if of one it is not."""
    is_known = len(callers) == len(counts) and sum(counts) == whole
    if not is_known or any(caller.calls != caller.kernels for caller in callers):
        return _UNKNOWN
    costs = [call_cost(caller) for caller in callers]
    read, written, flops = (
        sum(getattr(cost, what) * count for cost, count in zip(costs, counts, strict=True))
        for what in ("bytes_read", "bytes_written", "flops")
    )
    return read, written, flops
