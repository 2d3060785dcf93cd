"""What the values are that a step finds when it begins: parameters, optimizer state, batches.

A graph knows of such a value whether it came from the host or was on the device before, and which
ops read it. What forward or backward reads and the update, too, is a parameter; what the update
alone reads is the optimizer's. Of the rest no more is said than is known.
"""

from __future__ import annotations

from collections import defaultdict
from types import MappingProxyType

from kit.ir.graph import Graph

__all__ = ["PARAMETER", "ROLES", "roles"]

_HOST, _NUMBER, PARAMETER, _OPTIMIZER, _OLDER = (
    "from the host", "number", "parameter", "optimizer state", "made before the step",
)  # fmt: skip
# A role -> what is known of the values that have it.
ROLES = MappingProxyType(
    {
        PARAMETER: "the update reads it, and so does forward or backward",
        _OPTIMIZER: "only the update reads it",
        _OLDER: "of an earlier step; the update does not read it",
        _HOST: "a batch, or what no step has changed",
        _NUMBER: "such as a step count or a loss scale",
    }
)


def roles(graph: Graph) -> dict[int, str]:
    """The role of each variable of a graph, one of `ROLES`, by its node's id."""
    readers: dict[int, set[str]] = defaultdict(set)  # the phases
    for node in graph.nodes:
        for source, _ in node.inputs:
            readers[source].add(node.phase)
    return {
        i: _role(graph, i, readers[i]) for i, node in enumerate(graph.nodes) if node.is_variable
    }


def _role(graph: Graph, i: int, phases: set[str]) -> str:
    node = graph.nodes[i]
    if node.op == "input":
        return _HOST
    if node.op == "scalar" or not any(aval.shape for aval in node.avals):
        return _NUMBER
    if "update" not in phases:
        return _OLDER
    return _OPTIMIZER if phases == {"update"} else PARAMETER
