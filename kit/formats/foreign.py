"""What another profiler wrote, given as torch.profiler would have written it, as a trace.

A reader of such a format makes an event of each record, with the categories and names of torch's;
then the rules of docs/design/trace_events.md hold for it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from kit.errors import TraceFileError
from kit.formats.chrome.events import Events
from kit.formats.chrome.roles import Role
from kit.formats.chrome.steps import HOW
from kit.formats.chrome.torch import read_torch
from kit.trace.imported import Imported, cut_name, is_number
from kit.trace.kinds import KINDS
from kit.trace.syncs import WHOLE
from kit.trace.timeline import Timeline

__all__ = ["Clock", "Streams", "as_event", "foreign_imported", "link_of"]

_MAX_DEVICES = 64
_MAX_NS = 1 << 63
_MAX_LINK = 1 << 32
_MAX_STREAMS = 100_000


class Clock:
    """Counts the times of a file from its first one on, or from the one that is given.

    An event has microseconds in a float: of the time since 1970 that holds quarters of one.
    """

    def __init__(self, zero: int | None = None) -> None:
        self._zero = zero

    def since(self, times_ns: tuple[Any, Any]) -> tuple[Any, Any]:
        """The same two times on this clock; what is no time stays as it is."""
        start, end = times_ns
        if self._zero is None and type(start) is int and abs(start) < _MAX_NS:
            self._zero = start
        return self._shifted(start), self._shifted(end)

    def _shifted(self, value: Any) -> Any:
        return value - (self._zero or 0) if is_number(value, _MAX_NS) else value


class Streams:
    """Names of streams: each process counts its own, those of one GPU, too."""

    def __init__(self) -> None:
        self._first: dict[tuple[Any, Any], Any] = {}  # GPU and stream -> whose it is first

    def of(self, process: int | None, gpu: Any, stream: Any) -> Any:
        """The stream as it is called, and whose it is if another process called one so before."""
        is_name = type(stream) is int or (isinstance(stream, str) and len(stream) < 40)
        if process is None or type(gpu) is not int or not is_name:
            return stream
        is_known = (gpu, stream) in self._first or len(self._first) < _MAX_STREAMS
        first = self._first.setdefault((gpu, stream), process) if is_known else process
        return stream if first == process else f"{stream} (process {process})"


def link_of(process: int, number: Any) -> int:
    """The number that joins a call and what it launched: each process counts its calls anew.

    -1: it has none, or the process (from 0 on) is not known.
    """
    is_number = type(number) is int and 0 < number < _MAX_LINK
    return process * _MAX_LINK + number if is_number and 0 <= process < _MAX_LINK >> 4 else -1


def as_event(
    category: str,
    name: Any,
    times_ns: tuple[Any, Any],
    track: tuple[Any, Any],
    args: Mapping[str, Any],
) -> dict[str, Any]:
    """An event as torch writes it; `times_ns` are its begin and end, `track` process and thread."""
    start, end = (_microseconds(x) for x in times_ns)
    return {
        "ph": "X",
        "cat": category,
        "name": name if isinstance(name, str) else "",
        "ts": start,
        "dur": end - start if start is not None and end is not None else None,
        "pid": track[0],
        "tid": track[1],
        "args": args,
    }


def _microseconds(value: Any) -> float | None:
    """Of nanoseconds; a whole number may be too long for a float."""
    return value / 1e3 if is_number(value, _MAX_NS) else None


def foreign_imported(
    events: Events,
    *,
    program: str,
    nothing: Iterable[str],
    needs: tuple[str, ...] = (),
    devices: Iterable[Any] = (),
    kind: str = "cuda",
    notes: Iterable[str] = (),
) -> Imported:
    """The trace that these events make.

    Args:
        program: what has written the file, for people.
        nothing: sentences, for a file with nothing to show: what it lacks, and what to do.
        needs: the kinds of which it must have a span; (): of any, or a range that may be a step.
        devices: their names.
        kind: of the devices, "cuda" or "rocm".
        notes: what a reader of the trace must know beside the repairs.

    Raises:
        TraceFileError: it has nothing to show.
    """
    events.close()
    # Of a file without events nobody asks which of them `step_by` may mean.
    imported = read_torch(events, program) if len(events) else None
    if imported is None or not _shows(imported.timeline, events, needs):
        raise TraceFileError(" ".join(nothing))
    timeline = imported.timeline
    said = [*notes, *(note.replace(HOW, f"{program} marks no steps") for note in timeline.notes)]
    said += events.repaired
    environment = {**imported.environment, "imported from": program}
    names = [cut_name(name)[:80] for name in islice(devices, _MAX_DEVICES)]
    if names:
        environment["device"] = f"{kind} ({', '.join(dict.fromkeys(names))})"
    timeline = replace(timeline, notes=tuple(said))
    return replace(imported, timeline=timeline, environment=environment)


def _shows(timeline: Timeline, events: Events, needs: tuple[str, ...]) -> bool:
    """Is there something to see beside the whole trace as a step, and calls that do nothing?"""
    if not needs and (events.column("role") == Role.ANNOTATION).any():
        return True
    kinds = needs or tuple(kind for kind in KINDS if kind != "elsewhere")
    is_seen = np.array([name != WHOLE for name in timeline.names], bool)[timeline.name]
    return bool((timeline.where(kind=kinds) & is_seen).any())
