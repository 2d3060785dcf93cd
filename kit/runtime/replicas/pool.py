"""The threads of replicas: one for each, kept from call to call."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kit.errors import SessionError
from kit.runtime.recording.sites import line_of
from kit.runtime.replicas.group import Group, replicas
from kit.threads import start_thread

__all__ = ["Pool"]

Jobs = Sequence[Callable[[], Any]]


class Pool:
    """One thread for each replica, for good: a call is a hand-over of functions, not of threads.

    Args:
        enter: makes what a replica's thread lives in, by its place here; entered once, left by
            `close`.
        switched: told true in a replica's thread when it begins to record, false when it stops.
    """

    def __init__(
        self,
        group: Group,
        enter: Callable[[int], AbstractContextManager[Any]],
        switched: Callable[[bool], object] = bool,
    ) -> None:
        self.group = group
        self._enter = enter
        self._switched = switched
        self._jobs: list[Callable[[], Any] | None] = [None] * group.count
        self._results: list[Any] = [None] * group.count
        self._errors: dict[int, BaseException] = {}
        self._calls = [_held() for _ in range(group.count)]  # released to start a replica's part
        self._over = _held()  # released by the last replica to end
        self._count = allocate_lock()
        self._left = 0
        self._threads: list[threading.Thread] = []
        self._is_stuck = self._is_closed = False
        self._left = group.count
        try:
            for r in group.ranks:
                self._threads.append(start_thread(self._live, f"kit replica {r}", args=(r,)))
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
        if self._is_closed:
            raise SessionError("this DataParallel has been closed; make a new one")
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
        self._is_closed = True
        if self._is_stuck:
            return  # the thread is a daemon, and ends with the process
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
            with self._count:
                has_ended = self._left == 0  # and `_over` was perhaps acquired just now
            is_over = self._over.acquire(timeout=0.5 if has_ended else 5.0)
            self._is_stuck = not (has_ended or is_over)
            self._errors = {}
            raise
        if stuck is not None:
            raise stuck
        errors, self._errors = self._errors, {}
        if not errors:
            return
        first = self.group.failure
        rank = first[0] if first is not None and first[0] in errors else min(errors)
        raise _noted(rank, errors, self.group)

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
        stuck = [r for r in self.group.ranks if r not in self.group.ended]
        note = f"kit: {replicas(stuck)} did not end within {grace:g} s after that"
        failure[1].add_note(note)
        return failure[1]

    def _live(self, rank: int) -> None:
        place = self.group.place(rank)
        try:
            with self._enter(place):
                self._end(rank, None)
                while True:
                    self._calls[place].acquire()
                    job = self._jobs[place]
                    if job is None:
                        return
                    error: BaseException | None = None
                    try:
                        with self.group.turns.part(self._switched):
                            self._results[place] = job()
                    except BaseException as raised:  # noqa: BLE001 - the caller gets it
                        error = raised
                    del job
                    self._end(rank, error)
        except BaseException as error:  # noqa: BLE001 - its surroundings could not be entered, or left
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


def _noted(rank: int, errors: dict[int, BaseException], group: Group) -> BaseException:
    """The error to raise, with where it was; an iterator's end is told apart from a generator's."""
    error = errors[rank]
    if isinstance(error, StopIteration):
        others = replicas([r for r in group.ranks if r != rank])
        error = SessionError(
            f"an iterator of replica {rank} has ended (StopIteration), while {others} may have "
            "more: give every replica the same number of batches"
        )
        error.__cause__ = errors[rank]
    where = line_of(errors[rank])
    error.add_note(f"kit: this was in replica {rank} of {group.total}{where}")
    failed = [r for r in sorted(errors) if r != rank and not isinstance(errors[r], SessionError)]
    if failed:
        kinds = ", ".join(f"replica {r}: {type(errors[r]).__name__}" for r in failed)
        error.add_note(f"kit: others failed as well ({kinds})")
    return error


def _held() -> Any:
    lock = allocate_lock()
    lock.acquire()
    return lock
