"""Freeze what was recorded: a step into a `Graph` and its `Segment`s, a trace into a `Timeline`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kit.ir import Aval, Graph, Node, Segment
from kit.runs.run import Fused
from kit.runtime.profiling.device_spans import Profile
from kit.runtime.profiling.locks import without_lock
from kit.runtime.profiling.sorts import Sorts, sorts_of
from kit.runtime.recording.bulk import Origin, Site, Task
from kit.runtime.recording.sites import format_site
from kit.trace import Span, SyncPoint, Timeline

__all__ = ["TracedSteps", "freeze_step", "freeze_trace", "places_of"]


@dataclass(frozen=True, slots=True)
class TracedSteps:
    """What a trace saw: `timeline, graphs, segments = traced` takes the first three."""

    timeline: Timeline
    graphs: tuple[Graph, ...]  # of the first step, and of one of each other sort
    segments: tuple[Segment, ...]  # how the first step was cut
    fused: tuple[Fused, ...] = ()  # which nodes a kernel computes, where there are several
    recorded_ns: tuple[int, ...] = ()  # when each node of the graphs was recorded
    places: tuple[Site, ...] = ()  # the lines that recorded something, the most used first
    sorts: tuple[int, ...] = ()  # of each step the place of its graph

    def __iter__(self) -> Iterator[Any]:
        yield from (self.timeline, self.graphs, self.segments)


MOST_NODES = 100_000  # of all graphs of a trace: the ops of further steps are left unknown


def freeze_step(
    tasks: Sequence[Task], later: Sequence[Task] = (), numbers: Mapping[int, int] | None = None
) -> tuple[Graph, tuple[Segment, ...], dict[int, list[int]]]:
    """The graph of the tasks, how it was cut, and for each task its nodes' ids by local index.

    A value that none of the tasks makes becomes a variable node, just before its first user. What
    `later` tasks read of these, or the program still holds, is what the graph is wanted for. What
    comes from other replicas is a node of no segment: nobody here runs it.

    Args:
        numbers: the segment that each task is, by its index; without them they are counted.
    """
    growing, segments, ids = _Growing(), list[Segment](), dict[int, list[int]]()
    for task in tasks:
        is_segment = task.again is None
        number = len(segments) if numbers is None else numbers[task.index]
        reads, slots, ids[task.index] = growing.add(task, number if is_segment else -1)
        if is_segment:
            wanted = tuple(slots[s] for s in task.cut.wanted)
            segments.append(_segment(task, number, ids[task.index], reads, wanted))
    alive = {cell.origin for task in tasks for _, cell in task.results()}
    alive |= {origin.made_by for task in later for origin in task.seen.origins}
    return growing.graph(alive).check(), tuple(segments), ids


_Output = tuple[int, int]  # a node, and which of its outputs


class _Growing:
    """The graph of a step, as it grows task by task."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._made: dict[tuple[int, int], _Output] = {}  # by task and slot
        self._outside: dict[int, _Output] = {}  # the variable node of a cell from before

    def add(self, task: Task, segment: int) -> tuple[list[_Output], list[_Output], list[int]]:
        """What a task reads, what is in its slots, and its nodes' ids by local index."""
        bulk, nodes = task.cut.bulk, self._nodes
        pairs = zip(task.seen.origins, task.cut.avals, strict=True)
        reads = [self._source(origin, aval, bulk.phase) for origin, aval in pairs]
        slots: list[_Output] = []
        local: list[int] = []
        phases = dict(bulk.phases)
        phase = bulk.phase
        recorded = zip(bulk.nodes(), bulk.frames, strict=True)
        for i, ((op, refs), (site, _, scope)) in enumerate(recorded):
            phase = phases.get(i, phase)
            inputs = tuple(slots[r] if r >= 0 else reads[-1 - r] for r in refs)
            attrs, place = _attrs(op.template), format_site(site)
            local.append(len(nodes))
            nodes.append(Node(op.name, inputs, attrs, op.outputs, place, phase, scope, segment))
            for output in range(len(op.outputs)):
                self._made[task.index, len(slots)] = local[-1], output
                slots.append((local[-1], output))
        return reads, slots, local

    def _source(self, origin: Origin, aval: Aval, phase: str) -> _Output:
        if origin.made_by in self._made:
            return self._made[origin.made_by]
        if origin.identity not in self._outside:
            self._outside[origin.identity] = len(self._nodes), 0
            self._nodes.append(Node(origin.kind, (), (), (aval,), phase=phase))
        return self._outside[origin.identity]

    def graph(self, alive: Collection[tuple[int, int] | None]) -> Graph:
        """All of it; wanted is what was made by these, given by task and slot."""
        wanted = (output for origin, output in self._made.items() if origin in alive)
        return Graph(tuple(self._nodes), tuple(wanted))


def _segment(
    task: Task,
    number: int,
    nodes: Sequence[int],
    reads: Sequence[_Output],
    wanted: tuple[_Output, ...],
) -> Segment:
    cut, seen = task.cut, task.seen
    key = hashlib.sha256(repr(cut.key).encode()).hexdigest()[:12]
    return Segment(
        number, tuple(nodes), tuple(reads), wanted, cut.reason, cut.bulk.phase, key, seen.is_cached
    )


def places_of(tasks: Iterable[tuple[Task, int]], before: Iterable[Site]) -> tuple[Site, ...]:
    """The lines `before`, then those that recorded something in tasks, the most used first."""
    used = Counter(frame[0] for task, _ in tasks for frame in task.cut.bulk.frames)
    return tuple(dict.fromkeys([*before, *(site for site, _ in used.most_common())]))


def _attrs(template: Any) -> tuple[tuple[str, str], ...]:
    args, kwargs = template
    attrs = [(f"arg{i}", repr(a)) for i, a in enumerate(args) if not _is_hole(a)]
    return (*attrs, *((k, repr(v)) for k, v in kwargs.items() if not _is_hole(v)))


def _is_hole(argument: Any) -> bool:
    return repr(argument).strip("[](), _") == ""


def freeze_trace(
    tasks: Sequence[tuple[Task, int]],
    spans: Sequence[Span],
    profile: Profile,
    syncs: Sequence[SyncPoint],
    notes: Sequence[str],
    *,
    waited_at: Iterable[Site] = (),
) -> TracedSteps:
    """The timeline of the traced steps, their graphs, the cuts of step 0, fusions, nodes' times.

    Args:
        tasks: each task with its step; steps below 0 only filled the pipeline.
        spans: of host and worker, in `perf_counter_ns` time; "step" spans give the window.
        waited_at: the lines of all sync points of the session.
    """
    steps = [s for s in spans if s.kind == "step"]
    if not steps:  # none is whole
        nothing = Timeline.of([], [], "recorded", (*profile.notes, *notes))
        return TracedSteps(nothing, (), (), places=places_of(tasks, waited_at))
    sorts = sorts_of(tasks, len(steps))
    made = _graphs(tasks, sorts)
    nodes = _over_all(made, sorts)
    kernels = profile.kernels([task for task, _ in tasks], nodes)
    worked = {task.index: task.seen.worked_ns for task, _ in tasks}
    spans = without_lock(spans, worked, kernels)
    executed = _device_steps(kernels, {task.index: step for task, step in tasks})
    start, stop = min(s.start_ns for s in steps), max(s.stop_ns for s in steps)
    shown = [
        _moved(s, start, stop, sorts.numbers)
        for s in (*spans, *executed, *kernels)
        if s.stop_ns > start and s.start_ns < stop
    ]
    waits = [replace(s, at_ns=s.at_ns - start) for s in syncs if start <= s.at_ns < stop]
    origin = "profiled" if kernels else "recorded"
    timeline = Timeline.of(shown, waits, origin, (*profile.notes, *notes))
    return TracedSteps(
        timeline,
        graphs=tuple(step.graph for step in made),
        segments=made[0].segments,
        fused=_fused(profile, sorts),
        recorded_ns=tuple(at for step in made for at in step.recorded(start)),
        places=places_of(tasks, waited_at),
        sorts=sorts.of_steps,
    )


@dataclass(frozen=True, slots=True)
class _Frozen:
    """One step, and for each of its tasks the nodes."""

    tasks: Sequence[Task]
    graph: Graph
    segments: tuple[Segment, ...]
    nodes: dict[int, list[int]]

    def recorded(self, start: int) -> list[int]:
        """When each node was recorded, from the start of the timeline; -1: no op, or not known."""
        found = [-1] * len(self.graph)
        for task in self.tasks:
            for i, at in zip(self.nodes[task.index], task.seen.times or (), strict=False):
                found[i] = max(at - start, -1)
        return found


def _graphs(tasks: Sequence[tuple[Task, int]], sorts: Sorts) -> list[_Frozen]:
    """The first step, and one of each other sort, as long as these are not too much to keep."""
    made: list[_Frozen] = []
    for own in sorts.steps:
        later = [] if made else [task for task, step in tasks if step > 0]
        step = _Frozen(own, *freeze_step(own, later, sorts.numbers))
        if made and sum(len(other.graph) for other in (*made, step)) > MOST_NODES:
            break
        made.append(step)
    return made


def _over_all(made: Sequence[_Frozen], sorts: Sorts) -> dict[int, list[int]]:
    """The nodes of each task, counted over all graphs; of a segment that several have the first."""
    by_number: dict[int, list[int]] = {}
    count = 0
    for step in made:
        for index, ids in step.nodes.items():
            by_number.setdefault(sorts.numbers[index], [i + count for i in ids])
        count += len(step.graph)
    return {index: by_number.get(number, []) for index, number in sorts.numbers.items()}


def _fused(profile: Profile, sorts: Sorts) -> tuple[Fused, ...]:
    """The kernels that compute several nodes, by segment; the first step of each sort counts."""
    own = {task.index for step in sorts.steps for task in step}
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    for (task, name), ids in sorted(profile.fused.items(), key=lambda item: item[0][0] not in own):
        found.setdefault((sorts.numbers[task], name), ids)
    return tuple(Fused(segment, name, ids) for (segment, name), ids in sorted(found.items()))


def _device_steps(kernels: Sequence[Span], step_of: dict[int, int]) -> list[Span]:
    """When the device was at work on each step: a step behind the host's, if all goes well."""
    times: dict[int, list[int]] = {}
    for kernel in kernels:
        if kernel.segment in step_of:
            known = times.setdefault(step_of[kernel.segment], [kernel.start_ns, kernel.stop_ns])
            known[0] = min(known[0], kernel.start_ns)
            known[1] = max(known[1], kernel.stop_ns)
    return [
        Span("device steps", f"step {step}" if step >= 0 else "the step before",
             "device step", start, stop)
        for step, (start, stop) in sorted(times.items())
    ]  # fmt: skip


def _moved(s: Span, start: int, stop: int, numbers: dict[int, int]) -> Span:
    """A span in the time of the window, cut at its ends."""
    segment = numbers.get(s.segment, -1)
    name = f"segment {segment} {s.name}" if s.kind == "dispatch" and segment >= 0 else s.name
    return Span(s.lane, name, s.kind, max(s.start_ns, start) - start, min(s.stop_ns, stop) - start,
                segment, s.node if segment >= 0 else -1)  # fmt: skip
