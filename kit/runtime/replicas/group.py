"""Several replicas at once: the threads they run in, where they meet.

Each replica is a thread with a session of its own on a device of its own. Nothing here waits for
ever: whoever waits for a replica that has failed, that has ended its part, or that does not come
in time, gets an error that names it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kit.errors import SessionError, SettingsError
from kit.runtime.processes.join import Processes
from kit.runtime.recording.sites import line_of
from kit.runtime.replicas.turns import Turns

__all__ = ["Group", "Meeting", "Pool", "replicas"]

Jobs = Sequence[Callable[[], Any]]


class Group:
    """Who takes part, who has ended, and what ended it for all.

    Args:
        count: of replicas in this process.
        processes: the others, of which each has as many; none if this is the only one.

    Attributes:
        ranks: of the replicas that are in this process.
        total: how many replicas there are in all processes.
        changed: notified whenever somebody comes, ends or fails.
        turns: of recording.
        turn: counts the calls of `Pool.run`; what replicas agree on belongs to one turn.
    """

    def __init__(
        self, count: int, timeout_s: float = 120.0, processes: Processes | None = None
    ) -> None:
        if isinstance(timeout_s, bool) or not timeout_s > 0:
            raise SettingsError(f"a timeout must be more than 0 seconds, not {timeout_s!r}")
        self.timeout_s = timeout_s
        self.processes = processes
        self.order: deque[str] = deque()  # of parcels, as process 0 has announced it to this one
        self.on_change: list[Callable[[], None]] = []  # called when a replica ends or fails
        self.changed = threading.Condition()
        self.turns = Turns()
        self.name, first = ("", 0) if processes is None else processes.place(count, self._ordered)
        self.ranks = range(first, first + count)
        self.total = count * (1 if processes is None else processes.count)
        self.turn = 0
        self.meetings = 0
        self.failure: tuple[int, BaseException] | None = None  # the first, with its rank
        self.ended: set[int] = set()  # in this turn
        if processes is not None:
            processes.channel.on_failure.append(self._tell)

    @property
    def count(self) -> int:
        """How many replicas are in this process."""
        return len(self.ranks)

    def place(self, rank: int) -> int:
        """A replica's place among those of this process."""
        return rank - self.ranks.start

    def begin(self) -> None:
        """A turn begins: everybody is at work and nobody has failed.

        Raises:
            SessionError: another process has ended the run for all.
        """
        if (error := self._outside("this")) is not None:
            raise error
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
        if error is not None and self.processes is not None:
            self.processes.channel.fail(error)
        self._tell()

    def close(self) -> None:
        """Whoever still waits for something gets an error."""
        with self.changed:
            self.failure = self.failure or (-1, SessionError("the DataParallel was closed"))
        self._tell()
        if self.processes is not None:
            with contextlib.suppress(ValueError):  # it was closed before
                self.processes.channel.on_failure.remove(self._tell)

    def _ordered(self, key: str) -> None:
        self.order.append(key)
        self._tell()

    def _tell(self) -> None:
        with self.changed:
            self.changed.notify_all()
        for call in self.on_change:
            call()

    def _outside(self, what: str) -> SessionError | None:
        """Why another process has ended it for all."""
        failure = "" if self.processes is None else self.processes.channel.failure
        return SessionError(f"{what} will not happen: {failure}") if failure else None

    def lacking(self, missing: Sequence[int], what: str) -> SessionError | None:
        """Why these replicas will never come to `what`; None as long as they may."""
        if (error := self._outside(what)) is not None and self.failure is None:
            return error
        if self.failure is not None:
            rank, cause = self.failure
            return SessionError(
                f"{what} will not happen: replica {rank} failed with {type(cause).__name__}: "
                f"{str(cause)[:500]}"
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


def parted(
    rank: int, note: Mapping[str, Any], other: int, theirs: Mapping[str, Any]
) -> SessionError | None:
    """What to raise if two replicas have other numbers under one name."""
    for name in note:
        if name in theirs and note[name] != theirs[name]:
            return SessionError(
                f"the replicas have parted: the optimizer's {name} is {note[name]} in replica "
                f"{rank} and {theirs[name]} in replica {other}. What is decided by a loss must be "
                "decided by that of the whole batch: ctx.mean(loss) in a workload, net.mean(losses)"
            )
    return None


def replicas(ranks: Sequence[int]) -> str:
    """`[1]` -> "replica 1", `[1, 2]` -> "replicas 1, 2"."""
    return f"replica{'s' * (len(ranks) != 1)} {', '.join(map(str, sorted(ranks)))}"


class Meeting:
    """A place where all replicas of a group bring something and leave with everything.

    The n-th visit of one is the n-th visit of all, in each turn. What was brought is given in the
    order of the ranks, whoever came first.

    Args:
        is_local: those of this process are all; else what is brought must be numbers, texts, and
            lists and dicts of them, if there are other processes.
    """

    def __init__(self, group: Group, name: str = "the barrier", *, is_local: bool = False) -> None:
        self.group = group
        self.name = name
        self._processes = None if is_local else group.processes
        self._key = f"meeting {group.meetings}"
        group.meetings += 1  # each process makes them in the same order
        self._turn = -1
        self._visits = dict.fromkeys(group.ranks, 0)  # in this turn
        self._everybodys: dict[int, list[Any]] = {}  # visit -> by rank, of all processes
        self._brought: dict[int, dict[int, Any]] = {}  # visit -> rank -> what
        self._given_up: dict[int, str] = {}  # visit -> why somebody did not wait any longer

    def bring(self, rank: int, item: Any) -> int:
        """Leave something here, and go on; gives the number of the visit, for `take`.

        Raises:
            SessionError: the others cannot come any more.
        """
        group = self.group
        with group.changed:
            if self._turn != group.turn:
                self._turn, self._brought, self._everybodys = group.turn, {}, {}
                self._given_up = {}
                self._visits = dict.fromkeys(group.ranks, 0)
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
        brought = self._brought[visit]
        self._wait(rank, visit, lambda: [r for r in group.ranks if r not in brought])
        mine = [brought[r] for r in group.ranks]
        if self._processes is None:
            return mine
        first, turn = group.ranks.start, self._turn
        if rank == first:  # it asks the other processes, for all of this one
            what = f"{self.name} of replica {rank}"
            with group.turns.lent():
                everybodys = self._processes.channel.meet(
                    what, mine, key=f"{self._key}, {turn}, {visit}"
                )
            with group.changed:
                self._everybodys[visit] = [item for items in everybodys for item in items]
                group.changed.notify_all()
        self._wait(rank, visit, lambda: [first] if visit not in self._everybodys else [])
        return self._everybodys[visit]

    def _wait(self, rank: int, visit: int, lacking: Callable[[], list[int]]) -> None:
        """Until nobody is lacking. If one gives up all do, who comes later too: else they part."""
        group = self.group
        until = time.monotonic() + group.timeout_s
        with group.turns.lent(), group.changed:
            while (missing := lacking()) or visit in self._given_up:
                left = until - time.monotonic()
                error = group.lacking(missing, f"replica {rank} at {self.name}")
                if visit in self._given_up:
                    error = error or SessionError(self._given_up[visit])
                elif error is None and left <= 0:
                    error = group.late(missing, f"replica {rank} waited at {self.name}")
                if error is not None:
                    self._given_up[visit] = self._given_up.get(visit, str(error))
                    group.changed.notify_all()
                    raise error
                group.changed.wait(left)


class Pool:
    """One thread for each replica, for good: a call is a hand-over of functions, not of threads.

    Args:
        enter: makes what a replica's thread lives in, by its place here; entered once, left by
            `close`.
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
            for r in group.ranks
        ]
        self._is_stuck = self._is_closed = False
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
                        with self.group.turns.part():
                            self._results[place] = job()
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
