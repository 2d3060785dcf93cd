"""The messages between the processes of one run, tensors apart: meetings, failures and clocks.

A star of connections around process 0, which passes each message on to all other processes. No wait
is without an end: the connection of a process that is killed closes, and one that hangs, or whose
host is gone, sends nothing more; either way the others get the failure, with its rank, in time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from kit.errors import SessionError
from kit.runtime.recording.sites import line_of

__all__ = ["Channel", "Clock", "free_port"]

_BEAT_S = 1.0  # between two signs of life
_SILENCE_S = 30.0  # without one, a process is taken for dead
_PINGS = 20
_GREETING = "overlap-kit"  # a process of this run begins with it; a stranger at the port does not
_GREETING_S = 10.0


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

    def __init__(self, rank: int, count: int, *, timeout_s: float) -> None:
        self.rank, self.count, self.timeout_s = rank, count, timeout_s
        self.failure = self.lost = ""
        self.on_failure: list[Callable[[], None]] = []
        self.on_beat: list[Callable[[], object]] = []
        self.progress = 0
        self._progress: dict[int, int] = {}  # of the other processes, by rank
        # By rank: process 0 has a connection to each other process, those have one, to process 0.
        self._peers: dict[int, Connection[Any, Any]] = {}
        self._heard: dict[int, float] = {}
        self._left: set[int] = set()
        self._visits: Counter[str] = Counter()
        self._brought: dict[str, dict[int, Any]] = {}
        self._told: dict[str, Callable[[Any], None]] = {}
        self._out: dict[int, SimpleQueue[bytes | None]] = {}
        self._writers: list[threading.Thread] = []
        self._refused = ""
        self._pongs: list[tuple[int, int, int]] = []  # (sent, process 0 then, received)
        self._changed = threading.Condition()
        self._gone: set[int] = set()  # ranks whose connections have ended
        # below the timeout, so that a wait ends with "it hangs" and not with "too late"
        self._silence_s = max(min(_SILENCE_S, 0.75 * timeout_s), 3 * _BEAT_S)
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="kit channel", daemon=True)

    def open(self, host: str, port: int) -> None:
        """Connect all processes by process 0's `host` and `port`.

        Raises:
            SessionError: a process does not connect in time, or two have the same rank.
        """
        until = time.monotonic() + self.timeout_s
        if self.rank == 0:
            self._gather(host, port, until)
        else:
            self._add(0, self._reach(host, port, until))
        self._heard = dict.fromkeys(self._peers, time.monotonic())
        self._thread.start()

    def _gather(self, host: str, port: int, until: float) -> None:
        try:
            server = socket.create_server((host, port), family=_family(host), backlog=self.count)
        except OSError as error:
            raise SessionError(
                f"process 0 cannot listen at {host}:{port} ({error}): the coordinator's address "
                "must be one of its own host, with a port that is free"
            ) from error
        beat = time.monotonic()
        with server:
            server.settimeout(0.1)
            while len(self._peers) < self.count - 1 and not self._refused:
                now = time.monotonic()
                if now > until:
                    missing = [r for r in range(1, self.count) if r not in self._peers]
                    why = f"{_processes(missing)} did not come within {self.timeout_s:g} s"
                    raise SessionError(why)
                if now - beat > _BEAT_S:  # processes that are connected already expect a beat
                    beat = now
                    self._tell(["beat", []])
                with contextlib.suppress(TimeoutError):
                    made, _ = server.accept()
                    _set_up(made)
                    threading.Thread(target=self._greet, args=(made,), daemon=True).start()
        if self._refused:
            raise SessionError(self._refused)

    def _greet(self, made: socket.socket) -> None:
        """Take a new connection: of a process of this run, or of a stranger, which is closed."""
        peer = Connection(made.detach())
        try:
            if not peer.poll(_GREETING_S):
                raise TimeoutError
            name, rank, count = json.loads(peer.recv_bytes(1000))
            if name != _GREETING or type(rank) is not int or type(count) is not int:
                raise ValueError
        except (OSError, EOFError, ValueError, TypeError):
            peer.close()
            return
        why = ""
        with self._changed:
            if count != self.count:
                why = (
                    f"process {rank} says that there are {count} processes, process 0 {self.count}"
                )
            elif rank in self._peers or not 0 < rank < count:
                why = f"process {rank} came twice: give each its own number, from 0 to {count - 1}"
            with contextlib.suppress(OSError):
                peer.send_bytes(json.dumps(why).encode())
            if why:
                self._refused = why
                peer.close()
            else:
                self._add(rank, peer)

    def _reach(self, host: str, port: int, until: float) -> Connection[Any, Any]:
        while True:
            left = until - time.monotonic()
            try:
                made = socket.create_connection((host, port), timeout=max(left, 0.1))
                _set_up(made)
                peer = Connection(made.detach())
                peer.send_bytes(json.dumps([_GREETING, self.rank, self.count]).encode())
                if not peer.poll(max(left, 0.1)):
                    raise TimeoutError("it says nothing")
                why = json.loads(peer.recv_bytes(1000))
                break
            except (OSError, EOFError, ValueError) as error:
                if time.monotonic() > until:
                    raise SessionError(
                        f"process {self.rank} cannot reach process 0 at {host}:{port} within "
                        f"{self.timeout_s:g} s ({error}): start it as well, and give the "
                        "coordinator by a name or address that all hosts know"
                    ) from error
                time.sleep(0.1)
        if why:
            peer.close()
            raise SessionError(why)
        return peer

    def _add(self, rank: int, peer: Connection[Any, Any]) -> None:
        """Start a writing thread for each connection: one that is full delays no other."""
        self._peers[rank] = peer
        out: SimpleQueue[bytes | None] = SimpleQueue()
        self._out[rank] = out
        writer = threading.Thread(target=_write, args=(peer, out), name="kit writer", daemon=True)
        self._writers.append(writer)
        writer.start()

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
        self._tell(["brought", self.rank, key, item])
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
                        f"{what} will not happen: {_processes(gone)} ended without coming. Every "
                        "process must run the same program, with as many steps and batches"
                    )
                left = until - time.monotonic()
                if left <= 0:
                    raise SessionError(
                        f"process {self.rank} waited at {what}: {_processes(missing)} did not come "
                        f"within {self.timeout_s:g} s. If it is only slow, give a longer timeout"
                    )
                self._changed.wait(left)
            del self._brought[key]
            return [here[r] for r in range(self.count)]

    def fail(self, error: BaseException) -> None:
        """Send to all that this process cannot go on; only the first failure counts."""
        if self.failure:
            return
        text = f"{type(error).__name__}: {str(error)[:500]}{line_of(error)}"
        self._tell(["failed", self.rank, f"failed with {text}"])
        self._end(self.rank, f"failed with {text}")

    def announce(self, topic: str, item: Any) -> None:
        """Send an item to all others; `on_announced` takes it there, in the order of sending."""
        self._tell(["announced", topic, item])

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
            self._send(0, ["ping", time.perf_counter_ns()])
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
        return _processes(late) if late else "another process"

    def is_answered(self) -> bool:
        """Whether a beat has come lately from each process with a direct connection."""
        now = time.monotonic()
        heard = (at for rank, at in self._heard.items() if rank not in self._gone)
        return not self.lost and all(now - at < 3 * _BEAT_S for at in heard)

    def leave(self) -> None:
        """Say that this process has ended: waits of others for it fail."""
        self._tell(["left", self.rank])

    def wait_until_gone(self, seconds: float = 10.0) -> None:
        """Wait until all others have closed; after a failure not longer than this."""
        everybody = self.count - 1
        with self._changed:
            self._changed.wait_for(lambda: len(self._gone) == everybody or self.failure)
            self._changed.wait_for(lambda: len(self._gone) == everybody, seconds)

    def close(self) -> None:
        """Close the connections; the others get no failure of it after `leave`."""
        self._is_closed = True
        for out in self._out.values():
            out.put(None)
        for writer in self._writers:  # messages that were sent before must arrive
            writer.join(2.0)
        for peer in self._peers.values():
            end = socket.socket(fileno=os.dup(peer.fileno()))
            with end, contextlib.suppress(OSError):  # the other end may have gone
                end.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():  # the thread reads the connections: they close after its end
            self._thread.join()
        for peer in self._peers.values():
            peer.close()

    # -- the wire ----------------------------------------------------------------------------------

    def _tell(self, message: list[Any], *, but: int = -1) -> None:
        for rank in list(self._peers):
            if rank != but:
                self._send(rank, message)

    def _send(self, rank: int, message: list[Any]) -> None:
        self._out[rank].put(json.dumps(message).encode())

    def _listen(self) -> None:
        beat = 0.0
        open_ones = {peer: rank for rank, peer in self._peers.items()}
        while open_ones and not self._is_closed:
            for peer in wait(list(open_ones), _BEAT_S / 2):
                rank = open_ones[peer]  # type: ignore[index]
                try:
                    message = json.loads(peer.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError, ValueError):
                    del open_ones[peer]  # type: ignore[arg-type]
                    why = "has gone: its connection was closed. It was killed, or it crashed; its "
                    self._lose(rank, "gone", why + "own output may say why")
                    continue
                self._heard[rank] = time.monotonic()
                self._take(rank, message)
            now = time.monotonic()
            if now - beat >= _BEAT_S:
                beat = now
                known = self._progress if self.rank == 0 else {}
                self._tell(["beat", [*known.items(), (self.rank, self.progress)]])
                for call in list(self.on_beat):
                    call()
            for rank in open_ones.values():
                if now - self._heard[rank] > self._silence_s:
                    self._heard[rank] = now
                    why = f"was silent for {self._silence_s:g} s: it hangs, or its host cannot be "
                    self._lose(rank, "silent", why + "reached")

    def _take(self, rank: int, message: list[Any]) -> None:
        kind = message[0]
        if kind == "ping":
            self._send(rank, ["pong", message[1], time.perf_counter_ns()])
            return
        if kind == "pong":
            now = time.perf_counter_ns()
            with self._changed:
                self._pongs.append((message[1], message[2], now))
                self._changed.notify_all()
            return
        if self.rank == 0 and kind != "beat":
            self._tell(message, but=rank)
        if kind == "failed":
            self._end(*message[1:])
            return
        if kind == "beat":
            self._progress.update(message[1])
            return
        with self._changed:
            if kind == "announced":
                _, topic, item = message
            elif kind == "brought":
                _, source, key, item = message
                self._brought.setdefault(key, {})[source] = item
            elif kind == "left":
                self._left.add(message[1])
            self._changed.notify_all()
        if kind == "announced" and topic in self._told:
            self._told[topic](item)

    def _lose(self, rank: int, how: str, why: str) -> None:
        """A connection has ended, or its process shows no sign of life."""
        with self._changed:
            had_left = rank in self._left
            self._left.add(rank)
            self._gone.add(rank)
            self._changed.notify_all()
        if not had_left and not self._is_closed:
            self.lost = self.lost or how
            if self.rank == 0:
                self._tell(["failed", rank, why, how], but=rank)
            self._end(rank, why, how)

    def _end(self, rank: int, why: str, lost: str = "") -> None:
        with self._changed:
            if self.failure:
                return
            self.failure = f"process {rank} of {self.count} {why}"
            self.lost = self.lost or lost
            self._changed.notify_all()
        for call in list(self.on_failure):
            call()


def _processes(ranks: list[int]) -> str:
    """`[1]` -> "process 1", `[1, 2]` -> "processes 1, 2"."""
    return f"process{'es' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this host that no program listens at now."""
    with socket.socket(_family(host)) as made:
        made.bind((host, 0))
        port: int = made.getsockname()[1]
        return port


def _set_up(made: socket.socket) -> None:
    """Small messages leave at once: TCP would keep a second one until the first is acknowledged."""
    made.settimeout(None)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _write(peer: Connection[Any, Any], out: SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # the other end is closed, as the reader finds
        while (message := out.get()) is not None:
            peer.send_bytes(message)
