"""Which op of a step that was looked at is which event of a traced one.

Both come in the order of the calls: so each event is the op whose turn it is. What torch does
otherwise while it is looked at is passed over, and where the orders do not meet again, no further
event is found: none is better than a wrong one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Any, TypeVar

from kit.measure.native.lines import SeenNode, SeenOp
from kit.trace.host import ENGINE

__all__ = ["FREE", "match"]

# How many ops are passed over, at most, to meet again; how many must be alike then; and how often
# in a step. A step that does more otherwise may call the same ops on other lines.
_FAR, _ALIKE, _MOST_MEETINGS = 12, 4, 1000
# These compute nothing, and torch calls others of them while it is looked at.
FREE = frozenset(
    f"aten::{name}"
    for name in (
        *("_reshape_alias", "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal"),
        *("empty", "empty_like", "empty_strided", "expand", "lift_fresh", "movedim", "narrow"),
        *("new_empty", "new_empty_strided", "permute", "reshape", "resolve_conj", "resolve_neg"),
        *("select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind"),
        *("unfold", "unsafe_chunk", "unsafe_split", "unsqueeze", "view", "view_as_real"),
    )
)

Named = TypeVar("Named", SeenOp, SeenNode)


def match(events: Sequence[Any], ops: Sequence[Named]) -> tuple[list[tuple[Any, Named]], bool]:
    """The event of each op, and whether both are the same program.

    Args:
        events: of one thread in order of time, each before those inside of it. What an op calls
            has its own events, and so has what calls several ops: `aten::linear` is three.
    """
    names = {op.name for op in ops}
    events = [e for e in events if _name(e) in names]
    meet, pairs, meetings = _Order(events, ops), [], 0
    i = j = 0
    while True:
        i, j, is_pair = meet.next(i, j)
        if is_pair:
            pairs.append((events[j], ops[i]))
            i, j = i + 1, meet.behind(j)
        elif meet.is_end(i, j) or meetings == _MOST_MEETINGS or (there := meet.again(i, j)) is None:
            break
        else:
            meetings += 1
            i, j = there
    return pairs, not meetings and meet.is_end(i, j) and meet.is_rest_free(i, j)


class _Order:
    """Events and ops side by side, by their places."""

    def __init__(self, events: Sequence[Any], ops: Sequence[Named]) -> None:
        self._events = [_name(e) for e in events]
        self._starts = [e.time_range.start for e in events]
        self._ends = [e.time_range.end for e in events]
        self._ops = [op.name for op in ops]

    def next(self, i: int, j: int) -> tuple[int, int, bool]:
        """The next op and event that are alike, or the next that should be and are not."""
        while not self.is_end(i, j):
            op, event = self._ops[i], self._events[j]
            if op == event:
                return i, j, True
            if op in FREE:
                i += 1
            elif event in FREE or self._calls_its_name(j, op):
                j += 1
            else:
                break
        return i, j, False

    def _calls_its_name(self, j: int, first: str) -> bool:
        """Does this event call an op of its own name, after this one?

        `torch.where(mask, x, 0.0)` is such a composite: it makes a tensor of its number first.
        """
        inside = self._events[j + 1 : self.behind(j)]
        computes = (name for name in inside if name not in FREE)
        return next(computes, "") == first and self._events[j] in inside

    def behind(self, j: int) -> int:
        """The next event that is not inside of this one."""
        return bisect_left(self._starts, self._ends[j], j + 1)

    def is_end(self, i: int, j: int) -> bool:
        """Is there no further op, or no further event?"""
        return i >= len(self._ops) or j >= len(self._events)

    def is_rest_free(self, i: int, j: int) -> bool:
        """Does nothing further compute?"""
        return all(name in FREE for name in (*self._ops[i:], *self._events[j:]))

    def again(self, i: int, j: int) -> tuple[int, int] | None:
        """The nearest places from which several are alike; None if they are too far."""
        ops, events = _working(self._ops, i), _working(self._events, j)
        for far in range(1, _FAR + 1):
            for k in range(far + 1):
                if far - k < len(ops) and k < len(events):
                    there = ops[far - k], events[k]
                    if self._are_alike(*there):
                        return there
        return None

    def _are_alike(self, i: int, j: int) -> bool:
        if self._ops[i] != self._events[j]:
            return False
        for _ in range(_ALIKE):
            i, j, is_pair = self.next(i, j)
            if not is_pair:
                return self.is_end(i, j)
            i, j = i + 1, self.behind(j)
        return True


def _working(names: Sequence[str], at: int) -> list[int]:
    """The places of the next ones that compute something."""
    return [*islice((k for k in range(at, len(names)) if names[k] not in FREE), _FAR + 1)]


def _name(event: Any) -> str:
    """As an op's, or as that of a function of autograd."""
    return str(event.name).removeprefix(f"{ENGINE}: ")
