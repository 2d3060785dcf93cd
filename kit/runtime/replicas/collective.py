"""One combination of arrays, and what each replica contributes to it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kit.ir import Aval
from kit.runtime.recording.bulk import Op, Task
from kit.runtime.replicas.arrays import Shapes
from kit.runtime.replicas.member import Place

__all__ = ["Collective", "Contribution"]

_OPS = {"sum": "kit.all_reduce", "all": "kit.all_gather"}


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one replica gives to a collective; the same in every replayed step."""

    rank: int
    key: str
    shapes: Shapes
    avals: tuple[Aval, ...]  # of the results
    combine: str
    priority: int
    name: str
    place: Place
    note: Mapping[str, Any]

    @property
    def op(self) -> Op:
        """The op that a graph shows for it."""
        given = tuple(aval for aval in self.shapes if aval is not None)
        return Op(-1, _OPS[self.combine], ((), {"name": self.name}), given, self.avals, 0)


class Collective:
    """One combination of arrays on its way."""

    def __init__(self, key: str, first: Contribution, count: int) -> None:
        self.key, self.name = key, first.name
        self.combine, self.priority, self.avals = first.combine, first.priority, first.avals
        self.since = time.monotonic()
        self.contributions: dict[int, Contribution] = {}
        self.arrivals: list[Task | None] = [None] * count
        self.inputs: list[Any] = [None] * count
        self.arrived = 0
        self.came_ns = 0  # when the last arrays of this process had been computed
        self.there: list[bool] = []  # for each position, whether any process has something there
        self.outputs: list[Any] = [None] * count
        self.error: BaseException | None = None
        self.is_over = False

    def fill(self, place: int, task: Task) -> None:
        """In a replica's worker: the results have come; or why they will not."""
        outputs, error = self.outputs[place], self.error
        for i, output in enumerate(task.outputs):
            if (cell := output()) is not None:
                if error is not None:
                    cell.error = error
                else:
                    cell.array = outputs[i]
        self.outputs[place] = None
