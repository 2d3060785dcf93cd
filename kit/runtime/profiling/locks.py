"""A launch without the time in which its worker only waited for Python's lock.

While a program computes in Python it keeps the lock, for 5 ms at a time, and a worker that has a
segment in its hands waits. That is the program's time, not the launch's: the worker's processor
time says how long the launch itself took. Where in the launch the worker waited is not seen, so
what lies before its first kernel and after its last one is shortened alike.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kit.trace import Span
from kit.trace.metrics import union_ns

__all__ = ["UNKNOWN_NS", "processor_ns", "without_lock"]

UNKNOWN_NS = -1
LEAST_NS = 500_000  # waiting for less may be for the device's threads to wake up
_IS_EXACT = platform.system() == "Linux"  # elsewhere this clock ticks every 15 ms, or is not known


def processor_ns() -> int:
    """Processor time that this thread has had so far; `UNKNOWN_NS` where nobody tells exactly."""
    return time.thread_time_ns() if _IS_EXACT else UNKNOWN_NS


def without_lock(
    spans: Sequence[Span], worked: Mapping[int, int], kernels: Sequence[Span]
) -> list[Span]:
    """The spans, with each launch as long as its worker worked at it and the device computed.

    Args:
        worked: processor time of the launch of each segment that the spans name; `UNKNOWN_NS`.
        kernels: named by the same segments.
    """
    own: dict[int, list[Span]] = {}
    for kernel in kernels:
        own.setdefault(kernel.segment, []).append(kernel)
    return [
        _shortened(s, worked.get(s.segment, UNKNOWN_NS), own.get(s.segment, ()))
        if s.kind == "dispatch"
        else s
        for s in spans
    ]


def _shortened(span: Span, worked_ns: int, kernels: Sequence[Span]) -> Span:
    """One launch; as it is where the wait is short or not known."""
    if worked_ns == UNKNOWN_NS:
        return span
    inside = [
        (max(k.start_ns, span.start_ns), min(k.stop_ns, span.stop_ns))
        for k in kernels
        if k.stop_ns > span.start_ns and k.start_ns < span.stop_ns
    ]
    first = min((start for start, _ in inside), default=span.stop_ns)
    last = max((stop for _, stop in inside), default=span.stop_ns)
    head, tail = first - span.start_ns, span.stop_ns - last
    busy = union_ns(np.array(inside, np.int64).reshape(-1, 2))
    waited = span.stop_ns - span.start_ns - busy - worked_ns
    if waited < LEAST_NS or not head + tail:
        return span
    kept = max(head + tail - waited, 0) / (head + tail)
    return replace(span, start_ns=first - round(head * kept), stop_ns=last + round(tail * kept))
