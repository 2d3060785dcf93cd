"""Which nodes a kernel computes: read from the text of a compiled program.

Each node was lowered in a scope of its own, "n12", which XLA keeps in the `op_name` of what became
of it. An instruction that calls computations (a fusion, a loop, a call) has the nodes of all that
is in them. What XLA put in by itself, such as a copy to another layout, has none: it is charged to
what needed it, the instruction that uses its result, or else to what it was made from. A product
that XLA has joined with the transpose of its result has the scope of the transpose alone: it is
looked up in the recorded ops.

The text of a step of twelve layers has 170,000 instructions and 20 MB, all but some thousand of
them inside of fusions: those are only searched, as whole computations, and only for a caller that
asks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kit.runtime.recording.bulk import Op

__all__ = ["Instructions", "moved_by"]

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", re.M)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$", re.M)
# The first scope only: those inside are a user's names, or the ops of a hybridized function.
_SCOPE = re.compile(r'op_name="[^"]*?/n(\d+)(?=[/"])')
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations)=\{?([^,}\s]+(?:, %[\w.\-]+)*)"
)
_NAME = re.compile(r"%([\w.\-]+)")
_RUNS_OTHERS = (" call(", " while(", " conditional(")  # kernels of their own, not one fused one
# A library's product is a custom call.
_PRODUCT = re.compile(r' (?:dot|convolution|custom-call)\([^\n]*op_name="[^"\n]*?/n(\d+)(?=[/"])')
# Ops that change the order, shape or type of numbers, by the second part of their names.
_MOVES = frozenset({
    "transpose", "reshape", "convert_element_type", "copy", "squeeze", "expand_dims",
    "t", "permute", "view", "unsqueeze", "_to_copy", "clone",
})  # fmt: skip


def moved_by(nodes: Iterable[tuple[Op, Sequence[int]]]) -> dict[int, int]:
    """Node that only moves what another one computes -> that other one, by index.

    Args:
        nodes: ops with where their inputs come from, as `Bulk.nodes` gives them.
    """
    maker: list[int] = []  # the node of each slot
    found: dict[int, int] = {}
    for i, (op, refs) in enumerate(nodes):
        maker += [i] * len(op.outputs)
        if op.called in _MOVES and refs and refs[0] >= 0:
            source = maker[refs[0]]
            found[i] = found.get(source, source)
    return found


@dataclass(eq=False, slots=True)
class _Instruction:
    text: str  # what follows the "="
    own: int  # the node in its own metadata, -1 if none

    @property
    def calls(self) -> list[str]:
        return _called(self.text.partition("metadata={")[0])

    @property
    def operands(self) -> list[str]:
        return _NAME.findall(self.text.partition("(")[2].partition("), ")[0])


class Instructions:
    """The instructions of one HLO text, by name.

    Args:
        only: the one node of a program of one op.
        moved: `moved_by` of its ops.
    """

    def __init__(self, hlo: str, *, only: int = -1, moved: Mapping[int, int] | None = None) -> None:
        self._only = only
        self._moved = moved or {}
        self._products: set[int] = set()  # nodes that are in the text under their moves' scopes
        self._hlo = hlo
        heads = list(_COMPUTATION.finditer(hlo))
        ends = [*(head.start() for head in heads[1:]), len(hlo)]
        self._bodies = {m[2]: (m.end(), end) for m, end in zip(heads, ends, strict=False)}
        self._by_name: dict[str, _Instruction] = {}
        self._users: dict[str, list[str]] = defaultdict(list)
        self._inside: dict[str, frozenset[int]] = {}  # computation -> nodes
        self._found: dict[str, tuple[int, ...]] = {}
        self._unread = self._order(next((head[2] for head in heads if head[1]), ""))

    def root(self, name: str) -> int:
        """The node that an instruction is named after; the first of its members if it has none.

        The product, if it computes one and is named after a move of the result.
        """
        made = None if self._only >= 0 else self._instruction(name)
        members = self.members(name)
        if made is not None and made.own >= 0:
            product = self._moved.get(made.own)
            return product if product in self._products.intersection(members) else made.own
        return members[0] if members else -1

    def members(self, name: str) -> tuple[int, ...]:
        """All nodes that an instruction computes, in order; () if it is not known."""
        if self._only >= 0:
            return (self._only,)
        if name not in self._found:
            nodes = self._nodes(name)
            self._found[name] = tuple(sorted(nodes or self._needed_by(name)))
        return self._found[name]

    def _order(self, entry: str) -> Iterator[str]:
        """Computations as kernels are likely to be in them: the entry, what it runs, the rest."""
        if entry not in self._bodies:
            return
        seen, waiting = {entry}, [entry]
        while waiting:
            computation = waiting.pop(0)
            yield computation
            begin, end = self._bodies[computation]
            for line in self._hlo[begin:end].splitlines():
                if any(word in line for word in _RUNS_OTHERS):
                    waiting += [c for c in _called(line) if c in self._bodies and c not in seen]
                    seen.update(waiting)
        yield from [c for c in self._bodies if c not in seen]

    def _instruction(self, name: str) -> _Instruction | None:
        while name not in self._by_name:
            computation = next(self._unread, None)
            if computation is None:
                return None
            begin, end = self._bodies[computation]
            for found in _INSTRUCTION.finditer(self._hlo, begin, end):
                made, rest = found.groups()
                scope = (
                    _SCOPE.search(rest, rest.find("metadata={")) if "metadata={" in rest else None
                )
                instruction = _Instruction(rest, int(scope.group(1)) if scope else -1)
                self._by_name[made] = instruction
                for operand in instruction.operands:
                    self._users[operand].append(made)
        return self._by_name[name]

    def _nodes(self, name: str) -> set[int]:
        made = self._instruction(name)
        if made is None:
            return set()
        nodes = self._with_products({made.own} if made.own >= 0 else set(), made.text)
        return nodes.union(*(self._nodes_in(called) for called in made.calls))

    def _with_products(self, nodes: set[int], text: str) -> set[int]:
        """With the products in a text that have the scopes of their results' moves."""
        if self._moved.keys().isdisjoint(nodes):
            return nodes
        named = map(int, _PRODUCT.findall(text))
        found = {self._moved[node] for node in named if node in self._moved}
        self._products |= found
        return nodes | found

    def _nodes_in(self, computation: str) -> frozenset[int]:
        if computation not in self._inside:
            self._inside[computation] = frozenset()  # HLO has no recursion; a forged text may
            begin, end = self._bodies.get(computation, (0, 0))
            body = self._hlo[begin:end]
            nodes = self._with_products(set(map(int, _SCOPE.findall(body))), body)
            found = nodes.union(*(self._nodes_in(called) for called in set(_called(body))))
            self._inside[computation] = frozenset(found)
        return self._inside[computation]

    def _needed_by(self, name: str) -> set[int]:
        """The nodes of the nearest instructions that use it, or else of those that it uses."""
        for neighbours in (lambda n: self._users.get(n, ()), self._operands):
            reached, edge = {name}, [name]
            while edge:
                edge = list(dict.fromkeys(x for n in edge for x in neighbours(n)))
                edge = [x for x in edge if x not in reached]
                reached.update(edge)
                nodes = {node for n in edge for node in self._nodes(n)}
                if nodes:
                    return nodes
        return set()

    def _operands(self, name: str) -> list[str]:
        made = self._by_name.get(name)
        return [] if made is None else made.operands


def _called(text: str) -> list[str]:
    return [c.strip().lstrip("%") for found in _CALLED.findall(text) for c in found.split(",")]
