"""The engine's policy: how an op stream is cut into segments, and how far the host may be ahead.

The runtime cuts while it records. `plan` cuts a recorded stream again, by other sizes, and executes
nothing; it gives the segments that the runtime would issue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kit.errors import SettingsError
from kit.ir.graph import Graph, Segment
from kit.text import check_whole_number, format_count

__all__ = ["SEGMENTS_AHEAD", "STEPS_AHEAD", "OpStream", "plan"]

STEPS_AHEAD = 1  # steps that may be recorded before the oldest has run
SEGMENTS_AHEAD = 256  # that may wait to run: memory, and Python's garbage collector, notice

_BY_SIZE = frozenset({"size", "bytes", "phase"})  # what the sizes decide, or follow from


@dataclass(frozen=True)
class OpStream:
    """The ops of one step in program order, and where a segment may or must end.

    Attributes:
        calls: ops that begin a call of the user's program; a segment may end only before one.
        views: ops that only show memory in another way: they belong to a segment and do not count.
        forced: op -> why a segment must end just before it, whatever the sizes are.
        end: why the last segment ends.
        notes: what to know about the recording.
    """

    graph: Graph
    calls: frozenset[int]
    views: frozenset[int] = frozenset()
    forced: Mapping[int, str] = field(default_factory=dict)
    end: str = "mark_step"
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"OpStream({self.graph!r}, {format_count(len(self.forced), 'forced cut')})"

    @classmethod
    def of(
        cls, graph: Graph, segments: Sequence[Segment], *, calls: Iterable[int] | None = None,
        views: Iterable[int] = (), notes: Iterable[str] = (),
    ) -> OpStream:  # fmt: skip
        """The stream of a recorded step: what its sizes decided may be decided again.

        `calls`: by default every op begins one.
        """
        forced: dict[int, str] = {}
        for segment, after in pairwise(segments):
            if segment.cut not in _BY_SIZE and after.nodes:
                forced[after.nodes[0]] = segment.cut
        end = segments[-1].cut if segments else "mark_step"
        starts = graph.ops if calls is None else calls
        return cls(graph, frozenset(starts), frozenset(views), forced, end, tuple(notes))

    @property
    def counted(self) -> int:
        """Ops that count towards a bulk size."""
        return sum(i not in self.views for i in self.graph.ops)


def plan(
    stream: OpStream, forward: int, backward: int, *, lazy: bool = False
) -> tuple[Segment, ...]:
    """The segments of the stream under these bulk sizes.

    - variables (parameters, inputs) neither end a segment nor count
    - a segment ends before a call once it holds the size of the phase that it began in; the update
      has the size of the backward pass
    - it ends before a call of another phase, unless `lazy`
    - it ends where the recording was forced to: at a read, at an op without a rule

    Not planned is what protects the runtime and depends on memory: it also ends a segment at
    20,000 ops or when its pending results grow too large. Nor is the size for inference.

    Raises:
        SettingsError: a size is not a whole number of at least 1.
    """
    for name, size in (("forward", forward), ("backward", backward)):
        check_whole_number(SettingsError, name, size)
    nodes = stream.graph.nodes
    groups: list[tuple[list[int], str]] = []
    held: list[int] = []
    count = 0
    for i in stream.graph.ops:
        why = stream.forced.get(i, "")
        if held and not why and i in stream.calls:
            limit = forward if nodes[held[0]].phase == "forward" else backward
            if nodes[i].phase != nodes[held[-1]].phase and not lazy:
                why = "phase"
            elif count >= limit:
                why = "size"
        if held and why:
            groups.append((held, why))
            held, count = [], 0
        held.append(i)
        count += i not in stream.views
    if held:
        groups.append((held, stream.end))
    return _segments(stream.graph, groups)


def _segments(graph: Graph, groups: list[tuple[list[int], str]]) -> tuple[Segment, ...]:
    """Each group with what it reads from outside and what outside still needs of it."""
    home = {i: number for number, (ids, _) in enumerate(groups) for i in ids}
    needed = set(graph.wanted)
    for i in graph.ops:
        needed.update(x for x in graph.nodes[i].inputs if home.get(x[0]) != home[i])
    made = []
    for number, (ids, cut) in enumerate(groups):
        inputs = (x for i in ids for x in graph.nodes[i].inputs)
        reads = tuple(dict.fromkeys(x for x in inputs if home.get(x[0]) != number))
        outputs = ((i, k) for i in ids for k in range(len(graph.nodes[i].avals)))
        writes = tuple(x for x in outputs if x in needed)
        phase = graph.nodes[ids[0]].phase
        made.append(Segment(number, tuple(ids), reads, writes, cut, phase))
    return tuple(made)
