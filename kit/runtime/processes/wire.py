"""A message between two processes: a length and JSON, of a bounded size, in bounded time.

What arrives is a stranger's until it is checked: a length above the limit, half a message and what
is no JSON are errors of the one connection that they came by.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kit.errors import SessionError

__all__ = ["MAX_BYTES", "Frames", "Wire", "frame"]

MAX_BYTES = 256 << 20  # of one message; the spans of a long trace are some ten millions
_STRANGERS_BYTES = 4000  # of a message of one that has not joined
_HEAD = 4  # bytes of the length, the first comes first


def frame(message: list[Any]) -> bytes:
    """The bytes of a message.

    Raises:
        SessionError: it is larger than any other process would take.
    """
    body = json.dumps(message).encode()
    if len(body) > MAX_BYTES:
        raise SessionError(
            f"{len(body) / 1e6:.0f} MB are too much for one message to another process (at most "
            f"{MAX_BYTES / 1e6:.0f} MB): record fewer steps"
        )
    return len(body).to_bytes(_HEAD, "big") + body


class Frames:
    """The messages in the bytes of one connection, as they arrive.

    Attributes:
        limit: the bytes of the largest message.
        began: when the message began of which only a part is here (`time.monotonic`); 0: none has.
    """

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self.limit, self.began = limit, 0.0
        self._bytes = bytearray()

    def take(self, data: bytes) -> Iterator[list[Any]]:
        """The messages that are complete with these bytes.

        Raises:
            ValueError: a message is too large, or is no list in JSON.
        """
        self._bytes += data
        while len(self._bytes) >= _HEAD:
            size = int.from_bytes(self._bytes[:_HEAD], "big")
            if size > self.limit:
                raise ValueError(f"a message of {size:,} bytes, more than {self.limit:,}")
            if len(self._bytes) < _HEAD + size:
                break
            body = bytes(self._bytes[_HEAD : _HEAD + size])
            del self._bytes[: _HEAD + size]
            self.began = 0.0
            yield _message(body)
        if self._bytes:
            self.began = self.began or time.monotonic()


class Wire(asyncio.Protocol):
    """One connection: messages wait for `receive`, until somebody takes each as it comes.

    Attributes:
        heard: when bytes came last (`time.monotonic`).
        over: done when the connection has ended.
    """

    transport: asyncio.Transport

    def __init__(self, met: Callable[[Wire], object] | None = None) -> None:
        """`met`: called when the connection is made."""
        self.frames = Frames(_STRANGERS_BYTES)
        self.heard = time.monotonic()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._met = met
        self._arrived: asyncio.Queue[list[Any] | Exception] = asyncio.Queue()
        self._take: Callable[[list[Any]], object] = self._arrived.put_nowait
        self._end: Callable[[Exception], object] = self._arrived.put_nowait

    async def receive(self) -> list[Any]:
        """The next message.

        Raises:
            EOFError: the connection has ended.
            ValueError: a message is too large, or is no list in JSON.
        """
        arrived = await self._arrived.get()
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    def deliver(
        self, take: Callable[[list[Any]], object], end: Callable[[Exception], object]
    ) -> None:
        """Have each message taken as it comes, and the errors of `receive`; of one that joined.

        Args:
            take: may raise a `ValueError`, too: no such message should have come.
        """
        self.frames.limit = MAX_BYTES
        self._take, self._end = take, end
        waiting = [self._arrived.get_nowait() for _ in range(self._arrived.qsize())]
        self._pass_on(message for message in waiting if isinstance(message, list))
        for error in waiting:
            if isinstance(error, Exception):
                end(error)

    def send(self, data: bytes) -> None:
        """Send what `frame` made; nothing, if the connection ends."""
        if not self.transport.is_closing():
            self.transport.write(data)

    # -- what asyncio calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A small message shall leave at once: TCP keeps it until the one before has arrived."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._met is not None:
            self._met(self)

    def data_received(self, data: bytes) -> None:
        """Take the messages that are complete; what is none ends the connection."""
        self.heard = time.monotonic()
        self._pass_on(self.frames.take(data))

    def connection_lost(self, error: Exception | None) -> None:
        """Say that nothing comes any more."""
        self._end(EOFError())
        self.over.set_result(None)

    def _pass_on(self, messages: Iterable[list[Any]]) -> None:
        try:
            for message in messages:
                self._take(message)
        except ValueError as error:
            self._end(error)
            self.transport.close()  # after what is still to be sent


def _message(body: bytes) -> list[Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a message that is no JSON ({type(error).__name__})") from None
    if not isinstance(message, list):
        raise ValueError("a message that is no list")
    return message
