"""Slices whose place moves: `x[i]`, `x[i:i+n]`, their gradients, and writes there.

The place of a slice is a constant of its program: that is the fastest program, and most slices stay
where they are. Where programs differ in nothing but such places, and `PATIENCE` of them have been
compiled, one more is compiled that takes the places as inputs; it does for all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kit.runtime.recording.bulk import Op
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules

__all__ = ["MOVED", "PATIENCE", "Nodes", "Place", "Places"]

PATIENCE = 3  # programs that differ in places only, before one takes these as inputs

Nodes = Sequence[tuple[Op, tuple[int, ...]]]

_PLACE = Scalar("int64")
_VIEWS = ("aten.select.int", "aten.slice.Tensor")
_BACKWARD = {
    "aten.select_backward.default": "aten.select.int",
    "aten.slice_backward.default": "aten.slice.Tensor",
}
MOVED = frozenset({"kit.part_at", "kit.write_at", "kit.part_at_backward"})


@dataclass(frozen=True)
class Place:
    """Where a slice is, and the op that takes this as an input."""

    start: int
    op: Op

    @property
    def key(self) -> Any:
        """The same for all places of such a slice."""
        return self.op.name, repr(self.op.template), self.op.avals, self.op.outputs


class Places:
    """The places of slices in one session's programs, and how many programs differ in them only."""

    def __init__(self, rules: Rules) -> None:
        self._known: dict[int, Place | None] = {}  # by the op's id
        self._programs = Counter[int]()  # by the hash of what they share
        names = (*_VIEWS, *_BACKWARD, "kit.write_view")
        self._is_usual = all(rules.find(n) is DEFAULT_RULES.find(n) for n in (*names, *MOVED))

    def of(self, op: Op) -> Place | None:
        """The place of a slice; None of any other op, and where the user has rules for slices."""
        if op.id not in self._known:
            self._known[op.id] = _place_of(op) if self._is_usual else None
        return self._known[op.id]

    def key(self, nodes: Nodes) -> Any:
        """What programs share that differ in places only; None if there is no slice."""
        places = [self.of(op) for op, _ in nodes]
        if not any(places):
            return None
        pairs = zip(nodes, places, strict=True)
        return tuple((op.id if p is None else p.key, refs) for (op, refs), p in pairs)

    def move(self, key: Any) -> bool:
        """One more program of this key is wanted: shall it take the places as inputs?"""
        self._programs[hash(key)] += 1
        return self._programs[hash(key)] > PATIENCE

    def moved(self, nodes: Nodes) -> Nodes:
        """The same with the places as inputs."""
        return [(op if (p := self.of(op)) is None else p.op, refs) for op, refs in nodes]

    def numbers(self, ops: Iterable[Op], scalars: Sequence[float]) -> list[float]:
        """The numbers that `moved` takes, in the order of the ops."""
        given, taken = iter(scalars), list[float]()
        for op in ops:
            taken += [next(given) for _ in range(op.scalars)]
            if (place := self.of(op)) is not None:
                taken.append(place.start)
        return taken


def _place_of(op: Op) -> Place | None:
    args, kwargs = op.template
    if op.name in _VIEWS and not kwargs:
        return _at(op, "kit.part_at", (HOLE,), op.name, args[1:], op.avals[0].shape)
    if op.name in _BACKWARD and not kwargs:
        name, sizes = _BACKWARD[op.name], tuple(args[1])
        return _at(op, "kit.part_at_backward", (HOLE,), name, args[2:], sizes, sizes=sizes)
    if op.name == "kit.write_view" and kwargs["view"] in _VIEWS and not kwargs["kwargs"]:
        shape = op.avals[0].shape
        return _at(op, "kit.write_at", (HOLE, HOLE), kwargs["view"], kwargs["args"], shape)
    return None


def _at(
    op: Op, name: str, tensors: tuple[Any, ...], view: str, where: Sequence[Any],
    shape: Sequence[int], **more: Any,
) -> Place | None:  # fmt: skip
    """The op `name` at the place that a view's arguments, those after its tensor, say."""
    if not shape or not all(x is None or isinstance(x, int) for x in where):
        return None
    dim = (where[0] if where else 0) % len(shape)
    drops = view == "aten.select.int"
    if drops:
        start, length, step = where[1] % shape[dim], 1, 1
    else:
        given: list[int | None] = [None, None, 1]  # start, end, step
        given[: len(where[1:])] = where[1:]
        places = range(*slice(*given).indices(shape[dim]))
        start, length, step = places.start, len(places), places.step
    if not length:
        return None
    static = {"dim": dim, "length": length, "step": step, "drops": drops, **more}
    template = ((*tensors, _PLACE), static)
    return Place(start, Op(-1, name, template, op.avals, op.outputs, 1, op.is_view, op.writes))
