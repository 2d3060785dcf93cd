"""What the threads of the host did in a jax profile: Python's functions, and jax's own words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kit.formats.chrome.syncs import LEAST_NS
from kit.trace.imported import MAX_SPAN_NAME, cut_name
from kit.trace.planes import NOISE

__all__ = ["HostEvent", "host_events", "with_waits"]

_WAITS = ("np.asarray(jax.Array)", "CommonPjRtBuffer::Await", "TfrtCpuBuffer::Await",
          "PjRtStreamExecutorBuffer::Await", "BlockHostUntilReady",
          "PyArray::BlockHostUntilReady", "block_until_ready")  # fmt: skip
_WORK = (
    ("PjitFunction(", "dispatch"),
    ("lower_sharding_computation", "lower"),
    ("backend_compile_and_load", "compile"),
    ("batched_copy_array_to_devices", "input"),
    ("DevicePut", "input"),
)
_BLOCKS = re.compile(r"\$api\.py:\d+ block_until_ready")  # jax.block_until_ready, in Python


class HostEvent(NamedTuple):
    """One event of a host thread."""

    name: str
    kind: str  # "wait", "dispatch", "lower", "compile", "input" or ""
    start_ns: int
    stop_ns: int
    step: int  # -1: this is no step


def host_events(line: Any) -> Iterator[HostEvent]:
    """Python's functions, steps, and what jax says of its own work."""
    for event in line.events:
        name = cut_name(event.name, MAX_SPAN_NAME)
        if name.startswith(NOISE):
            continue
        step, kind = -1, _kind(name)
        if not name.startswith("$") and not kind:
            number = dict(event.stats).get("step_num", -1)
            step = number if type(number) is int else -1
        start = int(event.start_ns)
        yield HostEvent(name, kind, start, max(start, int(event.end_ns)), max(step, -1))


def with_waits(events: Sequence[HostEvent], *, are_calls: bool) -> Iterator[HostEvent]:
    """The events in time, with waits where jax has written none.

    Nothing is written of a wait for an array on several devices: a long call of
    `jax.block_until_ready` in which no wait is seen is one itself.

    Args:
        are_calls: whether each such call is a wait, however short.
    """
    found = list(_whole_waits(sorted(events, key=lambda e: (e.start_ns, -e.stop_ns))))
    starts = [e.start_ns for e in found if e.kind == "wait"]
    for event in found:
        is_long = event.stop_ns - event.start_ns >= LEAST_NS
        if (are_calls or is_long) and _BLOCKS.fullmatch(event.name):
            first = bisect_left(starts, event.start_ns)
            if first == len(starts) or starts[first] >= event.stop_ns:
                event = event._replace(kind="wait")
        yield event


def _whole_waits(events: Sequence[HostEvent]) -> Iterator[HostEvent]:
    """The events in time; jax notes where a wait for a buffer begins and where it ends, both as
    "Await", and nothing in between.
    """
    before: HostEvent | None = None  # the beginning of a wait, perhaps
    for event in events:
        is_await = event.name.endswith("::Await")
        if before is not None:
            if is_await and before.stop_ns <= event.start_ns:
                yield before._replace(stop_ns=event.stop_ns)
                before = None
                continue
            yield before
        before = event if is_await else None
        if not is_await:
            yield event
    if before is not None:
        yield before


def _kind(name: str) -> str:
    if name.startswith(_WAITS):
        return "wait"
    return next((kind for start, kind in _WORK if name.startswith(start)), "")
