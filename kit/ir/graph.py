"""The graph of one training step: what was computed, from what, where in the user's code; and what
changed between two of them.

    graph   ::= node*                          program order; an input comes before its users
    node    ::= %id = op(%id[.output], ...) {attrs} : aval, ...   # phase, scope, site
    aval    ::= dtype[shape]

Nodes whose op is in `VARIABLES` are parameters, inputs and scalars: they hold a value that came
from outside and are never executed.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType

from kit.errors import GraphError
from kit.text import WHOLE, format_count, safe_terminal

__all__ = [
    "DIFF_KINDS",
    "PHASES",
    "READ_CUTS",
    "RECURRENT",
    "VARIABLES",
    "VIEW_OPS",
    "Aval",
    "DiffRow",
    "Graph",
    "GraphDiff",
    "Node",
    "Segment",
    "aligned",
    "is_view",
]

PHASES = ("forward", "backward", "update")
VARIABLES = frozenset({"parameter", "input", "scalar"})
# Ops of torch that only show memory in another way; a reshape that copies is another op in aten.
VIEW_OPS = frozenset(
    {
        "_conj", "_neg_view", "_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk",
        "detach", "diagonal", "expand", "imag", "lift_fresh", "movedim", "narrow", "permute",
        "real", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "swapaxes",
        "t", "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as_complex",
        "view_as_real",
    }
)  # fmt: skip
# Recurrent layers: each direction of one is an op, "kit.lstm" forward and "kit.lstm_backward" back,
# that loops over the time steps inside. And how many arrays the state of such a layer has.
RECURRENT = MappingProxyType({"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1})


def is_view(op: str) -> bool:
    """Does an op only show memory that is there already? "aten.view.default" does."""
    parts = op.split(".")
    return len(parts) > 1 and parts[0] == "aten" and parts[1] in VIEW_OPS


DIFF_KINDS = ("same", "changed", "rewired", "removed", "added")
_MARK = {"same": " ", "changed": "|", "rewired": "~", "removed": "<", "added": ">"}

_BITS = re.compile(r"(?:b?float|complex|u?int)(\d{1,3})")  # also of "float8_e4m3fn"


@dataclass(frozen=True, slots=True)
class Aval:
    """The type of one array: `Aval((8, 32), "float32")` prints as `float32[8,32]`."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def size_bytes(self) -> int:
        """Bytes that the array's elements take; a dtype that is not known counts 4 an element."""
        return prod(self.shape) * _bytes_of(self.dtype)


@lru_cache(maxsize=256)
def _bytes_of(dtype: str) -> int:
    if found := _BITS.match(dtype):
        return max(int(found[1]) // 8, 1)
    return 1 if dtype == "bool" else 4


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


READ_CUTS = ("sync", "unlowered op")  # why a segment ended, where the host then waits for it


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

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @property
    def ops(self) -> tuple[int, ...]:
        """Ids of the nodes that are executed (all but variables), in program order."""
        return tuple(i for i, node in enumerate(self.nodes) if not node.is_variable)

    @cached_property
    def hash(self) -> str:
        """Structural hash: ops, edges, static arguments and avals; not sites, scopes or names."""
        digest = hashlib.sha256()
        for n in self.nodes:
            digest.update(repr((n.op, n.inputs, n.attrs, n.avals)).encode())
        digest.update(repr(self.wanted).encode())
        return digest.hexdigest()[:16]

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
        """What changed from this graph to the other one, in two aligned columns.

        Two nodes are alike if they do the same op with the same static arguments on the same types.
        Alike nodes are paired in program order (longest common subsequence); a pair whose inputs
        are not pairs of each other is rewired. Sites, scopes and segments do not count.
        """
        left, right = _labels(self), _labels(other)
        alike = _alike(left, right, _equal_ends(left, right))
        return GraphDiff(tuple(_rows(self, other, alike)), self, other)

    def then(self, other: Graph) -> Graph:
        """This graph and another one as one: the other's nodes come after its own."""
        own = len(self)
        moved = (
            replace(node, inputs=tuple((i + own, output) for i, output in node.inputs))
            for node in other.nodes
        )
        wanted = ((i + own, output) for i, output in other.wanted)
        return Graph((*self.nodes, *moved), (*self.wanted, *wanted))

    def __repr__(self) -> str:
        ops = len(self.ops)
        return f"Graph({format_count(ops, 'op')}, {format_count(len(self) - ops, 'variable')})"

    def __str__(self) -> str:
        return "\n".join(_line(i, node) for i, node in enumerate(self.nodes))


def _inputs(node: Node) -> list[str]:
    return [f"%{n}" if o == 0 else f"%{n}.{o}" for n, o in node.inputs]


def _line(i: int, node: Node) -> str:
    args = ", ".join(_inputs(node))
    attrs = " {" + ", ".join(f"{k}={v}" for k, v in node.attrs) + "}" if node.attrs else ""
    avals = ", ".join(map(str, node.avals))
    notes = ", ".join(filter(None, (node.phase, node.scope, node.site)))
    return safe_terminal(f"%{i} = {node.op}({args}){attrs} : {avals}  # {notes}", WHOLE)


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One line of the two columns; -1 where a side has no node."""

    kind: str  # one of DIFF_KINDS
    left: int
    right: int
    left_text: str = ""
    right_text: str = ""


@dataclass(frozen=True)
class GraphDiff:
    """The rows of a diff, in program order. `str()` shows what differs, with some lines around."""

    rows: tuple[DiffRow, ...]
    old: Graph = field(default=Graph(()), repr=False, compare=False)
    new: Graph = field(default=Graph(()), repr=False, compare=False)

    @property
    def is_empty(self) -> bool:
        """True if the two graphs are the same."""
        return all(row.kind == "same" for row in self.rows)

    @property
    def first(self) -> DiffRow | None:
        """The first row that differs."""
        return next((row for row in self.rows if row.kind != "same"), None)

    def is_op(self, row: DiffRow) -> bool:
        """Is this row of an op, and not of a variable?"""
        node = self.old.nodes[row.left] if row.left >= 0 else self.new.nodes[row.right]
        return not node.is_variable

    def near(self, context: int) -> list[int]:
        """The places of the rows that differ, and of `context` rows before and after each."""
        found: set[int] = set()
        for i, row in enumerate(self.rows):
            if row.kind != "same":
                found.update(range(max(i - context, 0), min(i + context + 1, len(self.rows))))
        return sorted(found)

    def text(self, context: int = 2, width: int = 60, limit: int = 60) -> str:
        """Two columns: old left, new right; `limit` rows at most, from the first divergence on."""
        shown = self.near(context)
        lines: list[str] = []
        last = -1
        for k, i in enumerate(shown):
            if len(lines) >= limit:
                lines.append(f"... and {format_count(len(shown) - k, 'more row')}")
                break
            if i != last + 1:
                lines.append(f"{'':{width}}   ... {format_count(i - last - 1, 'equal row')}")
            row = self.rows[i]
            left = _cut(row.left_text, width)
            lines.append(f"{left:{width}} {_MARK[row.kind]} {_cut(row.right_text, width)}".rstrip())
            last = i
        return "\n".join(lines)

    def __repr__(self) -> str:
        count = Counter(row.kind for row in self.rows)
        return f"GraphDiff({', '.join(f'{count[k]:,} {k}' for k in DIFF_KINDS if count[k])})"

    def __str__(self) -> str:
        return "the graphs are the same" if self.is_empty else self.text()


def aligned(old: Graph, new: Graph, *, most: int | None = None) -> list[DiffRow]:
    """The rows of the graphs' diff, blind to where the cuts have put the variables.

    Raises:
        GraphError: more than `most` nodes lie between the first and the last that differ.
    """
    (left, lefts), (right, rights) = _variables_first(old), _variables_first(new)
    labels = _labels(left), _labels(right)
    ends = _equal_ends(*labels)
    size = max(len(left), len(right)) - sum(ends)
    if most is not None and size > most:
        raise GraphError(
            f"{size:,} nodes lie between the first and the last that differ: more than "
            f"{most:,} are not compared one by one. Compare two runs of a smaller model."
        )
    return [
        replace(
            row,
            left=lefts[row.left] if row.left >= 0 else -1,
            right=rights[row.right] if row.right >= 0 else -1,
        )
        for row in _rows(left, right, _alike(*labels, ends))
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


def _alike(left: list[_Label], right: list[_Label], ends: tuple[int, int]) -> list[tuple[int, int]]:
    """The pairs of nodes that are alike; most are where both graphs begin or end, found quickly."""
    start, stop = ends
    pairs = [(i, i) for i in range(start)]
    middles = left[start : len(left) - stop], right[start : len(right) - stop]
    for a, b, n in SequenceMatcher(None, *middles, False).get_matching_blocks():
        pairs += [(start + a + k, start + b + k) for k in range(n)]
    pairs += [(len(left) - stop + k, len(right) - stop + k) for k in range(stop)]
    return pairs


def _equal_ends(left: list[_Label], right: list[_Label]) -> tuple[int, int]:
    """How many nodes are alike from the beginning on, and how many of the others at the end."""
    most = min(len(left), len(right))
    start = next((i for i in range(most) if left[i] != right[i]), most)
    most -= start
    return start, next((i for i in range(most) if left[-1 - i] != right[-1 - i]), most)


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
        texts = _short_line(old, a) if a >= 0 else "", _short_line(new, b) if b >= 0 else ""
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


_Label = tuple[object, ...]


def _labels(graph: Graph) -> list[_Label]:
    return [(node.op, node.attrs, node.avals) for node in graph.nodes]


def _short_line(graph: Graph, i: int) -> str:
    node = graph.nodes[i]
    arguments = ", ".join([*_inputs(node), *(f"{k}={v}" for k, v in node.attrs)])
    types = ", ".join(map(str, node.avals[:3]))
    site = f"  {node.site}" if node.site else ""
    return safe_terminal(f"%{i} {node.op.removeprefix('aten.')}({arguments}) {types}{site}", WHOLE)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
