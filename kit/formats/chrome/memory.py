"""Allocations and frees of a trace of torch's: `[memory]` events, written with `profile_memory`.

An event says the bytes (below 0: freed), the address, and how much its device's allocator had given
out in all. Its op and its line are those that run on its thread at that time.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kit.errors import TraceFileError
from kit.formats.chrome.twins import alike, are_copies
from kit.trace.imported import Held, MeasuredMemory, few_points

__all__ = ["MEMORY", "Allocations", "measured_memory"]

MEMORY = "[memory]"
MAX_EVENTS = 5_000_000
_MAX_DEVICES = 64
_MAX_BYTES = 1 << 50
_MAX_ADDRESS = 1 << 62
_MAX_HELD = 50  # places of a peak
_COLUMNS = ("device", "thread", "time_us", "bytes", "address", "total")
_CPU = 0  # torch's number of the type
Place = tuple[str, str]  # the op, the line
Where = Callable[[int, int], Place]  # of a thread's number and a time


class Allocations:
    """The events as columns."""

    def __init__(self) -> None:
        self.devices: dict[str, int] = {}
        self.device = array("i")
        self.thread = array("i")
        self.time_us = array("d")
        self.bytes = array("q")
        self.address = array("q")
        self.total = array("q")

    def add(self, time_us: float, thread: int, args: Mapping[str, Any]) -> bool:
        """Keep an event; false if its arguments are not an allocation's."""
        values = [args.get(key) for key in ("Bytes", "Addr", "Total Allocated")]
        device = _device(args)
        if not device or any(type(v) is not int for v in values):
            return False
        size, address, total = (int(v) for v in values if v is not None)
        if abs(size) > _MAX_BYTES or abs(total) > _MAX_BYTES or not 0 <= address < _MAX_ADDRESS:
            return False
        if device not in self.devices and len(self.devices) >= _MAX_DEVICES:
            return False
        if len(self.bytes) >= MAX_EVENTS:
            raise TraceFileError(
                f"it holds more than {MAX_EVENTS:,} allocations: trace fewer steps"
            )
        self.device.append(self.devices.setdefault(device, len(self.devices)))
        self.thread.append(thread)
        self.time_us.append(time_us)
        self.bytes.append(size)
        self.address.append(address)
        self.total.append(total)
        return True

    def drop_twins(self) -> int:
        """Keep once what a file has twice; says how many were left out."""
        columns = {name: np.asarray(getattr(self, name)) for name in _COLUMNS}
        twins = alike(list(columns.values()))
        if not are_copies(len(twins), len(self.bytes)):
            return 0
        for name, values in columns.items():
            kept = np.delete(values, twins).tobytes()
            setattr(self, name, array(getattr(self, name).typecode, kept))
        return len(twins)


def _device(args: Mapping[str, Any]) -> str:
    """As the timeline names it; "" if the event does not say."""
    kind, number = args.get("Device Type"), args.get("Device Id")
    if kind == _CPU and type(kind) is int:
        return "host"
    is_known = type(kind) is int and type(number) is int and 0 <= number < 10_000
    return f"device/{number}" if is_known else ""


def measured_memory(
    found: Allocations, zero_us: float, end_ns: int, where: Where
) -> Iterator[MeasuredMemory]:
    """Each device's memory over time, and what held its peak.

    Args:
        zero_us, end_ns: when the timeline begins on the file's clock, and how long it is; events
            outside of it are left out.
        where: what runs on a thread at a time of the timeline.
    """
    if not found.devices:
        return
    device, time_us = (np.array(c) for c in (found.device, found.time_us))
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(time_us - zero_us) < end_ns / 1e3 + 1.0
    time = np.rint(np.where(near, time_us - zero_us, 0) * 1e3).astype(np.int64)
    columns = [np.array(c, np.int64) for c in (found.bytes, found.address, found.total)]
    thread = np.array(found.thread)
    for name, number in found.devices.items():
        mine = np.flatnonzero((device == number) & near & (time >= 0))
        mine = mine[np.argsort(time[mine], kind="stable")]
        if len(mine):
            size, address, total = (column[mine] for column in columns)
            yield _of_device(name, time[mine], size, address, total, thread[mine], where)


def _of_device(
    name: str,
    time: NDArray[np.int64],
    size: NDArray[np.int64],
    address: NDArray[np.int64],
    total: NDArray[np.int64],
    thread: NDArray[np.int64],
    where: Where,
) -> MeasuredMemory:
    """The curve is the allocator's own count, so that no event that is missing makes it drift."""
    top = int(total.argmax())
    live: dict[int, int] = {}  # address -> the event that allocated it
    for i, (amount, at) in enumerate(
        zip(size[: top + 1].tolist(), address[: top + 1].tolist(), strict=True)
    ):
        if amount > 0:
            live[at] = i
        else:
            live.pop(at, None)
    sizes: Counter[Place] = Counter()
    blocks: dict[Place, int] = defaultdict(int)
    for i in live.values():
        place = where(int(thread[i]), int(time[i]))
        sizes[place] += int(size[i])
        blocks[place] += 1
    held = [Held(*place, total, blocks[place]) for place, total in sizes.most_common(_MAX_HELD)]
    times, values = few_points(time, total)
    return MeasuredMemory(
        name,
        tuple(times.tolist()),
        tuple(values.tolist()),
        int(total[top]),
        int(time[top]),
        tuple(held),
        max(int(total[top]) - sum(sizes.values()), 0),
        len(time),
    )
