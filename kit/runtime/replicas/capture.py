"""What replicas did in a trace, as one: the graph and cuts of the first, the spans of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kit.ir import Graph, Segment
from kit.runs.run import Fused
from kit.runtime.profiling.freeze import freeze_step, places_of
from kit.runtime.recording.bulk import Site, Task
from kit.runtime.replicas.session import ReplicaSession
from kit.trace import Span, SyncPoint

__all__ = ["Capture", "capture"]


@dataclass(frozen=True)
class Capture:
    """What the replicas of one process have done.

    Attributes:
        spans: of all, in `time.perf_counter_ns`.
        syncs: of the replica that has waited most often.
        graph: one step of the first replica, with what it sends to the others.
        segments: how it was cut. The spans of other replicas have the numbers of these, where they
            do the same.
        programs: the ops of each segment, by name.
        places: the lines that recorded something, the most used first.
    """

    spans: list[Span] = field(default_factory=list)
    syncs: tuple[SyncPoint, ...] = ()
    graph: Graph = field(default_factory=lambda: Graph(()))
    segments: tuple[Segment, ...] = ()
    programs: list[list[str]] = field(default_factory=list)
    places: tuple[Site, ...] = ()

    def fused(self) -> tuple[Fused, ...]:
        """The nodes that each compute span stands for: all those of its segment."""
        found = {(s.segment, s.name) for s in self.spans if s.kind == "kernel" and s.segment >= 0}
        return tuple(Fused(i, name, self.segments[i].nodes) for i, name in sorted(found))


def capture(
    sessions: Sequence[ReplicaSession],
    reductions: Sequence[Span],
    syncs: Sequence[Sequence[SyncPoint]],
) -> Capture:
    """Freeze what these sessions have recorded while they were watched, and let go of it.

    Args:
        reductions: spans of the collectives.
        syncs: the sync points of each session meanwhile.
    """
    steps = _steps(sessions[0])
    chosen = sorted(steps)[min(1, len(steps) - 1)] if steps else 0  # the first fills the pipeline
    first = steps.get(chosen, [])
    later = [task for step in sorted(steps) if step > chosen for task in steps[step]]
    graph, segments, nodes = freeze_step(first, later)
    programs = [_names(task) for task in first if task.again is None]
    sent = {_sent(task): ids[0] for task in first if task.again and (ids := nodes[task.index])}
    spans = [replace(s, node=sent.get(s.name, -1)) for s in reductions]
    traced = [item for session in sessions for item in session.traced]
    places = places_of(traced, (site for s in sessions for site in s.reads.places))
    for session in sessions:
        spans += session.lanes(_numbers(session, programs))
        session.tracer.forget()
    most = max(syncs, key=len)
    return Capture(
        spans=spans,
        syncs=tuple(most),
        graph=graph,
        segments=segments,
        programs=programs,
        places=places,
    )


def _steps(session: ReplicaSession) -> dict[int, list[Task]]:
    found: dict[int, list[Task]] = {}
    for task, step in session.traced:
        found.setdefault(step, []).append(task)
    return found


def _numbers(session: ReplicaSession, programs: Sequence[list[str]]) -> dict[int, int]:
    """Index of each task -> the segment that does the same at the same place of a step."""
    found = {}
    for tasks in _steps(session).values():
        cut = [task for task in tasks if task.again is None]
        for number, (task, program) in enumerate(zip(cut, programs, strict=False)):
            if _names(task) == program:
                found[task.index] = number
    return found


def _names(task: Task) -> list[str]:
    return [op.name for op in task.cut.bulk.ops]


def _sent(task: Task) -> str:
    """What the collectives call this task."""
    return str(task.cut.bulk.ops[0].template[1]["name"])
