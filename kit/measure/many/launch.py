"""A run over several processes: start those of this host, watch over them, and get their run.

The processes are new ones, with a jax of their own, joined by `kit.runtime.processes.join`.
Whatever happens to them, this process stays as it is: it gets a `Run`, or an error that says which
process failed and why, and leaves none of them behind.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from kit.errors import Cancelled, SessionError, SettingsError, but_of_handlers, note, suppressed
from kit.files import keep_places
from kit.measure.base.context import as_workload
from kit.measure.base.turns import CancelledFn, in_turn
from kit.measure.many.portable import check_importable, portable
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.processes.greeting import checked_secret, new_secret
from kit.runtime.processes.join import Processes
from kit.runtime.processes.links import free_port
from kit.shown import Progress
from kit.text import check_whole_number
from kit.threads import check_timeout, start_thread

__all__ = ["Team", "run_processes"]

_CONTEXT = multiprocessing.get_context("spawn")  # XLA does not live through a fork
_GRACE_S = 10.0  # for the others, when one has failed
_POLL_S = 0.2
_TAIL = 2000  # characters of a process's own output, in an error
_ADVICE = (
    "other processes must be able to import it. Put the builder into a module, as a function of "
    "its own, not inside another one"
)


@dataclass(frozen=True)
class Team:
    """The processes that share one run.

    Attributes:
        processes: how many there are, on all hosts.
        devices: of each process.
        rank: of the only process that this host starts, in a run over several hosts; None: this
            host starts all.
        coordinator: "host:port" of process 0, if a rank is given.
        timeout_s: how long the processes wait for each other.
        name: of the run: processes of another one cannot join. By default the workload's.

    Raises:
        SettingsError: there is no process, only one of rank and coordinator is given, or the
            timeout is none.
    """

    processes: int
    devices: int = 1
    rank: int | None = None
    coordinator: str = ""
    timeout_s: float = 120.0
    name: str = ""

    def __post_init__(self) -> None:
        check_whole_number(SettingsError, "processes", self.processes)
        check_timeout(self.timeout_s)
        if (self.rank is None) != (not self.coordinator):
            raise SettingsError(
                "a rank and a coordinator ('host:port' of process 0) belong together"
            )

    @property
    def started(self) -> list[int]:
        """The ranks of the processes that this host starts."""
        return list(range(self.processes)) if self.rank is None else [self.rank]


@in_turn
def run_processes(
    workload: Any,
    settings: Settings,
    team: Team,
    *,
    progress: Progress | None = None,
    cancelled: CancelledFn | None = None,
    **options: Any,
) -> Run:
    """Run a workload's step on the devices of several processes, and measure it.

    Args:
        workload: importable by its name; or a function without arguments that gives it, and is.
        options: as for `kit.DataParallel`: buckets, cuts, a link.

    Raises:
        SettingsError: an argument is wrong, or the workload cannot be sent to other processes.
        SessionError: a process was killed, or hangs.
        Cancelled: `cancelled()` became true; the processes have been ended.
        Exception: what the step raises, with a note that names the process.
    """
    if not isinstance(workload, partial):
        workload = as_workload(workload)
        check_importable(workload, _ADVICE)
        settings = workload.fit(settings)
    coordinator = team.coordinator or f"127.0.0.1:{free_port()}"
    secret = new_secret() if team.rank is None else checked_secret()
    with tempfile.TemporaryDirectory(prefix="kit-", ignore_cleanup_errors=True) as folder:
        task = _Task(workload, settings, team, coordinator, folder, options, secret)
        children: list[_Child] = []
        kept = keep_places()  # a pipe there would be overwritten by the log of a process
        try:
            children += (_Child(rank, task) for rank in team.started)
            _watch(children, progress, cancelled)
        finally:
            for child in children:
                child.end()
            for number in kept:
                os.close(number)
        return Run.load(task.file(team.started[0]))


@dataclass(frozen=True)
class _Task:
    """What each process is to do; goes to it by pickle, through a pipe that only it can read."""

    workload: Any
    settings: Settings
    team: Team
    coordinator: str  # also where the team names none
    folder: str
    options: dict[str, Any]
    secret: str = field(repr=False)

    def file(self, rank: int) -> Path:
        """Where a process leaves its run."""
        return Path(self.folder) / f"{rank}.kitrun"

    def log(self, rank: int) -> Path:
        """Where what a process writes goes."""
        return Path(self.folder) / f"{rank}.log"

    def do(self, rank: int, parent: Connection[Any, Any]) -> None:
        """In the process: join the others, run, and leave the run in a file.

        What jax and gloo write goes to a log, and so does what all but process 0 print.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this one
        start_thread(_end_with_parent, "kit parent")
        if rank == 0:
            with contextlib.suppress(OSError):  # closed, as of some services
                sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        log = os.open(self.log(rank), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        from kit.measure.many.replicas import run
        from kit.runtime.processes.join import join_processes

        def tell(name: str, fraction: float) -> None:
            parent.send(("progress", name, fraction))

        told, team = False, self.team

        def fail(error: Exception, joined: Processes | None = None) -> None:
            nonlocal told
            if told:
                return
            told = True
            failure = "" if joined is None else joined.channel.failure
            is_cause = not failure or failure.startswith(f"process {rank} ")
            # of one that hangs the parent hears nothing, and nobody will know more
            is_cause = is_cause or (joined is not None and joined.channel.lost == "silent")
            parent.send(("failed", portable(error), is_cause))

        try:
            with join_processes(
                self.coordinator,
                team.processes,
                rank,
                devices=team.devices if team.rank is None else None,  # None: all of this host
                timeout_s=team.timeout_s,
                secret=self.secret,
                run=team.name or getattr(self.workload, "name", ""),
            ) as joined:
                step = self.workload() if isinstance(self.workload, partial) else self.workload
                try:
                    made = run(step, self.settings, devices=team.devices, timeout_s=team.timeout_s,
                               progress=tell if rank == 0 else None, **self.options)  # fmt: skip
                except Exception as error:
                    joined.channel.fail(error)
                    fail(error, joined)  # before leaving, which may take long if others hang
                    raise
            made.save(self.file(rank))
            parent.send(("done",))
        except Exception as error:  # noqa: BLE001 - the parent gets it
            fail(error)
        os._exit(0)  # a thread may hang in a collective that the others have left


def _end_with_parent() -> None:
    """A parent that is killed cannot end its children."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class _Child:
    """One process, from outside."""

    def __init__(self, rank: int, task: _Task) -> None:
        self.rank, self._task = rank, task
        self.pipe, theirs = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(
            target=task.do, args=(rank, theirs), name=f"kit process {rank}", daemon=False
        )
        self.process.start()
        theirs.close()
        self.is_done = False
        self.error: Exception | None = None
        self.is_cause = self.has_died = False

    @property
    def is_over(self) -> bool:
        """It has said how it ended, or it has ended without a word."""
        return self.is_done or self.error is not None

    def hear(self, progress: Progress | None) -> None:
        """Take what it says; a process that has gone has failed."""
        while (said := self._next()) is not None:
            kind, *rest = said
            if kind == "progress" and progress is not None:
                progress(*rest)
            elif kind == "done":
                self.is_done = True
            elif kind == "failed":
                self.error, self.is_cause = rest
                rank, count = self.rank, self._task.team.processes
                note(self.error, f"kit: this was in process {rank} of {count}")

    def _next(self) -> tuple[Any, ...] | None:
        """The next that it says; None: nothing now, or it has gone."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except but_of_handlers(EOFError, OSError):
            self.process.join(_GRACE_S)
            if not self.is_over:
                self._note_death()
            return None

    def _note_death(self) -> None:
        code, self.has_died = self.process.exitcode, True
        self.is_cause = code != -signal.SIGABRT  # so jax ends those that outlive process 0
        how = f"ended with exit status {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        tail = ""
        with suppressed(OSError):
            tail = self._task.log(self.rank).read_text("utf-8", "replace")[-_TAIL:].strip()
        self.error = SessionError(f"process {self.rank} of {self._task.team.processes} {how}")
        if not self._task.log(self.rank).exists():  # it was not even imported
            self.error.add_note(
                "it ended before the run began, and has written why. A script that starts a run "
                'must do that under `if __name__ == "__main__":`, because its processes import it'
            )
        if tail:
            self.error.add_note(f"the last of its output:\n{tail}")

    def end(self) -> None:
        """It is not needed any more."""
        if self.process.is_alive():
            self.process.join(0 if not self.is_over else 2.0)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()


def _watch(
    children: Sequence[_Child], progress: Progress | None, cancelled: CancelledFn | None
) -> None:
    """Until all are done, or one has failed and the others had time to say so."""
    until: float | None = None
    while not all(c.is_over for c in children):
        if cancelled is not None and cancelled():
            raise Cancelled("cancelled: the processes of this run have been ended")
        wait([c.pipe for c in children if not c.is_over], _POLL_S)
        for child in children:
            if not child.is_over:
                child.hear(progress)
        if any(c.error is not None and c.is_cause for c in children):
            break
        if any(c.error is not None for c in children):
            until = until or time.monotonic() + _GRACE_S
            if time.monotonic() > until:
                break
    failed = [c for c in children if c.error is not None]
    if failed:
        first = next((c for c in failed if c.is_cause), None)
        first = first or next((c for c in failed if c.has_died), failed[0])
        assert first.error is not None
        raise first.error
