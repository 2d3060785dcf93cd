"""One timeline of several processes: every span on process 0's clock, and how good that is."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kit.runtime.processes import Processes
from kit.runtime.processes_channel import Clock
from kit.trace import Span

__all__ = ["Joined", "join"]


@dataclass(frozen=True)
class Joined:
    """What all processes have seen.

    Attributes:
        steps: process 0's.
        spans: of all, on lanes "process 1 device/3 compute"; times of process 0's clock.
        times_ns: each step's longest.
        note: how the clocks were set, and how wrong they may be.
    """

    steps: list[Span]
    spans: list[Span]
    times_ns: list[int]
    note: str
    environment: dict[str, str]


def join(
    processes: Processes, steps: Sequence[Span], spans: Sequence[Span], clocks: Sequence[Clock],
    times_ns: Sequence[int],
) -> Joined:  # fmt: skip
    """Exchange what each process has seen; all get the same.

    Args:
        clocks: this process's, measured before and after the spans.

    Raises:
        SessionError: a process has failed, or does not come.
    """
    clock = _between(clocks)
    mine = {
        "steps": [_packed(s, clock) for s in steps],
        "spans": [_packed(s, clock) for s in spans],
        "times": list(times_ns),
        "clock": [clock.offset_ns, clock.error_ns],
        "where": f"{platform.node()}, pid {os.getpid()}",
    }
    every = processes.channel.meet("the end of the traced steps", mine)
    made = [
        Span(f"process {rank} {lane}", *rest)
        for rank, other in enumerate(every)
        for lane, *rest in other["spans"]
    ]
    return Joined(
        steps=[replace(Span(*s), lane="process 0 host/main") for s in every[0]["steps"]],
        spans=made,
        times_ns=[max(column) for column in zip(*(e["times"] for e in every), strict=True)],
        note=_note(every),
        environment={f"process {rank}": other["where"] for rank, other in enumerate(every)},
    )


def _between(clocks: Sequence[Clock]) -> Clock:
    """One clock for the time between two measurements; their difference adds to its error."""
    best = min(clocks, key=lambda c: c.error_ns)
    drift = max(c.offset_ns for c in clocks) - min(c.offset_ns for c in clocks)
    return Clock(best.offset_ns, max(best.error_ns, drift))


def _packed(span: Span, clock: Clock) -> list[object]:
    moved = (span.start_ns + clock.offset_ns, span.stop_ns + clock.offset_ns)
    return [span.lane, span.name, span.kind, *moved]


def _note(every: Sequence[dict[str, list[int]]]) -> str:
    others = ", ".join(
        f"process {rank} by {other['clock'][0] / 1e3:+.0f} µs ± {other['clock'][1] / 1e3:.0f} µs"
        for rank, other in enumerate(every)
        if rank
    )
    return f"clocks were set to process 0's: {others}; the error is half of the fastest round trip"
