"""Where replicas meet on the host: each puts an item, and gets the items of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kit.errors import SessionError
from kit.runtime.replicas.group import Group

__all__ = ["Rendezvous"]


@dataclass(slots=True)
class _Visit:
    """One visit of every replica."""

    items: dict[int, Any] = field(default_factory=dict)  # by rank, of this process
    everywhere: list[Any] = field(default_factory=list)  # in the order of ranks; empty until known
    got: int = 0  # how many replicas here have the items
    given_up: str = ""  # why a replica stopped waiting


class Rendezvous:
    """A place where each replica of a group puts one item and gets the items of all.

    The n-th visit of one replica is the n-th visit of all, in each turn. The items are in the order
    of the ranks, in whatever order the replicas came.

    Args:
        is_local: only the replicas of this process meet. Otherwise, and with other processes, an
            item is made of numbers, texts, lists and dicts.
    """

    def __init__(self, group: Group, name: str = "the barrier", *, is_local: bool = False) -> None:
        self.group = group
        self.name = name
        self._processes = None if is_local else group.processes
        self._key = f"meeting {group.rendezvous}"
        group.rendezvous += 1  # each process makes them in the same order
        self._turn = -1
        self._counts = dict.fromkeys(group.ranks, 0)  # of the visits of each replica in this turn
        self._visits: dict[int, _Visit] = {}  # that are not over, by their numbers

    def put(self, rank: int, item: Any) -> int:
        """Leave an item here, and go on; gives the number of the visit, for one `get`."""
        group = self.group
        with group.changed:
            if self._turn != group.turn:
                self._turn, self._visits = group.turn, {}
                self._counts = dict.fromkeys(group.ranks, 0)
            number = self._counts[rank]
            self._counts[rank] += 1
            self._visits.setdefault(number, _Visit()).items[rank] = item
            group.changed.notify_all()
        return number

    def get(self, rank: int, number: int) -> list[Any]:
        """The items of this visit, by rank; waits for the replicas that have not come.

        Raises:
            SessionError: one has failed, has ended its part, or does not come in time.
        """
        visit = self._visits[number]
        found = self._everybodys(rank, number, visit)
        with self.group.changed:
            visit.got += 1
            if visit.got == self.group.count:  # a turn may be a whole training
                self._visits.pop(number, None)
        return found

    def _everybodys(self, rank: int, number: int, visit: _Visit) -> list[Any]:
        group = self.group
        self._wait(rank, visit, lambda: [r for r in group.ranks if r not in visit.items])
        mine = [visit.items[r] for r in group.ranks]
        if self._processes is None:
            return mine
        first, turn = group.ranks.start, self._turn
        if rank == first:  # one replica asks the other processes, for all of this process
            what = f"{self.name} of replica {rank}"
            with group.turns.while_waiting():
                everywhere = self._processes.channel.meet(
                    what, mine, key=f"{self._key}, {turn}, {number}"
                )
            with group.changed:
                visit.everywhere = [item for part in everywhere for item in part]
                group.changed.notify_all()
        self._wait(rank, visit, lambda: [] if visit.everywhere else [first])
        return visit.everywhere

    def _wait(self, rank: int, visit: _Visit, lacking: Callable[[], list[int]]) -> None:
        """Until none is lacking. If one gives up all do, later ones too: else they part."""
        group = self.group
        until = time.monotonic() + group.timeout_s
        with group.turns.while_waiting(), group.changed:
            while (missing := lacking()) or visit.given_up:
                left = until - time.monotonic()
                error = group.lacking(missing, f"replica {rank} at {self.name}")
                if visit.given_up:
                    error = error or SessionError(visit.given_up)
                elif error is None and left <= 0:
                    error = group.late(missing, f"replica {rank} waited at {self.name}")
                if error is not None:
                    visit.given_up = visit.given_up or str(error)
                    group.changed.notify_all()
                    raise error
                group.changed.wait(left)
