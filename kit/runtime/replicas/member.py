"""A replica as collectives see it: what it sends, and the tasks that its results arrive in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from kit.errors import note
from kit.runtime.engine.operations import Operation
from kit.runtime.recording.bulk import NOWHERE, Bulk, Cell, Cut, Frame, Op, Origin, Task, Value
from kit.runtime.session.issuer import Issuer
from kit.runtime.session.streams import ThreadStreams
from kit.runtime.steps.stepper import Stepper

__all__ = ["Member", "Place", "note_replica"]

Place = tuple[str, Frame]  # the phase, and where in the program


class Member:
    """One replica's part in the collectives of its group.

    Args:
        issuer, stepper, streams: of the replica's session.
    """

    def __init__(self, issuer: Issuer, stepper: Stepper, streams: ThreadStreams) -> None:
        self._issuer = issuer
        self._stepper = stepper
        self._streams = streams

    @property
    def ops_recorded(self) -> int:
        """Ops that this replica's thread has recorded since it began, without views."""
        bulk = self._streams.main.bulk
        return self._streams.ops_cut + (0 if bulk is None else bulk.size)

    def note_shared(self) -> None:
        """Count one collective that was posted."""
        self._issuer.counts["reduction.count"] += 1

    def place_now(self, name: str) -> Place:
        """Where the program is, if a trace or a replay of this step may show the place.

        Args:
            name: stands for the module, outside of one.
        """
        stream = self._streams.current
        phase, place = stream.phase or "backward", stream.place
        if place is None or not (
            self._issuer.executor.is_tracing or self._stepper.mode == "replay"
        ):
            return phase, (NOWHERE, "", "")
        site, via, scope = place.sync_frame()
        return phase, (site, via, scope or name)

    def arrival(
        self,
        key: tuple[Any, ...],
        leaves: Sequence[Cell],
        op: Op,
        place: Place,
        again: Callable[[list[Cell]], Any],
    ) -> tuple[Task, list[Cell]]:
        """A task that computes nothing here, and the cells that the results of `op` will fill.

        Args:
            key: the same in each step that sends the same.
            leaves: the arrays that are sent.
            again: does the same in another step, with the arrays of that step.
        """
        phase, frame = place
        bulk = Bulk(self._streams.current.flush, phase, phase, 0)
        bulk.ops, bulk.frames = [op], [frame]
        bulk.key = [op.id, *(-1 - i for i in range(len(leaves)))]
        wanted = tuple(range(len(op.outputs)))
        cut = Cut(bulk, wanted, "reduction", key, op.avals)
        task = Task(self._issuer.next_segment(), cut, again=again)
        cells = [Cell(task, i) for i in wanted]
        task.outputs = [ref(cell) for cell in cells]
        if self._issuer.executor.is_tracing:
            task.seen.origins = tuple(map(Origin, leaves))
            self._issuer.spans.arrive(task)
        return task, cells

    def note_arrival(self, task: Task, leaves: list[Cell], made: Sequence[Value]) -> None:
        """The step has sent these `leaves`, and gets the values that are `made` from them."""
        task.leaves = leaves
        self._stepper.note_cut(task, made)
        task.leaves = []  # a task that is kept shall keep no arrays

    def send(self, cells: Sequence[Cell | None], deliver: Callable[[], None]) -> None:
        """Call `deliver` in the worker as soon as these cells have their arrays."""
        made = [c.task.variable for c in cells if c is not None and c.task is not None]
        reads = tuple(dict.fromkeys(made))
        self._issuer.executor.engine.push(deliver, reads, name="send", is_urgent=True)

    def expect(self, task: Task, fill: Callable[[], None]) -> None:
        """Hold `task` until `received`; then call `fill` in the worker."""
        engine = self._issuer.executor.engine
        task.operation = engine.push(
            fill, (), (task.variable,), name="receive", is_urgent=True, is_held=True
        )

    def received(self, operation: Operation) -> None:
        """What `expect` waited for is there."""
        self._issuer.executor.engine.release(operation)


def note_replica(error: BaseException, rank: int, where: str = "") -> None:
    """Say once in which replica an error was, and `where` if that is known by now.

    Every reader gets the same object.
    """
    said = f"kit: this was in replica {rank}"
    notes: list[str] = getattr(error, "__notes__", [])
    if where and said in notes:
        notes[notes.index(said)] += where
    elif not any(n.startswith("kit: this was in replica") for n in notes):
        note(error, said + where)
