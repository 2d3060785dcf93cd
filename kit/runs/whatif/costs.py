"""What one measured run says things cost: its own numbers, from which the model builds other steps.

All costs come from the traced steps, which are few and slowed down by the trace; `Costs.scaled`
brings them to what the untraced steps took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kit.errors import SettingsError
from kit.ir import Graph
from kit.runs.analysis.segments import SegmentCost, segment_costs
from kit.runs.whatif.waits import is_guessed, waits_by_segment
from kit.text import format_ns
from kit.trace import Timeline
from kit.trace.active import LOADER
from kit.trace.intervals import without
from kit.trace.kinds import AWAY
from kit.trace.metrics import union_ns

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = ["Costs", "between", "costs_of", "is_heavy", "on_loading", "with_overheads"]

Floats = NDArray[np.float64]
_HEAVY = ("mm", "conv", "linear", "attention", "matmul", "bmm", "einsum", "lstm", "gru", "rnn_")
_CUT = 4.0  # hand-overs: one to the worker, and Python's lock goes to it and back while it launches
_WAKE = (
    2.0  # measured hand-overs, each of which wakes a thread: to the worker, and back to the host
)
_LOOK = 50.0  # hand-overs: to see that nothing has changed since the step that is replayed
_LARGE = 4096  # bytes: a smaller op takes the time of a kernel, whatever it moves
_UNSEEN = 0.25  # ns a byte, where no such op was seen
_LIGHTEST = 0.02  # ns a byte: no memory is faster than 50 bytes a nanosecond to a core


@dataclass(frozen=True)
class Costs:
    """What the parts of a step cost in one run.

    Units:
        nanoseconds; `border` in nanoseconds a byte

    Shape:
        device, called: (nodes of the graph,)
    """

    record: dict[str, float]  # phase -> recording one op of it
    cut: float  # ending a segment and handing it over to a worker that is awake
    wake: float  # the most that it costs more if the worker had nothing to do for a while
    launch: float  # a worker prepares and starts a segment
    launch_value: float  # for each array that the segment takes or gives
    sync: float  # a wait for something that is done
    look: float  # before a step is replayed: whether it may be
    inputs: float  # a batch is loaded and copied by Python, once a micro-batch
    device: Floats  # each op's share of the device's time
    program: float  # device time of a program besides its ops
    border: float  # for each byte that a segment hands to another one
    away: Mapping[str, float] = field(default_factory=dict)  # phase -> a wait for neither, an op
    inputs_away: float = 0.0  # what loading a batch sleeps or waits for a file, beside `inputs`
    called: Floats | float = 0.0  # of `device`, the part that is in a host callback
    stretch: float = 1.0  # how many times the untraced steps took what all of this comes to

    def scaled(self, by: float, *, overheads: bool = False) -> Costs:
        """What the trace showed so many times as dear; overheads were measured without a trace."""
        made = replace(
            self,
            record={k: v * by for k, v in self.record.items()},
            inputs=self.inputs * by,
            launch_value=self.launch_value * by,
            device=self.device * by,
            program=self.program * by,
            border=self.border * by,
        )
        if not overheads:
            return made
        shorter = min(by, 1.0)  # no step is shorter than a sleep in it
        return replace(made, cut=self.cut * by, wake=self.wake * by, launch=self.launch * by,
                       sync=self.sync * by, look=self.look * by,
                       inputs_away=self.inputs_away * shorter,
                       away={k: v * shorter for k, v in self.away.items()})  # fmt: skip

    def with_faster_host(self, times: float) -> Costs:
        """What Python does for each op and each program takes so many times less."""
        return replace(
            self,
            record={phase: ns / times for phase, ns in self.record.items()},
            launch=self.launch / times,
            launch_value=self.launch_value / times,
            look=self.look / times,
        )

    def cut_after(self, ns: float) -> float:
        """A cut so long after the one before: the longer, the deeper the worker sleeps."""
        return self.cut + min(ns, self.wake)


def costs_of(run: Run) -> Costs:
    """The costs that a run shows.

    Raises:
        SettingsError: it has no graph or no traced step, or several devices.
    """
    if not run.graphs or not run.segments or not run.timeline.steps:
        raise SettingsError(
            f"nothing can be predicted from {run.name or 'this run'}: it has no graph, or no step "
            "of it was traced"
        )
    if run.devices > 1:
        raise SettingsError(
            f"{run.name or 'this run'} is of {run.devices} devices, and a prediction is for one; "
            "kit.ParallelView models several, and what their reductions cost"
        )
    timeline, graph = run.timeline, run.graphs[0]
    sync = _handover(run)
    guesses = run.settings.step_mode == "speculate" and is_guessed(run, waits_by_segment(run))
    wake = max(_WAKE * run.metrics.get("overhead.sync_ns", 0.0) - _CUT * sync, 0.0)
    rows = segment_costs(run)
    launch, value = _launches(run, rows, sync)
    device, called, program = _device(run, rows)
    python, asleep = (ns / max(run.settings.accumulate, 1) for ns in _batch(run))
    return Costs(
        record={}
        if run.settings.step_mode == "replay"
        # a guessed segment has been issued before its cut, which wakes no worker
        else _recording(run, _CUT * sync, 0.0 if guesses else wake, launch, value),
        cut=_CUT * sync,
        wake=wake,
        launch=launch,
        launch_value=value,
        sync=sync,
        look=_LOOK * sync,
        inputs=python,
        device=device,
        program=program,
        border=_border(timeline, graph),
        away=_away(run),
        inputs_away=asleep,
        called=called,
    )


def between(a: Costs, b: Costs, share: float) -> Costs:
    """A straight line through the costs of two runs; `share` 0 is the first, 1 the second.

    Only what depends on the batch is on the line: device time and input.
    """
    if len(a.device) != len(b.device):
        raise SettingsError("the two runs have other ops, so no line joins their batch sizes")
    return replace(
        a,
        inputs=max(a.inputs + share * (b.inputs - a.inputs), 0.0),
        inputs_away=max(a.inputs_away + share * (b.inputs_away - a.inputs_away), 0.0),
        device=np.maximum(a.device + share * (b.device - a.device), 0.0),
    )


def with_overheads(
    run: Run, costs: Costs, launch: float | None, sync: float | None, notes: list[str]
) -> Costs:
    """Another device's launch and wait in place of this one's."""
    if launch is not None:
        own = run.metrics.get("overhead.launch_ns", 0.0)
        notes.append(
            f"a launch takes {format_ns(launch)} instead of {format_ns(own)}; what "
            "the worker does in Python stays as it is"
        )
        costs = replace(costs, launch=max(costs.launch + launch - own, 0.0))
    if sync is not None:
        notes.append(f"a wait that need not wait takes {format_ns(sync)}")
        costs = replace(costs, sync=sync)
    return costs


def on_loading(before: int, after: int, costs: Costs) -> str:
    """What a prediction of another `prefetch` takes for granted; "" of the same one.

    Args:
        before, after: `prefetch` of the run and of the prediction.
    """
    if bool(before) == bool(after):
        return ""
    python, asleep = format_ns(costs.inputs), format_ns(costs.inputs_away)
    if not after:
        return (
            f"loading takes Python {python} a batch and sleeps {asleep}: which of the two a thread "
            "did while the host recorded is not seen"
        )
    return (
        f"loading takes Python {python} a batch, in turns with recording, and sleeps {asleep}, "
        "which recording does not hold up; that threads hinder each other is not modelled"
    )


def is_heavy(op: str) -> bool:
    """True for ops whose time is arithmetic and not memory."""
    return any(part in op for part in _HEAVY)


def _handover(run: Run) -> float:
    """One thread hands over to another and back. Another program's work may have come between."""
    sync, launch = (run.metrics.get(f"overhead.{name}_ns", 0.0) for name in ("sync", "launch"))
    return min(sync, 1.5 * launch) if launch else sync


def _recording(run: Run, cut: float, wake: float, launch: float, value: float) -> dict[str, float]:
    """Recording an op, by phase: what is left of the phase's spans.

    Without waits and cuts, and without what the worker launched meanwhile: both need Python's lock.
    """
    timeline, graph = run.timeline, run.graphs[0]
    ops = Counter(graph.nodes[i].phase for i in graph.ops)
    away = np.concatenate([timeline.intervals(kind=k, lane="host/main") for k in AWAY])
    share = _beside(timeline, away)
    others: Counter[str] = Counter()
    cuts = Counter(graph.nodes[s.nodes[-1]].phase for s in run.segments)
    for s in run.segments:
        launched = launch + value * (len(s.reads) + len(s.writes))
        others[graph.nodes[s.nodes[-1]].phase] += round(cut + share * launched)
    found = {}
    for phase in ops:
        spans = timeline.intervals(kind="record", lane="host/main", name=phase)
        least = min(_without(inside, away) for inside in _by_step(timeline, spans))
        rest = least - others[phase]
        # A cut costs as much more as was recorded before it, up to `wake`; see `Costs.cut_after`.
        rest = max(rest / 2, rest - wake * cuts[phase])
        found[phase] = max(rest, 0.3 * least) / ops[phase]
    return found


def _away(run: Run) -> dict[str, float]:
    """Sleeping, a file, a lock or own code, for each op of a phase; see `_asleep`.

    Not what the loading of a batch sleeps, which a phase's span may have within it: see `_batch`.
    """
    timeline, graph = run.timeline, run.graphs[0]
    ops = Counter(graph.nodes[i].phase for i in graph.ops)
    away = np.concatenate(
        [timeline.intervals(kind=k, lane="host/main") for k in ("elsewhere", "own")]
    )
    loading = timeline.intervals(kind="input", lane="host/main")
    both = np.concatenate([away, loading])
    if not len(away) or run.settings.step_mode == "replay":
        return {}
    found = {}
    for phase in ops:
        spans = timeline.intervals(kind="record", lane="host/main", name=phase)
        in_steps = [
            (_without(inside, loading), _without(inside, both))
            for inside in _by_step(timeline, spans)
            if len(inside)
        ]
        found[phase] = _asleep(in_steps) / ops[phase]
    return found


def _asleep(steps: Sequence[tuple[float, float]]) -> float:
    """Of (whole, awake) of each traced step: what a step sleeps.

    A thread is looked at once a millisecond, so a short sleep is seen in some steps and missed in
    others, where it passes for Python. So the least Python counts that any step had, and what is
    left of the shortest step is sleep: one long sleep among the steps is none of all.
    """
    if not steps:
        return 0.0
    shortest, least_python = (min(column) for column in zip(*steps, strict=True))
    return max(float(shortest - least_python), 0.0)


def _beside(timeline: Timeline, away: NDArray[np.int64]) -> float:
    """The share of the launches' time that lies beside recording, and not beside waiting."""
    launches = timeline.intervals(kind="dispatch")
    kernels = timeline.intervals(kind=("kernel", "callback"))
    python = _without(launches, kernels)
    if not python:
        return 0.0
    return _without(launches, np.concatenate([kernels, away])) / python


def _without(spans: NDArray[np.int64], away: NDArray[np.int64]) -> float:
    """Length of the spans' union that `away` does not cover."""
    return float(union_ns(without(spans, away)))


def _by_step(timeline: Timeline, spans: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Those of some spans that lie in each step."""
    for begin, end in timeline.intervals(kind="step"):
        yield spans[(spans[:, 0] >= begin) & (spans[:, 1] <= end)]


def _batch(run: Run) -> tuple[float, float]:
    """What a step's batch takes: of Python, and asleep, which neither a trace nor a lock changes.

    By the step that had least of each (see `_asleep`), or by the loader's thread. While a worker
    prepares a launch it has Python's lock, so that the host loads nothing then.
    """
    timeline = run.timeline
    if run.settings.prefetch:
        python, asleep = _loaded_beside(timeline)
        return python / timeline.steps, asleep / timeline.steps
    spans = timeline.intervals(kind="input", lane="host/main")
    away = timeline.intervals(kind="elsewhere", lane="host/main")
    no_python = np.concatenate([away, timeline.intervals(kind=("kernel", "callback"))])
    launches = np.concatenate([no_python, timeline.intervals(kind="dispatch")])
    found, pythons = [], []
    for inside in _by_step(timeline, spans):
        whole, awake = float(union_ns(inside)), _without(inside, away)
        of_others = _without(inside, no_python) - _without(inside, launches)
        found.append((whole, awake))
        pythons.append(awake - of_others)
    return min(pythons, default=0.0), _asleep(found)


def _loaded_beside(timeline: Timeline) -> tuple[float, float]:
    """What the loader's thread takes: of Python, and asleep.

    No span says what the thread does while the host records, and so has Python's lock. If most of
    its time is beside recording, it waits for the lock there, and the rest is its own Python; else
    it sleeps, or waits for a file, and recording does not hold it up.
    """
    spans = timeline.intervals(kind="input", lane=LOADER)
    away = np.concatenate([timeline.intervals(kind=k, lane="host/main") for k in AWAY])
    recorded = np.concatenate([timeline.intervals(kind="record", lane="host/main"), away])
    whole = float(union_ns(spans))
    alone = whole - (_without(spans, away) - _without(spans, recorded))
    return (max(alone, 0.3 * whole), 0.0) if alone < whole / 2 else (0.0, whole)


def _launches(run: Run, costs: Sequence[SegmentCost], sync: float) -> tuple[float, float]:
    """A launch of nothing, with waking the worker for it, and what each array adds to that.

    A trace shows a worker that also waits for Python's lock, which the simulation has by itself: so
    the cheaper launches count, and an array costs a sixth to a third of a hand-over.
    """
    least = run.metrics.get("overhead.launch_ns", 0.0)
    arrays = {s.index: len(s.reads) + len(s.writes) for s in run.segments}
    rows = [r for r in costs if r.host_ns > 0 and arrays[r.index]]
    if not rows:
        return least, 0.0
    each = [max(r.host_ns - least - sync / 2, 0.0) / arrays[r.index] for r in rows]
    return least, min(max(float(np.percentile(each, 25)), sync / 6), sync / 3)


def _device(run: Run, rows: Sequence[SegmentCost]) -> tuple[Floats, Floats, float]:
    """Each op's share of the device's time, the part of that in host callbacks, and a program's.

    The last is what a program costs besides its ops: a kernel that does next to nothing.
    """
    graph, timeline = run.graphs[0], run.timeline
    shares = np.zeros(len(graph))
    computed, calling = _named(timeline, "kernel", graph), _named(timeline, "callback", graph)
    found = computed + calling
    for row, segment in zip(rows, run.segments, strict=True):
        if row.device_ns > 0:
            nodes = np.array(segment.nodes, dtype=np.intp)
            weights = found[nodes] if found[nodes].any() else np.ones(len(nodes))
            shares[nodes] += row.device_ns * weights / weights.sum()
    kernels = timeline.intervals(kind="kernel")
    lengths = kernels[:, 1] - kernels[:, 0]
    called = np.divide(calling, found, out=np.zeros(len(graph)), where=found > 0)
    return shares, called, float(np.percentile(lengths, 10)) if len(lengths) else 0.0


def _named(timeline: Timeline, kind: str, graph: Graph) -> Floats:
    """Nanoseconds of the spans of this kind that are named after each op."""
    mask = timeline.where(kind=kind) & (timeline.node >= 0) & (timeline.node < len(graph))
    found = np.zeros(len(graph))
    np.add.at(found, timeline.node[mask], (timeline.stop_ns - timeline.start_ns)[mask])
    return found


def _border(timeline: Timeline, graph: Graph) -> float:
    """Nanoseconds a byte of the ops that only move memory: all of their kernels together."""
    mask = timeline.where(kind="kernel") & (timeline.node >= 0) & (timeline.node < len(graph))
    lengths = (timeline.stop_ns - timeline.start_ns)[mask]
    time, moved = 0, 0
    for node, ns in zip(timeline.node[mask].tolist(), lengths.tolist(), strict=True):
        size = _moved(graph, node)
        if size >= _LARGE and not is_heavy(graph.nodes[node].op):
            time, moved = time + ns, moved + size
    return max(time / moved, _LIGHTEST) if moved else _UNSEEN


def _moved(graph: Graph, node: int) -> int:
    n = graph.nodes[node]
    inputs = sum(graph.nodes[i].avals[k].size_bytes for i, k in n.inputs)
    return inputs + sum(a.size_bytes for a in n.avals if prod(a.shape))
