"""`Compile`: one compile of a run and its reason. `storms`: the same one again and again.

`GraphChange` is what a recompile changed: the old graph and the new one, around what differs.
`MeasuredSteps` says what the measured steps compiled, and whether the traced ones stand for them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from kit.ir import Graph, Node
from kit.ir.graph import GraphDiff
from kit.text import format_count, format_ms, format_percent, safe_terminal
from kit.trace import Timeline, each_step, headline, union_ns
from kit.trace.intervals import joined, within

__all__ = [
    "COMPILED",
    "COMPILED_MS",
    "COMPILES",
    "FIRST_MEASURED",
    "MOSTLY",
    "MOST_CHANGES",
    "Compile",
    "GraphChange",
    "MeasuredSteps",
    "change_of",
    "dearest",
    "storms",
    "worth_showing",
]

FIRST_MEASURED = "steps.first_measured"  # in the metrics, where a session had run steps before
# In the metrics of a run from kit's own export, which lists no compiles: those of measured steps.
COMPILES, COMPILED_MS = "exported.compiles", "exported.compiled_ms"
MOSTLY = 0.5  # of the measured steps' time: compiling is then what limits them
COMPILED = 0.05  # of the measured steps' time: compiling is then worth a word
_LONGER = 2.0  # times a traced step: a trace only slows, so a measured step holds something else
_OTHER_WORK = 1.05  # of a measured step: kernels that need more are not of such steps
_OTHER_KERNELS = 1.25  # times those of a traced step: then another one did other work
_ONLY_TRACED = 0.2  # of the traced steps: what only these compiled is then no part of a step
STORM = 3  # recompiles for the same reason at the same place
MOST_CHANGES = 4  # pairs of graphs that a run keeps
_MOST_ROWS = 40  # ops of a pair that are kept beside each other
_MOST_NODES = 2_000  # of one of its graphs, with what its ops read
_AROUND = 2  # equal ops that are kept before and after one that differs
_BY_USER = frozenset({"shape", "dtype", "constant", "op", "inputs"})  # what a step itself changes


@dataclass(frozen=True)
class Compile:
    """One compile of a run, and why the programs at hand did not do."""

    step: int
    segment: int  # its position in the step
    phase: str
    # "first", "shape", "dtype", "constant", "op", "inputs", "cut", "kept", "checks", "precision",
    # "aliasing", "place", "evicted"
    kind: str
    sentence: str  # the reason, in words
    ops: int
    node: int = 0  # where the programs differ first, counted in the segment
    site: str = ""  # the user's line of that node
    old_site: str = ""  # the same in the program that it was compared with
    before: str = ""
    now: str = ""
    lower_ms: float = 0.0  # from ops to XLA's input
    compile_ms: float = 0.0
    is_from_disk: bool = False

    @property
    def ms(self) -> float:
        """How long it took."""
        return self.lower_ms + self.compile_ms

    def __repr__(self) -> str:
        size = f"{format_count(self.ops, 'op')}, {format_ms(self.ms)}"
        disk = " from disk" * self.is_from_disk
        said = safe_terminal(f"step {self.step}, {self.phase}, {size}{disk}: {self.sentence}", 400)
        return f"Compile({said})"


@dataclass(frozen=True)
class MeasuredSteps:
    """The measured steps of a run beside its traced ones, of which alone the parts are known."""

    times_ns: tuple[int, ...]
    compiles: tuple[Compile, ...]  # those that fell into the measured steps
    timeline: Timeline
    is_untraced: bool = True  # False: its steps are the traced ones, as of a foreign trace
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the run
    traced: tuple[Compile, ...] = ()  # those that came later, in the traced steps

    @property
    def count(self) -> int:
        """How many programs were compiled."""
        return len(self.compiles) or int(self.metrics.get(COMPILES, 0))

    @property
    def compiled_ms(self) -> float:
        """How long those compiles took together."""
        if not self.compiles:
            return self.metrics.get(COMPILED_MS, 0.0)
        return sum(note.ms for note in self.compiles)

    @property
    def compiled_fraction(self) -> float:
        """The part of the measured steps' time that went into compiling, 0 to 1."""
        whole_ms = sum(self.times_ns) / 1e6
        return min(self.compiled_ms / whole_ms, 1.0) if whole_ms > 0 else 0.0

    @property
    def compiled_text(self) -> str:
        """A sentence for steps that compiled; "" if they did not, or it cost them little."""
        if self.compiled_fraction < COMPILED:
            return ""
        said = (
            f"{format_percent(self.compiled_fraction)} of the time of the "
            f"{format_count(len(self.times_ns), 'measured step')} went into compiling "
            f"{format_count(self.count, 'program')}, {format_ms(self.compiled_ms)}"
        )
        if len(self.timeline.intervals(kind="compile")) or not self.timeline.steps:
            return said
        return f"{said}; the traced steps, from which all parts of a step come, compiled nothing"

    @property
    def unlike_text(self) -> str:
        """Why the traced steps do not show where these spent their time; "" if they do.

        Where most of that went into compiling, this much is known without them.
        """
        ends = self.timeline.intervals(kind="step")
        is_known = self.is_untraced and len(ends) and self.times_ns
        if not is_known or self.compiled_fraction >= MOSTLY:
            return ""
        if only_traced := self._only_traced_text:
            return only_traced
        last_ns = int(self.timeline.stop_ns.max())  # what the device still does belongs to them
        traced_ms = (last_ns - int(ends[:, 0].min())) / len(ends) / 1e6
        middle_ms, count = median(self.times_ns) / 1e6, len(self.times_ns)
        without_ms = (sum(self.times_ns) / 1e6 - self.compiled_ms) / count
        if not min(middle_ms, without_ms) > _LONGER * traced_ms:
            return ""
        return (
            f"a measured step took {format_ms(middle_ms)} and a traced one "
            f"{format_ms(traced_ms)}: what the rest of its time went into was not traced"
        )

    @property
    def busy_fraction(self) -> float:
        """The part of a measured step that kernels need, by the traced ones, which are longer.

        nan where these are not longer, or did other work.
        """
        ends = self.timeline.intervals(kind="step")
        if not (self.is_untraced and len(ends) and self.times_ns):
            return math.nan
        step_ms = median(self.times_ns) / 1e6
        if not union_ns(ends) / len(ends) / 1e6 > step_ms > 0:
            return math.nan
        parts = map(headline, each_step(self.timeline))
        busy_ms = [step.device_busy_fraction * step.step_ms for step in parts]
        if not max(busy_ms) <= _OTHER_KERNELS * min(busy_ms):  # as of a validation pass in one
            return math.nan
        part = sum(busy_ms) / len(busy_ms) / step_ms
        return min(part, 1.0) if part <= _OTHER_WORK else math.nan

    @property
    def _only_traced_text(self) -> str:
        """That the traced steps compiled for much of their time, and no measured one did."""
        if self.count or not self.traced:
            return ""
        steps = joined(self.timeline.intervals(kind="step"))
        compiling = joined(self.timeline.intervals(kind=("compile", "lower")))
        part = within(compiling, steps).sum() / within(steps, steps).sum()
        if not part >= _ONLY_TRACED:
            return ""
        once = all(note.kind == "first" for note in self.traced)
        return (
            f"the traced steps spent {format_percent(part)} of their time on compiling "
            f"{format_count(len(self.traced), 'program')}, and the measured ones compiled none"
            + ": a training pays that once"
            * once
        )


@dataclass(frozen=True)
class GraphChange:
    """The graphs of the two programs behind a recompile, cut to what differs between them.

    An op that was cut away and whose value is read is an input in them.
    """

    compile: int  # its place in `Run.compiles`
    before: Graph
    now: Graph
    left_out: int = 0  # ops that stand beside each other and were cut away

    @property
    def is_small(self) -> bool:
        """Within what the kit writes: a stranger's file may hold more than a page can draw."""
        sides = (self.before.nodes, self.now.nodes)
        ops = max(sum(not node.is_variable for node in nodes) for nodes in sides)
        return ops <= _MOST_ROWS and max(map(len, sides)) <= _MOST_NODES


def change_of(compile: int, diff: GraphDiff) -> GraphChange:
    """The two graphs of a diff, cut to what differs first and what is around it."""
    ops = [n for n, row in enumerate(diff.rows) if diff.is_op(row)]
    near = {
        ops[k]
        for at, n in enumerate(ops)
        if diff.rows[n].kind != "same"
        for k in range(max(at - _AROUND, 0), min(at + _AROUND + 1, len(ops)))
    }
    shown = set(sorted(near)[:_MOST_ROWS])
    read = _readers(diff, shown)
    sides = [
        _cut(graph, [getattr(diff.rows[n], side) for n in sorted(shown | read)], keep)
        for graph, side in ((diff.old, "left"), (diff.new, "right"))
        for keep in [{getattr(diff.rows[n], side) for n in shown}]
    ]
    return GraphChange(compile, sides[0], sides[1], len(ops) - len(shown))


def _readers(diff: GraphDiff, shown: Iterable[int]) -> set[int]:
    """The rows that the shown ones read from, on either side."""
    left = {row.left: n for n, row in enumerate(diff.rows) if row.left >= 0}
    right = {row.right: n for n, row in enumerate(diff.rows) if row.right >= 0}
    found = set()
    for row in (diff.rows[n] for n in shown):
        if row.left >= 0:
            found |= {left[i] for i, _ in diff.old.nodes[row.left].inputs}
        if row.right >= 0:
            found |= {right[i] for i, _ in diff.new.nodes[row.right].inputs}
    return found


def _cut(graph: Graph, places: Sequence[int], keep: set[int]) -> Graph:
    """The nodes at these places in program order; those not to keep become inputs."""
    order = sorted(place for place in places if place >= 0)
    at = {place: k for k, place in enumerate(order)}
    nodes = []
    for place in order:
        node = graph.nodes[place]
        if place in keep:
            node = replace(node, inputs=tuple((at[i], o) for i, o in node.inputs), segment=-1)
        elif not node.is_variable:
            node = Node("input", (), (), node.avals, node.site, node.phase)
        nodes.append(node)
    return Graph(tuple(nodes))


def worth_showing(notes: Sequence[Compile]) -> list[int]:
    """Which recompiles to show as graphs: one for each reason and line, those that cost most.

    Left out is what belongs to the first steps of any run: segments that resemble each other, and
    results that are still held or no longer checked.
    """
    groups: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for i, note in enumerate(notes):
        if note.kind != "first" and note.kind != "evicted" and note.step > 0:
            groups[note.kind, note.site, note.segment].append(i)
    found = [
        group
        for group in groups.values()
        if len(group) >= STORM or notes[group[0]].kind in _BY_USER
    ]
    found.sort(key=lambda group: -sum(notes[i].ms for i in group))
    return sorted(group[-1] for group in found[:MOST_CHANGES])


def storms(notes: Sequence[Compile]) -> list[str]:
    """Places that were compiled again and again for one reason, in words, the worst first."""
    found = _alike(notes, lambda note: (note.kind, note.site, note.segment))
    return [_storm(group) for group in sorted(found, key=len, reverse=True)]


def dearest(notes: Sequence[Compile]) -> str:
    """The line and the reason for which compiling has taken longest by now, in words.

    In one step, too: a loop in it whose shapes grow compiles at each turn, each time for another
    segment. "" where no line was compiled for repeatedly, and for one reason.
    """
    found = _alike((note for note in notes if note.site), lambda note: (note.kind, note.site))
    if not found:
        return ""
    worst = max(found, key=_ms)
    return (
        f"{len(worst)} of them, {format_ms(_ms(worst))}, were for {worst[0].site}, "
        f"{_cause(worst)}; {_cure(worst)}"
    )


def _alike(notes: Iterable[Compile], key: Callable[[Compile], Hashable]) -> list[list[Compile]]:
    """The recompiles with one key, where there are so many that they make a storm."""
    groups: dict[Hashable, list[Compile]] = defaultdict(list)
    for note in notes:
        if note.kind != "first":
            groups[key(note)].append(note)
    return [group for group in groups.values() if len(group) >= STORM]


def _storm(group: Sequence[Compile]) -> str:
    last = group[-1]
    steps = last.step - group[0].step + 1
    often = f"{format_count(len(group), 'compile')} in {format_count(steps, 'step')}"
    where = last.site or f"segment {last.segment}"
    took = f"recompile storm at {where}: {often}, {format_ms(_ms(group))}"
    return f"{took}, {_cause(group)}; {_cure(group)}"


def _ms(group: Sequence[Compile]) -> float:
    return sum(note.ms for note in group)


def _cause(group: Sequence[Compile]) -> str:
    kind = group[-1].kind
    if kind == "evicted":
        return "of programs that had been dropped to make room"
    values = [group[0].before, *(note.now for note in group[:4]), *["..."] * (len(group) > 4)]
    seen = f" ({', '.join(values)})" if any(note.now for note in group) else ""
    return f"because the {_NOUN.get(kind, kind)} changes{seen}"


def _cure(group: Sequence[Compile]) -> str:
    cures = {
        "constant": "make it a float or a tensor, which are inputs, or keep it the same",
        "shape": "pad to a fixed size, or to a few sizes (buckets)",
        "dtype": "cast once, before the step",
        "evicted": "let shapes and Python numbers have fewer values, so that there are fewer "
        "programs",
    }
    return cures.get(group[-1].kind, "let every step do the same ops")


_NOUN = {"constant": "Python number or flag", "op": "op", "cut": "length of the segment",
         "inputs": "wiring", "kept": "set of results that stay alive",
         "checks": "set of checks on the device", "precision": "precision of products",
         "place": "place of a slice",
         "aliasing": "way in which arrays are shared or overwritten"}  # fmt: skip
