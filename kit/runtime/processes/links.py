"""The connections of one process of a run: who has joined, who is heard, and what is sent.

A star around process 0. One thread with an event loop serves all connections, so that none of them
can hold up another: neither one that sends half a message, nor one that reads nothing, nor a
stranger that connects and says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from kit.errors import SessionError, suppressed
from kit.runtime.processes.greeting import GREETING_S, Badge, admit, introduce
from kit.runtime.processes.wire import Wire, frame
from kit.threads import start_thread

__all__ = ["BEAT_S", "Links", "Listener", "free_port", "in_words"]

BEAT_S = 1.0  # between two signs of life
_SILENCE_S = 30.0  # without one, a process is taken for dead
_GONE = (
    "has gone: its connection was closed. It was killed, or it crashed; its own output may say why"
)
_CLOSED_EARLY = "the channel was closed while it opened"
_BROKE = "broke the rules between the processes of a run: it sent "
_FAREWELL_S = 2.0  # for what was sent before the end to arrive
_STRANGERS = 64  # connections that have not proved themselves; of more, the oldest is closed


class Listener(Protocol):
    """What is told of the connections, all in their thread: `Channel` says what each does.

    `how` a process is lost: it does not answer ("silent"), has "gone", or breaks the rules ("").
    """

    def take(self, rank: int, message: list[Any]) -> None: ...
    def lose(self, rank: int, how: str, why: str) -> None: ...
    def beat(self) -> None: ...
    def fail(self, error: BaseException) -> None: ...


class Links:
    """The connections as one process has them: process 0 one to each other, those one to it.

    Attributes:
        badge: of this process.
        gone: the ranks whose connections have ended, or that have left and are silent since.
    """

    def __init__(self, badge: Badge, listener: Listener, *, timeout_s: float) -> None:
        self.badge, self.gone = badge, set[int]()
        self._listener, self._timeout_s = listener, timeout_s
        # below the timeout, so that a wait ends with "it hangs" and not with "too late"
        self._silence_s = max(min(_SILENCE_S, 0.75 * timeout_s), 3 * BEAT_S)
        self._wires: dict[int, Wire] = {}  # by rank
        self._strangers: dict[Wire, asyncio.Task[None]] = {}  # the oldest first
        self._backlog: list[bytes] = []  # what process 0 sent before all had come, for the late
        self._refused = 0  # connections
        self._twice = ""  # of a process that came again, in words
        self._settled = asyncio.Event()  # all are here, or it is known why they will not be
        self._why_not = ""
        self._is_closed = False
        self._opened: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None

    # -- for any thread ----------------------------------------------------------------------------

    def open(self, host: str, port: int) -> None:
        """Connect all processes by process 0's `host` and `port`.

        Raises:
            SessionError: a process does not connect in time, or is refused.
        """
        try:
            start_thread(self._serve, "kit channel", args=(host, port))
            self._opened.result()
        except BaseException:
            self.close()
            raise

    def send(self, message: list[Any], *, to: int | None = None, but: int = -1) -> None:
        """Send a message to one process, or to all with a connection; in the order of the calls."""
        write = partial(self._write, frame(message), to, but)
        if threading.current_thread() is self._thread:
            write()
        else:
            self.soon(write)

    def soon(self, call: Callable[[], object]) -> None:
        """Call in the thread of the connections."""
        with suppressed(RuntimeError):  # the loop has been closed: nobody listens any more
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call)

    def give_up(self, why: str) -> None:
        """Wait no longer for processes that have not come yet."""

        def settle() -> None:
            self._why_not = self._why_not or why
            self._settled.set()

        self.soon(settle)

    def is_answered(self) -> bool:
        """Whether a sign of life has come lately from each process with a connection."""
        now = time.monotonic()
        here = (wire for rank, wire in self._wires.copy().items() if rank not in self.gone)
        return all(now - wire.heard < 3 * BEAT_S for wire in here)

    def close(self) -> None:
        """Send what is still to be sent, and end the connections and the thread."""
        self._is_closed = True
        if self._thread is None:
            return
        self.soon(self._end)
        self._thread.join(3 * _FAREWELL_S)

    # -- in the thread of the connections ----------------------------------------------------------

    def _serve(self, host: str, port: int) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._live(host, port))
        except OSError as error:  # as of too many open files: no loop, and nobody else says so
            if self._opened.done():
                raise
            why = f"process {self.badge.rank} cannot open its connections: {error}"
            self._opened.set_exception(SessionError(why))

    async def _live(self, host: str, port: int) -> None:
        self._thread = threading.current_thread()
        self._loop, self._life = asyncio.get_running_loop(), asyncio.current_task()
        if self._is_closed:
            self._opened.set_exception(SessionError(_CLOSED_EARLY))
            return
        self._loop.set_exception_handler(self._unexpected)
        beat = asyncio.create_task(self._beat())
        try:
            try:
                await (self._gather if self.badge.rank == 0 else self._reach)(host, port)
            except Exception as error:  # noqa: BLE001 - `open` raises it
                self._opened.set_exception(error)
            else:
                self._opened.set_result(None)
            await asyncio.Event().wait()  # until `close`
        except asyncio.CancelledError:
            pass
        finally:
            beat.cancel()
            await self._say_goodbye()
            if not self._opened.done():
                self._opened.set_exception(SessionError(_CLOSED_EARLY))

    def _end(self) -> None:
        assert self._life is not None
        self._life.cancel()

    async def _say_goodbye(self) -> None:
        """Read on until the others have read all: an end before that would take it from them."""
        for stranger in list(self._strangers):
            stranger.transport.abort()
        wires = [wire for wire in self._wires.values() if not wire.over.done()]
        for wire in wires:
            with contextlib.suppress(OSError, RuntimeError):  # it may be closing
                wire.transport.write_eof()
        if wires:
            await asyncio.wait([wire.over for wire in wires], timeout=_FAREWELL_S)
        for wire in wires:
            wire.transport.abort()

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._listener.fail(context.get("exception") or RuntimeError(context["message"]))

    async def _gather(self, host: str, port: int) -> None:
        """Process 0: wait for all others."""
        try:
            listening = _listen(host, port)
        except OSError as error:
            raise SessionError(
                f"process 0 cannot listen at {host}:{port} ({error}): the coordinator's address "
                "must be one of its own host, with a port that is free"
            ) from error
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Wire(self._meet), sock=listening)
        try:
            if self.badge.count > 1:
                await asyncio.wait_for(self._settled.wait(), self._timeout_s)
        except TimeoutError:
            missing = [r for r in range(1, self.badge.count) if r not in self._wires]
            why = f"{in_words(missing)} did not come within {self._timeout_s:g} s" + self._twice
            if self._refused:
                why += (
                    f". {self._refused} connections were refused, because they did not prove that "
                    "they know the secret of this run: give each process the same KIT_RUN_SECRET"
                )
            raise SessionError(why) from None
        finally:
            server.close()
        if self._why_not:
            raise SessionError(self._why_not)

    def _meet(self, wire: Wire) -> None:
        """Serve a new connection: of a process of this run, or of a stranger."""
        if len(self._strangers) >= _STRANGERS:
            next(iter(self._strangers)).transport.abort()
        self._strangers[wire] = asyncio.create_task(self._greet(wire))

    async def _greet(self, wire: Wire) -> None:
        rank = -1
        try:
            async with asyncio.timeout(GREETING_S):
                rank = await admit(wire, self.badge, self._objection)
        except (OSError, EOFError, ValueError):
            self._refused += 1
        finally:
            del self._strangers[wire]
        if rank < 0:
            wire.transport.close()
            return
        self._add(rank, wire)
        if len(self._wires) == self.badge.count - 1:
            self._settled.set()
            self._backlog.clear()

    def _objection(self, rank: int, count: int, run: str) -> str:
        """Why a process that knows the secret may not join; "" if it may."""
        here = self.badge
        if run != here.run:
            return f"process {rank} is of the run {run!r}, process 0 of {here.run!r}"
        if count != here.count:
            why = f"process {rank} says that there are {count} processes, process 0 {here.count}"
            self.give_up(why)
            return why
        if rank in self._wires or not 0 < rank < count:
            self._twice = f"; process {rank} came twice"
            return f"process {rank} came twice: give each its own number, from 0 to {count - 1}"
        return ""

    async def _reach(self, host: str, port: int) -> None:
        """Connect to process 0, as soon as it is there."""
        loop, until, said = asyncio.get_running_loop(), time.monotonic() + self._timeout_s, ""
        while True:
            wire = None
            try:
                async with asyncio.timeout(max(until - time.monotonic(), 0.1)):
                    _, wire = await loop.create_connection(Wire, host, port)
                    why = await introduce(wire, self.badge)
                break
            except (OSError, EOFError, ValueError) as error:
                if wire is not None:
                    wire.transport.close()
                said = str(error) or said  # a timeout has no text
                if time.monotonic() > until:
                    raise SessionError(
                        f"process {self.badge.rank} cannot reach process 0 at {host}:{port} within "
                        f"{self._timeout_s:g} s ({said or 'it says nothing'}): start it as well, "
                        "and give the coordinator by a name or address that all hosts know"
                    ) from error
                await asyncio.sleep(0.1)
        if why:
            wire.transport.close()
            raise SessionError(why)
        self._add(0, wire)

    def _add(self, rank: int, wire: Wire) -> None:
        self._wires[rank] = wire
        for data in self._backlog:
            wire.send(data)
        wire.deliver(partial(self._take, rank), partial(self._ended, rank))

    def _take(self, rank: int, message: list[Any]) -> None:
        try:
            self._listener.take(rank, message)
        except ValueError:
            raise  # the sender's error
        except Exception as error:  # noqa: BLE001 - an error of this process: it ends the run
            self._listener.fail(error)

    def _ended(self, rank: int, error: Exception) -> None:
        self.gone.add(rank)
        if isinstance(error, ValueError):
            self._listener.lose(rank, "", f"{_BROKE}{error}")
        else:
            self._listener.lose(rank, "gone", _GONE)

    def _write(self, data: bytes, to: int | None, but: int) -> None:
        if to is None and self.badge.rank == 0 and not self._settled.is_set():
            self._backlog.append(data)
        for rank, wire in self._wires.items():
            if rank != but and to in (None, rank):
                wire.send(data)

    async def _beat(self) -> None:
        while True:
            self._listener.beat()
            now = time.monotonic()
            for rank in self._wires.keys() - self.gone:
                self._watch(rank, self._wires[rank], now)
            await asyncio.sleep(BEAT_S)

    def _watch(self, rank: int, wire: Wire, now: float) -> None:
        if now - wire.heard > self._silence_s:
            wire.heard = now
            why = f"was silent for {self._silence_s:g} s: it hangs, or its host cannot be reached"
            self._listener.lose(rank, "silent", why)
        elif wire.frames.began and now - wire.frames.began > self._timeout_s:
            why = f"half a message, and not all of it within {self._timeout_s:g} s"
            self._ended(rank, ValueError(why))
            wire.transport.close()


def in_words(ranks: list[int]) -> str:
    """`[1]` -> "process 1", `[1, 2]` -> "processes 1, 2"."""
    return f"process{'es' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this host that no program listens at now."""
    with _listen(host, 0) as made:
        port: int = made.getsockname()[1]
        return port


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens at one address of a host, an IPv4 one if it has both kinds."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return socket.create_server(address, family=family)
