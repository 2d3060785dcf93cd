"""Run a step again and again in the background: the newest request wins.

    request ──► pending ──► running ──► on_result | on_error ──► on_idle ──► spare work, if any
                (one)       (one, told by `cancelled()` when a newer request arrives)

One worker thread, started by the first request. Nothing polls: the worker sleeps on a condition.
A request may have to rest first: while a slider moves on, nothing is started that would be stopped.
`Newest` does the same for quick work, such as asking a model.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from kit.errors import Cancelled, EngineError, ExecutionError, SessionError, is_a, traceback_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.shown import Progress
from kit.threads import end_at_once, exit_status, start_thread

__all__ = ["Newest", "PrepareStep", "Reruns", "RunStep"]

_log = logging.getLogger(__name__)


class RunStep(Protocol):
    """What is rerun: settings in, a measured run out."""

    def __call__(
        self,
        settings: Settings,
        /,
        *,
        progress: Progress,
        cancelled: Callable[[], bool],
    ) -> Run:
        """Measure once; say how far it is by `progress(text, fraction)`.

        Raises:
            Cancelled: `cancelled()` became true; nothing of the run is kept.
        """


class PrepareStep(Protocol):
    """What compiles ahead: settings in, the number of programs that were compiled out."""

    def __call__(
        self,
        settings: Settings,
        /,
        *,
        progress: Progress,
        cancelled: Callable[[], bool],
    ) -> int:
        """Compile what a run under these settings would need, and run nothing.

        Raises:
            Cancelled: `cancelled()` became true; it returns soon after.
            Exception: the step cannot be compiled; a run of it raises the same.
        """


@dataclass(eq=False)
class _Job:
    settings: Settings
    due_s: float = 0.0  # it starts then, unless a newer one comes before
    stop: threading.Event = field(default_factory=threading.Event)
    outcome: Run | BaseException | None = None


def _ignore(*_: Any) -> None:
    """The callback that is not given: nothing is done."""


MOST_IDLE_S = 30.0  # how long the end of the program waits for a step that does nothing
MOST_S = 600.0  # and for one that works, as XLA's compiler does on a busy machine
_WORKS = 0.02  # of the processor's time, at least: looks at threads and such take less
_LOOK_S = 0.5


def _has_ended() -> bool:
    """Has the program ended, so that Python waits for its threads only?"""
    return not threading.main_thread().is_alive()


@contextlib.contextmanager
def _awaited() -> Iterator[None]:
    """Have the end of the program wait for the block, `MOST_S` at most.

    At its end Python kills daemon threads in the middle of what they do, and XLA then ends the
    process with SIGABRT. A thread that is no daemon, and lives as long as the block, prevents that.
    So what the block has made, and the frames of its errors hold, is to be freed inside of it, too.
    A block that begins when the program has ended may not be waited for: it is to do nothing.
    """
    done = threading.Event()

    def wait() -> None:
        while not _has_ended():
            if done.wait(_LOOK_S):
                return
        _wait_patiently(done.wait)

    try:
        start_thread(wait, "kit rerun awaited", is_daemon=False)
        yield
    finally:
        done.set()


def _wait_patiently(
    is_done: Callable[[float], bool], used_s: Callable[[], float] = time.process_time
) -> None:
    """Wait until it is done, as long as this process works, and no longer than `MOST_S`.

    Args:
        is_done: true as soon as it is; false after so many seconds.
        used_s: the time of the processor that this process has taken.
    """
    idle_s = 0.0
    for _ in range(round(MOST_S / _LOOK_S)):
        before = used_s()
        if is_done(_LOOK_S) or idle_s >= MOST_IDLE_S:
            return
        idle_s = 0.0 if used_s() - before > _WORKS * _LOOK_S else idle_s + _LOOK_S


class Reruns:
    """Runs `run_step` on one background thread; a newer request replaces an older one.

    All callbacks are called on that thread, one at a time. A request that was replaced or
    cancelled never reaches `on_result` or `on_error`, whatever its step does; `on_idle` follows
    when nothing is left to do. `spare(cancelled)` is called after that, and after each `resume`:
    work for idle time, which is told to stop by the next request.
    """

    def __init__(
        self,
        run_step: RunStep,
        *,
        on_progress: Progress = _ignore,
        on_result: Callable[[Run], None] = _ignore,
        on_error: Callable[[BaseException, str], None] = _ignore,
        on_idle: Callable[[], None] = _ignore,
        spare: Callable[[Callable[[], bool]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_step, self._spare, self._clock = run_step, spare, clock
        self._on_progress, self._on_result = on_progress, on_result
        self._on_error, self._on_idle = on_error, on_idle
        self._changed = threading.Condition()
        self._pending: _Job | None = None
        self._running: _Job | None = None
        self._latest: _Job | None = None
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._has_spare = False  # there may be spare work
        self._is_paused = False
        self._stop_spare = threading.Event()

    @property
    def is_busy(self) -> bool:
        """True from a request until its last callback has returned; spare work does not count."""
        return self._is_busy

    @property
    def is_waiting(self) -> bool:
        """True while a request has not begun."""
        return self._pending is not None

    def request(self, settings: Settings, *, rest_s: float = 0.0) -> None:
        """Run these settings next; what is running is told to stop, what was waiting is dropped.

        Args:
            rest_s: wait so long for a newer request before the step is started.

        Raises:
            SessionError: `close` was called.
        """
        with self._changed:
            if self._is_closed:  # `wait` must not answer with the run of a request before
                self._latest = _Job(settings, outcome=_closed())
            self.check_open()
            if self._thread is None:  # first: without a thread nobody would do what is asked
                self._thread = start_thread(self._work, "kit rerun")
            self._stop_all()
            self._pending = self._latest = _Job(settings, self._clock() + rest_s)
            self._is_busy = True
            self._stop_spare.set()
            self._changed.notify_all()

    def check_open(self) -> None:
        """Raise if no request is taken any more.

        Raises:
            SessionError: `close` was called.
        """
        if self._is_closed:
            raise _closed()

    def answer(self, run: Run) -> None:
        """This run, which was made before, answers now; what runs or waits is told to stop."""
        with self._changed:
            self._stop_all()
            self._latest = _Job(run.settings, outcome=run)
            self._has_spare = True  # these settings have other neighbours
            self._stop_spare.set()
            self._changed.notify_all()

    def cancel(self) -> None:
        """Tell what runs or waits to stop; `on_idle` follows. Without a run, nothing happens."""
        with self._changed:
            self._stop_all()

    def pause(self) -> None:
        """No spare work until `resume`: something else needs the machine."""
        with self._changed:
            self._is_paused = True
            self._stop_spare.set()

    def resume(self) -> None:
        """Spare work may go on, or begin anew."""
        with self._changed:
            self._is_paused, self._has_spare = False, self._latest is not None
            self._changed.notify_all()

    def close(self, timeout_s: float = 0.0) -> bool:
        """Stop for good; True if the thread has ended within `timeout_s`."""
        with self._changed:
            self._is_closed = True
            self._stop_all()
            self._stop_spare.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout_s)
        return not thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> Run:
        """Block until nothing runs or waits, and return the newest request's run.

        Raises:
            Cancelled: that request was cancelled.
            SessionError: nothing was requested, the newest request came after `close`, or this is
                the worker's own thread.
            TimeoutError: it is still running after `timeout_s`.
            Exception: whatever the step raised.
        """
        if threading.current_thread() is self._thread:
            raise SessionError("wait() inside a callback of the run would wait for itself")
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_busy, timeout_s):
                raise TimeoutError(f"the step is still running after {timeout_s} s")
            job = self._latest
        if job is None:
            raise SessionError("nothing was run yet: move a control or call rerun()")
        if isinstance(job.outcome, Exception):  # first: it need not bear to be asked for more
            raise job.outcome
        if isinstance(job.outcome, Run):
            return job.outcome
        name = type(job.outcome).__name__
        raise ExecutionError(f"the step was ended by {name}") from job.outcome

    def _stop_all(self) -> None:
        for job in (self._running, self._pending):
            if job is not None:
                job.stop.set()
                job.due_s = 0.0  # it is over at once, and need not rest
        self._changed.notify_all()

    def _is_done(self) -> bool:
        return self._pending is None and not self._is_closed

    def _next(self) -> _Job | None:
        """The job that is due, or None: there is spare work, or the end has come."""
        while not self._is_closed:
            if (job := self._pending) is not None:
                left = job.due_s - self._clock()
                if left <= 0:
                    self._pending = None
                    return job
                self._changed.wait(left)
            elif self._has_spare and self._spare is not None and not self._is_paused:
                self._has_spare = False
                self._stop_spare.clear()
                return None
            else:
                self._changed.wait()
        job, self._pending = self._pending, None
        return job

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = job = self._next()
            if job is not None:
                self._run(job)
            elif not self._is_closed and self._spare is not None:
                self._tell(self._use_spare_time, self._spare)
                continue
            with self._changed:
                self._running = None
                is_idle = self._is_done()
            if is_idle:
                self._tell(self._on_idle)
            with self._changed:
                self._is_busy = not self._is_closed and not self._is_done()
                self._has_spare = True
                self._changed.notify_all()
                if self._is_closed:
                    return

    def _use_spare_time(self, spare: Callable[[Callable[[], bool]], None]) -> None:
        with _awaited():
            self._tell(spare, lambda: self._stop_spare.is_set() or _has_ended())

    def _run(self, job: _Job) -> None:
        job.outcome = Cancelled("the run was cancelled")
        try:
            with _awaited():
                self._measure(job)
        except EngineError as error:  # no thread could be started; of the step nothing gets here
            self._fail(job, error)

    def _measure(self, job: _Job) -> None:
        def progress(text: str, fraction: float) -> None:
            if not job.stop.is_set():
                self._tell(self._on_progress, text, fraction)

        def cancelled() -> bool:
            return job.stop.is_set() or _has_ended()

        if cancelled():
            return
        try:
            run = self._run_step(job.settings, progress=progress, cancelled=cancelled)
            if not isinstance(run, Run):
                raise TypeError(f"the step must return a kit.Run, not {type(run).__name__}")
            if not job.stop.is_set():
                self._on_result(run)
                job.outcome = run
        except Cancelled:
            return
        except BaseException as error:  # noqa: BLE001 - SystemExit must not end the worker
            if os.getpid() != self._process:
                _end_child(error)
            self._fail(job, error)

    def _fail(self, job: _Job, error: BaseException) -> None:
        if not job.stop.is_set():
            job.outcome = error
            self._tell(self._on_error, error, traceback_of(error))

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back; a callback that fails is logged, since the worker has no caller."""
        try:
            callback(*args)
        except BaseException:  # noqa: BLE001 - SystemExit of the user's step must not end the worker
            _log.exception("a callback of the rerun failed")


def _closed() -> SessionError:
    return SessionError("this explorer is closed and reruns nothing; make a new one")


def _end_child(error: BaseException) -> NoReturn:
    """The step has forked a child, which comes out of it; the explorer is its parent's."""
    if not is_a(error, SystemExit):
        sys.stderr.write(traceback_of(error))
    end_at_once(exit_status(error.code) if is_a(error, SystemExit) else 1)


class Newest:
    """Calls `act(item)` on one background thread for the newest item; what waited is dropped."""

    def __init__(self, act: Callable[[Any], None], name: str) -> None:
        self._act, self._name = act, name
        self._changed = threading.Condition()
        self._items: list[Any] = []  # none or one
        self._is_closed = self._is_busy = False
        self._thread: threading.Thread | None = None

    def put(self, item: Any) -> None:
        """Do this one next; after `close` nothing is done."""
        with self._changed:
            if self._thread is None and not self._is_closed:
                self._thread = start_thread(self._work, self._name)
            self._items = [item]
            self._changed.notify_all()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until nothing is left to do; false if it takes longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closed or not (self._items or self._is_busy), timeout_s
            )

    def close(self, timeout_s: float = 0.0) -> None:
        """End the thread after what it does now, and wait so long for that."""
        with self._changed:
            self._is_closed, self._items = True, []
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._items or self._is_closed)
                if self._is_closed:
                    return
                item, self._items = self._items[0], []
                self._is_busy = True
            try:
                self._act(item)
            except BaseException:  # noqa: BLE001 - SystemExit must not end the thread
                _log.exception("what was done for the newest request failed")
