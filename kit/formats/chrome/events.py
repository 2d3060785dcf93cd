"""The events of a Chrome trace that say something about a step, gathered into columns.

`Events.extend` is called with some events at a time, as they are read, and keeps a few numbers of
each. What an event is for is its `Role` (`kit.formats.chrome.roles`), found once for each
(category, name).
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from operator import itemgetter
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.errors import TraceFileError
from kit.formats.chrome.arguments import SAYING, Arguments, joined
from kit.formats.chrome.collectives import Messages
from kit.formats.chrome.lanes import Halves, Lanes
from kit.formats.chrome.memory import MEMORY, Allocations
from kit.formats.chrome.names import Names, Roles
from kit.formats.chrome.roles import LAUNCHES, OPS, RUNTIME, Role
from kit.formats.chrome.twins import find_twins
from kit.text import format_count
from kit.trace.devices import OTHER_DEVICES
from kit.trace.host import LONG_NS
from kit.trace.imported import DAY_NS, MAX_DIGITS, cut_name, whole, whole_said
from kit.trace.timeline import SyncPoint

__all__ = ["NONE", "Events"]

NONE = -1
_MAX_OWN_SYNCS = 200_000
_TWICE = "that the file has twice, as where it was merged with itself: left out"
# Of these the arguments say nothing that is kept.
_PLAIN = frozenset({Role.STEP, Role.UPDATE, Role.FINISH, Role.INPUT, Role.COMPILE, Role.PYTHON,
                    Role.ANNOTATION})  # fmt: skip
_OF_KERNELS = ("correlation", "stream", "device")  # numbers with which torch writes a kernel
# What torch_npu writes of Huawei's Ascend: names of processes, and categories of its queue.
_ASCEND = {"process_labels": {"NPU"}, "process_name": {"Ascend Hardware", "HCCL"}}
_ASCENDS = {"enqueue": "npu", "dequeue": "npu"}
_OF_MAC = re.compile(r"aten::(?:_?mps_\w+|\w+_mps(?:_backward)?)$")  # ops on its GPU only
_OVERHEAD = "overhead"  # Kineto's category of what CUPTI says of itself and of CUDA's driver
_MAX_STALLS = 100  # names of them
_NOTHING: Mapping[str, Any] = {}
_Said = tuple[int, int, int]
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts")
_fields = itemgetter(*_FIELDS)
# A row of an event's numbers, as `extend` packs them: its role; the numbers of its name and lane;
# microseconds; `link`, the correlation of calls and kernels, sequence number of ops or segment of
# our own spans; `node`, arguments and line of ops, or node of kernels in a CUDA graph and of our
# own spans.
_TYPES = {"role": "b", "name": "i", "thread": "i", "start_us": "d", "length_us": "d",
          "link": "q", "node": "q"}  # fmt: skip
_PACKED = Struct("=" + "".join(_TYPES.values()))
_ROW = np.dtype(list(_TYPES.items()))


class Events:
    """Columns of the kept events, and counts of what was not kept."""

    def __init__(self, step_by: str = "") -> None:
        self.step_by = step_by  # what the steps are called, if the reader says so
        self._rows = bytearray()
        self._columns: dict[str, NDArray[Any]] = {}
        self.arguments = Arguments()
        self.lanes = Lanes()
        self.messages = Messages()
        self.allocations = Allocations()
        self.own_syncs: list[SyncPoint] = []
        self.stalls = Stalls()
        self.left_out: Counter[str] = Counter()  # category -> events that become no span
        self.repairs: Counter[tuple[str, str]] = Counter()  # what, and what became of each
        self._others: set[str] = set()  # devices that names of processes or ops tell of
        self._names = Names()
        self._roles = Roles(self._names, step_by, self.repairs)
        self._halves = Halves()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._rows) // _PACKED.size or len(self._columns.get("role", ()))

    @property
    def names(self) -> list[str]:
        """The distinct names; columns have their numbers."""
        return self._names.texts

    @property
    def sends(self) -> NDArray[np.bool_]:
        """Of each name: is it one of a library that communicates?"""
        return np.array(self._names.sends, bool)

    @property
    def repaired(self) -> list[str]:
        """What was repaired or left out, and how often, in words."""
        return [f"{format_count(n, one)} {what}" for (one, what), n in self.repairs.items()]

    @property
    def is_known(self) -> bool:
        """Was an event of torch's, or of ours, seen?"""
        return self._roles.is_known

    @property
    def other_devices(self) -> list[str]:
        """The devices of which events were left out or are not in the file, for want of rules."""
        begins = {category.lower().partition("_")[0] for category in self.left_out}
        found = self._others | {_ASCENDS.get(begin, begin) for begin in begins}
        return sorted(found & OTHER_DEVICES)

    def add(self, event: Any) -> None:
        """Keep what is needed of one event."""
        self.extend((event,))

    def extend(self, events: Iterable[Any]) -> None:
        """Keep what is needed of some: millions come this way, so what the loop asks is at hand."""
        roles, threads, rows, pack = self._roles.found, self.lanes.numbers, self._rows, _PACKED.pack
        for event in events:
            try:
                phase, category, name, process, thread, start = _fields(event)
            except (KeyError, TypeError):
                if type(event) is not dict:
                    self.repairs["value", "in the place of an event: left out"] += 1
                    continue
                phase, category, name, process, thread, start = map(event.get, _FIELDS)
            if phase != "X":
                self._other(event, phase)
                continue
            try:
                role, number = roles[category][name]
            except (KeyError, TypeError):  # also a list or an object in the place of a text
                role, number = self._roles.find(category, name)
            link = node = lane = NONE
            if way := _WAYS[role]:
                args = event.get("args")
                said = way(self, event, role, number, args if type(args) is dict else _NOTHING)
                if said is None:
                    continue
                link, node, lane = said
            if lane < 0:
                try:
                    lane = threads[process, thread]
                except (KeyError, TypeError):
                    lane = self.lanes.number((process, thread))
            length = event.get("dur")
            if type(start) is not float or type(length) is not float:
                start, length = _number(start), _number(length)
            rows += pack(role, number, lane, start, length, link, node)

    def _other(self, event: dict[str, Any], phase: Any) -> None:
        """What is no complete event."""
        if phase == "M":
            self._metadata(event)
        elif phase == "B" or phase == "E":
            self._half(event, phase)
        elif phase == "i" and event.get("name") == MEMORY:
            self._allocation(event)
        elif type(phase) is not str:
            self.repairs["event", "without its kind (ph): left out"] += 1

    def close(self) -> None:
        """The file has ended; once more changes nothing."""
        if self._columns:
            return
        rows = np.frombuffer(self._rows, _ROW)
        self._columns = {name: np.ascontiguousarray(rows[name]) for name in _TYPES}
        self._rows = bytearray()
        self._settle_gradients()
        if any(map(_OF_MAC.match, self.names)):
            self._others.add("mps")
        if left := self._halves.close():
            self.repairs["event", "with a begin and no end: left out"] += left
        if twice := self.allocations.drop_twins():
            self.repairs["allocation", _TWICE] += twice

    def column(self, name: str) -> NDArray[Any]:
        """One of those in a row, once the file has ended."""
        return self._columns[name]

    def times(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Starts, stops, and which events have a usable time; the first such time is 0.

        The column of their lengths is gone then: that of millions takes memory.

        Units:
            nanoseconds

        An event without a finite start, or more than a day away from the middle one, has none. A
        length that is negative or no number is 0.

        Raises:
            TraceFileError: they are nanoseconds since 1970.
        """
        start, length = self.column("start_us"), self._columns.pop("length_us")
        kept = np.isfinite(start) & (np.abs(start) < 1e18)
        if len(start) and ((start >= 1e18) & (start < 1 << 63)).all():
            raise TraceFileError(
                "all its times (ts) are over 1e18: nanoseconds, where a trace has microseconds"
            )
        if bad := int((~kept).sum()):
            self.repairs["event", "without a time: left out"] += bad
        if not kept.any():
            zeros = np.zeros(len(start), np.int64)
            return zeros, zeros, kept
        half = int(kept.sum()) // 2
        middle = np.partition(start[kept], half)[half]  # an event's start, no mean of two
        with np.errstate(invalid="ignore", over="ignore"):
            near = kept & (np.abs(start - middle) <= DAY_NS / 1e3)
            is_length = (length >= 0) & (length <= DAY_NS / 1e3)
        if far := int((kept & ~near).sum()):
            self.repairs["event", "more than a day away from the others: left out"] += far
        twice = find_twins(self._columns | {"length_us": np.where(is_length, length, 0.0)}, near)
        if len(twice):
            self.repairs["event", _TWICE] += len(twice)
            near[twice] = False
        if bad := int((near & ~is_length).sum()):
            self.repairs["duration", "below 0 or no number: taken as 0"] += bad
        zero = start[near].min()
        begin = np.rint(np.where(near, start - zero, 0) * 1e3).astype(np.int64)
        lasts = np.rint(np.where(is_length, length, 0) * 1e3).astype(np.int64)
        return begin, begin + lasts, near

    # What each role has of an event: link, node and, of what ran on a device, lane; or no span.

    def _no_span(
        self, event: dict[str, Any], role: int, number: int, args: Mapping[str, Any]
    ) -> None:
        if role == Role.ASKED:
            self.messages.ask(args)
        elif role == Role.OWN_SYNC:
            self._own_sync(event, args)
        else:
            category = event.get("cat")
            few = len(self.left_out) < 100 and isinstance(category, str)
            self.left_out[str(category)[:60] if few else "others"] += 1
            if category == _OVERHEAD:
                self.stalls.add(event)

    def _call(
        self, event: dict[str, Any], role: int, number: int, args: Mapping[str, Any]
    ) -> _Said:
        """The number that joins it with what it launched: of AMD's, 64 bits."""
        return whole_said(args.get("correlation"), 1 << 62), NONE, NONE

    def _runtime(
        self, event: dict[str, Any], role: int, number: int, args: Mapping[str, Any]
    ) -> _Said | None:
        if not _number(event.get("dur")) >= LONG_NS / 1e3:  # there are many short ones
            self._no_span(event, role, number, args)
            return None
        return NONE, NONE, NONE

    def _own(self, event: dict[str, Any], role: int, number: int, args: Mapping[str, Any]) -> _Said:
        return _segment(args), whole(args.get("node")), NONE

    def _collective(
        self, event: dict[str, Any], role: int, number: int, args: Mapping[str, Any]
    ) -> _Said:
        self.messages.add(len(self), self.names[number], args)
        return NONE, NONE, NONE

    def _kernel(
        self, event: dict[str, Any], role: int, number: int, args: Mapping[str, Any]
    ) -> _Said:
        """Correlation, node of a CUDA graph and lane of what ran on a device."""
        if not self._roles.is_known:
            self._roles.is_known = any(type(args.get(key)) is int for key in _OF_KERNELS)
        if self._names.sends[number]:
            self.messages.add(len(self), self.names[number], args)
        elif event.get("cat") != "kernel":
            self.messages.copy(len(self), args)
        # torch writes device and stream as process and thread, too
        device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
        node = whole_said(args["graph node id"], 1 << 62) if "graph node id" in args else NONE
        return whole_said(args.get("correlation"), 1 << 62), node, self.lanes.stream(device, stream)

    def _op(self, event: dict[str, Any], role: int, number: int, args: Mapping[str, Any]) -> _Said:
        """Sequence number of an op; its arguments and, if it has a stack, its line.

        The number joins an op of the forward pass with the function of the autograd engine that
        computes its gradient. Each thread counts for itself, so the engine names the thread, too.
        """
        link = thread = said = NONE
        if "Sequence number" in args:
            link = whole_said(args["Sequence number"], (1 << 40) - 1)
            thread = whole_said(args.get("Fwd thread id"), 1 << 20)
        if role != Role.ENGINE and not SAYING.isdisjoint(args):
            function = self.arguments.function(args)
            line = self._names.number(cut_name(function)) if function else NONE
            said = joined(self.arguments.number(self._names.texts[number], args), line)
        if role == Role.ENGINE or role == Role.GRADIENT:
            return (thread << 40 | link if link >= 0 and thread >= 0 else NONE), said, NONE
        return (link if thread <= 0 else NONE), said, NONE

    def _settle_gradients(self) -> None:
        """Before 1.10 torch wrote the functions of autograd, and not the engine around them."""
        role, link = self.column("role"), self.column("link")
        chosen = role == Role.GRADIENT
        if (role == Role.ENGINE).any():
            role[chosen], link[chosen] = Role.CALL, -1
        else:
            role[chosen] = Role.ENGINE

    def _metadata(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if type(args) is not dict:
            return
        what = event.get("name")
        if what == "thread_name":
            self.lanes.call(event.get("pid"), event.get("tid"), args.get("name", ""))
        elif what == "process_labels" or what == "process_name":
            said = args.get("labels", args.get("name"))
            if isinstance(said, str) and said in _ASCEND[what]:
                self._others.add("npu")

    def _allocation(self, event: dict[str, Any]) -> None:
        args, at = event.get("args"), _number(event.get("ts"))
        thread = self.lanes.number((event.get("pid"), event.get("tid")))
        is_kept = type(args) is dict and math.isfinite(at)
        if not (is_kept and self.allocations.add(at, thread, args or {})):
            self.repairs["allocation", "without a size, an address or a time: left out"] += 1

    def _half(self, event: dict[str, Any], phase: str) -> None:
        """Join "B" and "E" to one complete event."""
        if phase == "B":
            if not self._halves.begin(event):
                self.repairs["event", f"inside of {self._halves.most:,} others: left out"] += 1
        elif begun := self._halves.end(event):
            length = _number(event.get("ts")) - _number(begun.get("ts"))
            self.add(begun | {"ph": "X", "dur": length})
        else:
            self.repairs["event", "with an end and no begin: left out"] += 1

    def _own_sync(self, event: dict[str, Any], args: Mapping[str, Any]) -> None:
        at, wait = _number(event.get("ts")) * 1e3, _number(event.get("dur")) * 1e3
        if not (abs(at) < 1e18 and 0 <= wait < DAY_NS):
            self.repairs["sync point", "without a time: left out"] += 1
            return
        if len(self.own_syncs) >= _MAX_OWN_SYNCS:
            self.repairs["sync point", f"after the first {_MAX_OWN_SYNCS:,}: left out"] += 1
            return
        cause, site, via = (cut_name(args.get(x, "")) for x in ("cause", "site", "via"))
        self.own_syncs.append(SyncPoint(round(at), round(wait), cause, site, via))


def _ways() -> list[Callable[..., _Said | None] | None]:
    """By role what is asked of an event; None where its arguments say nothing that is kept."""
    found: list[Callable[..., _Said | None] | None] = [Events._no_span] * (Role.OWN_SYNC + 1)
    for way, roles in (
        (None, _PLAIN),
        (Events._call, (*LAUNCHES, Role.WAIT)),
        (Events._runtime, RUNTIME),
        (Events._own, range(Role.OWN, Role.OWN_SYNC)),
        (Events._collective, (Role.COLLECTIVE,)),
        (Events._kernel, (Role.KERNEL,)),
        (Events._op, OPS),
    ):
        for role in roles:
            found[role] = way
    return found


_WAYS = _ways()


class Stalls:
    """When the profiler and the driver did work of their own, which kept calls waiting."""

    def __init__(self) -> None:
        self._times_us = array("d")  # start and length of each
        self.names: Counter[str] = Counter()

    def add(self, event: Mapping[str, Any]) -> None:
        """One more."""
        self._times_us.extend((_number(event.get("ts")), _number(event.get("dur"))))
        if len(self.names) < _MAX_STALLS:
            self.names[cut_name(event.get("name"))[:40]] += 1

    def times(self, zero_ns: int) -> NDArray[np.int64]:
        """Starts and stops; what has no usable time is left out.

        Args:
            zero_ns: on the file's clock, where they are 0.

        Shape:
            (n, 2)
        Units:
            nanoseconds
        """
        found = np.array(self._times_us).reshape(-1, 2) - (zero_ns / 1e3, 0)
        found = found[(np.abs(found) <= DAY_NS / 1e3).all(axis=1) & (found[:, 1] >= 0)]
        return np.rint(np.cumsum(found, axis=1) * 1e3).astype(np.int64)


def _number(value: Any) -> float:
    """A number, also one in quotes, or nan."""
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value) if abs(value) < 1 << 63 else math.nan
    if type(value) is str and len(value) < MAX_DIGITS:
        with suppress(ValueError):
            return float(value)
    return math.nan


def _segment(args: Mapping[str, Any]) -> int:
    """Of a span of our own; below -1 the number of a launch, as timelines have it."""
    launch = whole(args.get("launch"), (1 << 31) - 2)
    return -2 - launch if launch >= 0 else whole(args.get("segment"))
