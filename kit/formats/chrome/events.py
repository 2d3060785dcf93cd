"""The events of a Chrome trace that say something about a step, gathered into columns.

`Events.add` is called with each event as it is read, and keeps a few numbers of it. What an event
is for is its `Role` (`kit.formats.chrome.roles`), found once for each (category, name).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.errors import TraceFileError
from kit.formats.chrome.arguments import Arguments, joined
from kit.formats.chrome.collectives import Messages
from kit.formats.chrome.memory import MEMORY, Allocations
from kit.formats.chrome.roles import HOST, KNOWN, OPS, Role, role_of
from kit.formats.chrome.steps import is_asked
from kit.trace.communication import communicates
from kit.trace.imported import MAX_NAME, MAX_SPAN_NAME, cut_name
from kit.trace.timeline import SyncPoint

__all__ = ["Events"]

_DAY_NS = 86_400 * 10**9
_MAX_NAME_CHARS = 256 << 20  # of all distinct names
_NAME_CHARS = 100  # what the memory of one more name costs beside its text
_MAX_KEYS = 100_000
_MAX_ROLES = 1_000_000  # pairs of category and name whose role is remembered
_MAX_OPEN = 10_000  # events without their end, of all threads together
_MAX_ARGUMENTS = 50  # of such an event
_MAX_OWN_SYNCS = 200_000
_MAX_DIGITS = 40  # of a number in quotes


class Events:
    """Columns of the kept events, and counts of what was not kept."""

    def __init__(self, step_by: str = "") -> None:
        self.step_by = step_by  # what the steps are called, if the reader says so
        self.role = array("b")
        self.name = array("i")
        self.thread = array("i")
        self.start_us = array("d")
        self.length_us = array("d")
        # correlation of calls and kernels; sequence number of ops; segment of our own spans
        self.link = array("q")
        # arguments and line of ops; node of kernels in a CUDA graph; node of our own spans
        self.node = array("q")
        self.arguments = Arguments()
        self.threads: dict[Any, int] = {}  # (process, thread), or the lane of a stream
        self.thread_names: dict[Any, str] = {}
        self.messages = Messages()
        self.allocations = Allocations()
        self.own_syncs: list[SyncPoint] = []
        self.left_out: Counter[str] = Counter()  # category -> events that become no span
        self.repairs: Counter[str] = Counter()
        self.is_known = False  # a category of torch's, or of ours, was seen
        self._roles: dict[tuple[Any, Any], tuple[int, int]] = {}
        self._names = _Names()
        self._halves = _Halves()

    @property
    def names(self) -> list[str]:
        """The distinct names; columns have their numbers."""
        return self._names.texts

    def add(self, event: Any) -> None:
        """Keep what is needed of one event."""
        if type(event) is not dict:
            self.repairs["entries that are no events were left out"] += 1
            return
        phase = event.get("ph")
        if phase == "X":
            self._complete(event)
        elif phase == "M":
            self._metadata(event)
        elif phase == "B" or phase == "E":
            self._half(event, phase)
        elif phase == "i" and event.get("name") == MEMORY:
            self._allocation(event)
        elif type(phase) is not str:
            self.repairs["events that do not say what they are (ph) were left out"] += 1

    def close(self) -> None:
        """The file has ended."""
        self._settle_gradients()
        if left := self._halves.close():
            self.repairs["events that begin and never end were left out"] += left

    def column(self, name: str) -> NDArray[Any]:
        """One of the columns as numpy sees it."""
        values = getattr(self, name)
        return np.frombuffer(values, dtype=values.typecode) if len(values) else np.zeros(0)

    def times(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Starts, stops, and which events have a usable time; the first such time is 0.

        Units:
            nanoseconds

        An event without a finite start, or more than a day away from the middle one, has none. A
        length that is negative or no number is 0.
        """
        start, length = self.column("start_us"), self.column("length_us")
        kept = np.isfinite(start) & (np.abs(start) < 1e18)
        if bad := int((~kept).sum()):
            self.repairs["events without a time were left out"] += bad
        if not kept.any():
            zeros = np.zeros(len(start), np.int64)
            return zeros, zeros, kept
        middle = np.sort(start[kept])[int(kept.sum()) // 2]  # an event's start, no mean of two
        with np.errstate(invalid="ignore", over="ignore"):
            near = kept & (np.abs(start - middle) <= _DAY_NS / 1e3)
            is_length = (length >= 0) & (length <= _DAY_NS / 1e3)
        if far := int((kept & ~near).sum()):
            self.repairs["events more than a day away from the others were left out"] += far
        if bad := int((near & ~is_length).sum()):
            self.repairs["durations that are negative or no number were taken as 0"] += bad
        zero = start[near].min()
        begin = np.rint(np.where(near, start - zero, 0) * 1e3).astype(np.int64)
        lasts = np.rint(np.where(is_length, length, 0) * 1e3).astype(np.int64)
        return begin, begin + lasts, near

    def _complete(self, event: dict[str, Any]) -> None:
        category, name = event.get("cat"), event.get("name")
        try:
            role, number = self._roles.get((category, name)) or self._role(category, name)
        except TypeError:  # a list or an object in the place of a text
            role, number = self._role(cut_name(category), cut_name(name, MAX_SPAN_NAME))
        if role == Role.OTHER:
            few = len(self.left_out) < 100 and isinstance(category, str)
            self.left_out[str(category)[:60] if few else "others"] += 1
            return
        link, node = -1, -1
        given = event.get("args")
        args: dict[str, Any] = given if type(given) is dict else {}
        if role in OPS:
            link, node = self._op(role, self.names[number], args)
        elif role >= Role.LAUNCH:
            if role == Role.OWN_SYNC:
                self._own_sync(event, args)
                return
            if role >= Role.OWN:
                link, node = _whole(args.get("segment")), _whole(args.get("node"))
            elif role == Role.ASKED:
                self.messages.ask(args)
                return
            else:
                link = _whole(args.get("correlation"), 1 << 62)  # of AMD's, 64 bits
                if role == Role.KERNEL:
                    node = _whole(args.get("graph node id"), 1 << 62)
        key: Any = (event.get("pid"), event.get("tid"))
        if role == Role.KERNEL:
            key = self._stream(args, key)
            if self.messages.sends[number]:
                self.messages.add(len(self.role), self.names[number], args)
            elif category != "kernel":
                self.messages.copy(len(self.role), args)
        elif role == Role.COLLECTIVE:
            self.messages.add(len(self.role), self.names[number], args)
        self.role.append(role)
        self.name.append(number)
        self.thread.append(self._thread(key))
        self.start_us.append(_number(event.get("ts")))
        self.length_us.append(_number(event.get("dur")))
        self.link.append(link)
        self.node.append(node)

    def _op(self, role: int, name: str, args: dict[str, Any]) -> tuple[int, int]:
        """Sequence number of an op; its arguments and, if it has a stack, its line.

        The number joins an op of the forward pass with the function of the autograd engine that
        computes its gradient. Each thread counts for itself, so the engine names the thread, too.
        """
        link = _whole(args.get("Sequence number"), 1 << 40)
        thread = _whole(args.get("Fwd thread id"), 1 << 20)
        of_thread = thread << 40 | link if link >= 0 and thread >= 0 else -1
        if role == Role.ENGINE:
            return of_thread, -1
        function = self.arguments.function(args)
        line = self._name(cut_name(function)) if function else -1
        said = joined(self.arguments.number(name, args), line)
        if role == Role.GRADIENT:
            return of_thread, said
        return (link if thread <= 0 else -1), said

    def _settle_gradients(self) -> None:
        """Before 1.10 torch wrote the functions of autograd, and not the engine around them."""
        role, link = self.column("role"), self.column("link")
        chosen = role == Role.GRADIENT
        if (role == Role.ENGINE).any():
            role[chosen], link[chosen] = Role.CALL, -1
        else:
            role[chosen] = Role.ENGINE

    def _role(self, category: Any, name: Any) -> tuple[int, int]:
        """What events of this category and name are for, and the name's number."""
        category = category if isinstance(category, str) else ""
        lower, text = category.lower(), cut_name(name, MAX_SPAN_NAME)
        role = role_of(lower, text)
        is_free = role in (Role.OTHER, Role.CALL, Role.GRADIENT) and lower in HOST
        if is_free and is_asked(text, self.step_by):
            role = Role.ANNOTATION
        self.is_known |= bool(role) or lower in KNOWN
        number = self._name(text) if role != Role.OTHER else -1
        if len(text) == MAX_SPAN_NAME:
            self.repairs[f"names were cut at {MAX_SPAN_NAME:,} characters"] += 1
        elif len(category) < MAX_NAME and len(self._roles) < _MAX_ROLES:  # they stay in memory
            self._roles[category, name] = role, number
            self._names.spend(len(text))
        return role, number

    def _name(self, text: str) -> int:
        count = len(self.names)
        number = self._names.number(text)
        if number == count:
            self.messages.sends.append(communicates(text))
        return number

    def _thread(self, key: Any) -> int:
        try:
            number = self.threads.get(key)
        except TypeError:  # a list or an object in the place of a number
            number = None
        if number is None:
            key = _identity(key)
            number = self.threads.get(key)
        if number is None:
            if len(self.threads) >= _MAX_KEYS:
                key = ("more threads", "")
            number = self.threads.setdefault(key, len(self.threads))
        return number

    def _stream(self, args: dict[str, Any], key: tuple[Any, Any]) -> str:
        """The lane of what ran on a device; its process and thread are those two in torch."""
        device, stream = args.get("device", key[0]), args.get("stream", key[1])
        return f"device/{cut_name(device)[:40]} stream {cut_name(stream)[:40]}"

    def _metadata(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if event.get("name") != "thread_name" or type(args) is not dict:
            return
        key = _identity((event.get("pid"), event.get("tid")))
        if len(self.thread_names) < _MAX_KEYS:
            self.thread_names[key] = cut_name(args.get("name", ""))[:100]

    def _allocation(self, event: dict[str, Any]) -> None:
        args, at = event.get("args"), _number(event.get("ts"))
        thread = self._thread((event.get("pid"), event.get("tid")))
        is_kept = type(args) is dict and math.isfinite(at)
        if not (is_kept and self.allocations.add(at, thread, args or {})):
            self.repairs["allocations without a size, an address or a time were left out"] += 1

    def _half(self, event: dict[str, Any], phase: str) -> None:
        """Join "B" and "E" to one complete event."""
        if phase == "B":
            if not self._halves.begin(event):
                self.repairs[f"events that begin in {_MAX_OPEN:,} others were left out"] += 1
        elif begun := self._halves.end(event):
            length = _number(event.get("ts")) - _number(begun.get("ts"))
            self._complete(begun | {"ph": "X", "dur": length})
        else:
            self.repairs["events that end and never began were left out"] += 1

    def _own_sync(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        at, wait = _number(event.get("ts")) * 1e3, _number(event.get("dur")) * 1e3
        if not (abs(at) < _DAY_NS and 0 <= wait < _DAY_NS):
            self.repairs["sync points without a time were left out"] += 1
            return
        if len(self.own_syncs) >= _MAX_OWN_SYNCS:
            self.repairs[f"sync points after the first {_MAX_OWN_SYNCS:,} were left out"] += 1
            return
        cause, site, via = (cut_name(args.get(x, "")) for x in ("cause", "site", "via"))
        self.own_syncs.append(SyncPoint(round(at), round(wait), cause, site, via))


class _Names:
    """Distinct texts and their numbers, of bounded size."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._chars = 0

    def number(self, text: str) -> int:
        """The number of a text, a new one if it is not known."""
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
            self.spend(len(text) + _NAME_CHARS)
        return number

    def spend(self, chars: int) -> None:
        """So many characters more are kept somewhere."""
        self._chars += chars
        if self._chars > _MAX_NAME_CHARS:
            raise TraceFileError("its names take more memory than those of a trace would")


class _Halves:
    """Events that have begun, by thread, until their end is read; few, and of bounded size."""

    def __init__(self) -> None:
        self._open: dict[Any, list[dict[str, Any]]] = {}
        self._count = 0

    def begin(self, event: dict[str, Any]) -> bool:
        """Keep a "B"; false if too many are open."""
        if self._count >= _MAX_OPEN:
            return False
        kept = {key: _small(event.get(key)) for key in ("cat", "name", "pid", "tid", "ts")}
        args = event.get("args")
        if type(args) is dict:
            some = islice(args.items(), _MAX_ARGUMENTS)
            kept["args"] = {cut_name(key): _small(value, MAX_NAME) for key, value in some}
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


def _small(value: Any, most: int = MAX_SPAN_NAME) -> Any:
    """A number as it is, a text cut; "" for a list or an object."""
    is_plain = value is None or type(value) in (int, float)
    return value if is_plain else cut_name(value, most)


def _identity(key: Any) -> Any:
    """Process and thread as they can be kept; a lane is a text already."""
    return key if isinstance(key, str) else tuple(_small(x, MAX_NAME) for x in key)


def _number(value: Any) -> float:
    """A number, also one in quotes, or nan."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < 1 << 63 else math.nan
    if type(value) is str and len(value) < _MAX_DIGITS:
        with suppress(ValueError):
            return float(value)
    return math.nan


def _whole(value: Any, end: int = 1 << 31) -> int:
    """A whole number from 0 on and below the end, or -1."""
    return value if type(value) is int and 0 <= value < end else -1
