"""Two graphs as one: the new one, with the ops of the old one that are gone put back as ghosts.

Alignment is `Graph.diff`'s, by structure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kit.ir import Graph
from kit.ir.graph import GraphDiff, aligned

__all__ = ["CHANGES", "Merged", "Side", "merge", "sides"]

CHANGES = ("same", "added", "changed", "rewired", "removed")
_MAX_DIFFERENT = 6_000  # nodes between the first and the last that differ


@dataclass(frozen=True)
class Merged:
    """A graph, the id of each of its nodes in the new graph (-1: gone), and what has changed."""

    graph: Graph
    ids: tuple[int, ...]
    changes: Mapping[int, int]  # node -> index into CHANGES; of a comparison: each op is in it

    @classmethod
    def of(cls, graph: Graph) -> Merged:
        """A graph that is compared with nothing."""
        return cls(graph, tuple(range(len(graph))), {})


@dataclass(frozen=True)
class Side:
    """One graph of two that stand beside each other."""

    graph: Graph
    marks: Mapping[int, str]  # each op -> one of CHANGES
    other: Mapping[int, int]  # node -> the node of the other graph that it is paired with


def sides(diff: GraphDiff) -> tuple[Side, Side]:
    """The old and the new graph of a diff, each with what is different in it."""
    pairs = {row.left: row.right for row in diff.rows if row.left >= 0 and row.right >= 0}
    old = {row.left: row.kind for row in diff.rows if row.left >= 0}
    new = {row.right: row.kind for row in diff.rows if row.right >= 0}
    back = {right: left for left, right in pairs.items()}
    return Side(diff.old, _of_ops(diff.old, old), pairs), Side(
        diff.new, _of_ops(diff.new, new), back
    )


def _of_ops(graph: Graph, kinds: Mapping[int, str]) -> dict[int, str]:
    return {i: kind for i, kind in kinds.items() if not graph.nodes[i].is_variable}


def merge(old: Graph, new: Graph) -> Merged:
    """The nodes of both: the variables, and then the ops in program order.

    Raises:
        GraphError: too many nodes differ to compare them one by one.
    """
    rows = aligned(old, new, most=_MAX_DIFFERENT)
    at_left = {row.left: n for n, row in enumerate(rows) if row.left >= 0}
    at_right = {row.right: n for n, row in enumerate(rows) if row.right >= 0}
    nodes, changes = [], {}
    for n, row in enumerate(rows):
        side, at = (new, at_right) if row.right >= 0 else (old, at_left)
        node = side.nodes[row.right if row.right >= 0 else row.left]
        nodes.append(replace(node, inputs=tuple((at[s], o) for s, o in node.inputs)))
        if not node.is_variable:
            changes[n] = CHANGES.index(row.kind)
    return Merged(Graph(tuple(nodes)), tuple(row.right for row in rows), changes)
