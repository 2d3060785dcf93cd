"""What is checked of a run before it is written and after it was read: what every view relies on.

A file comes from a stranger, and says what no measurement can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from kit.errors import GraphError, RunFileError
from kit.ir import Aval
from kit.runs.compiles import MOST_CHANGES
from kit.runs.sources import MAX_SOURCE_BYTES
from kit.trace import KINDS, SyncPoint, Timeline
from kit.trace.imported import MAX_CALLERS, MeasuredMemory
from kit.trace.timeline import MAX_PINS, MAX_TEXT

__all__ = ["MAX_SPANS", "check_run", "within"]

MAX_SPANS = 4_000_000
MAX_NS = 1 << 53  # 104 days: beyond it a float64, as plots use, is no longer exact
_COUNTED = ("overhead.", "compile.", "exported.")  # begin of the metrics that the kit computes with


def check_run(run: Any) -> None:
    """What `Run` itself does not check.

    Raises:
        RunFileError: something in it cannot be; the message says what.
    """
    _check_spans(run.timeline)
    _check_numbers(run)
    _check_nodes(run, _counts(run))
    _check_texts(run)
    _check_times((*run.timeline.syncs, *run.sync_points))


def _check_spans(t: Timeline) -> None:
    if len(t) > MAX_SPANS:
        raise RunFileError(
            f"a timeline of {len(t):,} spans is longer than {MAX_SPANS:,}: trace fewer steps"
        )
    within(t.kind, "kind", 0, len(KINDS))
    within(t.lane, "lane", 0, len(t.lanes))
    within(t.name, "name", 0, len(t.names))
    for column in ("start_ns", "stop_ns"):
        within(getattr(t, column), column, -MAX_NS, MAX_NS)
    within(t.segment, "segment", -1 << 31, 1 << 31)
    within(t.node, "node", -1, 1 << 31)


def _counts(run: Any) -> list[int]:
    """How many nodes each of its graphs has; all graphs are checked for that."""
    try:
        counts = [len(graph.check()) for graph in run.graphs]
        for change in run.changes:
            change.before.check(), change.now.check()
    except GraphError as error:
        raise RunFileError(f"{error!s:.500}") from None
    if len(run.changes) > MOST_CHANGES:
        raise RunFileError(f"more than {MOST_CHANGES} pairs of graphs of recompiles")
    for change in run.changes:
        _one_within(change.compile, "the recompile of a pair of graphs", 0, len(run.compiles))
        _one_within(change.left_out, "the number of ops left out", 0, MAX_NS)
        if not change.is_small:
            raise RunFileError("a pair of graphs of a recompile is larger than the kit writes them")
    return counts


def _check_nodes(run: Any, counts: list[int]) -> None:
    """What names nodes names those that its graphs have: so many each."""
    nodes = counts[0] if counts else 0
    for s in run.segments:
        ids = [*s.nodes, *(i for i, _ in s.reads), *(i for i, _ in s.writes)]
        if ids and not 0 <= min(ids) <= max(ids) < nodes:
            raise RunFileError(f"segment {s.index} names a node that is not in the graph")
        for node, output in (*s.reads, *s.writes):
            if not 0 <= output < len(run.graphs[0].nodes[node].avals):
                raise RunFileError(f"segment {s.index} names output {output} of node {node}")
    for fused in run.fused:
        if fused.nodes and not 0 <= min(fused.nodes) <= max(fused.nodes) < sum(counts):
            raise RunFileError("a kernel names a node that is not in the graph")
    if len(run.callers) > MAX_CALLERS or (run.callers and run.graphs):
        raise RunFileError("it has more callers than a run can have, or callers beside a graph")
    if len(run.recorded_ns) > sum(counts) or any(not -1 <= t < MAX_NS for t in run.recorded_ns):
        raise RunFileError("the times at which the nodes were recorded are not those of its graph")
    if run.sorts and not 0 <= min(run.sorts) <= max(run.sorts) < len(run.sorts):
        raise RunFileError("the sorts of its traced steps are not numbered from 0")


def _check_texts(run: Any) -> None:
    if any(not 1 <= s.first < 1 << 31 for s in run.sources):
        raise RunFileError("a snippet of source begins before line 1")
    size = sum(len(s.file) + 1 + sum(len(x) + 1 for x in s.lines) for s in run.sources)
    if size > 2 * MAX_SOURCE_BYTES:  # names of files come on top of the text
        raise RunFileError(f"its source text is longer than {2 * MAX_SOURCE_BYTES:,} characters")
    if len(run.pins) > MAX_PINS or any(len(pin.text) > MAX_TEXT for pin in run.pins):
        raise RunFileError(f"more than {MAX_PINS:,} pins, or one of over {MAX_TEXT:,} characters")
    if any(not -MAX_NS <= pin.at_ns < MAX_NS for pin in run.pins):
        raise RunFileError("a pin has an impossible time")


def _check_times(syncs: Iterable[SyncPoint]) -> None:
    for sync in syncs:
        if not -MAX_NS <= sync.at_ns < MAX_NS or not 0 <= sync.wait_ns < MAX_NS:
            raise RunFileError(f"a sync point has an impossible time: {sync.at_ns}, {sync.wait_ns}")


def _check_numbers(run: Any) -> None:
    """What a file may say and no measurement can: views compute with these numbers."""
    _one_within(run.metrics.get("parallel.devices", 1), "metrics['parallel.devices']", 1, 1 << 31)
    for name, value in run.metrics.items():
        if name.startswith(_COUNTED):
            _one_within(value, f"metrics[{name!r:.60}]", 0, MAX_NS)
    _one_within(run.predicted_ms, "predicted_ms", 0, MAX_NS)
    for i, time in enumerate(run.step_times_ns):
        _one_within(time, f"step_times_ns[{i}]", 0, MAX_NS)
    for i, segment in enumerate(run.segments):
        _one_within(segment.index, f"segments[{i}].index", -1 << 31, 1 << 31)
    for f in fields(run.conditions):
        if not math.isnan(value := getattr(run.conditions, f.name)):  # nan: not known
            _one_within(value, f"conditions.{f.name}", -1, MAX_NS)
    changed = (graph for change in run.changes for graph in (change.before, change.now))
    for g, graph in enumerate((*run.graphs, *changed)):
        for n, node in enumerate(graph.nodes):
            _check_shapes(node.avals, f"graphs[{g}].nodes[{n}]")
    for n, memory in enumerate(run.memory):
        _check_memory(memory, f"memory[{n}]")
    for n, total in enumerate(run.copies):
        for number in (total.count, total.size_bytes, total.total_ns):
            _one_within(number, f"copies[{n}]", 0, MAX_NS)
    for n, caller in enumerate(run.callers):
        for count in (caller.calls, caller.kernels):
            _one_within(count, f"callers[{n}]", 0, 1 << 31)
        _check_shapes(caller.inputs, f"callers[{n}]")


def _check_memory(memory: MeasuredMemory, where: str) -> None:
    if len(memory.times_ns) != len(memory.allocated):
        raise RunFileError(f"{where} has {len(memory.times_ns):,} times and other sizes")
    if any(a > b for a, b in pairwise(memory.times_ns)):
        raise RunFileError(f"the times of {where} are not in order")
    for at in (*memory.times_ns, memory.peak_ns):
        _one_within(at, f"a time of {where}", -MAX_NS, MAX_NS)
    for size in (*memory.allocated, memory.peak_bytes, memory.events):
        _one_within(size, f"a size of {where}", -MAX_NS, MAX_NS)


def _check_shapes(avals: Iterable[Aval], where: str) -> None:
    for shape in {aval.shape for aval in avals}:
        if min(shape, default=0) < 0 or math.prod(shape) >= MAX_NS:
            raise RunFileError(f"{where} has an impossible shape: {shape}")


def _one_within(value: float, name: str, least: int, end: int) -> None:
    if not least <= value < end:
        raise RunFileError(f"{name} is not in [{least}, {end}): {value}")


def within(column: NDArray[Any], name: str, least: int, end: int) -> None:
    """Refuse numbers of spans that are not in [least, end)."""
    if len(column) and (column.min() < least or column.max() >= end):
        raise RunFileError(f"the {name} of a span is not in [{least}, {end})")
