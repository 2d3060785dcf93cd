"""Two runs side by side: what got slower, what appeared, what vanished.

Nodes are aligned by the structure of the two graphs (`Graph.diff`), kernels by the nodes that they
compute, because XLA numbers kernels anew in each program. Device times are parts of the busy time,
as in `kit.kernel_table`: what all rows differ by adds up to what the busy time differs by.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kit.ir import Graph
from kit.ir.graph import VARIABLES, DiffRow
from kit.runs.run import Run
from kit.text import format_count, format_ms, safe_terminal
from kit.trace import idle_table, kernel_table, sync_table

__all__ = ["Change", "NodeChange", "RunDiff", "diff_runs"]

_NUMBER = re.compile(r"(\.\d+)+$")
_Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing of both runs, and what it took in each; nan where a run does not have it.

    Units:
        milliseconds a step
    """

    name: str
    old: float
    new: float
    note: str = ""
    old_count: float = math.nan  # a step
    new_count: float = math.nan

    @property
    def ms(self) -> float:
        """How much more it takes now; what is not there takes nothing."""
        return _zero(self.new) - _zero(self.old)

    @property
    def kind(self) -> str:
        """Which runs have it: "both", "appeared" or "vanished"."""
        if math.isnan(self.old):
            return "appeared"
        return "vanished" if math.isnan(self.new) else "both"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node of the two graphs, and the device time that it had in each.

    Units:
        milliseconds a step; nan where a run does not have it, or no kernel computes it by name
    """

    kind: str  # "same", "changed", "rewired", "removed" or "added": see `Graph.diff`
    left: int  # id in the old graph, -1 if it is not there
    right: int
    op: str
    site: str
    scope: str
    old: float
    new: float

    @property
    def ms(self) -> float:
        """How much more it takes now; what is not there takes nothing."""
        return _zero(self.new) - _zero(self.old)


@dataclass(frozen=True)
class RunDiff:
    """What differs between two runs; `str()` says it, `kit.widgets.numbers.run_diff` draws it.

    Every sequence has the largest change first, slower or faster, but for `breakdown` and
    `settings`, which keep their order.
    """

    labels: tuple[str, str]
    step: Change  # the median untraced step
    settings: tuple[tuple[str, Any, Any], ...]  # name, old value, new value
    breakdown: tuple[Change, ...]  # of the traced step, by category
    idle: tuple[Change, ...]  # of the device, by cause and line
    syncs: tuple[Change, ...]  # waits of the host, by line, in the untraced steps
    kernels: tuple[Change, ...]
    nodes: tuple[NodeChange, ...]  # that are executed: parameters and inputs are left out
    segments: tuple[int, int]

    @property
    def slower(self) -> tuple[NodeChange, ...]:
        """Nodes of both graphs that take longer now."""
        return tuple(n for n in self.nodes if n.left >= 0 and n.right >= 0 and n.ms > 0)

    @property
    def appeared(self) -> tuple[NodeChange, ...]:
        """Nodes that only the new graph has, in program order."""
        return tuple(sorted((n for n in self.nodes if n.left < 0), key=lambda n: n.right))

    @property
    def vanished(self) -> tuple[NodeChange, ...]:
        """Nodes that only the old graph has, in program order."""
        return tuple(sorted((n for n in self.nodes if n.right < 0), key=lambda n: n.left))

    def text(self, limit: int = 8) -> str:
        """A few lines of each part, `limit` at most."""
        old, new = self.labels
        lines = [f"{old} -> {new}", _line("step", self.step)]
        lines += [f"  {name}: {a!r} -> {b!r}" for name, a, b in self.settings]
        lines.append(f"segments: {self.segments[0]} -> {self.segments[1]}")
        parts = (
            ("breakdown of the traced step", self.breakdown),
            ("device idle", self.idle),
            ("sync points", self.syncs),
            ("kernels", self.kernels),
        )
        for title, rows in parts:
            shown = [row for row in rows if abs(row.ms) >= 0.0005][:limit]
            lines += [f"{title}:", *(f"  {_line(r.name, r)}" for r in shown)] if shown else []
        lines += _nodes("got slower", self.slower, limit)
        lines += _nodes("appeared", self.appeared, limit)
        lines += _nodes("vanished", self.vanished, limit)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def diff_runs(a: Run, b: Run) -> RunDiff:
    """What changed from run `a` to run `b`.

    The two may be of different settings, machines or programs; what has no partner has appeared or
    vanished. Runs in mode "torch" have neither graph nor kernels: their steps and waits are
    compared.
    """
    graphs = [run.graphs[0] if run.graphs else Graph(()) for run in (a, b)]
    rows = _aligned(*graphs)
    sides = _Side(a), _Side(b)
    nodes = [
        NodeChange(r.kind, r.left, r.right, *_texts(graphs, r.left, r.right),
                   sides[0].nodes.get(r.left, math.nan), sides[1].nodes.get(r.right, math.nan))
        for r in rows
    ]  # fmt: skip
    names = {r.left: i for i, r in enumerate(rows)}, {r.right: i for i, r in enumerate(rows)}
    kernels = [side.kernels(name) for side, name in zip(sides, names, strict=True)]
    settings = a.settings.as_dict(), b.settings.as_dict()
    return RunDiff(
        labels=(_label(a), _label(b)),
        step=Change("step", a.step_ms, b.step_ms),
        settings=tuple((k, v, settings[1][k]) for k, v in settings[0].items()
                       if v != settings[1][k]),
        breakdown=_pair(*({r.category: (r.exposed_ms, math.nan) for r in x.breakdown()}
                          for x in (a, b)), ordered=False),
        idle=_pair(*(side.idle() for side in sides)),
        syncs=_pair(*(_syncs(x) for x in (a, b))),
        kernels=_named(*kernels, rows=nodes),
        nodes=tuple(sorted((n for n in nodes if n.op not in VARIABLES),
                           key=lambda n: (-abs(n.ms), max(n.left, n.right)))),
        segments=(len(a.segments), len(b.segments)),
    )  # fmt: skip


def _aligned(old: Graph, new: Graph) -> list[DiffRow]:
    """The rows of the graphs' diff, blind to where the cuts have put the variables."""
    (left, lefts), (right, rights) = _variables_first(old), _variables_first(new)
    return [
        replace(
            row,
            left=lefts[row.left] if row.left >= 0 else -1,
            right=rights[row.right] if row.right >= 0 else -1,
        )
        for row in left.diff(right).rows
    ]


def _variables_first(graph: Graph) -> tuple[Graph, list[int]]:
    """The graph with its variables before its ops, in the order of their use; and the old ids.

    A recorded graph has a variable just before the first segment that reads it, so that other
    bulk sizes would give another order.
    """
    nodes = graph.nodes
    used = dict.fromkeys(n for i in graph.ops for n, _ in nodes[i].inputs if nodes[n].is_variable)
    unused = (i for i, node in enumerate(nodes) if node.is_variable and i not in used)
    ids = [*used, *unused, *graph.ops]
    place = {i: k for k, i in enumerate(ids)}
    moved = [
        replace(nodes[i], inputs=tuple((place[n], k) for n, k in nodes[i].inputs)) for i in ids
    ]
    return Graph(tuple(moved), tuple((place[n], k) for n, k in graph.wanted)), ids


class _Side:
    """One of the two runs: the device time of its kernels and nodes in a mean traced step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.steps = max(int(run.timeline.where(kind="step").sum()), 1)
        self.rows = [
            (r, run.nodes_of(r.segment, r.name, r.node)) for r in kernel_table(run.timeline)
        ]
        self.nodes: dict[int, float] = defaultdict(float)
        for row, members in self.rows:
            for i in members:
                self.nodes[i] += row.charged_ms / self.steps / len(members)

    def kernels(self, number: Mapping[int, int]) -> dict[tuple[_Members, str], tuple[float, float]]:
        """(the rows of the nodes it computes, its name without number) -> ms and count a step."""
        found: dict[tuple[_Members, str], tuple[float, float]] = {}
        for row, members in self.rows:
            key = tuple(sorted(number[i] for i in members if i in number)), kernel_kind(row.name)
            ms, count = found.get(key, (0.0, 0.0))
            found[key] = ms + row.charged_ms / self.steps, count + row.count / self.steps
        return found

    def idle(self) -> dict[str, tuple[float, float]]:
        """Cause, with the line of a sync point -> milliseconds and pieces a step."""
        return {
            f"{r.cause} at {r.site}" if r.site else r.cause: (
                r.total_ms / self.steps,
                r.count / self.steps,
            )
            for r in idle_table(self.run.timeline)
        }


def kernel_kind(name: str) -> str:
    """The name without the number that XLA gives it: "add_fusion" for "add_fusion.12"."""
    return _NUMBER.sub("", name)


def _syncs(run: Run) -> dict[str, tuple[float, float]]:
    steps = len(run.step_times_ns)
    rows = sync_table(run.sync_points, steps=steps) if steps else ()
    found: dict[str, tuple[float, float]] = {}
    for r in rows:
        name = f"{r.cause} at {r.site or 'an unknown line'}"
        ms, count = found.get(name, (0.0, 0.0))
        found[name] = ms + r.wait_ms_per_step, count + r.count_per_step
    return found


def _pair(
    old: Mapping[str, tuple[float, float]],
    new: Mapping[str, tuple[float, float]],
    *,
    ordered: bool = True,
) -> tuple[Change, ...]:
    nothing = (math.nan, math.nan)
    changes = []
    for name in dict.fromkeys([*old, *new]):
        (a, n), (b, m) = old.get(name, nothing), new.get(name, nothing)
        changes.append(Change(name, a, b, "", n, m))
    return tuple(sorted(changes, key=lambda c: -abs(c.ms)) if ordered else changes)


def _named(
    old: Mapping[tuple[_Members, str], tuple[float, float]],
    new: Mapping[tuple[_Members, str], tuple[float, float]],
    *,
    rows: list[NodeChange],
) -> tuple[Change, ...]:
    nothing = (math.nan, math.nan)
    changes = []
    for key in dict.fromkeys([*old, *new]):
        members, name = key
        (a, n), (b, m) = old.get(key, nothing), new.get(key, nothing)
        note = ", ".join(_once(rows[i].op.removeprefix("aten.") for i in members))
        changes.append(Change(name, a, b, note, n, m))
    return tuple(sorted(changes, key=lambda c: -abs(c.ms)))


def _texts(graphs: list[Graph], left: int, right: int) -> tuple[str, str, str]:
    node = graphs[1].nodes[right] if right >= 0 else graphs[0].nodes[left]
    return node.op, node.site, node.scope


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _label(run: Run) -> str:
    name = run.name or "unnamed step"
    return f"{name if len(name) <= 60 else name[:59] + '…'} ({run.settings.mode})"


def _zero(ms: float) -> float:
    return 0.0 if math.isnan(ms) else ms


def _line(name: str, c: Change) -> str:
    note = _short(f"  ({c.note})") if c.note else ""
    return f"{_short(name)}: {_old_and_new(c.old, c.new)} ({c.ms:+.3f} ms){note}"


def _nodes(title: str, rows: tuple[NodeChange, ...], limit: int) -> list[str]:
    if not rows:
        return []
    lines = [f"{title}: {format_count(len(rows), 'node')}"]
    for n in rows[:limit]:
        place = _short(n.site or n.scope or "unknown line")
        lines.append(f"  {_short(n.op)} at {place}: {_old_and_new(n.old, n.new)}")
    return lines


def _short(text: str) -> str:
    return safe_terminal(text, 90)


def _old_and_new(old: float, new: float) -> str:
    return f"{format_ms(old, '-')} -> {format_ms(new, '-')}"
