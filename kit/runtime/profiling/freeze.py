"""Freeze what was recorded: a step into a `Graph` and its `Segment`s, a trace into a `Timeline`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kit.ir import Aval, Graph, Node, Segment
from kit.runs.run import Fused
from kit.runtime.profiling.device_spans import Profile
from kit.runtime.profiling.locks import without_lock
from kit.runtime.recording.bulk import Origin, Site, Task
from kit.runtime.recording.sites import format_site
from kit.trace import Span, SyncPoint, Timeline

__all__ = ["TracedSteps", "freeze_step", "freeze_trace", "places_of"]


@dataclass(frozen=True, slots=True)
class TracedSteps:
    """What a trace saw: `timeline, graphs, segments = traced` takes the first three."""

    timeline: Timeline
    graphs: tuple[Graph, ...]  # of the first step
    segments: tuple[Segment, ...]  # how that step was cut
    fused: tuple[Fused, ...] = ()  # which nodes a kernel computes, where there are several
    recorded_ns: tuple[int, ...] = ()  # when each node of the graph was recorded
    places: tuple[Site, ...] = ()  # the lines that recorded something, the most used first

    def __iter__(self) -> Iterator[Any]:
        yield from (self.timeline, self.graphs, self.segments)


def freeze_step(
    tasks: Sequence[Task], later: Sequence[Task] = ()
) -> tuple[Graph, tuple[Segment, ...], dict[int, list[int]]]:
    """The graph of the tasks, how it was cut, and for each task its nodes' ids by local index.

    A value that none of the tasks makes becomes a variable node, just before its first user. What
    `later` tasks read of these, or the program still holds, is what the graph is wanted for. What
    comes from other replicas is a node of no segment: nobody here runs it.
    """
    nodes: list[Node] = []
    segments: list[Segment] = []
    ids: dict[int, list[int]] = {}
    made: dict[tuple[int, int], tuple[int, int]] = {}  # (task, slot) -> (node, output)
    outside: dict[int, tuple[int, int]] = {}  # a cell from before -> its variable node

    def source(origin: Origin, aval: Aval, phase: str) -> tuple[int, int]:
        if origin.made_by in made:
            return made[origin.made_by]
        if origin.identity not in outside:
            nodes.append(Node(origin.kind, (), (), (aval,), phase=phase))
            outside[origin.identity] = (len(nodes) - 1, 0)
        return outside[origin.identity]

    for task in tasks:
        bulk = task.cut.bulk
        is_segment = task.again is None
        number = len(segments) if is_segment else -1
        pairs = zip(task.seen.origins, task.cut.avals, strict=True)
        reads = [source(origin, aval, bulk.phase) for origin, aval in pairs]
        slots: list[tuple[int, int]] = []
        local: list[int] = []
        phases = dict(bulk.phases)
        phase = bulk.phase
        for i, ((op, refs), (site, _, scope)) in enumerate(
            zip(bulk.nodes(), bulk.frames, strict=True)
        ):
            phase = phases.get(i, phase)
            inputs = tuple(slots[r] if r >= 0 else reads[-1 - r] for r in refs)
            nodes.append(
                Node(
                    op.name,
                    inputs,
                    _attrs(op.template),
                    op.outputs,
                    format_site(site),
                    phase,
                    scope,
                    number,
                )
            )
            local.append(len(nodes) - 1)
            for output in range(len(op.outputs)):
                made[task.index, len(slots)] = (len(nodes) - 1, output)
                slots.append((len(nodes) - 1, output))
        ids[task.index] = local
        if not is_segment:
            continue
        key = hashlib.sha256(repr(task.cut.key).encode()).hexdigest()[:12]
        segments.append(
            Segment(
                number,
                tuple(local),
                tuple(reads),
                tuple(slots[s] for s in task.cut.wanted),
                task.cut.reason,
                bulk.phase,
                key,
                task.seen.is_cached,
            )
        )
    alive = {c.origin for t in tasks for o in t.outputs if (c := o()) is not None}
    alive |= {origin.made_by for task in later for origin in task.seen.origins}
    wanted = tuple(made[origin] for origin in made if origin in alive)
    return Graph(tuple(nodes), wanted).check(), tuple(segments), ids


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
    notes: Sequence[str] = (),
    *,
    waited_at: Iterable[Site] = (),
) -> TracedSteps:
    """The timeline of the traced steps; graph, cuts and fusions of step 0, and its nodes' times.

    Args:
        tasks: each task with its step; steps below 0 only filled the pipeline.
        spans: of host and worker, in `perf_counter_ns` time; "step" spans give the window.
        waited_at: the lines of all sync points of the session.
    """
    first = [task for task, step in tasks if step == 0]
    graph, segments, nodes = freeze_step(first, [task for task, step in tasks if step > 0])
    numbers = {t.index: s.index for t, s in zip(first, segments, strict=True)}
    _match_other_steps(tasks, first, numbers, nodes)
    kernels = profile.kernels([task for task, _ in tasks], nodes)
    worked = {task.index: task.seen.worked_ns for task, _ in tasks}
    spans = without_lock(spans, worked, kernels)
    executed = _device_steps(kernels, {task.index: step for task, step in tasks})
    steps = [s for s in spans if s.kind == "step"]
    start = min((s.start_ns for s in steps), default=0)
    stop = max((s.stop_ns for s in steps), default=0)
    shown = [
        _moved(s, start, stop, numbers)
        for s in (*spans, *executed, *kernels)
        if s.stop_ns > start and s.start_ns < stop
    ]
    waits = [replace(s, at_ns=s.at_ns - start) for s in syncs if start <= s.at_ns < stop]
    origin = "profiled" if kernels else "recorded"
    timeline = Timeline.of(shown, waits, origin, (*profile.notes, *notes))
    return TracedSteps(
        timeline,
        graphs=(graph,),
        segments=segments,
        fused=_fused(profile, numbers, first),
        recorded_ns=_recorded(first, nodes, len(graph), start),
        places=places_of(tasks, waited_at),
    )


def _fused(profile: Profile, numbers: dict[int, int], first: Sequence[Task]) -> tuple[Fused, ...]:
    """The kernels that compute several nodes, by segment of the first step, which counts first."""
    own = {task.index for task in first}
    found: dict[tuple[int, str], tuple[int, ...]] = {}
    for (task, name), ids in sorted(profile.fused.items(), key=lambda item: item[0][0] not in own):
        if task in numbers:
            found.setdefault((numbers[task], name), ids)
    return tuple(Fused(segment, name, ids) for (segment, name), ids in sorted(found.items()))


def _recorded(
    tasks: Sequence[Task], nodes: dict[int, list[int]], count: int, start: int
) -> tuple[int, ...]:
    """When each node was recorded, from the start of the timeline; -1: no op, or not known."""
    found = [-1] * count
    for task in tasks:
        for i, at in zip(nodes[task.index], task.seen.times or (), strict=False):
            found[i] = max(at - start, 0)
    return tuple(found) if tasks else ()


def _device_steps(kernels: Sequence[Span], step_of: dict[int, int]) -> list[Span]:
    """When the device was at work on each step: a step behind the host's, if all goes well."""
    times: dict[int, list[int]] = {}
    for kernel in kernels:
        if kernel.segment in step_of:
            known = times.setdefault(step_of[kernel.segment], [kernel.start_ns, kernel.stop_ns])
            known[0] = min(known[0], kernel.start_ns)
            known[1] = max(known[1], kernel.stop_ns)
    return [
        Span("steps on the device", f"step {step}" if step >= 0 else "the step before",
             "device step", start, stop)
        for step, (start, stop) in sorted(times.items())
    ]  # fmt: skip


def _match_other_steps(
    tasks: Sequence[tuple[Task, int]],
    first: Sequence[Task],
    numbers: dict[int, int],
    nodes: dict[int, list[int]],
) -> None:
    """A step that was cut the same way is drawn with step 0's segments and nodes.

    So is one whose programs differ by a number only, as where a Python int counts the steps.
    """
    others: dict[int, list[Task]] = {}
    for task, step in tasks:
        if step != 0:
            others.setdefault(step, []).append(task)
    for step_tasks in others.values():
        for mine, other in zip(step_tasks, first, strict=False):
            if mine.cut.key == other.cut.key or _ops_of(mine) == _ops_of(other):
                numbers[mine.index] = numbers[other.index]
                nodes[mine.index] = nodes[other.index]


def _ops_of(task: Task) -> list[Any]:
    """The ops, what each makes, and which values it reads; not the numbers in its arguments."""
    return [(op.name, op.outputs, refs) for op, refs in task.cut.bulk.nodes()]


def _moved(s: Span, start: int, stop: int, numbers: dict[int, int]) -> Span:
    """A span in the time of the window, cut at its ends."""
    segment = numbers.get(s.segment, -1)
    name = f"segment {segment} {s.name}" if s.kind == "dispatch" and segment >= 0 else s.name
    return Span(s.lane, name, s.kind, max(s.start_ns, start) - start, min(s.stop_ns, stop) - start,
                segment, s.node if segment >= 0 else -1)  # fmt: skip
