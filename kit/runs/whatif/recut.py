"""The ops of a run cut again under other settings, and where the host waits then."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kit.errors import SettingsError
from kit.ir import READ_CUTS, Graph, Segment
from kit.ir.graph import is_view
from kit.ir.plan import OpStream, plan
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.costs import Costs
from kit.runs.whatif.steps import Shape, accumulated, device_times, forward_size
from kit.runs.whatif.waits import (
    CHECK,
    Waits,
    around_check,
    by_op,
    is_guessed,
    on_guessing,
    waits_by_segment,
    without_scalers,
    without_wished,
)
from kit.trace import SyncPoint
from kit.trace.syncs import SyncRow

__all__ = ["recut", "shape_of"]


def recut(
    run: Run,
    wanted: Settings,
    costs: Costs,
    without: Sequence[str | SyncRow | SyncPoint],
    stream: OpStream | None,
    notes: list[str],
) -> Shape:
    """The run's step under the wanted settings: how its ops are cut, and where the host waits.

    Raises:
        SettingsError: the run cannot tell; the message says why.
    """
    if run.settings.step_mode == "replay" and wanted.step_mode != "replay":
        raise SettingsError(
            "a replayed run has recorded nothing, so what recording costs cannot be known from it; "
            "predict from a run with step_mode='retrace'"
        )
    own = waits_by_segment(run)
    kept = without_scalers(run, without_wished(own, without), wanted)
    removed = own.keys() - kept.keys()
    added = wanted.scaling.waits_for_check and not run.settings.scaling.waits_for_check
    graph, segments, sources = run.graphs[0], run.segments, None
    if _cutting(wanted) != _cutting(run.settings) or removed or added:
        graph, segments, sources, kept = _cut(run, wanted, kept, removed, added, stream, notes)
    device = device_times(run.graphs[0], run.segments, segments, costs, graph, sources)
    if wanted.step_mode == "speculate":
        notes.append(on_guessing(run, kept))
    elif wanted.step_mode == "replay":
        notes.append(
            "a step that reads a value is not replayed but recorded"
            if kept
            else "to issue a known segment again costs a hand-over, and for each array what "
            "the worker does for it"
        )
    return shape_of(run, wanted, graph, segments, device, kept)


def _cutting(settings: Settings) -> tuple[object, ...]:
    """All that these settings say of how a step's ops are cut."""
    return settings.bulk_in_force, settings.mode == "lazy", settings.accumulate


def _cut(
    run: Run, wanted: Settings, kept: Waits, removed: Set[int], added: bool,
    stream: OpStream | None, notes: list[str],
) -> tuple[Graph, tuple[Segment, ...], NDArray[np.intp] | None, Waits]:  # fmt: skip
    """The op stream cut again: by other sizes, with other reads, or repeated."""
    graph, sources = run.graphs[0], None
    own = OpStream.of(graph, run.segments)
    forced = dict(own.forced)
    for s, after in pairwise(run.segments):
        if s.index in removed and s.cut in READ_CUTS:
            forced.pop(after.nodes[0])
    waits = by_op(run, kept)
    following = dict(pairwise(graph.ops))
    for read in waits.keys() & following.keys():  # it ends a segment, where the size does not
        forced.setdefault(following[read], "sync")
    calls, views = own.calls, frozenset(i for i in graph.ops if is_view(graph.nodes[i].op))
    if stream is not None and stream.graph.hash == graph.hash:
        calls, views = stream.calls, stream.views
    if added:
        first, last = around_check(graph)
        forced[first] = "sync"
        waits[last] = (*waits.get(last, ()), CHECK)
        notes.append("the check of the loss scale waits just before the update")
    if wanted.accumulate != run.settings.accumulate:
        graph, sources, starts = accumulated(graph, wanted.accumulate)
        forced, calls, views, waits = _repeated(sources, forced, calls, views, waits)
        forced |= dict.fromkeys(starts, "micro-batch")
        calls |= starts
        notes.append(
            "the builder takes its micro-batches from ctx.micro_batches; each costs what the one "
            "of the run did, and sums of gradients are free"
        )
    segments = plan(
        OpStream(graph, calls, views, forced, run.segments[-1].cut),
        forward_size(run, wanted, views, notes),
        wanted.bulk_in_force.backward,
        lazy=wanted.mode == "lazy",
    )
    segments = _with_overwritten(graph, segments, views)
    notes.append(
        "an op costs the device what it did, and what one segment hands to another is "
        "written and read at the rate of this run's kernels"
    )
    ends = {s.nodes[-1]: s.index for s in segments}
    return graph, segments, sources, {ends[i]: w for i, w in waits.items() if i in ends}


def _with_overwritten(
    graph: Graph, segments: Sequence[Segment], views: frozenset[int]
) -> tuple[Segment, ...]:
    """A result that nothing reads is overwritten later in the step: until then it is returned."""
    used = {i for node in graph.nodes for i, _ in node.inputs} | {i for i, _ in graph.wanted}
    return tuple(
        replace(s, writes=(*s.writes, *((i, 0) for i in s.nodes if i not in used | views)))
        if s is not segments[-1]
        else s
        for s in segments
    )


def _repeated(
    sources: NDArray[np.intp],
    forced: dict[int, str],
    calls: frozenset[int],
    views: frozenset[int],
    waits: Waits,
) -> tuple[dict[int, str], frozenset[int], frozenset[int], dict[int, tuple[SyncPoint, ...]]]:
    """The same marks on each repetition of what they were on."""
    origin = [int(i) for i in sources]
    return (
        {new: forced[old] for new, old in enumerate(origin) if old in forced},
        frozenset(new for new, old in enumerate(origin) if old in calls),
        frozenset(new for new, old in enumerate(origin) if old in views),
        {new: waits[old] for new, old in enumerate(origin) if old in waits},
    )


def shape_of(
    run: Run,
    wanted: Settings,
    graph: Graph,
    segments: Sequence[Segment],
    device: tuple[tuple[float, ...], tuple[float, ...]],
    waits: Waits,
) -> Shape:
    """A step of the run whose ops are cut like this; `device` is of `device_times`."""
    guessed = wanted.step_mode == "speculate" and is_guessed(run, waits)
    serial = run.environment.get("device", "cpu").startswith("cpu")
    return Shape(graph, tuple(segments), device[0], waits, wanted.step_mode, guessed,
                 wanted.prefetch, serial, device[1])  # fmt: skip
