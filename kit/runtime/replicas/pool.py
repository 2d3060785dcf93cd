"""The threads of replicas: one for each, kept from call to call."""

from __future__ import annotations

import contextlib
import threading
from _thread import allocate_lock
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kit.errors import SessionError, is_a, note
from kit.runtime.recording.sites import line_of
from kit.runtime.replicas.group import Group, replicas
from kit.runtime.replicas.member import note_replica
from kit.threads import start_thread

__all__ = ["Pool"]

Jobs = Sequence[Callable[[], Any]]


class _Turn:
    """What one call of `Pool.run` hands out, and what comes of it."""

    __slots__ = ("_count", "errors", "jobs", "left", "over", "results")

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = list(jobs)
        self.results: list[Any] = [None] * len(self.jobs)
        self.errors: dict[int, BaseException] = {}
        self.left = len(self.jobs)
        self.over = _held()  # released by the last replica to end
        self._count = allocate_lock()

    def end(self) -> None:
        """A replica has ended its part."""
        with self._count:
            self.left -= 1
            is_last = self.left == 0
        if is_last:
            self.over.release()


class Pool:
    """One thread for each replica, for good: a call is a hand-over of functions, not of threads.

    A call begins in one assignment, of `_turn`; to wake a thread twice does no harm. So an error or
    an interrupt anywhere in a call finds it either not begun, or begun for all replicas.

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
        self._calls = [_held() for _ in range(group.count)]  # released to wake a replica
        self._threads: list[threading.Thread] = []
        self._is_stuck = False
        first = _Turn([lambda: None] * group.count)  # over once all surroundings are entered
        self._turn: _Turn | None = first  # None once it is closed
        try:
            for r in group.ranks:
                self._threads.append(start_thread(self._live, f"kit replica {r}", args=(r, first)))
            self._finish(first)
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Jobs) -> list[Any]:
        """Call the n-th function in the n-th replica's thread; results in the order given.

        Raises:
            Exception: what a function raised, with a note that says in which replica; the cause
                rather than what it led to in the others.
        """
        if (now := self._turn) is None:
            raise SessionError("this DataParallel has been closed; make a new one")
        if self._is_stuck:
            raise SessionError(
                "a replica of this DataParallel has not ended its last part; make a new one"
            )
        if now.left:
            raise SessionError(
                "the replicas of this DataParallel are at work: it is used by one thread at a "
                "time, and not by what they run themselves, as in net.map"
            )
        turn = _Turn(jobs)
        self.group.begin()
        try:
            self._finish(turn)
            return turn.results
        finally:
            if not turn.left:  # a thread knows its last turn until the next: keep nothing alive
                turn.results, turn.jobs, turn.errors = [], [], {}

    def close(self) -> None:
        """Each thread leaves what it lives in, and ends."""
        self._turn = None
        self._wake()
        if self._is_stuck:
            return  # that thread is a daemon, and ends with the process
        for thread in self._threads:
            thread.join()

    def _wake(self) -> None:
        """Have each replica look at the turn."""
        for call in self._calls:
            with contextlib.suppress(RuntimeError):  # it is awake, and has not looked yet
                call.release()

    def _finish(self, turn: _Turn) -> None:
        """Give a turn to the replicas, wait until all have ended, raise what one has raised."""
        stuck: BaseException | None = None
        try:
            self._turn = turn
            self._wake()
            while stuck is None and not turn.over.acquire(timeout=min(1.0, self.group.timeout_s)):
                stuck = self._overdue(turn)
        except BaseException as error:  # an interrupt
            if self._turn is turn:
                self._abandon(turn, error)
            raise
        if stuck is not None:
            raise stuck
        if not turn.errors:
            return
        first = self.group.failure
        rank = first[0] if first is not None and first[0] in turn.errors else min(turn.errors)
        raise _noted(rank, turn.errors, self.group)

    def _abandon(self, turn: _Turn, error: BaseException) -> None:
        """Nobody waits for this turn any more: let the replicas end it, in error."""
        self._is_stuck = True  # until it is known that they have
        self._wake()
        self.group.end(-1, error)
        if turn.left:
            turn.over.acquire(timeout=5.0)
        self._is_stuck = turn.left > 0

    def _overdue(self, turn: _Turn) -> BaseException | None:
        """What to raise if one has failed, and another has not noticed for as long as it may."""
        failure = self.group.failure
        if failure is None:
            return None
        error = turn.errors.get(failure[0]) or SessionError(failure[1])
        grace = max(self.group.timeout_s, 2.0)
        if turn.over.acquire(timeout=grace):
            turn.over.release()
            return None
        self._is_stuck = True
        stuck = [r for r in self.group.ranks if r not in self.group.ended]
        note(error, f"kit: {replicas(stuck)} did not end within {grace:g} s after that")
        return error

    def _live(self, rank: int, first: _Turn) -> None:
        place = self.group.place(rank)
        done: _Turn | None = None
        try:
            with self._enter(place):
                self._end(rank, first, None)
                done = first
                while (turn := self._turn) is not None:
                    if turn is not done:
                        self._do(rank, turn, turn.jobs[place])
                        done = turn
                    self._calls[place].acquire()
        except BaseException as error:  # noqa: BLE001 - its surroundings could not be entered, or left
            # This replica comes to no further turn; if it could not begin, nobody waits for it.
            self._is_stuck = self._turn is not None and done is not None
            if (missed := self._turn) is not None and missed is not done:
                self._end(rank, missed, error)

    def _do(self, rank: int, turn: _Turn, job: Callable[[], Any]) -> None:
        """A replica's part of a turn."""
        error: BaseException | None = None
        try:
            with self.group.turns.part(self._switched):
                turn.results[self.group.place(rank)] = job()
        except BaseException as raised:  # noqa: BLE001 - the caller gets it
            error = raised
        del job
        self._end(rank, turn, error)

    def _end(self, rank: int, turn: _Turn, error: BaseException | None) -> None:
        if error is not None:
            turn.errors[rank] = error
        self.group.end(rank, error)
        turn.end()


def _noted(rank: int, errors: dict[int, BaseException], group: Group) -> BaseException:
    """The error to raise, with where it was; an iterator's end is told apart from a generator's."""
    error = errors[rank]
    if is_a(error, StopIteration):
        others = replicas([r for r in group.ranks if r != rank])
        error = SessionError(
            f"an iterator of replica {rank} has ended (StopIteration), while {others} may have "
            "more: give every replica the same number of batches"
        )
        error.__cause__ = errors[rank]
    note_replica(error, rank, f" of {group.total}{line_of(errors[rank])}")
    failed = [r for r in sorted(errors) if r != rank and not is_a(errors[r], SessionError)]
    if failed:
        kinds = ", ".join(f"replica {r}: {type(errors[r]).__name__}" for r in failed)
        note(error, f"kit: others failed as well ({kinds})")
    return error


def _held() -> Any:
    lock = allocate_lock()
    lock.acquire()
    return lock
