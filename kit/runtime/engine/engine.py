"""The dependency engine: functions that read and write variables, run as early as that allows.

After MXNet's threaded engine. It knows only tags: a `Variable` stands for anything that can be read
or written, an array, a random state, a file. For each variable the engine keeps a queue in program
order: a read need not wait for another read.

    RAW   a read waits for the writes of its variable that were pushed before it
    WAR   a write waits for the reads that were pushed before it
    WAW   a write waits for the writes that were pushed before it

An operation enters all of its queues at once, under one lock. So every wait is for an operation
that was pushed earlier, and a cycle cannot be written down. One thread runs them, one at a time.

The tests hold it against the same meaning without threads: each operation run where it is pushed.
"""

from __future__ import annotations

import os
import threading
from _thread import RLock, allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from operator import itemgetter
from typing import Any

from kit.errors import EngineError, SessionError, named, note, to_raise
from kit.runtime.engine.operations import (
    CANCELLED,
    DONE,
    IN_BETWEEN,
    RUNNING,
    WAITING,
    Operation,
    Variable,
    outcome,
)
from kit.threads import forked, start_thread

__all__ = ["Engine"]


class Engine:
    """Runs pushed functions on a worker thread, in an order that their variables allow.

    Args:
        setting: makes what the thread enters before its first operation.
    """

    def __init__(self, *, setting: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._setting = setting
        self._lock: Any = RLock()  # asked whether this thread is in the middle: `check`
        self._worker: threading.Thread | None = None
        self._urgent: deque[Operation] = deque()  # that may run now, before those below
        self._ready: deque[Operation] = deque()
        self._gate = allocate_lock()  # the worker sleeps at it
        self._gate.acquire()
        self._is_asleep = False
        self._pending: dict[Operation, None] = {}  # pushed and not done, in program order
        self._failures: list[tuple[int, BaseException]] = []  # that nobody has been told of
        self._pushed = 0
        self._is_closed = False
        self.is_cancelling = False  # what is pushed now shall not run
        # what ended the worker: a bug, or a foreign variable
        self._broken: BaseException | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the thread now, and not with the first operation.

        Raises:
            EngineError: it could not be started.
        """
        with self._lock:
            if self._worker is None:
                self._worker = start_thread(self._work, "kit worker")

    def check(self) -> None:
        """Refuse a call that comes while this thread changes the queues: both would be wrong.

        Raises:
            SessionError: it comes from a signal handler or a `__del__`.
        """
        if self._lock._is_owned():
            raise SessionError(IN_BETWEEN)

    # -- pushing ---------------------------------------------------------------------------------

    def push(
        self,
        function: Callable[[], object],
        reads: Sequence[Variable] = (),
        writes: Sequence[Variable] = (),
        *,
        name: str = "",
        is_urgent: bool = False,
        is_held: bool = False,
    ) -> Operation:
        """Run `function()` on the worker, once what it reads and writes is free; returns at once.

        A variable in `writes` alone is overwritten whole, which heals it if it was poisoned. One in
        both is changed in place: its old value matters, so its poison goes on.

        Args:
            name: what it is, for errors.
            is_urgent: of several operations that may run, it runs before those that are not.
            is_held: it also waits for `release`: something outside of the engine comes first, such
                as another engine. The worker is not kept busy by that.

        Raises:
            EngineError: the engine is closed, or this is a forked child.
        """
        op = Operation(function, reads, writes, name, is_urgent=is_urgent)
        self.submit(op, is_held=is_held)
        return op

    def submit(self, op: Operation, *, is_held: bool = False) -> None:
        """Push an operation that has been made before: as `push`. All of it happens, or nothing."""
        if os.getpid() != self._pid:  # before the lock: it may be held by a thread left behind
            raise forked("the engine")
        self.check()
        with self._lock:
            if self._is_closed:
                raise EngineError(f"the engine is closed; {op!r} cannot run")
            self.start()  # if no thread can start, nothing has happened yet
            before = [(v, v.readers, len(v.queue), v.last_write) for v in (*op.reads, *op.writes)]
            try:
                self._enter(op, is_held=is_held)
            except BaseException:  # out of memory, perhaps
                self._withdraw(op, before)
                raise

    def _enter(self, op: Operation, *, is_held: bool) -> None:
        """Put an operation into the queues of its variables; the caller holds the lock."""
        op.number = self._pushed = self._pushed + 1
        self._pending[op] = None
        waits = 0
        for variable in op.reads:
            if variable in op.writes:
                continue  # its write is in the queue; one operation needs one place
            if variable.readers < 0 or variable.queue:  # RAW
                variable.queue.append(op)
                waits += 1
            else:
                variable.readers += 1
        for variable in op.writes:
            if variable.readers or variable.queue:  # WAR, WAW
                variable.queue.append(op)
                waits += 1
            else:
                variable.readers = -1
            variable.last_write = op
        op.waits = waits + is_held
        op.state = CANCELLED if self.is_cancelling else WAITING
        if not op.waits:
            self._let_run(op)

    def _let_run(self, op: Operation) -> None:
        """Nothing is in its way any more; the caller holds the lock."""
        (self._urgent if op.is_urgent else self._ready).append(op)
        self._wake()

    def _wake(self) -> None:
        if self._is_asleep:
            self._is_asleep = False
            self._gate.release()

    def _withdraw(self, op: Operation, before: Sequence[_State]) -> None:
        """Leave everything as it was before `_enter`; the caller holds the lock."""
        for queue in (self._urgent, self._ready):
            if op in queue:
                queue.remove(op)
        for variable, readers, queued, last_write in before:
            variable.readers, variable.last_write = readers, last_write
            while len(variable.queue) > queued:
                variable.queue.pop()
        self._pending.pop(op, None)
        op.number = 0

    def release(self, op: Operation) -> None:
        """What a held operation waited for has come: call it once, from any thread."""
        self.check()
        with self._lock:
            op.waits -= 1
            if not op.waits:
                self._let_run(op)

    def cancel(self, op: Operation) -> bool:
        """Do not run it, if it has not begun; what it would have written is poisoned.

        Returns whether it came in time.
        """
        with self._lock:
            if op.state == WAITING:
                op.state = CANCELLED
            return op.state == CANCELLED

    def cancel_pending(self) -> None:
        """Run nothing that has not begun."""
        for op in list(self._pending):
            self.cancel(op)

    def report(self, error: BaseException, op: Operation | None = None) -> None:
        """Let the next `wait_all` raise this, as if `op` had; for functions that carry errors."""
        with self._lock:
            number = self._pushed if op is None else op.number
            self._failures.append((number, error))

    def forgive(self, error: BaseException) -> None:
        """Somebody has been told of this error: `wait_all` need not raise it."""
        with self._lock:
            self._failures = [x for x in self._failures if x[1] is not error]

    # -- waiting ---------------------------------------------------------------------------------

    def wait(self, op: Operation) -> None:
        """Block until the operation has ended, well or not. An interrupt leaves it running."""
        if op.state == DONE:
            return
        if os.getpid() != self._pid:
            raise forked("the engine")
        if self._worker is not None and self._worker.ident == get_ident():
            raise EngineError(_INSIDE)
        self.check()
        gate = allocate_lock()
        gate.acquire()
        with self._lock:
            if op.state == DONE:
                return
            if op.gates is None:
                op.gates = []
            if self._broken is None:
                op.gates.append(gate)
            else:
                gate.release()
        gate.acquire()
        if self._broken is not None and op.state != DONE:
            raise EngineError(
                f"the engine's worker has ended ({named(self._broken)}), so nothing more will run. "
                "A lack of memory does that, or a variable of another engine"
            ) from self._broken

    def wait_to_read(self, variable: Variable) -> None:
        """Block until the last write of the variable that was pushed has ended.

        Raises:
            ExecutionError: it is poisoned; at every wait until it is overwritten whole.
        """
        if variable.last_write is not None:
            self.wait(variable.last_write)
        if (error := variable.error) is not None:
            self.forgive(error)
            raise to_raise(error)

    def wait_all(self) -> None:
        """Block until everything that has been pushed before this call has ended.

        Raises:
            ExecutionError: the first failure in program order that no wait has raised yet.
        """
        with self._lock:
            pending = list(self._pending)
        for op in reversed(pending):  # after the last one the others have mostly ended
            self.wait(op)
        if (error := self.take_failure()) is not None:
            raise to_raise(error)

    def take_failure(
        self, is_meant: Callable[[BaseException], bool] = lambda error: True
    ) -> BaseException | None:
        """The first failure that nobody has been told of, once; the others become its notes."""
        if not self._failures:
            return None
        with self._lock:
            failures = sorted((x for x in self._failures if is_meant(x[1])), key=itemgetter(0))
            self._failures = [x for x in self._failures if not is_meant(x[1])]
        if not failures:
            return None
        error = failures[0][1]
        if others := [str(e) for _, e in failures[1:4] if e is not error]:
            note(error, f"kit: {len(failures) - 1} more failed: " + "; ".join(others))
        return error

    def close(self, *, cancel: bool = False) -> None:
        """Run what is pending, or cancel it, and end the worker. A second call does nothing."""
        if os.getpid() != self._pid:
            return  # the worker is the parent's
        with self._lock:
            self._is_closed = True
            pending = list(self._pending)
        if cancel:
            self.cancel_pending()
        for op in pending if self._broken is None else ():
            self.wait(op)
        with self._lock:
            self._pending.clear()  # what is left another engine has ended: it is not waited for
            self._wake()
        if self._worker is not None and self._worker.ident != get_ident():
            self._worker.join()

    def abandon(self) -> None:
        """Nobody will wait for anything again: cancel what is pending, and end the worker.

        For the garbage collector, which may come while this thread holds the engine's lock: the
        work is done by a thread of its own.
        """
        with suppress(EngineError):  # no more threads: the worker is a daemon
            start_thread(partial(self.close, cancel=True), "kit end of a worker")

    # -- the worker ------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with self._lock:  # as long as `start` does
                if self._worker is not threading.current_thread():
                    return  # `start` was interrupted
            with self._setting():
                self._loop()
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
            with self._lock:
                self._broken, self._is_closed = error, True
                for op in self._pending:
                    _open_gates(op)

    def _loop(self) -> None:
        op: Operation | None = None
        while True:
            with self._lock:
                if op is not None:
                    self._complete(op)
                queue = self._urgent or self._ready
                op = queue.popleft() if queue else None
                if op is None:
                    if self._is_closed and not self._pending:
                        return
                    self._is_asleep = True
                elif op.state == WAITING:
                    op.state = RUNNING
            if op is None:
                self._gate.acquire()
            else:
                self._run(op)

    def _run(self, op: Operation) -> None:
        """Run it, or hand on the poison of what it reads."""
        error, is_new = outcome(op)
        for variable in op.writes:
            variable.error = error
        if error is not None and is_new:
            self.report(error, op)

    def _complete(self, op: Operation) -> None:
        """Let through who waits for it; the caller holds the lock."""
        op.state = DONE
        op.function = None  # a closure may hold arrays
        writes = op.writes
        for variable in op.reads:
            if variable not in writes:
                variable.readers -= 1
                if not variable.readers and variable.queue:
                    self._advance(variable)
        for variable in writes:
            variable.readers = 0
            if variable.last_write is op:
                variable.last_write = None
            if variable.queue:
                self._advance(variable)
        op.reads = op.writes = ()
        if op.gates is not None:
            _open_gates(op)
        del self._pending[op]  # last: `_work` finds in there who waits, should an error come

    def _advance(self, variable: Variable) -> None:
        """The head of the queue may go: one write, or every read up to the next write."""
        queue = variable.queue
        while queue:
            op = queue[0]
            is_write = variable in op.writes
            if is_write:
                if variable.readers:
                    return
                variable.readers = -1
            else:
                variable.readers += 1
            queue.popleft()
            op.waits -= 1
            if not op.waits:
                self._let_run(op)
            if is_write:
                return


def _open_gates(op: Operation) -> None:
    """Let the threads go on that wait for it; the caller holds the lock."""
    while op.gates:
        op.gates.pop().release()


_State = tuple[Variable, int, int, Operation | None]  # readers, length of the queue, last write


_INSIDE = (
    "an operation waits for the engine that runs it, so its thread could not run what it waits "
    "for: give what it needs as `reads` when it is pushed"
)
