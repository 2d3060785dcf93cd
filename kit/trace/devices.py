"""The devices of a timeline: which lanes are one's, and what ran on each."""

from __future__ import annotations

import re

import numpy as np

from kit.trace.active import grouped
from kit.trace.intervals import Ints
from kit.trace.timeline import Timeline

__all__ = ["by_device", "count_devices", "device_of"]

_DEVICE = re.compile(r"(?:process \d+ )?[^ ]*")


def device_of(lane: str) -> str:
    """The device that a lane belongs to: "device/0" for "device/0 Stream #7".

    Of several processes, "process 1 device/2" for "process 1 device/2 compute".
    """
    return lane[: _DEVICE.match(lane).end()]  # type: ignore[union-attr]  # it matches ""


def count_devices(timeline: Timeline) -> int:
    """How many devices are seen to have run a kernel; at least 1, to divide by."""
    return max(len(by_device(timeline, "kernel")), 1)


def by_device(timeline: Timeline, kind: str) -> dict[str, Ints]:
    """Device -> its spans of a kind; the devices in the order of their lanes."""
    spans = np.flatnonzero(timeline.where(kind=kind))
    if not len(spans):
        return {}
    lanes, first, spans = grouped(timeline.lane[spans].astype(np.int64), spans)
    found: dict[str, list[Ints]] = {}
    for lane, part in zip(lanes, np.split(spans, first[1:]), strict=True):
        found.setdefault(device_of(timeline.lanes[lane]), []).append(part)
    return {device: np.sort(np.concatenate(parts)) for device, parts in found.items()}
