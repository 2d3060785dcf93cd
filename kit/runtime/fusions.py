"""Which nodes a kernel computes: read from the text of a compiled program.

Each node was lowered in a scope of its own, "n12", which XLA keeps in the `op_name` of what became
of it. An instruction that calls computations (a fusion, a loop, a call) has the nodes of all that
is in them. What XLA put in by itself, such as a copy to another layout, has none: it is charged to
what needed it, the instruction that uses its result, or else to what it was made from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

__all__ = ["Instructions"]

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_SCOPE = re.compile(r"/n(\d+)(?=[/\"])")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations)=\{?([^,}\s]+(?:, %[\w.\-]+)*)"
)
_NAME = re.compile(r"%([\w.\-]+)")


@dataclass(eq=False)
class _Instruction:
    own: int  # the node in its own metadata, -1 if none
    calls: list[str] = field(default_factory=list)
    operands: list[str] = field(default_factory=list)


class Instructions:
    """The instructions of one HLO text, by name; `only`: the one node of a program of one op."""

    def __init__(self, hlo: str, *, only: int = -1) -> None:
        self._only = only
        self._by_name: dict[str, _Instruction] = {}
        self._inside: dict[str, list[str]] = defaultdict(list)  # computation -> its instructions
        self._users: dict[str, list[str]] = defaultdict(list)
        self._found: dict[str, tuple[int, ...]] = {}
        self._read(hlo)

    def root(self, name: str) -> int:
        """The node that an instruction is named after; the first of its members if it has none."""
        own = self._by_name[name].own if name in self._by_name and self._only < 0 else -1
        members = self.members(name) if own < 0 else ()
        return members[0] if members else own

    def members(self, name: str) -> tuple[int, ...]:
        """All nodes that an instruction computes, in order; () if it is not known."""
        if self._only >= 0:
            return (self._only,)
        if name not in self._found:
            nodes = self._nodes(name, set())
            self._found[name] = tuple(sorted(nodes or self._needed_by(name)))
        return self._found[name]

    def _read(self, hlo: str) -> None:
        computation = ""
        for line in hlo.splitlines():
            if header := _COMPUTATION.match(line):
                computation = header.group(1)
            elif found := _INSTRUCTION.match(line):
                _, name, rest = found.groups()
                body, _, metadata = rest.partition("metadata={")
                scope = _SCOPE.search(metadata)
                made = _Instruction(int(scope.group(1)) if scope else -1)
                for called in _CALLED.findall(body):
                    made.calls += [c.strip().lstrip("%") for c in called.split(",")]
                arguments = body.partition("(")[2].partition("), ")[0]
                made.operands = _NAME.findall(arguments)
                for operand in made.operands:
                    self._users[operand].append(name)
                self._by_name[name] = made
                self._inside[computation].append(name)

    def _nodes(self, name: str, seen: set[str]) -> set[int]:
        made = self._by_name.get(name)
        if made is None or name in seen:
            return set()
        seen.add(name)
        nodes = {made.own} if made.own >= 0 else set()
        for called in made.calls:
            for inner in self._inside.get(called, ()):
                nodes |= self._nodes(inner, seen)
        return nodes

    def _needed_by(self, name: str) -> set[int]:
        """The nodes of the nearest instructions that use it, or else of those that it uses."""
        for neighbours in (lambda n: self._users.get(n, ()), self._operands):
            reached, edge = {name}, [name]
            while edge:
                edge = list(dict.fromkeys(x for n in edge for x in neighbours(n)))
                edge = [x for x in edge if x not in reached]
                reached.update(edge)
                nodes = {node for n in edge for node in self._nodes(n, set())}
                if nodes:
                    return nodes
        return set()

    def _operands(self, name: str) -> list[str]:
        made = self._by_name.get(name)
        return [] if made is None else made.operands
