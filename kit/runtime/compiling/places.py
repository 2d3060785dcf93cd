"""Slices whose place moves: `x[i]`, `x[i:i+n]`, their gradients, and writes there.

The place of a slice is a constant of its program: that is the fastest program, and most slices stay
where they are. Where programs differ in nothing but such places, and `PATIENCE` of them have been
compiled, one more is compiled that takes as inputs the places that have differed so far. It does
for all other places of those slices; the slices that stayed keep theirs as constants.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, count
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

from kit.runtime.recording.bulk import Op
from kit.runtime.recording.template import HOLE, Scalar
from kit.runtime.rules.default import DEFAULT_RULES
from kit.runtime.rules.table import Rules

__all__ = ["MOVED", "PATIENCE", "Moved", "Place", "Places"]

MAX_FAMILIES = 2048  # then the one that was used least recently makes room
MAX_KNOWN = 100_000  # ops of which it is known whether they are slices; then all are asked again
PATIENCE = 3  # programs that differ in places only, before one takes places as inputs

_PLACE = Scalar("int64")
_VIEWS = ("aten.select.int", "aten.slice.Tensor")
_BACKWARD = {
    "aten.select_backward.default": "aten.select.int",
    "aten.slice_backward.default": "aten.slice.Tensor",
}
MOVED = frozenset({"kit.part_at", "kit.write_at", "kit.part_at_backward"})
_ID, _AVALS, _SCALARS = attrgetter("id"), attrgetter("avals"), attrgetter("scalars")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a slice is, and the op that takes this as an input: one for all places of its kind."""

    start: int
    op: Op  # its id is below 0, so no recorded op has it


@dataclass(frozen=True, slots=True)
class Moved:
    """A program that takes the places of some slices as inputs, for all that they may be.

    Attributes:
        key: of the program, as of one whose places are constants.
        ops: instead of the recorded ones, by their position in the segment.
        places: for each of them its position, and how many numbers of the segment come before.
    """

    key: tuple[Hashable, ...]
    ops: Mapping[int, Op]
    places: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Family:
    """Programs that differ in nothing but where their slices are.

    Attributes:
        starts: of the slices of the first program.
        seen: the first few of such lists of starts; a program each.
        moving: the slices that have been elsewhere, too, by their number among the slices.
        made: the program that takes those places as inputs, and how often that was another one.
    """

    starts: tuple[int, ...]
    seen: set[tuple[int, ...]] = field(default_factory=set)
    moving: set[int] = field(default_factory=set)
    made: Moved | None = None
    times: int = 0

    def note(self, starts: tuple[int, ...]) -> bool:
        """One more program is wanted: shall it take places as inputs?"""
        if len(self.seen) <= PATIENCE:
            self.seen.add(starts)
        pairs = zip(self.starts, starts, strict=True)
        moving = {i for i, (first, now) in enumerate(pairs) if first != now}
        if not moving <= self.moving:
            # Each slice that begins to move late costs a program; a few such, then no more.
            self.moving |= moving if self.times < PATIENCE else set(range(len(starts)))
            self.made = None
        return len(self.seen) > PATIENCE


class Places:
    """The places of slices in the programs of one cache, and which programs differ in them only.

    Args:
        rules: of those programs.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._known: dict[int, Place | None] = {}  # by the op's id
        self._kinds: WeakValueDictionary[Hashable, Op] = WeakValueDictionary()
        self._ids = count(-1, -1)
        self._families: OrderedDict[Hashable, _Family] = OrderedDict()  # last used last
        names = (*_VIEWS, *_BACKWARD, "kit.write_view")
        self._is_usual = all(rules.find(n) is DEFAULT_RULES.find(n) for n in (*names, *MOVED))

    def moved(
        self, ops: Sequence[Op], key: Sequence[int], rest: tuple[Hashable, ...]
    ) -> Moved | None:
        """The program of these ops that takes places as inputs, if there shall be one.

        None where no slice has moved, or not often enough, or the user has rules for slices.

        Args:
            key: of each op its id, and where its inputs come from.
            rest: what else their program depends on.
        """
        at = self._slices(ops) if self._is_usual else []
        if not at:
            return None
        places = [p for i in at if (p := self._known[ops[i].id]) is not None]
        inputs = list(accumulate(map(len, map(_AVALS, ops)), initial=0))
        ids = [i + inputs[i] for i in at]  # where the slices' ids are in the key
        shared = _with(key, ids, places)
        starts = tuple(place.start for place in places)
        family = self._families.setdefault((shared, rest), _Family(starts))
        self._families.move_to_end((shared, rest))
        if len(self._families) > MAX_FAMILIES:
            self._families.popitem(last=False)
        if not family.note(starts):
            return None
        if family.made is None:
            chosen = sorted(family.moving)
            before = list(accumulate(map(_SCALARS, ops), initial=0))
            family.made = Moved(
                (_with(key, [ids[k] for k in chosen], [places[k] for k in chosen]), *rest),
                {at[k]: places[k].op for k in chosen},
                tuple((at[k], before[at[k]]) for k in chosen),
            )
            family.times += 1
        return family.made

    def numbers(
        self, places: Sequence[tuple[int, int]], ops: Sequence[Op], scalars: Sequence[float]
    ) -> list[float]:
        """The numbers that a program with `Moved.places` takes."""
        numbers = list(scalars)
        for i, (at, before) in enumerate(places):
            place = self._known.get(ops[at].id) or self._place_of(ops[at])
            assert place is not None, "the program was made for slices at these positions"
            numbers.insert(before + i, place.start)
        return numbers

    def _slices(self, ops: Sequence[Op]) -> list[int]:
        """Which of the ops are slices that can move.

        No Python runs for each op: this is asked at each step in which a slice has moved.
        """
        ids = list(map(_ID, ops))
        if new := set(ids).difference(self._known):
            if len(self._known) > MAX_KNOWN:
                self._known, new = {}, set(ids)
            by_id = dict(zip(ids, ops, strict=True))
            self._known |= {i: self._place_of(by_id[i]) for i in new}
        return list(compress(range(len(ids)), map(self._known.get, ids)))

    def _place_of(self, op: Op) -> Place | None:
        """The place of a slice; None of any other op."""
        args, kwargs = op.template
        if op.name in _VIEWS and not kwargs:
            found = _at(op.name, args[1:], op.avals[0].shape)
            name, more = "kit.part_at", {}
        elif op.name in _BACKWARD and not kwargs:
            sizes = tuple(args[1])
            found = _at(_BACKWARD[op.name], args[2:], sizes)
            name, more = "kit.part_at_backward", {"sizes": sizes}
        elif op.name == "kit.write_view" and kwargs["view"] in _VIEWS and not kwargs["kwargs"]:
            found = _at(kwargs["view"], kwargs["args"], op.avals[0].shape)
            name, more = "kit.write_at", {}
        else:
            return None
        if found is None:
            return None
        start, static = found
        template = ((*[HOLE] * len(op.avals), _PLACE), static | more)
        key = (op.name, repr(template), op.avals, op.outputs)
        kind = self._kinds.get(key)
        if kind is None:
            kind = Op(
                next(self._ids), name, template, op.avals, op.outputs, 1, op.is_view, op.writes
            )
            self._kinds[key] = kind
        return Place(start, kind)


def _with(key: Sequence[int], at: Sequence[int], places: Sequence[Place]) -> tuple[int, ...]:
    """The key with these slices by their kind instead of their id, which says where they are."""
    made = list(key)
    for i, place in zip(at, places, strict=True):
        made[i] = place.op.id
    return tuple(made)


def _at(view: str, where: Sequence[Any], shape: Sequence[int]) -> tuple[int, dict[str, Any]] | None:
    """Where a view's arguments, those after its tensor, say that it begins, and what is fixed."""
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
    return start, {"dim": dim, "length": length, "step": step, "drops": drops}
