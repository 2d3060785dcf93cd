"""One timeline of several processes: every span on process 0's clock, and how good that is."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kit.measure.base.machine import Usage
from kit.runs.conditions import Conditions
from kit.runtime.processes.channel import Clock
from kit.runtime.processes.join import Processes
from kit.runtime.replicas.capture import Capture
from kit.trace import Span, SyncPoint

__all__ = ["Seen", "added", "merge_processes"]


@dataclass(frozen=True)
class Seen:
    """What the replicas of one process have done, or those of all.

    Attributes:
        steps: the traced ones.
        times_ns: of the measured ones.
        syncs: in the measured ones, of the replica that has waited most often.
        metrics: the counters of all replicas together.
        capture: graph, cuts and spans of the traced ones.
        usages: of the machine, by each process.
    """

    steps: list[Span]
    times_ns: list[int]
    syncs: tuple[SyncPoint, ...]
    metrics: dict[str, float]
    capture: Capture
    usages: tuple[Usage, ...]


def merge_processes(
    processes: Processes, seen: Seen, clocks: Sequence[Clock]
) -> tuple[Seen, dict[str, str], str]:
    """Exchange what each process has seen; all get the same. Times are then of process 0's clock.

    Lanes are called "process 1 device/3 compute", a step takes as long as in the slowest process,
    graph and cuts are process 0's.

    Args:
        clocks: this process's, measured before and after the trace.

    Returns:
        what they have seen, where each of them ran, and in words how the clocks were set and how
        wrong they may be.

    Raises:
        SessionError: a process has failed, or does not come.
    """
    clock, made = _between(clocks), seen.capture
    mine = {
        "steps": [_packed(s, clock) for s in seen.steps],
        "spans": [_packed(s, clock) for s in made.spans],
        "times": list(seen.times_ns),
        "syncs": [_packed_sync(s, clock) for s in seen.syncs],
        "traced syncs": [_packed_sync(s, clock) for s in made.syncs],
        "metrics": seen.metrics,
        "usage": [asdict(usage) for usage in seen.usages],
        "programs": made.programs,
        "clock": [clock.offset_ns, clock.error_ns],
        "where": f"{platform.node()}, pid {os.getpid()}",
    }
    every = processes.channel.meet("the end of the traced steps", mine)
    spans = []
    for rank, other in enumerate(every):
        known = {
            i
            for i, (a, b) in enumerate(zip(other["programs"], every[0]["programs"], strict=False))
            if a == b
        }
        for lane, name, kind, start, stop, segment, node in other["spans"]:
            segment = segment if segment in known else -1
            spans.append(Span(f"process {rank} {lane}", name, kind, start, stop, segment, node))
    metrics = added(other["metrics"] for other in every)
    syncs, traced = (
        max((other[key] for other in every), key=len) for key in ("syncs", "traced syncs")
    )
    joined = Seen(
        steps=[replace(Span(*s), lane="process 0 host/main") for s in every[0]["steps"]],
        times_ns=[max(column) for column in zip(*(e["times"] for e in every), strict=True)],
        syncs=tuple(SyncPoint(*s) for s in syncs),
        metrics=metrics,
        capture=replace(made, spans=spans, syncs=tuple(SyncPoint(*s) for s in traced)),
        usages=tuple(_usage(one) for other in every for one in other["usage"]),
    )
    where = {f"process {rank}": other["where"] for rank, other in enumerate(every)}
    return joined, where, _note(every)


def added(counters: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The counters of several replicas together; steps, which all do together, count once."""
    total: dict[str, float] = {}
    for each in counters:
        for name, count in each.items():
            total[name] = count if name == "replay.steps" else total.get(name, 0.0) + count
    return dict(sorted(total.items()))


def _between(clocks: Sequence[Clock]) -> Clock:
    """One clock for the time between two measurements; their difference adds to its error."""
    best = min(clocks, key=lambda c: c.error_ns)
    drift = max(c.offset_ns for c in clocks) - min(c.offset_ns for c in clocks)
    return Clock(best.offset_ns, max(best.error_ns, drift))


def _usage(packed: dict[str, Any]) -> Usage:
    return Usage(**{**packed, "conditions": Conditions(**packed["conditions"])})


def _packed(span: Span, clock: Clock) -> list[object]:
    moved = (span.start_ns + clock.offset_ns, span.stop_ns + clock.offset_ns)
    return [span.lane, span.name, span.kind, *moved, span.segment, span.node]


def _packed_sync(sync: SyncPoint, clock: Clock) -> list[object]:
    return [sync.at_ns + clock.offset_ns, sync.wait_ns, sync.cause, sync.site, sync.via]


def _note(every: Sequence[dict[str, Any]]) -> str:
    others = ", ".join(
        f"process {rank} by {other['clock'][0] / 1e3:+.0f} µs ± {other['clock'][1] / 1e3:.0f} µs"
        for rank, other in enumerate(every)
        if rank
    )
    return f"clocks were set to process 0's: {others}; the error is half of the fastest round trip"
