"""The messages between the processes of one run, tensors apart: meetings, failures and clocks.

Process 0 passes each message on to all other processes, with the rank of the process that it came
from: nobody can say anything in another's name. No wait is without an end: the connection of a
process that is killed closes, and one that hangs, or whose host is gone, sends nothing more; either
way the others get the failure, with its rank, in time.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kit.errors import SessionError, named
from kit.runtime.processes.greeting import Badge
from kit.runtime.processes.links import Links, in_words
from kit.runtime.recording.sites import line_of

__all__ = ["Channel", "Clock"]

_PINGS = 20
_AFTER_FAILURE_S = 10.0  # that the others are given to close
_ALIKE = "Every process must run the same program, with as many steps and batches"


@dataclass(frozen=True)
class Clock:
    """How one process's `time.perf_counter_ns` relates to that of process 0.

    Attributes:
        offset_ns: to be added to this process's times.
        error_ns: it may be wrong by as much: half of the fastest round trip that measured it.
    """

    offset_ns: int = 0
    error_ns: int = 0


class Channel:
    """The channel as one process holds it.

    Attributes:
        failure: why the run is over for everybody; "" as long as it is not.
        lost: "silent" or "gone", if a process does not answer any more.
        on_failure: called once, in the channel's thread or in that of `fail`.
        on_beat: called about once a second, in the channel's thread.
        progress: how far this process is, in what all have to do; the others hear it in time.
    """

    def __init__(self, badge: Badge, *, timeout_s: float) -> None:
        self.rank, self.count, self.timeout_s = badge.rank, badge.count, timeout_s
        self.failure = self.lost = ""
        self.on_failure: list[Callable[[], None]] = []
        self.on_beat: list[Callable[[], object]] = []
        self.progress = 0
        self._progress: dict[int, int] = {}  # of the other processes, by rank
        self._links = Links(badge, self, timeout_s=timeout_s)
        self._left: set[int] = set()
        self._visits: Counter[str] = Counter()
        self._brought: dict[str, dict[int, Any]] = {}
        self._told: dict[str, Callable[[Any], None]] = {}
        self._pongs: list[tuple[int, int, int]] = []  # (sent, process 0 then, received)
        self._changed = threading.Condition()
        self._is_closed = False

    def open(self, host: str, port: int) -> None:
        """Connect all processes by process 0's `host` and `port`.

        Raises:
            SessionError: a process does not connect in time, or counts the processes differently.
        """
        self._links.open(host, port)

    # -- what the program says ---------------------------------------------------------------------

    def meet(self, what: str, item: Any = None, *, key: str = "") -> list[Any]:
        """Give an item, wait for all processes, and get the items of all, by rank.

        Args:
            what: in words, for errors; also the key of this meeting if none is given.
            item: numbers, texts, and lists and dicts of them.

        Raises:
            SessionError: a process has failed, has left, or does not come in time; or the item
                cannot travel.
        """
        try:
            item = json.loads(json.dumps(item))  # the same form as in the other processes
        except (TypeError, ValueError) as error:
            raise SessionError(
                f"{what}: only numbers, texts, and lists and dicts of them travel between "
                f"processes ({error})"
            ) from error
        key = key or what
        self._visits[key] += 1  # the n-th visit of a process meets the n-th visits of the others
        key = f"{key} {self._visits[key]}"
        with self._changed:
            if self.failure:
                raise SessionError(self.failure)
        self._send("brought", key, item)
        with self._changed:
            here = self._brought.setdefault(key, {})
            here[self.rank] = item
            until = time.monotonic() + self.timeout_s
            while len(here) < self.count:
                missing = [r for r in range(self.count) if r not in here]
                if self.failure:
                    raise SessionError(self.failure)
                if gone := sorted(self._left.intersection(missing)):
                    raise SessionError(
                        f"{what} will not happen: {in_words(gone)} ended without coming. {_ALIKE}"
                    )
                left = until - time.monotonic()
                if left <= 0:
                    raise SessionError(
                        f"process {self.rank} waited at {what}: {in_words(missing)} did not come "
                        f"within {self.timeout_s:g} s{self._why_late(missing)}"
                    )
                self._changed.wait(left)
            del self._brought[key]
            return [here[r] for r in range(self.count)]

    def _why_late(self, missing: list[int]) -> str:
        """What to do about processes that do not come: one that is ahead is not slow."""
        ahead = [r for r in missing if self._progress.get(r, 0) > self.progress]
        if not ahead:
            return ". If it is only slow, give a longer timeout"
        made = f"{in_words(ahead)} made gradients in a step that process {self.rank} did not run"
        return f", though {made}. {_ALIKE}"

    def fail(self, error: BaseException) -> None:
        """Send to all that this process cannot go on; only the first failure counts."""
        if self.failure:
            return
        why = f"failed with {named(error, 500)}{line_of(error)}"
        self._send("failed", why, "")
        self._end(self.rank, why)

    def announce(self, topic: str, item: Any) -> None:
        """Send an item from process 0 to all others; `on_announced` takes it there, in order."""
        self._send("announced", topic, item)

    def on_announced(self, topic: str, call: Callable[[Any], None]) -> None:
        """Have items of a topic handled in the channel's thread; set it before any is sent."""
        self._told[topic] = call

    def wait_for_failure(self, seconds: float = 5.0) -> str:
        """The failure that has ended the run, if it is known within these seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure, seconds)
        return self.failure

    def clock(self) -> Clock:
        """How this process's clock relates to process 0's, measured now.

        Raises:
            SessionError: process 0 does not answer.
        """
        if self.rank == 0:
            return Clock()
        best: tuple[int, int] | None = None
        for _ in range(_PINGS):
            with self._changed:
                self._pongs.clear()
            self._links.soon(lambda: self._send("ping", time.perf_counter_ns()))
            with self._changed:
                self._changed.wait_for(lambda: self._pongs or self.failure, self.timeout_s)
                if not self._pongs:
                    raise SessionError(self.failure or "process 0 does not answer")
                sent, there, received = self._pongs.pop()
            found = (received - sent, there - (sent + received) // 2)
            best = found if best is None else min(best, found)
        assert best is not None
        return Clock(best[1], (best[0] + 1) // 2)

    def behind(self) -> str:
        """The processes whose last known progress is behind this one's; in words."""
        late = [rank for rank, n in sorted(self._progress.items()) if n < self.progress]
        return in_words(late) if late else "another process"

    def is_answered(self) -> bool:
        """Whether a beat has come lately from each process with a direct connection."""
        return not self.lost and self._links.is_answered()

    def leave(self) -> None:
        """Say that this process has ended: waits of others for it fail."""
        self._send("left")

    def wait_until_gone(self) -> None:
        """Wait until all others have closed; after a failure not much longer."""
        gone, everybody = self._links.gone, self.count - 1
        with self._changed:
            self._changed.wait_for(lambda: len(gone) == everybody or self.failure)
            self._changed.wait_for(lambda: len(gone) == everybody, _AFTER_FAILURE_S)

    def close(self) -> None:
        """Close the connections; the others get no failure of it after `leave`."""
        self._is_closed = True
        self._links.close()

    # -- in the thread of the connections ----------------------------------------------------------

    def _send(self, kind: str, *items: Any) -> None:
        """Send a message of this process: process 0 says whose it is, others cannot."""
        self._links.send([0, kind, *items] if self.rank == 0 else [kind, *items])

    def take(self, rank: int, message: list[Any]) -> None:
        """Take a message that came by the connection to a process.

        Raises:
            ValueError: no process of a run sends such a message.
        """
        now = time.perf_counter_ns()
        source, *said = message if self.rank else [rank, *message]
        if type(source) is not int or not 0 <= source < self.count:
            raise ValueError("a message of no process")
        match said:
            case ["ping", int(sent)] if self.rank == 0:
                self._links.send([0, "pong", sent, time.perf_counter_ns()], to=rank)
                return
            case ["pong", int(sent), int(there)] if source == 0:
                self._change(lambda: self._pongs.append((sent, there, now)))
            case ["beat", int(progress)] if self.rank == 0:
                self._progress[source] = progress
                return
            case ["beats", [*known]] if source == 0 and all(type(n) is int for n in known):
                self._progress.update(enumerate(known))
            case ["failed", str(why), str(lost)]:
                self._end(source, why, lost if self.rank else "")
            case ["announced", str(topic), item] if source == 0:
                if topic in self._told:
                    self._call(self._told[topic], item)
            case ["brought", str(key), item]:
                self._change(lambda: self._brought.setdefault(key, {}).setdefault(source, item))
            case ["left"]:
                self._change(lambda: self._left.add(source))
            case _:
                raise ValueError(f"what no process sends ({str(said)[:60]!r})")
        if self.rank == 0:
            self._links.send([source, *said], but=rank)

    def lose(self, rank: int, how: str, why: str) -> None:
        """A connection has ended, or its process shows no sign of life, or breaks the rules."""
        had_left = rank in self._left
        if had_left:  # one that is silent since will not close its connection either
            self._links.gone.add(rank)
        self._change(lambda: self._left.add(rank))
        if not had_left and not self._is_closed:
            self.lost = self.lost or how
            if self.rank == 0:
                self._links.send([rank, "failed", why, how])
            self._end(rank, why, how)

    def beat(self) -> None:
        """Show the others that this process lives, and how far it is."""
        if self.rank == 0:
            others = (self._progress.get(rank, 0) for rank in range(1, self.count))
            self._send("beats", [self.progress, *others])
        else:
            self._send("beat", self.progress)
        for call in list(self.on_beat):
            self._call(call)

    def _change(self, change: Callable[[], object]) -> None:
        """Change what others wait for."""
        with self._changed:
            change()
            self._changed.notify_all()

    def _call(self, call: Callable[..., object], *items: Any) -> None:
        """An error of what is called ends the run by its name, and not this thread in silence."""
        try:
            call(*items)
        except Exception as error:  # noqa: BLE001 - each process gets it
            self.fail(error)

    def _end(self, rank: int, why: str, lost: str = "") -> None:
        with self._changed:
            if self.failure:
                return
            self.failure = f"process {rank} of {self.count} {why}"
            self.lost = self.lost or lost
            self._changed.notify_all()
        self._links.give_up(self.failure)
        for call in list(self.on_failure):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the others must be called, too
                self.failure += f"; after that, {named(error)}"
