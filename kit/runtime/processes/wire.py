"""A message between two processes: a length and JSON, of a bounded size, in bounded time.

What arrives is a stranger's until it is checked: a length above the limit, half a message and what
is no JSON are errors of the one connection that they came by.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from kit.errors import SessionError

__all__ = ["MAX_BYTES", "frame", "read_message"]

MAX_BYTES = 256 << 20  # of one message; the spans of a long trace are some ten millions
_HEAD = 4  # bytes of the length, the first comes first
_PART = 1 << 20  # read at once


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


async def read_message(
    reader: asyncio.StreamReader,
    *,
    limit: int,
    timeout_s: float,
    on_part: Callable[[], None] | None = None,
) -> list[Any]:
    """The next message, whenever it begins.

    Args:
        timeout_s: for the rest of a message that has begun.
        on_part: called for each part that arrives.

    Raises:
        EOFError, OSError: the connection has ended.
        ValueError: it is too large, does not go on, or is no list in JSON.
    """
    head = await reader.readexactly(1)
    try:
        async with asyncio.timeout(timeout_s):
            head += await reader.readexactly(_HEAD - 1)
            left = int.from_bytes(head, "big")
            if left > limit:
                raise ValueError(f"a message of {left:,} bytes, more than {limit:,}")
            body = bytearray()
            while left:
                part = await reader.readexactly(min(left, _PART))
                left -= len(part)
                body += part
                if on_part is not None:
                    on_part()
    except TimeoutError:
        raise ValueError(f"half a message, and no more of it within {timeout_s:g} s") from None
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a message that is no JSON ({type(error).__name__})") from None
    if not isinstance(message, list):
        raise ValueError("a message that is no list")
    return message
