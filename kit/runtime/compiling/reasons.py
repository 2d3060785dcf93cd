"""Why each compile happened: the new program is held against the most similar earlier one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from kit.errors import GraphError
from kit.ir import Graph, Node
from kit.ir.graph import GraphDiff
from kit.runs.compiles import Compile, GraphChange, change_of, dearest, storms, worth_showing
from kit.runtime.compiling.cache import MAX_PROGRAMS
from kit.runtime.compiling.checks import NO_CHECKS, Checks
from kit.runtime.compiling.lower import Executable, Source
from kit.runtime.compiling.places import MOVED
from kit.runtime.recording.bulk import Frame, Op, Task
from kit.runtime.recording.sites import format_site
from kit.runtime.recording.template import HOLE, Scalar
from kit.text import format_count, format_ms

__all__ = ["CompileLog"]

_EVICTED = (
    f"compiled before, and dropped since to make room: {MAX_PROGRAMS:,} programs stay in memory, "
    "fewer if they are large; {} from {}"
)
_MOST_OPS = 2_000  # of a program whose graph is compared for a run: more takes seconds
KEPT = 256  # programs that are remembered, and with which a new one is compared
MOST_NOTES = 10_000  # compiles of which the reason is remembered
_LISTED = 20  # compiles in an explanation


@dataclass(eq=False)
class CompiledProgram:
    """What is remembered of a compiled segment."""

    source: Source
    ops: Sequence[Op]  # as they were recorded: no place of a slice is an input
    frames: Sequence[Frame]
    phase: str
    position: int  # of the segment in its step
    names: Counter[str] = field(default_factory=Counter)  # of its ops
    checks: Checks = NO_CHECKS

    def site(self, k: int) -> str:
        """The user's line of node k."""
        return format_site(self.frames[k][0]) if k < len(self.frames) else ""

    def graph(self) -> Graph:
        """The segment as a graph: its leaves, then its ops."""
        leaves = [Node("input", (), (), (aval,)) for aval in self.source.leaves]
        made: list[tuple[int, int]] = []
        nodes = list(leaves)
        for k, (op, refs) in enumerate(self.source.nodes):
            inputs = tuple(made[r] if r >= 0 else (-1 - r, 0) for r in refs)
            attrs = tuple((name, repr(x)) for name, x in _constants(op.template))
            made += [(len(nodes), i) for i in range(len(op.outputs))]
            nodes.append(Node(op.name, inputs, attrs, op.outputs, self.site(k), self.phase))
        return Graph(tuple(nodes))


# A compile, the old program and the new one; the latest `KEPT` have a new one.
_Noted = tuple[Compile, CompiledProgram | None, CompiledProgram | None]


class CompileLog:
    """The compiles of one session, each with its reason: the worker adds them, any thread reads."""

    def __init__(self) -> None:
        self._noted: tuple[_Noted, ...] = ()
        self._count = 0

    @property
    def notes(self) -> tuple[Compile, ...]:
        """The latest compiles, up to `MOST_NOTES`."""
        return tuple(note for note, _, _ in self._noted)

    def add(
        self, source: Source, task: Task, first: int, *,
        executable: Executable, is_from_disk: bool, is_again: bool,
    ) -> None:  # fmt: skip
        """Note a compile for the ops of a task, from the `first` on, and find its reason.

        Args:
            is_again: this very program was compiled before, and has made room for others.
        """
        bulk, step, position = task.cut.bulk, task.step, task.position
        recorded = slice(first, first + len(source.nodes))
        ops, phase = bulk.ops[recorded], bulk.phase
        names = Counter(op.name for op in ops)
        new = CompiledProgram(
            source, ops, bulk.frames[recorded], phase, position, names, executable.checks
        )
        old = self._most_similar(new)
        many = format_count(len(source.nodes), "op")
        reason = ("first", 0, "", "", "") if old is None else _why(old, new)
        if is_again:
            reason = ("evicted", 0, _EVICTED.format(many, _first(new)), "", "")
        kind, k, sentence, before, now = reason
        note = Compile(
            step=step, segment=position, phase=phase, kind=kind, node=k, ops=len(source.nodes),
            sentence=sentence or f"first time: {many} from {_first(new)}",
            site=new.site(k), old_site="" if old is None else old.site(k), before=before, now=now,
            lower_ms=_ms(executable.lower_ns), compile_ms=_ms(executable.compile_ns),
            is_from_disk=is_from_disk,
        )  # fmt: skip
        earlier = self._noted[1 - MOST_NOTES :]
        if len(earlier) >= KEPT:
            at = len(earlier) - KEPT
            earlier = (*earlier[:at], (earlier[at][0], None, None), *earlier[at + 1 :])
        self._noted = (*earlier, (note, old, new))
        self._count += 1

    def diff(self, i: int = -1) -> GraphDiff:
        """The graph diff behind a compile (the last one unless told), old left and new right.

        Raises:
            GraphError: there is no such compile, or `KEPT` compiles have come since.
        """
        kept = self._noted
        if not -len(kept) <= i < len(kept):
            numbers = f"0 to {len(kept) - 1}" if kept else "none"
            raise GraphError(f"there is no compile {i}; their numbers: {numbers}")
        _, _, new = noted = kept[i]
        if new is None:
            raise GraphError(f"the graphs of compile {i} are gone: the latest {KEPT} are kept")
        return _diff(noted)

    def changes(self) -> tuple[GraphChange, ...]:
        """The graphs behind the recompiles that are worth showing; no program of thousands."""
        noted = self._noted
        first = max(len(noted) - KEPT, 0)  # whose graphs are kept
        shown = [first + i for i in worth_showing([note for note, _, _ in noted[first:]])]
        found = (change_of(i, _diff(noted[i])) for i in shown if noted[i][0].ops <= _MOST_OPS)
        return tuple(change for change in found if change.is_small)

    def _most_similar(self, new: CompiledProgram) -> CompiledProgram | None:
        def likeness(old: CompiledProgram) -> tuple[float, bool, bool]:
            common = sum((old.names & new.names).values())
            size = max(sum(old.names.values()), sum(new.names.values()), 1)
            is_same_type = list(old.source.leaves) == list(new.source.leaves)
            return common / size, old.position == new.position, is_same_type

        latest = reversed(self._noted[-KEPT:])
        rivals = [p for _, _, p in latest if p is not None and p.phase == new.phase]
        best = max(rivals, key=likeness, default=None)  # the latest of equally similar ones
        return best if best is not None and likeness(best)[0] >= 0.5 else None

    def explain(self) -> list[str]:
        """In words: storms first, then each compile, then the last change as a diff."""
        noted = self._noted
        if not noted:
            return []
        notes = [note for note, _, _ in noted]
        lines = storms(notes)
        within = "" if lines else dearest(notes)
        again = [one for one in noted if one[0].kind != "first"]
        firsts = len(noted) - len(again)
        left_out = self._count - len(noted)
        lines.append(
            f"compiled for the first time: {firsts}; compiled again: {len(again)}"
            + (f"; of {left_out:,} before these no reason is kept" if left_out > 0 else "")
        )
        lines += filter(None, [within])
        if len(again) > _LISTED:
            lines.append(f"  the last {_LISTED} of these {len(again):,}:")
        for note, _, _ in again[-_LISTED:]:
            lines.append(
                f"  step {note.step}, segment {note.segment} ({note.phase}): "
                f"{note.sentence}, {format_ms(note.ms)}"
            )
        if again and again[-1][2] is not None:
            shown = str(_diff(again[-1])).splitlines()
            lines += ["the last change, old left and new right:", *("  " + x for x in shown)]
        return lines


def _diff(noted: _Noted) -> GraphDiff:
    before, now = (Graph(()) if one is None else one.graph() for one in noted[1:])
    return before.diff(now)


_Why = tuple[str, int, str, str, str]  # kind, node, sentence, before, now


def _why(old: CompiledProgram, new: CompiledProgram) -> _Why:
    """The first thing that differs."""
    of_nodes = (_why_of(k, old, new) for k in range(min(len(old.ops), len(new.ops))))
    return _why_of_inputs(old, new) or next(filter(None, of_nodes), None) or _why_of_all(old, new)


def _why_of_inputs(old: CompiledProgram, new: CompiledProgram) -> _Why | None:
    a, b = old.source, new.source
    are_alike = len(a.leaves) == len(b.leaves)  # else the n-th of both need not be the same input
    for leaf, (was, now) in enumerate(zip(a.leaves, b.leaves, strict=False)):
        if are_alike and was != now:
            k = _reader(new, leaf)
            kind = "dtype" if was.shape == now.shape else "shape"
            where = f" at {new.site(k)}" if new.site(k) else ""
            sentence = f"the {kind} of input {leaf} changed{where}: {was} became {now}"
            return kind, k, sentence, str(was), str(now)
    return None


def _why_of(k: int, old: CompiledProgram, new: CompiledProgram) -> _Why | None:
    """What differs in the k-th node of both."""
    x, y = old.ops[k], new.ops[k]
    (before, reads), (after, new_reads) = old.source.nodes[k], new.source.nodes[k]
    sites = _sites(old.site(k), new.site(k))
    if x.name != y.name:
        return ("op", k, f"another op at node {k}: {x.name} became {y.name}{sites}",
                x.name, y.name)  # fmt: skip
    if _shapes(x) == _shapes(y) and after.name in MOVED and before.name not in MOVED:
        return ("place", k, f"{x.name} is at another place each time{sites}: from now on the "
                "place is an input of the program", before.name, after.name)  # fmt: skip
    pair = (before, after) if {before.name, after.name} <= MOVED else (x, y)
    if (
        pair[0].template != pair[1].template
        and _shapes(x) == _shapes(y)
        and (change := _constant(pair[0].template, pair[1].template))
    ):
        sentence = f"a constant of {x.name} changed{sites}: {change[0]} became {change[1]}"
        return "constant", k, sentence, *change
    if x.avals != y.avals or x.outputs != y.outputs:
        is_result = x.outputs != y.outputs
        types = (op.outputs if is_result else op.avals for op in (x, y))
        was, now = next(pair for pair in zip_longest(*types) if pair[0] != pair[1])
        gave, given = (str(aval or "nothing") for aval in (was, now))  # a print gives nothing
        kind = "dtype" if was and now and was.shape == now.shape else "shape"
        verbs = ("gives", "gave") if is_result else ("takes", "took")
        said = f"{x.name} {verbs[0]} {given}, {verbs[1]} {gave}{sites}"
        return kind, k, said, gave, given
    if reads != new_reads:
        return ("inputs", k, f"{x.name} at node {k} reads other values{sites}",
                str(reads), str(new_reads))  # fmt: skip
    return None


def _why_of_all(old: CompiledProgram, new: CompiledProgram) -> _Why:
    """What differs where all nodes that both have are the same."""
    a, b = old.source, new.source
    if len(a.nodes) != len(b.nodes):
        k = min(len(a.nodes), len(b.nodes))
        ended = "later" if len(b.nodes) > len(a.nodes) else "earlier"
        count = format_count(len(b.nodes), "op")
        return ("cut", k - 1, f"the segment ended {ended}, after {count} instead of "
                f"{len(a.nodes)}", str(len(a.nodes)), str(len(b.nodes)))  # fmt: skip
    if old.checks.precision != new.checks.precision and tuple(a.wanted) == tuple(b.wanted):
        return ("precision", 0, "torch was told to multiply with other bits",
                str(old.checks.precision), str(new.checks.precision))  # fmt: skip
    if old.checks != new.checks and tuple(a.wanted) == tuple(b.wanted):
        return ("checks", 0, "the first steps are over, and so are the checks on the device",
                str(old.checks), str(new.checks))  # fmt: skip
    if len(a.leaves) != len(b.leaves) or tuple(a.wanted) == tuple(b.wanted):
        return "aliasing", 0, "the same arrays are shared or overwritten in another way", "", ""
    return ("kept", 0, f"results still needed after the segment: {len(b.wanted)} instead of "
            f"{len(a.wanted)}", str(len(a.wanted)), str(len(b.wanted)))  # fmt: skip


def _shapes(op: Op) -> list[tuple[int, ...]]:
    return [aval.shape for aval in op.outputs]


def _reader(program: CompiledProgram, leaf: int) -> int:
    return next((k for k, (_, refs) in enumerate(program.source.nodes) if -1 - leaf in refs), 0)


def _sites(old: str, new: str) -> str:
    if old and new and old != new:
        return f" ({old}, now {new})"
    return f" at {new or old}" if new or old else ""


def _constants(template: Any) -> list[tuple[str, Any]]:
    return [(name, x) for name, x in _named(template) if not _is_input(x)]


def _constant(old: Any, new: Any) -> tuple[str, str] | None:
    a, b = dict(_named(old)), dict(_named(new))
    for name in a | b:
        was, now = (_shown(name, arguments) for arguments in (a, b))
        if was != now:
            return was[:60], now[:60]
    return None


def _named(template: Any) -> list[tuple[str, Any]]:
    args, kwargs = template
    return [(f"arg{i}", x) for i, x in enumerate(args)] + list(kwargs.items())


def _shown(name: str, arguments: Mapping[str, Any]) -> str:
    if name not in arguments:
        return "nothing"
    return "an input" if _is_input(arguments[name]) else repr(arguments[name])


def _is_input(argument: Any) -> bool:
    """Is it a tensor, or a number that the program is given at each call?"""
    return argument is HOLE or isinstance(argument, Scalar)


def _first(program: CompiledProgram) -> str:
    if not program.source.nodes:
        return "nothing"
    site = program.site(0)
    return program.source.nodes[0][0].name + (f" at {site}" if site else "")


def _ms(moments: tuple[int, int]) -> float:
    """From the first moment to the second, both in nanoseconds."""
    return (moments[1] - moments[0]) / 1e6
