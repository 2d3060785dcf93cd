"""The op streams of a session's threads, and how a bulk becomes a task."""

from __future__ import annotations

import sys
import time
from typing import Any
from weakref import ref

from kit.errors import KitError, SessionError, to_raise, words_of
from kit.runs.bulk_sizes import BulkSizes
from kit.runtime.recording.bulk import Bulk, Cell, Cut, Task, Value
from kit.runtime.recording.stream import CutPolicy, Stream, ThreadState
from kit.runtime.session.interrupts import INTERRUPTS, refuse_in_handler
from kit.runtime.session.issuer import Issuer
from kit.runtime.session.redo import Redo
from kit.runtime.steps.stepper import Stepper
from kit.threads import forked

__all__ = ["ThreadStreams"]


class ThreadStreams:
    """One stream for each thread that records: cuts their bulks and issues them.

    Args:
        lock: held while a bulk is cut.

    Attributes:
        here: the state of the thread that asks; its `stream` is None before it records.
        ops_cut: how many ops have been cut in all threads, without views.
    """

    def __init__(
        self, lock: Any, sizes: BulkSizes, policy: CutPolicy, issuer: Issuer, stepper: Stepper,
        redo: Redo,
    ) -> None:  # fmt: skip
        self.here = ThreadState()
        self.ops_cut = 0
        self._lock = lock
        self._sizes = sizes
        self._policy = policy
        self._issuer = issuer
        self._stepper = stepper
        self._redo = redo
        self._streams: list[Stream] = []
        self._refusal: KitError | None = None  # why nothing can be recorded or issued any more

    @property
    def current(self) -> Stream:
        """The stream of the thread that asks."""
        return self.here.stream or self.join()

    @property
    def main(self) -> Stream:
        """The stream of the thread that opened the session."""
        return self._streams[0]

    def join(self) -> Stream:
        """This thread records from now on too: its bulk and its bulk sizes are its own."""
        self.check()
        with self._lock:
            made = Stream(self, self._policy, self._sizes, is_main=not self._streams)
            self._streams = [
                s for s in self._streams if s.is_pending or s.is_main or s.thread.is_alive()
            ]
            self._streams.append(made)
            self.here.stream = made
        return made

    def flush(self, reason: str, *, everywhere: bool = False) -> None:
        """Cut what this thread has recorded, or every thread, and issue it."""
        self.check()
        with self._lock:
            for stream in list(self._streams) if everywhere else [self.current]:
                self.cut(stream, reason, keep_views=stream is not self.here.stream)

    def ops_recorded(self) -> int:
        """How many ops there have been, in segments and in the bulks of the thread that asks."""
        return self._issuer.counts["record.ops"] + self._ops_pending()

    def ops_recorded_here(self) -> int:
        """How many ops the thread that asks has recorded."""
        stream = self.here.stream
        return 0 if stream is None else stream.ops_cut + self._ops_pending()

    def _ops_pending(self) -> int:
        stream = self.here.stream
        bulks = () if stream is None else (stream.first_values, stream.bulk)
        return sum(len(bulk.ops) for bulk in bulks if bulk is not None)

    # -- what a stream asks for ------------------------------------------------------------------

    def note_phase(self, phase: str) -> None:
        """The main thread has come to this phase."""
        if not self._stepper.is_fetching:  # what a loader copies for a replay is no recording
            self._issuer.spans.enter(phase)
        INTERRUPTS.check()

    def throttle(self) -> None:
        """More is going to be recorded: wait if that is too far ahead of the device."""
        self._issuer.throttle()

    def cut(self, stream: Stream, reason: str, *, keep_views: bool = False) -> None:
        """End a stream's bulk and issue it; the caller holds the lock.

        Nothing has happened if that fails, and the bulk can be cut again; unless a check was open.
        """
        self.check()
        self._issuer.executor.engine.check()
        stream.flush_first_values()
        bulk = stream.bulk
        if bulk is None or not bulk.ops:
            stream.bulk = None
            return
        redo = self._redo
        if not redo.is_on:
            self._issue(stream, bulk, reason, keep_views=keep_views)
            return
        try:
            while at := redo.border(bulk):
                stream.bulk, rest = bulk.split(at)
                self.cut(stream, "check", keep_views=True)
                whole, bulk = bulk, rest()
                stream.bulk = bulk
                redo.note_split(whole, at, bulk)
            redo.note(*self._issue(stream, bulk, reason, keep_views=keep_views))
        except BaseException as error:
            # parts of a bulk are issued, and what they may have to redo is not
            self._refusal = SessionError(
                f"this session cannot go on: {type(error).__name__} ({words_of(error)[:500]}) came "
                "while it issued ops. Open a new one with kit.Session(...)"
            )
            raise

    def _issue(
        self, stream: Stream, bulk: Bulk, reason: str, *, keep_views: bool
    ) -> tuple[Task, list[Cell], list[Value]]:
        """Give a bulk to the executor: all of it or nothing. Also gives its leaves and results."""
        start = time.perf_counter_ns()
        kept = bulk.wanted(keep_views=keep_views)
        task = self._task(bulk, kept, reason)
        leaves = task.leaves
        chosen, is_issued = task, False
        try:
            if stream.is_main:
                chosen = self._stepper.note_cut(task, kept, bulk.leaves) or task
            else:
                self._stepper.note_obstacle(f"another thread, {stream.thread.name}, records ops")
            chosen.seen.plan_ns, chosen.seen.times = (start, time.perf_counter_ns()), bulk.times
            if chosen is task:
                task.index = self._issuer.next_segment()
                for value in kept:
                    value.cell = Cell(task, value.slot)
                    task.outputs.append(ref(value.cell))
                self._issuer.push(task)
            else:
                for value, output in zip(kept, chosen.outputs, strict=True):
                    value.cell = output()
            is_issued = True
            self._end(stream, bulk, chosen)
        except BaseException:
            if not (is_issued or self._issuer.has(task)):
                for value in kept:
                    value.cell = None
                self._issuer.displace(task)
                self._stepper.drop()
                raise
            self._end(stream, bulk, chosen)  # again, or its values would be taken for pending ones
            raise
        return chosen, leaves, kept

    def _end(self, stream: Stream, bulk: Bulk, chosen: Task) -> None:
        """The bulk has been issued."""
        stream.bulk = None
        bulk.close()
        self.ops_cut += bulk.size
        stream.ops_cut += len(bulk.ops)
        self._issuer.counts["record.ops"] += len(bulk.ops)
        self._issuer.note(chosen)

    def check(self) -> None:
        """Refuse to go on where that is impossible; before the lock is taken.

        Raises:
            SessionError: an error has come in the middle of what cannot be taken back, or a signal
                handler asks in the middle of an op.
            EngineError: this is a forked child.
        """
        if self._refusal is not None:
            raise to_raise(self._refusal)
        if self._lock._is_owned():
            refuse_in_handler(sys._getframe(1))

    def end_plan(self) -> None:
        """Steps were planned. If one may have to be taken back, no number after it can be right."""
        if self._redo.is_unknown:
            self._refusal = SessionError(
                "this session has planned steps whose loss scaling takes steps back, so it cannot "
                "go on. Open a new one with kit.Session(...)"
            )

    def leave_behind(self) -> None:
        """This is a forked child, without the threads that run what is recorded."""
        self._refusal = forked("this kit session")

    def mend(self) -> None:
        """An error has ended a call in this thread: leave out what was recorded of it in part."""
        stream = self.here.stream
        with self._lock:  # a signal handler may record
            for bulk in () if stream is None else (stream.first_values, stream.bulk):
                if bulk is not None:
                    bulk.mend()

    def _task(self, bulk: Bulk, kept: list[Value], reason: str) -> Task:
        """The bulk as a task; its number and its outputs come later."""
        wanted = tuple([value.slot for value in kept])
        dead = bulk.dead_leaves() if self._policy.donates else ()
        avals = tuple([leaf.aval for leaf in bulk.leaves])  # the ops' ids in the key say the same
        cut = Cut(bulk, wanted, reason, (tuple(bulk.key), wanted, dead), avals, dead)
        leaves: list[Cell] = [leaf.cell for leaf in bulk.leaves]  # type: ignore[misc]
        task = Task(-1, cut, leaves, bulk.scalars)
        self._issuer.place(task)
        return task
