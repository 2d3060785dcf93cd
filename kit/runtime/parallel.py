"""Several replicas at once: which devices they have, the threads they run in, where they meet.

Each replica is a thread with a session of its own on a device of its own. Nothing here waits for
ever: whoever waits for a replica that has failed, that has ended its part, or that does not come
in time, gets an error that names it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from kit.errors import SessionError, SettingsError
from kit.runtime.lowering import format_site
from kit.runtime.stream import Site

__all__ = ["Group", "Meeting", "Pool", "here", "pick_devices", "replicas"]

Jobs = Sequence[Callable[[], Any]]
_KIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COUNT = "--xla_force_host_platform_device_count"
_WORKLOADS = _KIT + "workloads" + os.sep  # shipped steps count as the user's code


def pick_devices(wanted: int | Sequence[Any], kind: str = "auto") -> list[Any]:
    """The jax devices of the replicas: so many different ones, or those that are named.

    A name is "cpu:1"; the same one may come twice, and then its replicas share it.

    Raises:
        SettingsError: there are not that many devices, or a name is none.
    """
    if isinstance(wanted, str | bytes) or not isinstance(wanted, int | Sequence):
        raise SettingsError(f"devices must be a number or a list of names, not {wanted!r}")
    if isinstance(wanted, bool) or (isinstance(wanted, int) and wanted < 1) or wanted == []:
        raise SettingsError(f"devices must be at least 1, not {wanted!r}")
    if isinstance(wanted, int):
        if wanted > 1 and kind != "gpu" and _COUNT not in os.environ.get("XLA_FLAGS", ""):
            asked = int(getattr(jax.config, "jax_num_cpu_devices", -1))
            with contextlib.suppress(RuntimeError):  # jax has begun: it has the devices it has
                jax.config.update("jax_num_cpu_devices", max(wanted, asked))
        there = jax.devices("cpu") if kind == "cpu" else jax.devices()
        if len(there) < wanted:
            raise SettingsError(_too_few(wanted, there))
        return list(there[:wanted])
    return [_named(rank, name) for rank, name in enumerate(wanted)]


def _named(rank: int, name: Any) -> Any:
    if not isinstance(name, str):
        return name
    kind, _, number = name.partition(":")
    try:
        there = jax.devices(kind)
    except RuntimeError:
        there = []
    if not number.isdecimal() or int(number) >= len(there):
        names = ", ".join(f"{d.platform}:{i}" for i, d in enumerate(there or jax.devices()))
        raise SettingsError(f"replica {rank}: there is no device {name!r}; there are: {names}")
    return there[int(number)]


def _too_few(wanted: int, there: Sequence[Any]) -> str:
    kind = there[0].platform
    text = f"devices={wanted}, but jax sees {len(there)} {kind} device{'s' * (len(there) != 1)}"
    if kind != "cpu":
        return (
            f"{text}; ask for at most {len(there)}, or try it on the CPU with "
            "settings=kit.Settings(device='cpu')"
        )
    return (
        f"{text}: it was told so, or began before more were asked for. Set the environment "
        f"variable XLA_FLAGS={_COUNT}={wanted} before Python starts (in a notebook: restart the "
        "kernel and set it in the first cell), or make the DataParallel before anything else uses "
        "device 'kit' or jax"
    )


class Group:
    """Who takes part, who has ended, and what ended it for all.

    Attributes:
        changed: notified whenever somebody comes, ends or fails.
        turn: counts the calls of `Pool.run`; what replicas agree on belongs to one turn.
    """

    def __init__(self, count: int, timeout_s: float = 120.0) -> None:
        if isinstance(timeout_s, bool) or not timeout_s > 0:
            raise SettingsError(f"a timeout must be more than 0 seconds, not {timeout_s!r}")
        self.count = count
        self.timeout_s = timeout_s
        self.changed = threading.Condition()
        self.turn = 0
        self.failure: tuple[int, BaseException] | None = None  # the first, with its rank
        self.ended: set[int] = set()  # in this turn
        self.on_change: list[Callable[[], None]] = []  # called when a replica ends or fails

    def begin(self) -> None:
        """A turn begins: everybody is at work and nobody has failed."""
        with self.changed:
            self.turn += 1
            self.failure = None
            self.ended.clear()

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """A replica has ended its part of this turn, well or not."""
        with self.changed:
            self.ended.add(rank)
            if error is not None and self.failure is None:
                self.failure = (rank, error)
            self.changed.notify_all()
        for call in self.on_change:
            call()

    def lacking(self, missing: Sequence[int], what: str) -> SessionError | None:
        """Why these replicas will never come to `what`; None as long as they may."""
        if self.failure is not None:
            rank, error = self.failure
            return SessionError(
                f"{what} will not happen: replica {rank} failed with {type(error).__name__}: "
                f"{str(error)[:500]}"
            )
        gone = [rank for rank in missing if rank in self.ended]
        if gone:
            return SessionError(
                f"{what} will not happen: {replicas(gone)} ended without coming. Every replica "
                "must come as often as the others: give each the same number of batches and steps"
            )
        return None

    def late(self, missing: Sequence[int], what: str) -> SessionError:
        """What to say when these replicas have not come in time."""
        return SessionError(
            f"{what}: {replicas(missing)} did not come within {self.timeout_s:g} s. If it is only "
            "slow, for example because it compiles, give a longer timeout"
        )


def replicas(ranks: Sequence[int]) -> str:
    """`[1]` -> "replica 1", `[1, 2]` -> "replicas 1, 2"."""
    return f"replica{'s' * (len(ranks) != 1)} {', '.join(map(str, sorted(ranks)))}"


class Meeting:
    """A place where all replicas of a group bring something and leave with everything.

    The n-th visit of one is the n-th visit of all, in each turn. What was brought is given in the
    order of the ranks, whoever came first.
    """

    def __init__(self, group: Group, name: str = "the barrier") -> None:
        self.group = group
        self.name = name
        self._turn = -1
        self._visits = [0] * group.count  # of each rank, in this turn
        self._brought: dict[int, dict[int, Any]] = {}  # visit -> rank -> what

    def bring(self, rank: int, item: Any) -> int:
        """Leave something here, and go on; gives the number of the visit, for `take`.

        Raises:
            SessionError: the others cannot come any more.
        """
        group = self.group
        with group.changed:
            if self._turn != group.turn:
                self._turn, self._brought = group.turn, {}
                self._visits = [0] * group.count
            visit = self._visits[rank]
            self._visits[rank] += 1
            self._brought.setdefault(visit, {})[rank] = item
            group.changed.notify_all()
        return visit

    def take(self, rank: int, visit: int) -> list[Any]:
        """What all have brought to this visit, by rank; waits for those who have not come.

        Raises:
            SessionError: one has failed, has ended its part, or does not come in time.
        """
        group = self.group
        until = time.monotonic() + group.timeout_s
        with group.changed:
            brought = self._brought[visit]
            while len(brought) < group.count:
                missing = [r for r in range(group.count) if r not in brought]
                if (error := group.lacking(missing, f"replica {rank} at {self.name}")) is not None:
                    raise error
                left = until - time.monotonic()
                if left <= 0:
                    raise group.late(missing, f"replica {rank} waited at {self.name}")
                group.changed.wait(left)
            return [brought[r] for r in range(group.count)]


class Pool:
    """One thread for each replica, for good: a call is a hand-over of functions, not of threads.

    Args:
        enter: makes what a replica's thread lives in, by rank; entered once, left by `close`.
    """

    def __init__(self, group: Group, enter: Callable[[int], AbstractContextManager[Any]]) -> None:
        self.group = group
        self._enter = enter
        self._jobs: list[Callable[[], Any] | None] = [None] * group.count
        self._results: list[Any] = [None] * group.count
        self._errors: dict[int, BaseException] = {}
        self._calls = [_held() for _ in range(group.count)]  # released to start a replica's part
        self._over = _held()  # released by the last to end
        self._count = allocate_lock()
        self._left = 0
        self._threads = [
            threading.Thread(target=self._live, args=(r,), name=f"kit replica {r}", daemon=True)
            for r in range(group.count)
        ]
        self._is_stuck = False
        self._left = group.count
        for thread in self._threads:
            thread.start()
        try:
            self._finish()
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Jobs) -> list[Any]:
        """Call the n-th function in the n-th replica's thread; results in the order given.

        Raises:
            Exception: what a function raised, with a note that says in which replica; the cause
                rather than what it led to in the others.
        """
        if self._is_stuck:
            raise SessionError(
                "a replica of this DataParallel has not ended its last part; make a new one"
            )
        self.group.begin()
        self._jobs[:] = jobs
        self._left = len(jobs)
        for call in self._calls:
            call.release()
        self._finish()
        results, self._results = self._results, [None] * len(jobs)
        return results

    def close(self) -> None:
        """Each thread leaves what it lives in, and ends."""
        if self._is_stuck:
            return  # it is a daemon: it ends with the process
        self._jobs[:] = [None] * len(self._jobs)
        self._left = 0
        for call in self._calls:
            call.release()
        for thread in self._threads:
            thread.join()

    def _finish(self) -> None:
        """Wait until all have ended, then raise what one has raised."""
        stuck: BaseException | None = None
        try:
            while stuck is None and not self._over.acquire(timeout=min(1.0, self.group.timeout_s)):
                stuck = self._overdue()
        except BaseException as error:  # an interrupt
            self.group.end(-1, error)
            self._is_stuck = not self._over.acquire(timeout=5.0)
            self._errors = {}
            raise
        if stuck is not None:
            raise stuck
        errors, self._errors = self._errors, {}
        if not errors:
            return
        first = self.group.failure
        rank = first[0] if first is not None and first[0] in errors else min(errors)
        raise _noted(rank, errors, self.group.count)

    def _overdue(self) -> BaseException | None:
        """What to raise if one has failed, and another has not noticed for as long as it may."""
        failure = self.group.failure
        if failure is None:
            return None
        grace = max(self.group.timeout_s, 2.0)
        if self._over.acquire(timeout=grace):
            self._over.release()
            return None
        self._is_stuck = True
        stuck = [r for r in range(self.group.count) if r not in self.group.ended]
        note = f"kit: {replicas(stuck)} did not end within {grace:g} s after that"
        failure[1].add_note(note)
        return failure[1]

    def _live(self, rank: int) -> None:
        try:
            with self._enter(rank):
                self._end(rank, None)
                while True:
                    self._calls[rank].acquire()
                    job = self._jobs[rank]
                    if job is None:
                        return
                    error: BaseException | None = None
                    try:
                        self._results[rank] = job()
                    except BaseException as raised:  # noqa: BLE001 - the caller gets it
                        error = raised
                    del job
                    self._end(rank, error)
        except BaseException as error:  # noqa: BLE001 - it could not be entered, or left
            self._end(rank, error)

    def _end(self, rank: int, error: BaseException | None) -> None:
        if error is not None:
            self._errors[rank] = error
        self.group.end(rank, error)
        with self._count:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._over.release()


def _noted(rank: int, errors: dict[int, BaseException], count: int) -> BaseException:
    """The error to raise, with where it was; an iterator's end is told apart from a generator's."""
    error = errors[rank]
    if isinstance(error, StopIteration):
        others = replicas([r for r in range(count) if r != rank])
        error = SessionError(
            f"an iterator of replica {rank} has ended (StopIteration), while {others} may have "
            "more: give every replica the same number of batches"
        )
        error.__cause__ = errors[rank]
    where = _line(errors[rank])
    error.add_note(f"kit: this was in replica {rank} of {count}{where}")
    failed = [r for r in sorted(errors) if r != rank and not isinstance(errors[r], SessionError)]
    if failed:
        kinds = ", ".join(f"replica {r}: {type(errors[r]).__name__}" for r in failed)
        error.add_note(f"kit: others failed as well ({kinds})")
    return error


def _line(error: BaseException) -> str:
    """ ", at train.py:41": the last line of the traceback that is neither kit's nor a library's."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if _is_users(trace.tb_frame.f_code.co_filename):
            found = f", at {format_site((trace.tb_frame.f_code.co_filename, trace.tb_lineno))}"
        trace = trace.tb_next
    return found


def here() -> Site:
    """The line of the user's that this is called from."""
    frame: Any = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _is_users(path: str) -> bool:
    own = path.startswith(_KIT) and not path.startswith(_WORKLOADS)
    return not (own or path.startswith("<frozen") or "site-packages" in path)


def _held() -> Any:
    lock = allocate_lock()
    lock.acquire()
    return lock
