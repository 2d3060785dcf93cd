"""The replicas that work together: which have ended, and what has failed for all of them.

Each replica is a thread with a session of its own on a device of its own. No wait lasts for ever: a
wait for a replica that has failed, that has ended its part, or that does not come in time, ends in
an error that names the replica.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kit.errors import SessionError, named
from kit.runtime.processes.join import Processes
from kit.runtime.replicas.turns import Turns
from kit.threads import check_timeout

__all__ = ["Group", "parted", "replicas"]


class Group:
    """The replicas of one run, over all processes.

    Args:
        count: of replicas in this process.
        processes: the others, of which each has as many; none if this is the only one.

    Attributes:
        ranks: of the replicas that are in this process.
        total: how many replicas there are in all processes.
        changed: notified whenever a replica comes, ends or fails.
        turns: of recording.
        turn: counts the calls of `Pool.run`; what replicas agree on belongs to one turn.
    """

    def __init__(
        self, count: int, timeout_s: float = 120.0, processes: Processes | None = None
    ) -> None:
        check_timeout(timeout_s)
        self.timeout_s = timeout_s
        self.processes = processes
        self.order: deque[str] = deque()  # keys of collectives, as process 0 announces them here
        self.on_change: list[Callable[[], None]] = []  # called when a replica ends or fails
        self.changed = threading.Condition()
        self.turns = Turns()
        self.name, first = ("", 0) if processes is None else processes.place(count, self._ordered)
        self.ranks = range(first, first + count)
        self.total = count * (1 if processes is None else processes.count)
        self.turn = 0
        self.rendezvous = 0  # how many places to meet have been made
        # The first, with its rank, in words: an error has the user's tensors in its traceback.
        self.failure: tuple[int, str] | None = None
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
        """Begin a turn: all replicas run and none has failed.

        Raises:
            SessionError: another process has ended the run for all.
        """
        if (error := self._outside("the rest of this run")) is not None:
            raise error
        with self.changed:
            self.turn += 1
            self.failure = None
            self.ended.clear()

    def end(self, rank: int, error: BaseException | None = None) -> None:
        """Note that a replica has ended its part of this turn, with or without an error."""
        with self.changed:
            self.ended.add(rank)
            if error is not None and self.failure is None:
                self.failure = (rank, named(error, 500))
        if error is not None and self.processes is not None:
            self.processes.channel.fail(error)
        self._tell()

    def close(self) -> None:
        """End each wait that is still going on with an error."""
        with self.changed:
            self.failure = self.failure or (-1, "the DataParallel was closed")
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
        """The failure of another process, which ended the run for all."""
        failure = "" if self.processes is None else self.processes.channel.failure
        return SessionError(f"{what} will not happen: {failure}") if failure else None

    def lacking(self, missing: Sequence[int], what: str) -> SessionError | None:
        """Why these replicas will never come to `what`; None as long as they may."""
        if (error := self._outside(what)) is not None and self.failure is None:
            return error
        if self.failure is not None:
            rank, why = self.failure
            failed = f"replica {rank} failed with {why}" if rank >= 0 else why
            return SessionError(f"{what} will not happen: {failed}")
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
