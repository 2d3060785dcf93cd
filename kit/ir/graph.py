"""The graph of one training step: what was computed, from what, where in the user's code.

    graph   ::= node*                          program order; an input comes before its users
    node    ::= %id = op(%id[.output], ...) {attrs} : aval, ...   # phase, scope, site
    aval    ::= dtype[shape]

Nodes whose op is in `VARIABLES` are parameters, inputs and scalars: they hold a value that came
from outside and are never executed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from kit.errors import GraphError

if TYPE_CHECKING:
    from kit.ir.diff import GraphDiff

__all__ = ["PHASES", "VARIABLES", "Aval", "Graph", "Node", "Segment"]

PHASES = ("forward", "backward", "update")
VARIABLES = frozenset({"parameter", "input", "scalar"})

_ITEMSIZE = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "bfloat16": 2,
             "int32": 4, "float32": 4, "int64": 8, "float64": 8, "complex64": 8,
             "complex128": 16}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aval:
    """The type of one array: `Aval((8, 32), "float32")` prints as `float32[8,32]`."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def size_bytes(self) -> int:
        """Bytes that the array's elements take; a dtype not in the table counts 4 an element."""
        return prod(self.shape) * _ITEMSIZE.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class Node:
    """One op of the step; its position in `Graph.nodes` is its id.

    `inputs` are pairs (node id, output index), in the order in which the op takes its tensors.
    """

    op: str  # "aten.mm.default", or one of VARIABLES
    inputs: tuple[tuple[int, int], ...]
    attrs: tuple[tuple[str, str], ...]  # static arguments, as text
    avals: tuple[Aval, ...]  # one for each output
    site: str = ""  # "train.py:41", the user's line
    phase: str = "forward"  # one of PHASES
    scope: str = ""  # "Bert.layers.0.attention": the module path, outermost first
    segment: int = -1  # Segment.index, -1 for variables

    @property
    def is_variable(self) -> bool:
        """True for parameters, inputs and scalars: nothing is executed for them."""
        return self.op in VARIABLES


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops that are handed to the device as one bulk.

    `reads` and `writes` are (node id, output index) pairs: values that come from outside the
    segment, and values that something outside it still needs.
    """

    index: int
    nodes: tuple[int, ...]  # ids in Graph.nodes, program order
    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    cut: str  # why it ended: "size", "sync", "mark_step", "phase", "unlowered op"
    phase: str = "forward"
    key: str = ""  # hash of the executable: equal keys share one
    is_cached: bool = True  # False if this issue had to compile


@dataclass(frozen=True)
class Graph:
    """The nodes of one step in program order, and the values that outlive it.

    `str(graph)` prints the grammar at the head of this file.
    """

    nodes: tuple[Node, ...]
    wanted: tuple[tuple[int, int], ...] = ()
    _hash: list[str] = field(default_factory=list, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @property
    def ops(self) -> tuple[int, ...]:
        """Ids of the nodes that are executed (all but variables), in program order."""
        return tuple(i for i, node in enumerate(self.nodes) if not node.is_variable)

    @property
    def hash(self) -> str:
        """Structural hash: ops, edges, static arguments and avals; not sites, scopes or names."""
        if not self._hash:
            digest = hashlib.sha256()
            for n in self.nodes:
                digest.update(repr((n.op, n.inputs, n.attrs, n.avals)).encode())
            digest.update(repr(self.wanted).encode())
            self._hash.append(digest.hexdigest()[:16])
        return self._hash[0]

    def check(self) -> Graph:
        """Return the graph if it is well formed.

        - each input names an earlier node and one of its outputs
        - a variable has no inputs
        - each phase is one of PHASES
        - each wanted value exists

        Raises:
            GraphError: one of these does not hold; the message shows the node.
        """
        for i, node in enumerate(self.nodes):
            if node.is_variable and node.inputs:
                raise GraphError(f"variable %{i} ({node.op}) has inputs: {_line(i, node)}")
            if node.phase not in PHASES:
                raise GraphError(f"phase {node.phase!r} is not one of {PHASES}: {_line(i, node)}")
            for source, output in node.inputs:
                if not 0 <= source < i or not 0 <= output < len(self.nodes[source].avals):
                    raise GraphError(
                        f"input %{source}.{output} is not an earlier value: {_line(i, node)}"
                    )
        for source, output in self.wanted:
            if not 0 <= source < len(self.nodes) or not 0 <= output < len(self.nodes[source].avals):
                raise GraphError(f"wanted value %{source}.{output} does not exist")
        return self

    def diff(self, other: Graph) -> GraphDiff:
        """What changed from this graph to the other one, in two aligned columns."""
        from kit.ir.diff import diff

        return diff(self, other)

    def __str__(self) -> str:
        return "\n".join(_line(i, node) for i, node in enumerate(self.nodes))


def _line(i: int, node: Node) -> str:
    args = ", ".join(f"%{n}" if o == 0 else f"%{n}.{o}" for n, o in node.inputs)
    attrs = " {" + ", ".join(f"{k}={v}" for k, v in node.attrs) + "}" if node.attrs else ""
    avals = ", ".join(map(str, node.avals))
    notes = ", ".join(filter(None, (node.phase, node.scope, node.site)))
    return f"%{i} = {node.op}({args}){attrs} : {avals}  # {notes}"
