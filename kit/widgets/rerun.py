"""Run a step again and again in the background: the newest request wins.

    request ──► pending ──► running ──► on_result | on_error ──► on_idle
                (one)       (one, told by `cancelled()` when a newer request arrives)

One worker thread, started by the first request. Nothing polls: the worker sleeps on a condition.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kit.errors import Cancelled, ExecutionError, SessionError
from kit.run import Run, Settings

__all__ = ["Reruns", "RunStep"]

_log = logging.getLogger(__name__)


class RunStep(Protocol):
    """What is rerun: settings in, a measured run out."""

    def __call__(
        self,
        settings: Settings,
        /,
        *,
        progress: Callable[[str, float], None],
        cancelled: Callable[[], bool],
    ) -> Run:
        """Measure once; say how far it is by `progress(text, fraction)`.

        Raises:
            Cancelled: `cancelled()` became true; nothing of the run is kept.
        """


@dataclass(eq=False)
class _Job:
    settings: Settings
    stop: threading.Event = field(default_factory=threading.Event)
    outcome: Run | BaseException | None = None


def _ignore(*_: Any) -> None:
    """The callback of someone who did not ask to be told."""


class Reruns:
    """Runs `run_step` on one background thread; a newer request replaces an older one.

    All callbacks are called on that thread, one at a time. A request that was replaced or
    cancelled never reaches `on_result` or `on_error`, whatever its step does; `on_idle` follows
    when nothing is left to do.
    """

    def __init__(
        self,
        run_step: RunStep,
        *,
        on_progress: Callable[[str, float], None] = _ignore,
        on_result: Callable[[Run], None] = _ignore,
        on_error: Callable[[BaseException, str], None] = _ignore,
        on_idle: Callable[[], None] = _ignore,
    ) -> None:
        self._run_step = run_step
        self._on_progress, self._on_result = on_progress, on_result
        self._on_error, self._on_idle = on_error, on_idle
        self._changed = threading.Condition()
        self._pending: _Job | None = None
        self._running: _Job | None = None
        self._latest: _Job | None = None
        self._is_busy = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """True from a request until its last callback has returned."""
        return self._is_busy

    def request(self, settings: Settings) -> None:
        """Run these settings next; what is running is told to stop, what was waiting is dropped.

        Raises:
            SessionError: `close` was called.
        """
        with self._changed:
            if self._is_closed:
                raise SessionError("this explorer is closed and reruns nothing; make a new one")
            self._stop_all()
            self._pending = self._latest = _Job(settings)
            self._is_busy = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kit rerun", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def cancel(self) -> None:
        """Tell what runs or waits to stop; `on_idle` follows. Without a run, nothing happens."""
        with self._changed:
            self._stop_all()

    def close(self, timeout_s: float = 0.0) -> bool:
        """Stop for good; True if the thread has ended within `timeout_s`."""
        with self._changed:
            self._is_closed = True
            self._stop_all()
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
            SessionError: nothing was requested, or this is the worker's own thread.
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
        if isinstance(job.outcome, Run):
            return job.outcome
        if isinstance(job.outcome, Exception):
            raise job.outcome
        name = type(job.outcome).__name__
        raise ExecutionError(f"the step was ended by {name}") from job.outcome

    def _stop_all(self) -> None:
        for job in (self._running, self._pending):
            if job is not None:
                job.stop.set()

    def _is_done(self) -> bool:
        return self._pending is None and not self._is_closed

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending is not None or self._is_closed)
                job, self._pending = self._pending, None
                self._running = job
            if job is not None:
                self._run(job)
            with self._changed:
                self._running = None
                is_idle = self._is_done()
            if is_idle:
                self._tell(self._on_idle)
            with self._changed:
                self._is_busy = not self._is_closed and not self._is_done()
                self._changed.notify_all()
                if self._is_closed:
                    return

    def _run(self, job: _Job) -> None:
        def progress(text: str, fraction: float) -> None:
            if not job.stop.is_set():
                self._tell(self._on_progress, text, fraction)

        job.outcome = Cancelled("the run was cancelled")
        if job.stop.is_set():
            return
        try:
            run = self._run_step(job.settings, progress=progress, cancelled=job.stop.is_set)
            if not isinstance(run, Run):
                raise TypeError(f"the step must return a kit.Run, not {type(run).__name__}")
            if not job.stop.is_set():
                self._on_result(run)
                job.outcome = run
        except Cancelled:
            return
        except BaseException as error:  # noqa: BLE001 - SystemExit must not end the worker
            if not job.stop.is_set():
                job.outcome = error
                self._tell(self._on_error, error, "".join(traceback.format_exception(error)))

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back; a callback that fails is logged, since nobody is left to be told."""
        try:
            callback(*args)
        except Exception:  # noqa: BLE001 - it is logged
            _log.exception("a callback of the rerun failed")
