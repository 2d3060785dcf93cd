"""What changed between two graphs: aligned by structure, first divergence first.

Two nodes are alike if they do the same op with the same static arguments on the same types. Alike
nodes are paired in program order (longest common subsequence); a pair whose inputs are not pairs
of each other is rewired.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

from kit.ir.graph import Graph, Node

__all__ = ["DiffRow", "GraphDiff", "diff"]

KINDS = ("same", "changed", "rewired", "removed", "added")
_MARK = {"same": " ", "changed": "|", "rewired": "~", "removed": "<", "added": ">"}


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One line of the two columns; -1 where a side has no node."""

    kind: str  # one of KINDS
    left: int
    right: int
    left_text: str = ""
    right_text: str = ""


@dataclass(frozen=True)
class GraphDiff:
    """The rows of a diff, in program order. `str()` shows what differs, with some lines around."""

    rows: tuple[DiffRow, ...]

    @property
    def is_empty(self) -> bool:
        """True if the two graphs are the same."""
        return all(row.kind == "same" for row in self.rows)

    @property
    def first(self) -> DiffRow | None:
        """The first row that differs."""
        return next((row for row in self.rows if row.kind != "same"), None)

    def text(self, context: int = 2, width: int = 60, limit: int = 60) -> str:
        """Two columns: old left, new right; `limit` rows at most, from the first divergence on."""
        near: set[int] = set()
        for i, row in enumerate(self.rows):
            if row.kind != "same":
                near.update(range(i - context, i + context + 1))
        lines: list[str] = []
        last = -1
        for i in sorted(near & set(range(len(self.rows)))):
            if len(lines) >= limit:
                lines.append(f"... and {sum(k > i for k in near)} more rows")
                break
            if i != last + 1:
                lines.append(f"{'':{width}}   ... {i - last - 1} equal rows")
            row = self.rows[i]
            left = _cut(row.left_text, width)
            lines.append(f"{left:{width}} {_MARK[row.kind]} {_cut(row.right_text, width)}".rstrip())
            last = i
        return "\n".join(lines)

    def __str__(self) -> str:
        return "the graphs are the same" if self.is_empty else self.text()


def diff(old: Graph, new: Graph) -> GraphDiff:
    """Align two graphs; sites, scopes and segments do not count as differences."""
    left, right = [_label(n) for n in old.nodes], [_label(n) for n in new.nodes]
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    stop = 0
    while stop < min(len(left), len(right)) - start and left[-1 - stop] == right[-1 - stop]:
        stop += 1
    pairs = [(i, i) for i in range(start)]
    middle_left, middle_right = left[start : len(left) - stop], right[start : len(right) - stop]
    for a, b, n in SequenceMatcher(None, middle_left, middle_right, False).get_matching_blocks():
        pairs += [(start + a + k, start + b + k) for k in range(n)]
    pairs += [(len(left) - stop + k, len(right) - stop + k) for k in range(stop)]
    return GraphDiff(tuple(_rows(old, new, pairs)))


def _rows(old: Graph, new: Graph, alike: list[tuple[int, int]]) -> list[DiffRow]:
    places: list[tuple[str, int, int]] = []
    i = j = 0
    for a, b in [*alike, (len(old.nodes), len(new.nodes))]:
        places += _unpaired(old, new, range(i, a), range(j, b))
        if a < len(old.nodes):
            places.append(("same", a, b))
        i, j = a + 1, b + 1
    partner = {a: b for _, a, b in places if a >= 0 and b >= 0}
    rows = []
    for kind, a, b in places:
        if kind == "same":
            wired = [(partner.get(n, -1), output) for n, output in old.nodes[a].inputs]
            kind = "same" if wired == list(new.nodes[b].inputs) else "rewired"
        texts = _line(old, a) if a >= 0 else "", _line(new, b) if b >= 0 else ""
        rows.append(DiffRow(kind, a, b, *texts))
    return rows


def _unpaired(old: Graph, new: Graph, lefts: range, rights: range) -> list[tuple[str, int, int]]:
    """Nodes of the same op beside each other have changed; the rest were removed or added."""
    places: list[tuple[str, int, int]] = []
    names = [old.nodes[i].op for i in lefts], [new.nodes[j].op for j in rights]
    i = j = 0
    for a, b, n in SequenceMatcher(None, *names, False).get_matching_blocks():
        places += [("removed", lefts[k], -1) for k in range(i, a)]
        places += [("added", -1, rights[k]) for k in range(j, b)]
        places += [("changed", lefts[a + k], rights[b + k]) for k in range(n)]
        i, j = a + n, b + n
    return places


def _label(node: Node) -> tuple[object, ...]:
    return node.op, node.attrs, node.avals


def _line(graph: Graph, i: int) -> str:
    node = graph.nodes[i]
    inputs = [f"%{n}" if o == 0 else f"%{n}.{o}" for n, o in node.inputs]
    arguments = ", ".join([*inputs, *(f"{k}={v}" for k, v in node.attrs)])
    types = ", ".join(map(str, node.avals[:3]))
    site = f"  {node.site}" if node.site else ""
    return f"%{i} {node.op.removeprefix('aten.')}({arguments}) {types}{site}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
