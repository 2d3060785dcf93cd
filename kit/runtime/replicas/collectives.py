"""Arrays from every replica, combined, to every replica: without the host waiting for any of it.

A replica posts what it has, perhaps not computed yet, and gets empty cells at once. When the
segments that make it have run on every device, a thread of the exchange combines the arrays in the
order of the ranks and fills the cells; what reads them waits in its own engine, and keeps no worker
busy meanwhile. Of several parcels that are ready, the one of the highest priority goes first.

With other processes, what this one's replicas have is combined here first, then between the
processes, in the order that process 0 announces: its own, of readiness and priority. Processes that
entered their collectives in different orders would add up the wrong things, or never end.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kit.errors import SessionError
from kit.ir import Aval
from kit.runs.gradients import Link
from kit.runtime.processes.join import Processes
from kit.runtime.recording.bulk import Cell, Op, Task, Value, pending
from kit.runtime.replicas.arrays import Shapes, add_up, fit, in_words, moved, readable_on
from kit.runtime.replicas.group import Group, parted, replicas
from kit.runtime.replicas.session import Place, ReplicaSession, note_replica, note_turn
from kit.trace import Span

__all__ = ["Exchange"]

_NO_NOTE: Mapping[str, Any] = {}
_OPS = {"sum": "kit.all_reduce", "all": "kit.all_gather"}


@dataclass(frozen=True, slots=True)
class _Post:
    """What a replica gives to a parcel; the same in every replayed step."""

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
        """What it does, as a graph shows it."""
        given = tuple(aval for aval in self.shapes if aval is not None)
        return Op(-1, _OPS[self.combine], ((), {"name": self.name}), given, self.avals, 0)


class _Parcel:
    """One combination on its way."""

    __slots__ = (
        "arrivals",
        "arrived",
        "avals",
        "combine",
        "error",
        "inputs",
        "is_over",
        "key",
        "name",
        "outputs",
        "posted",
        "priority",
        "since",
        "there",
    )  # fmt: skip

    def __init__(self, key: str, first: _Post, count: int) -> None:
        self.key, self.name = key, first.name
        self.combine, self.priority, self.avals = first.combine, first.priority, first.avals
        self.since = time.monotonic()
        self.posted: dict[int, _Post] = {}
        self.arrivals: list[Task | None] = [None] * count
        self.inputs: list[Any] = [None] * count
        self.arrived = 0
        self.there: list[bool] = []  # for each position, whether any process has something there
        self.outputs: list[Any] = [None] * count
        self.error: BaseException | None = None
        self.is_over = False


class Exchange:
    """Where the replicas of a group combine arrays.

    Args:
        link: a connection to imitate: a parcel takes at least as long as it would there.
    """

    def __init__(self, group: Group, devices: Sequence[Any], link: Link | None = None) -> None:
        self.group = group
        self.devices = tuple(devices)
        self.link = link
        self.sessions: list[ReplicaSession] = []  # of this process, once they are open
        self.spans: list[Span] = []
        self.is_tracing = False
        self._open: dict[str, _Parcel] = {}  # posted by some
        self._flying: dict[str, _Parcel] = {}  # posted by all here, to be combined with others
        self._whole: dict[str, _Parcel] = {}  # of them, what is computed and waits for its turn
        self._ready: list[tuple[int, int, _Parcel]] = []
        self._number = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        group.on_change.append(self._look)
        group.turns.progress = lambda: sum(s.ops_recorded for s in self.sessions)
        group.turns.switched = note_turn
        if group.processes is not None:
            group.processes.channel.on_beat.append(self._late)

    def post(
        self, rank: int, key: Any, given: Sequence[Value | None], avals: Sequence[Aval], *,
        combine: str = "sum", priority: int = 0, name: str = "reduction",
        note: Mapping[str, Any] = _NO_NOTE,
    ) -> tuple[list[Value], _Parcel]:  # fmt: skip
        """Give this rank's values to parcel `key`; gives those that there will be.

        The segments that make them have been cut. "sum" gives the sum of each position over the
        ranks that have something there, "all" every array of every rank.

        Args:
            avals: of the results; for a sum also of positions where this rank has nothing.
            note: numbers that must be those of all others, by name; none in a replayed step.

        Raises:
            SessionError: another replica cannot come any more, or has brought other shapes or
                another note.
        """
        shapes = tuple(None if value is None else value.aval for value in given)
        leaves = [value.cell for value in given if value is not None and value.cell is not None]
        session = self.sessions[self.group.place(rank)]
        what = _Post(
            rank,
            str(key),
            shapes,
            tuple(avals),
            combine,
            priority,
            name,
            session.place_now(name),
            note,
        )
        parcel, task, cells = self._begin(leaves, what)
        made = [pending(cell, aval) for cell, aval in zip(cells, avals, strict=True)]
        session.note_arrival(task, leaves, made)
        return made, parcel

    def _begin(self, leaves: Sequence[Cell], what: _Post) -> tuple[_Parcel, Task, list[Cell]]:
        """Send these cells; gives the task that the results come from, and their cells."""
        rank, shapes = what.rank, what.shapes
        group, place = self.group, self.group.place(rank)
        session = self.sessions[place]
        rest = iter(leaves)
        cells = [None if shape is None else next(rest) for shape in shapes]
        task, results = session.arrival(
            (what.key, what.combine, shapes), leaves, what.op, what.place,
            lambda leaves: self._begin(leaves, replace(what, note=_NO_NOTE))[1:],
        )  # fmt: skip
        key = str((group.turn, what.key))
        with self._changed:
            parcel = self._open.get(key)
            if parcel is None:
                parcel = self._open[key] = _Parcel(key, what, group.count)
            self._check(parcel, what)
            session.expect(task, partial(_fill, parcel, place, task))
            parcel.posted[rank] = what
            parcel.arrivals[place] = task
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kit exchange", daemon=True)
                self._thread.start()
            if len(parcel.posted) == group.count:
                del self._open[key]  # nobody is missing
                if group.processes is not None:
                    self._flying[key] = parcel
            self._changed.notify_all()
        session.note_shared()
        session.send(cells, partial(self._deliver, parcel, rank, cells))
        return parcel, task, results

    def brought(self, rank: int, parcel: _Parcel) -> list[bool]:
        """For each position of a parcel, whether anybody has something there.

        Waits until all have posted, which is not until all have been computed; for other processes
        also until it is combined.

        Raises:
            SessionError: somebody cannot come any more.
        """
        group = self.group
        with group.turns.lent(), self._changed:
            while parcel.error is None and (
                not parcel.is_over if group.processes else len(parcel.posted) < group.count
            ):
                self._changed.wait(1.0)  # the thread notices who is late
        if parcel.error is not None:
            raise parcel.error
        if group.processes:
            return parcel.there
        every = (post.shapes for post in parcel.posted.values())
        return [any(x is not None for x in column) for column in zip(*every, strict=True)]

    def close(self) -> None:
        """Everything that is still open fails; the thread ends."""
        with self._changed:
            self._is_closed = True
            lost = [*self._open.values(), *self._flying.values()]
            self._fail(lost, SessionError("the DataParallel was closed"))
            self._open.clear()
            self._flying.clear()
            self._changed.notify_all()
        processes = self.group.processes
        patience_s = None
        if processes is not None:
            processes.channel.on_beat.remove(self._late)
            patience_s = 1.0 if processes.channel.failure else 10.0
        if self._thread is not None:  # in a collective that others have left it may stay for good
            self._thread.join(patience_s)

    # -- who is missing --------------------------------------------------------------------------

    def _check(self, parcel: _Parcel, what: _Post) -> None:
        """Refuse what can never be combined; the others learn it too."""
        rank, shapes = what.rank, what.shapes
        missing = [r for r in self.group.ranks if r != rank and r not in parcel.posted]
        error = self.group.lacking(missing, f"{parcel.name} of replica {rank}")
        for other, known in parcel.posted.items():
            if parcel.combine == "sum" and not fit(shapes, known.shapes):
                error = SessionError(
                    f"{parcel.name}: replica {rank} brings {in_words(shapes)}, replica {other} "
                    f"{in_words(known.shapes)}; replicas must do the same work"
                )
            error = error or parted(rank, what.note, other, known.note)
        if error is not None:
            del self._open[parcel.key]
            self._fail([parcel], error)
            raise error

    def _look(self) -> None:
        """Somebody has ended or failed: parcels that lack them will never be whole."""
        with self._changed:
            for key, parcel in list(self._open.items()):
                missing = [r for r in self.group.ranks if r not in parcel.posted]
                what = f"{parcel.name} of {replicas(list(parcel.posted))}"
                if (error := self.group.lacking(missing, what)) is not None:
                    del self._open[key]
                    self._fail([parcel], error)
            processes = self.group.processes
            if processes is not None and (failure := processes.channel.failure):
                for parcel in self._flying.values():
                    why = f"{parcel.name} will not happen: {failure}"
                    self._fail([parcel], SessionError(why))
                self._flying.clear()
            self._changed.notify_all()

    def _late(self) -> float:
        """Fail what is overdue; seconds to the next look."""
        group, now, wait = self.group, time.monotonic(), self.group.timeout_s
        with self._changed:
            for key, parcel in list(self._open.items()):
                left = parcel.since + group.timeout_s - now
                if left <= 0:
                    missing = [r for r in group.ranks if r not in parcel.posted]
                    what = f"{parcel.name} of {replicas(list(parcel.posted))} waited"
                    del self._open[key]
                    self._fail([parcel], group.late(missing, what))
                else:
                    wait = min(wait, left)
            arrived = [p for p in self._flying.values() if p.arrived == group.count]
            overdue = [p for p in arrived if p.since + group.timeout_s <= now]
        if overdue and group.processes is not None:
            channel = group.processes.channel
            what = f"{overdue[0].name}: {channel.behind()} did not come to it within"
            slow = "If it is only slow, for example because it compiles, give a longer timeout"
            channel.fail(SessionError(f"{what} {group.timeout_s:g} s. {slow}"))
        return wait

    def _fail(self, parcels: Sequence[_Parcel], error: BaseException) -> None:
        for parcel in parcels:
            parcel.error = parcel.error or error
            self._release(parcel)
        if parcels and not self._is_closed and self.group.processes is not None:
            self.group.processes.channel.fail(error)  # the others would wait for these parcels

    def _release(self, parcel: _Parcel) -> None:
        """Let the results go to the cells; once. Holds the lock."""
        if not parcel.is_over:
            parcel.is_over = True
            for session, task in zip(self.sessions, parcel.arrivals, strict=True):
                if task is not None and task.operation is not None:
                    session.received(task.operation)

    # -- combining -------------------------------------------------------------------------------

    def _deliver(self, parcel: _Parcel, rank: int, cells: list[Cell | None]) -> None:
        """In a replica's worker: its arrays are computed."""
        place = self.group.place(rank)
        arrays = [None if cell is None else cell.array for cell in cells]
        errors = [cell.error for cell in cells if cell is not None and cell.error is not None]
        with self._changed:
            parcel.inputs[place] = arrays
            if errors and parcel.error is None:
                note_replica(errors[0], rank)
                parcel.error = errors[0]
            parcel.arrived += 1
            if parcel.arrived == self.group.count:
                self._number += 1
                if self.group.processes is not None:
                    self.group.processes.channel.progress += 1
                parcel.since = time.monotonic()
                if self._is_told:
                    self._whole[parcel.key] = parcel
                else:
                    heapq.heappush(self._ready, (-parcel.priority, self._number, parcel))
                self._changed.notify_all()

    def _work(self) -> None:
        setting = (jax.enable_x64(True), jax.numpy_dtype_promotion("standard"))
        with contextlib.ExitStack() as stack:
            for part in setting:
                stack.enter_context(part)
            while True:
                with self._changed:
                    while (parcel := self._pick()) is None:
                        if self._is_closed:
                            return
                        self._changed.wait(self._late())
                try:
                    self._combine(parcel)
                except Exception as error:  # noqa: BLE001 - else all would wait for ever
                    parcel.error = SessionError(f"{parcel.name} failed: {error!r}")
                with self._changed:
                    self._flying.pop(parcel.key, None)
                    self._release(parcel)
                    self._changed.notify_all()

    @property
    def _is_told(self) -> bool:
        """Whether another process says in which order parcels are combined."""
        processes = self.group.processes
        return processes is not None and processes.rank != 0

    def _pick(self) -> _Parcel | None:
        """The next to combine, if it is there."""
        group = self.group
        if self._is_told:
            there = group.order and group.order[0] in self._whole
            return self._whole.pop(group.order.popleft()) if there else None
        if not self._ready:
            return None
        parcel = heapq.heappop(self._ready)[2]
        if group.processes is not None:
            group.processes.channel.announce(group.name, parcel.key)
        return parcel

    def _combine(self, parcel: _Parcel) -> None:
        start = time.perf_counter_ns()
        processes = self.group.processes
        try:
            if parcel.error is None:
                parcel.outputs = self._sum(parcel) if parcel.combine == "sum" else self._all(parcel)
                jax.block_until_ready(parcel.outputs)
        except Exception as error:  # noqa: BLE001 - whoever reads the results gets it
            why = f"{parcel.name} failed: {type(error).__name__}: {error}"
            if processes is not None and (failure := processes.channel.wait_for_failure()):
                why = f"{parcel.name} will not happen: {failure}"
            parcel.error = SessionError(why)
            parcel.error.__cause__ = error
        if parcel.error is not None and processes is not None:
            processes.channel.fail(parcel.error)
        if self.link is not None:
            size = sum(a.nbytes for a in parcel.inputs[0] if a is not None)
            left = start + self.link.ns(size, self.group.total) - time.perf_counter_ns()
            if left > 0:
                time.sleep(left / 1e9)
        parcel.inputs = [None] * self.group.count
        if self.is_tracing:
            stop = time.perf_counter_ns()
            self.spans += [
                Span(f"device/{r} reduction", parcel.name, "reduction", start, stop)
                for r in self.group.ranks
            ]

    def _sum(self, parcel: _Parcel) -> list[list[Any]]:
        """The sum of each position, made on one device and copied to the others."""
        processes = self.group.processes
        home = self.devices[parcel.priority % len(self.devices)]
        if processes is not None:
            home = processes.home
        there = [
            arrays if device is home else readable_on(arrays, home)
            for arrays, device in zip(parcel.inputs, self.devices, strict=True)
        ]
        columns = [[a for a in column if a is not None] for column in zip(*there, strict=True)]
        if self.group.count > 1:
            with jax.default_device(home):
                sums = add_up(columns)
        else:
            sums = [column[0] if column else None for column in columns]
        if processes is not None:
            sums = self._sum_of_all(processes, parcel, columns, sums)
        return [sums if d is home else moved(sums, d) for d in self.devices]

    def _sum_of_all(
        self, processes: Processes, parcel: _Parcel, columns: list[list[Any]], sums: list[Any]
    ) -> list[Any]:
        """Over all processes; a position that this one has nothing for counts as zeros."""
        mine = [
            made if column else jnp.zeros(aval.shape, aval.dtype)
            for column, made, aval in zip(columns, sums, parcel.avals, strict=True)
        ]
        counts = jnp.array([len(column) for column in columns], jnp.float32)
        *everybodys, there = processes.sum([*mine, counts])
        parcel.there = [bool(n) for n in np.asarray(there)]
        return everybodys

    def _all(self, parcel: _Parcel) -> list[list[Any]]:
        processes = self.group.processes
        every = [a for arrays in parcel.inputs for a in arrays]
        if processes is not None:
            parts = processes.gather(moved(every, processes.home))
            every = [a for part in parts for a in part]
        return [moved(every, d) for d in self.devices]


def _fill(parcel: _Parcel, place: int, task: Task) -> None:
    """In a replica's worker: the results have come; or why they will not."""
    outputs, error = parcel.outputs[place], parcel.error
    for i, output in enumerate(task.outputs):
        if (cell := output()) is not None:
            if error is not None:
                cell.error = error
            else:
                cell.array = outputs[i]
    parcel.outputs[place] = None
