"""Where a program waits for the device: reads, which are sync points, and waits for everything."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from weakref import ref

import jax
import numpy as np

from kit.errors import DeviceCheckError, to_raise
from kit.runtime.recording.bulk import Frame, Site, Value
from kit.runtime.recording.sites import format_site, here
from kit.runtime.session.interrupts import INTERRUPTS
from kit.runtime.session.issuer import Issuer
from kit.runtime.session.redo import Redo
from kit.runtime.session.streams import ThreadStreams
from kit.runtime.steps.stepper import Stepper
from kit.trace import SyncPoint

__all__ = ["KEPT", "Reads"]

KEPT = 4096  # sync points, and lines of them, that a session remembers


class _Followed(list[SyncPoint]):
    """A list that can be watched for its end."""


class Reads:
    """Reads values for the program, and remembers where it had to wait.

    Args:
        lock: held while a bulk is cut.
        note_error: called with each error that a read is going to raise.

    Attributes:
        syncs: the latest sync points.
        places: their files and lines, and those of earlier ones.
    """

    def __init__(
        self, lock: Any, streams: ThreadStreams, issuer: Issuer, stepper: Stepper, redo: Redo,
        note_error: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self.syncs: list[SyncPoint] = []
        self.places: dict[Site, None] = {}
        self._followed: list[ref[_Followed]] = []
        self._lock = lock
        self._streams = streams
        self._issuer = issuer
        self._stepper = stepper
        self._redo = redo
        self._note_error = note_error

    def follow(self) -> list[SyncPoint]:
        """The sync points from now on, all of them: added for as long as somebody has the list."""
        made = _Followed()
        self._followed.append(ref(made, self._followed.remove))
        return made

    def read(self, value: Value, *, cause: str, frame: Frame) -> Any:
        """The numbers of a value, as a numpy array of its own: a sync point."""
        start = time.perf_counter_ns()
        array = self._settle(value, np.array)
        self._issuer.counts["transfer_from_device.count"] += 1
        self._issuer.counts["transfer_from_device.bytes"] += array.nbytes
        self._note_sync(start, cause, frame)
        return array

    def wait_to_read(self, value: Value, cause: str = "wait_to_read") -> None:
        """Block until the value's array is there."""
        start = time.perf_counter_ns()
        self._settle(value, jax.block_until_ready)
        self._note_sync(start, cause, (here(), "", ""))

    def wait_all(self) -> None:
        """Block until everything that was recorded has run."""
        INTERRUPTS.check()
        self._streams.flush("sync", everywhere=True)
        self._redo.close()
        issuer = self._issuer
        if issuer.last is None:
            return
        self._stepper.payoff.note_wait()
        start = time.perf_counter_ns()
        with issuer.waits.waiting():
            issuer.executor.engine.wait_all()
            issuer.executor.finish(issuer.last)
            issuer.executor.findings.look(until=issuer.last.index)
        self._raise_failure(lambda error: isinstance(error, DeviceCheckError))
        issuer.spans.add("wait_all", "ahead", start, issuer.waits.until_ns)

    def raise_found(self) -> None:
        """Raise what the checks of earlier steps have found by now; waits for nothing."""
        executor, before = self._issuer.executor, self._redo.first_step
        executor.findings.look(before_step=before)
        self._raise_failure(
            lambda error: isinstance(error, DeviceCheckError) and error.step < before
        )

    def _raise_failure(self, is_meant: Callable[[BaseException], bool]) -> None:
        if (error := self._issuer.executor.engine.take_failure(is_meant)) is not None:
            self._note_error(error)
            raise to_raise(error)

    def _settle(self, value: Value, take: Callable[[Any], Any]) -> Any:
        INTERRUPTS.check()
        self._streams.check()
        try:
            return self._taken(value, take)
        except Exception as error:
            self._note_error(error)
            raise

    def _taken(self, value: Value, take: Callable[[Any], Any]) -> Any:
        """What `take` makes of the array, once that is there."""
        with self._lock:
            if value.bulk is not None:
                value.bulk.flush("sync")
            if self._redo.is_on and value.cell is not None and self._redo.concerns(value.cell):
                self._redo.close()
        taken: Any = None
        executor = self._issuer.executor
        with self._issuer.waits.waiting():
            if value.cell is not None and value.cell.task is not None:
                executor.wait(value.cell.task)
                executor.findings.look(
                    until=value.cell.task.index, before_step=self._redo.first_step
                )
            if value.error is None and value.cell is not None and value.cell.array is None:
                raise executor.missing(value.cell.task)
            if value.error is None:
                try:
                    taken = take(None if value.cell is None else value.cell.array)
                except jax.errors.JaxRuntimeError as failure:
                    if value.cell is None or value.cell.task is None:
                        raise
                    value.cell.error = executor.explained(value.cell.task, failure)
        if (error := value.error) is not None:
            executor.engine.forgive(error)
            raise to_raise(error)
        return taken

    def _note_sync(self, start: int, cause: str, frame: Frame) -> None:
        issuer = self._issuer
        stop = issuer.waits.until_ns
        site, via, _ = frame
        where = format_site(site)
        if len(self.places) < KEPT:
            self.places[site] = None
        self._stepper.payoff.note_wait()
        self._stepper.note_obstacle(
            f"the step waits for the device: {cause} at {where or 'unknown'}"
        )
        sync = SyncPoint(start, stop - start, cause, where, via)
        for followed in [self.syncs, *(known() for known in tuple(self._followed))]:
            if followed is not None:
                followed.append(sync)
        del self.syncs[:-KEPT]
        issuer.counts["sync.count"] += 1
        issuer.counts["sync.ns"] += stop - start
        issuer.spans.add(f"{cause} at {where}" if where else cause, "wait", start, stop)
