"""Where replicas meet on the host: each puts an item, and gets the items of all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kit.errors import SessionError
from kit.runtime.replicas.group import Group

__all__ = ["Rendezvous"]


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
        self._visits = dict.fromkeys(group.ranks, 0)  # in this turn
        self._all_items: dict[int, list[Any]] = {}  # visit -> items by rank, of all processes
        self._items: dict[int, dict[int, Any]] = {}  # visit -> rank -> item
        self._got: dict[int, int] = {}  # visit -> how many replicas here have the items
        self._given_up: dict[int, str] = {}  # visit -> why a replica stopped waiting

    def put(self, rank: int, item: Any) -> int:
        """Leave an item here, and go on; gives the number of the visit, for one `get`."""
        group = self.group
        with group.changed:
            if self._turn != group.turn:
                self._turn, self._items, self._all_items = group.turn, {}, {}
                self._got, self._given_up = {}, {}
                self._visits = dict.fromkeys(group.ranks, 0)
            visit = self._visits[rank]
            self._visits[rank] += 1
            self._items.setdefault(visit, {})[rank] = item
            group.changed.notify_all()
        return visit

    def get(self, rank: int, visit: int) -> list[Any]:
        """The items of this visit, by rank; waits for the replicas that have not come.

        Raises:
            SessionError: one has failed, has ended its part, or does not come in time.
        """
        found = self._everybodys(rank, visit)
        with self.group.changed:
            self._got[visit] = self._got.get(visit, 0) + 1
            if self._got[visit] == self.group.count:  # a turn may be a whole training
                for kept in (self._got, self._items, self._all_items):
                    kept.pop(visit, None)
        return found

    def _everybodys(self, rank: int, visit: int) -> list[Any]:
        group = self.group
        items = self._items[visit]
        self._wait(rank, visit, lambda: [r for r in group.ranks if r not in items])
        mine = [items[r] for r in group.ranks]
        if self._processes is None:
            return mine
        first, turn = group.ranks.start, self._turn
        if rank == first:  # one replica asks the other processes, for all of this process
            what = f"{self.name} of replica {rank}"
            with group.turns.while_waiting():
                everywhere = self._processes.channel.meet(
                    what, mine, key=f"{self._key}, {turn}, {visit}"
                )
            with group.changed:
                self._all_items[visit] = [item for part in everywhere for item in part]
                group.changed.notify_all()
        self._wait(rank, visit, lambda: [first] if visit not in self._all_items else [])
        return self._all_items[visit]

    def _wait(self, rank: int, visit: int, lacking: Callable[[], list[int]]) -> None:
        """Until none is lacking. If one gives up all do, later ones too: else they part."""
        group = self.group
        until = time.monotonic() + group.timeout_s
        with group.turns.while_waiting(), group.changed:
            while (missing := lacking()) or visit in self._given_up:
                left = until - time.monotonic()
                error = group.lacking(missing, f"replica {rank} at {self.name}")
                if visit in self._given_up:
                    error = error or SessionError(self._given_up[visit])
                elif error is None and left <= 0:
                    error = group.late(missing, f"replica {rank} waited at {self.name}")
                if error is not None:
                    self._given_up[visit] = self._given_up.get(visit, str(error))
                    group.changed.notify_all()
                    raise error
                group.changed.wait(left)
