"""Arrays from every replica, combined, for every replica: without the host waiting for any of it.

A replica contributes arrays, perhaps not computed yet, and gets empty cells at once. When the
segments that make the arrays have run on every device, a thread combines the arrays in the order of
the ranks and fills the cells. A task that reads the cells waits in its own engine, and keeps no
worker busy meanwhile. Of several collectives that are ready, that of the highest priority goes
first.

With other processes, the arrays of this process are combined first, then those of all processes, in
the order that process 0 announces: its own, by readiness and priority. Processes that entered their
collectives in different orders would add up the wrong arrays, or never end.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kit.errors import SessionError, named, to_raise
from kit.ir import Aval
from kit.runs.gradients import Link
from kit.runtime.processes.join import Processes
from kit.runtime.recording.bulk import Cell, Task, Value, pending
from kit.runtime.replicas.arrays import add_up, fit, in_words, moved, readable_on
from kit.runtime.replicas.collective import Collective, Contribution
from kit.runtime.replicas.group import Group, parted, replicas
from kit.runtime.replicas.member import Member, note_replica
from kit.threads import start_thread
from kit.trace import Span

__all__ = ["Collectives"]

_NO_NOTE: Mapping[str, Any] = {}


class Collectives:
    """Where the replicas of a group combine arrays.

    Args:
        link: a connection to imitate: a collective takes at least as long as it would there.
    """

    def __init__(self, group: Group, devices: Sequence[Any], link: Link | None = None) -> None:
        self.group = group
        self.devices = tuple(devices)
        self.link = link
        self.members: list[Member] = []  # of this process, once their sessions are made
        self.spans: list[Span] = []
        self.is_tracing = False
        self._open: dict[str, Collective] = {}  # to which some replicas have contributed
        self._posted: dict[str, Collective] = {}  # complete here, not yet combined over processes
        self._computed: dict[str, Collective] = {}  # arrays exist; they wait for the order of
        # process 0, in which all processes must send them
        self._ready: list[tuple[int, int, Collective]] = []  # heap of (-priority, number, one)
        self._number = 0
        self._free_ns = 0  # when the last one had been combined
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        group.on_change.append(self._look)
        group.turns.watch(lambda: sum(member.ops_recorded for member in self.members))
        if group.processes is not None:
            group.processes.channel.on_beat.append(self._late)

    def join(self, member: Member) -> None:
        """The next replica of this process; they come in the order of their ranks."""
        self.members.append(member)

    def post(
        self, rank: int, key: Any, given: Sequence[Value | None], avals: Sequence[Aval], *,
        combine: str = "sum", priority: int = 0, name: str = "reduction",
        note: Mapping[str, Any] = _NO_NOTE,
    ) -> tuple[list[Value], Collective]:  # fmt: skip
        """Give this rank's values to collective `key`; gives the results, to be filled later.

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
        member = self.members[self.group.place(rank)]
        what = Contribution(
            rank,
            str(key),
            shapes,
            tuple(avals),
            combine,
            priority,
            name,
            member.place_now(name),
            note,
        )
        collective, task, cells = self._begin(leaves, what)
        made = [pending(cell, aval) for cell, aval in zip(cells, avals, strict=True)]
        member.note_arrival(task, leaves, made)
        return made, collective

    def _begin(
        self, leaves: Sequence[Cell], what: Contribution
    ) -> tuple[Collective, Task, list[Cell]]:
        """Send these cells; gives the task that the results come from, and their cells."""
        rank, shapes = what.rank, what.shapes
        group, place = self.group, self.group.place(rank)
        member = self.members[place]
        rest = iter(leaves)
        cells = [None if shape is None else next(rest) for shape in shapes]
        task, results = member.arrival(
            (what.key, what.combine, shapes), leaves, what.op, what.place,
            lambda leaves: self._begin(leaves, replace(what, note=_NO_NOTE))[1:],
        )  # fmt: skip
        key = str((group.turn, what.key))
        with self._changed:
            collective = self._open.get(key)
            if collective is None:
                collective = self._open[key] = Collective(key, what, group.count)
            self._check(collective, what)
            member.expect(task, partial(collective.fill, place, task))
            collective.contributions[rank] = what
            collective.arrivals[place] = task
            if self._thread is None:
                self._thread = start_thread(self._work, "kit collectives")
            if len(collective.contributions) == group.count:
                del self._open[key]  # no replica is missing
                if group.processes is not None:
                    self._posted[key] = collective
            self._changed.notify_all()
        member.note_shared()
        member.send(cells, partial(self._deliver, collective, rank, cells))
        return collective, task, results

    def brought(self, collective: Collective) -> list[bool]:
        """For each position of a collective, whether any replica has an array there.

        Waits until all replicas have contributed, not until the arrays are computed; with other
        processes also until the collective is combined.

        Raises:
            SessionError: a replica cannot come any more.
        """
        group = self.group
        with group.turns.while_waiting(), self._changed:
            while collective.error is None and (
                not collective.is_over
                if group.processes
                else len(collective.contributions) < group.count
            ):
                self._changed.wait(1.0)  # the collectives' thread notices a late replica
        if collective.error is not None:
            raise to_raise(collective.error)
        if group.processes:
            return collective.there
        every = (one.shapes for one in collective.contributions.values())
        return [any(x is not None for x in column) for column in zip(*every, strict=True)]

    def close(self) -> None:
        """Everything that is still open fails; the thread ends."""
        with self._changed:
            self._is_closed = True
            lost = [*self._open.values(), *self._posted.values()]
            self._fail(lost, SessionError("the DataParallel was closed"))
            self._open.clear()
            self._posted.clear()
            self._changed.notify_all()
        processes = self.group.processes
        patience_s = None
        if processes is not None:
            processes.channel.on_beat.remove(self._late)
            patience_s = 1.0 if processes.channel.failure else 10.0
        if self._thread is not None:  # may stay for good in a collective that others have left
            self._thread.join(patience_s)
            if processes is not None and self._thread.is_alive():
                processes.stuck.append(self._thread)

    # -- who is missing --------------------------------------------------------------------------

    def _check(self, collective: Collective, what: Contribution) -> None:
        """Refuse a contribution that can never be combined; the other replicas learn that too."""
        rank, shapes = what.rank, what.shapes
        missing = [r for r in self.group.ranks if r != rank and r not in collective.contributions]
        error = self.group.lacking(missing, f"{collective.name} of replica {rank}")
        if rank in collective.contributions:  # else the others would wait for what it replaces
            error = SessionError(
                f"{collective.name}: replica {rank} brings arrays a second time, before "
                f"{replicas(missing)} came; replicas must do the same work"
            )
        for other, known in collective.contributions.items():
            if collective.combine == "sum" and not fit(shapes, known.shapes):
                error = SessionError(
                    f"{collective.name}: replica {rank} brings {in_words(shapes)}, replica {other} "
                    f"{in_words(known.shapes)}; replicas must do the same work"
                )
            error = error or parted(rank, what.note, other, known.note)
        if error is not None:
            del self._open[collective.key]
            self._fail([collective], error)
            raise to_raise(error)

    def _look(self) -> None:
        """A replica has ended or failed: collectives without its arrays never end."""
        with self._changed:
            for key, collective in list(self._open.items()):
                missing = [r for r in self.group.ranks if r not in collective.contributions]
                what = f"{collective.name} of {replicas(list(collective.contributions))}"
                if (error := self.group.lacking(missing, what)) is not None:
                    del self._open[key]
                    self._fail([collective], error)
            processes = self.group.processes
            if processes is not None and (failure := processes.channel.failure):
                for collective in self._posted.values():
                    why = f"{collective.name} will not happen: {failure}"
                    self._fail([collective], SessionError(why))
                self._posted.clear()
            self._changed.notify_all()

    def _late(self) -> float:
        """Fail each overdue collective; gives the seconds to the next look."""
        group, now, wait = self.group, time.monotonic(), self.group.timeout_s
        with self._changed:
            for key, collective in list(self._open.items()):
                left = collective.since + group.timeout_s - now
                if left <= 0:
                    missing = [r for r in group.ranks if r not in collective.contributions]
                    what = f"{collective.name} of {replicas(list(collective.contributions))} waited"
                    del self._open[key]
                    self._fail([collective], group.late(missing, what))
                else:
                    wait = min(wait, left)
            arrived = [p for p in self._posted.values() if p.arrived == group.count]
            overdue = [p for p in arrived if p.since + group.timeout_s <= now]
        if overdue and group.processes is not None:
            channel = group.processes.channel
            what = f"{overdue[0].name}: {channel.behind()} did not come to it within"
            slow = "If it is only slow, for example because it compiles, give a longer timeout"
            channel.fail(SessionError(f"{what} {group.timeout_s:g} s. {slow}"))
        return wait

    def _fail(self, collectives: Sequence[Collective], error: BaseException) -> None:
        for collective in collectives:
            collective.error = collective.error or error
            self._release(collective)
        if collectives and not self._is_closed and self.group.processes is not None:
            self.group.processes.channel.fail(error)  # the others would wait for these collectives

    def _release(self, collective: Collective) -> None:
        """Let the results go to the cells; once. Holds the lock."""
        if not collective.is_over:
            collective.is_over = True
            for member, task in zip(self.members, collective.arrivals, strict=True):
                if task is not None and task.operation is not None:
                    member.received(task.operation)

    # -- combining -------------------------------------------------------------------------------

    def _deliver(self, collective: Collective, rank: int, cells: list[Cell | None]) -> None:
        """In a replica's worker: its arrays are computed."""
        place = self.group.place(rank)
        arrays = [None if cell is None else cell.array for cell in cells]
        errors = [cell.error for cell in cells if cell is not None and cell.error is not None]
        with self._changed:
            collective.inputs[place] = arrays
            if errors and collective.error is None:
                note_replica(errors[0], rank)
                collective.error = errors[0]
            collective.arrived += 1
            if collective.arrived == self.group.count:
                self._number += 1
                if self.group.processes is not None:
                    self.group.processes.channel.progress += 1
                collective.since, collective.came_ns = time.monotonic(), time.perf_counter_ns()
                if self._is_told:
                    self._computed[collective.key] = collective
                else:
                    heapq.heappush(self._ready, (-collective.priority, self._number, collective))
                self._changed.notify_all()

    def _work(self) -> None:
        setting = (jax.enable_x64(True), jax.numpy_dtype_promotion("standard"))
        with contextlib.ExitStack() as stack:
            for part in setting:
                stack.enter_context(part)
            while True:
                with self._changed:
                    while (collective := self._pick()) is None:
                        if self._is_closed:
                            return
                        self._changed.wait(self._late())
                try:
                    self._combine(collective)
                except Exception as error:  # noqa: BLE001 - else all replicas would wait for ever
                    collective.error = SessionError(f"{collective.name} failed: {named(error)}")
                with self._changed:
                    self._posted.pop(collective.key, None)
                    self._release(collective)
                    self._changed.notify_all()

    @property
    def _is_told(self) -> bool:
        """Whether another process says in which order collectives are combined."""
        processes = self.group.processes
        return processes is not None and processes.rank != 0

    def _pick(self) -> Collective | None:
        """The next collective to combine, if one is ready."""
        group = self.group
        if self._is_told:
            there = group.order and group.order[0] in self._computed
            return self._computed.pop(group.order.popleft()) if there else None
        if not self._ready:
            return None
        collective = heapq.heappop(self._ready)[2]
        if group.processes is not None:
            group.processes.channel.announce(group.name, collective.key)
        return collective

    def _combine(self, collective: Collective) -> None:
        start = time.perf_counter_ns()
        processes = self.group.processes
        try:
            if collective.error is None:
                collective.outputs = (
                    self._sum(collective) if collective.combine == "sum" else self._all(collective)
                )
                jax.block_until_ready(collective.outputs)
        except Exception as error:  # noqa: BLE001 - each reader of the results gets the error
            why = f"{collective.name} failed: {named(error)}"
            if processes is not None and (failure := processes.channel.wait_for_failure()):
                why = f"{collective.name} will not happen: {failure}"
            collective.error = SessionError(why)
            collective.error.__cause__ = error
        if collective.error is not None and processes is not None:
            processes.channel.fail(collective.error)
        if self.link is not None:
            size = sum(a.nbytes for a in collective.inputs[0] if a is not None)
            left = start + self.link.ns(size, self.group.total) - time.perf_counter_ns()
            if left > 0:
                time.sleep(left / 1e9)
        collective.inputs = [None] * self.group.count
        # What waits for another process is on its way, also where that one says what is next.
        began, stop = max(collective.came_ns, self._free_ns), time.perf_counter_ns()
        self._free_ns = stop
        if self.is_tracing:
            self.spans += [
                Span(f"device/{r} reduction", collective.name, "reduction", began, stop)
                for r in self.group.ranks
            ]

    def _sum(self, collective: Collective) -> list[list[Any]]:
        """The sum of each position, made on one device and copied to the others."""
        processes = self.group.processes
        home = self.devices[collective.priority % len(self.devices)]
        if processes is not None:
            home = processes.tensors.home
        there = [
            arrays if device is home else readable_on(arrays, home)
            for arrays, device in zip(collective.inputs, self.devices, strict=True)
        ]
        columns = [[a for a in column if a is not None] for column in zip(*there, strict=True)]
        if self.group.count > 1:
            with jax.default_device(home):
                sums = add_up(columns)
        else:
            sums = [column[0] if column else None for column in columns]
        if processes is not None:
            sums = self._sum_of_all(processes, collective, columns, sums)
        return [sums if d is home else moved(sums, d) for d in self.devices]

    def _sum_of_all(
        self,
        processes: Processes,
        collective: Collective,
        columns: list[list[Any]],
        sums: list[Any],
    ) -> list[Any]:
        """Over all processes; a position that this one has nothing for counts as zeros."""
        mine = [
            made if column else jnp.zeros(aval.shape, aval.dtype)
            for column, made, aval in zip(columns, sums, collective.avals, strict=True)
        ]
        counts = jnp.array([len(column) for column in columns], jnp.float32)
        *totals, there = processes.tensors.sum([*mine, counts])
        collective.there = [bool(n) for n in np.asarray(there)]
        return totals

    def _all(self, collective: Collective) -> list[list[Any]]:
        processes = self.group.processes
        every = [a for arrays in collective.inputs for a in arrays]
        if processes is not None:
            tensors = processes.tensors
            parts = tensors.gather(moved(every, tensors.home))
            every = [a for part in parts for a in part]
        return [moved(every, d) for d in self.devices]
