"""The threads and streams of a Chrome trace, by number, and what has begun on each."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.trace.devices import device_of, stream_lane
from kit.trace.imported import MAX_NAME, MAX_SPAN_NAME, cut_name

__all__ = ["Halves", "Lanes"]

_MAX_KEYS = 100_000
_MAX_OPEN = 10_000  # events without their end, of all threads together
_MAX_ARGUMENTS = 50  # of such an event


class Lanes:
    """Threads and streams in the order of their first events, and what the file calls them."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}  # of (process, thread), or of the lane of a stream
        self.names: dict[Any, str] = {}
        self._streams: dict[tuple[Any, Any], int] = {}

    def number(self, key: Any) -> int:
        """The number of a process and a thread, or of a stream's lane."""
        try:
            number = self.numbers.get(key)
        except TypeError:  # a list or an object in the place of a number
            number = None
        if number is None:
            key = _identity(key)
            number = self.numbers.get(key)
        if number is None:
            if len(self.numbers) >= _MAX_KEYS:
                key = ("more threads", "")
            number = self.numbers.setdefault(key, len(self.numbers))
        return number

    def stream(self, device: Any, stream: Any) -> int:
        """The number of the lane of what ran on a device."""
        try:
            return self._streams[device, stream]
        except (KeyError, TypeError):
            lane = stream_lane(cut_name(device)[:40], cut_name(stream)[:80])
        number = self.number(lane)
        is_small = all(type(x) is int and abs(x) < 1 << 62 for x in (device, stream))
        if is_small and len(self._streams) < _MAX_KEYS:
            self._streams[device, stream] = number
        return number

    def owners(self) -> NDArray[np.int64]:
        """Of each thread a number of its process, of each stream one of its device."""
        owners: dict[object, int] = {}
        keys = (device_of(key) if isinstance(key, str) else key[:1] for key in self.numbers)
        return np.array([owners.setdefault(key, len(owners)) for key in keys], np.int64)

    def call(self, process: Any, thread: Any, name: Any) -> None:
        """Keep the name that the file gives to a thread."""
        if len(self.names) < _MAX_KEYS:
            self.names[_identity((process, thread))] = cut_name(name)[:100]


class Halves:
    """Events that have begun, by thread, until their end is read; few, and of bounded size."""

    def __init__(self) -> None:
        self._open: dict[Any, list[dict[str, Any]]] = {}
        self.most = _MAX_OPEN
        self._count = 0

    def begin(self, event: dict[str, Any]) -> bool:
        """Keep a "B"; false if too many are open."""
        if self._count >= self.most:
            return False
        kept = {
            key: _plain(event.get(key), MAX_SPAN_NAME)
            for key in ("cat", "name", "pid", "tid", "ts")
        }
        args = event.get("args")
        if type(args) is dict:
            some = islice(args.items(), _MAX_ARGUMENTS)
            kept["args"] = {cut_name(key): _plain(value, MAX_NAME) for key, value in some}
        self._open.setdefault(_thread_of(event), []).append(kept)
        self._count += 1
        return True

    def end(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """What an "E" ends: the latest of its thread that is open."""
        key = _thread_of(event)
        waiting = self._open.get(key)
        if not waiting:
            return None
        self._count -= 1
        begun = waiting.pop()
        if not waiting:
            del self._open[key]
        return begun

    def close(self) -> int:
        """How many have no end; they are forgotten."""
        left, self._count = self._count, 0
        self._open.clear()
        return left


def _thread_of(event: dict[str, Any]) -> tuple[str, str]:
    return cut_name(event.get("pid")), cut_name(event.get("tid"))


def _plain(value: Any, most: int) -> Any:
    """A number as it is, a text cut; "" for a list or an object."""
    is_plain = value is None or type(value) in (int, float)
    return value if is_plain else cut_name(value, most)


def _identity(key: Any) -> Any:
    """Process and thread as they can be kept; a lane is a text already."""
    return key if isinstance(key, str) else tuple(_plain(x, MAX_NAME) for x in key)
