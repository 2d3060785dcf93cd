"""Open the `*.trace.json.gz` that jax's profiler writes beside a profile, for XLA's trace viewer.

Its processes are the planes of the profile and its threads are their lines; so they become planes
again, and are read by the rules of `kit.formats.xplane`. The profile itself says more: XLA writes
only a million events here, without what joins the begin of a CPU's kernel to its end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kit.errors import TraceFileError
from kit.formats.chrome.json import read_events
from kit.formats.chrome.names import Room
from kit.formats.xplane import planes_imported
from kit.text import format_count
from kit.trace.imported import MAX_SPAN_NAME, Imported, cut_name, is_number, naming

__all__ = ["read_trace_viewer"]

_MAX_KEPT = 2_000_000  # events; XLA writes a million, the largest
_FULL = 1_000_000
_MAX_LINES = 100_000
_MAX_US = 1e15  # 30 years
_FACTS = ("step_num", "hlo_op", "hlo_module", "run_id", "correlation_id")
_NO_FACTS: dict[str, Any] = {}
_FROM_JSON = (
    "read from the trace viewer's JSON: it has no versions of jax, and nothing that joins the "
    "begin of a CPU's kernel to an end on another thread; the *.xplane.pb beside it has both"
)
_CAPPED = (
    f"the file has {_FULL:,} events, the most that XLA writes there: others are missing. Open the "
    "*.xplane.pb beside it"
)


class _Event(NamedTuple):
    """As `jax.profiler.ProfileData` has one."""

    name: str
    start_ns: float
    end_ns: float
    stats: Mapping[str, Any]


class _Line(NamedTuple):
    """A thread of the host, or a stream of a device."""

    name: str
    events: list[_Event]


class _Plane(NamedTuple):
    """The host, or a device."""

    name: str
    lines: list[_Line]
    stats: Mapping[str, Any]


def read_trace_viewer(path: str | os.PathLike[str], step_by: str = "") -> Imported:
    """The profile in a `*.trace.json`, packed or not; arguments and errors as of `read_xplane`."""
    tracks = _Tracks()
    with naming(path, "a profile"):
        head = read_events(path, tracks.extend)
        notes = [_CAPPED] if tracks.count >= _FULL else [_FROM_JSON]
        if "unclosed" in head:
            notes.append("the list of events has no end: the program may have been stopped")
        if tracks.left_out:
            notes.append(f"{format_count(tracks.left_out, 'event')} without a time: left out")
        if tracks.negative:
            notes.append(f"{format_count(tracks.negative, 'duration')} below 0: taken as 0")
        return planes_imported(list(tracks.planes()), notes, step_by)


class _Tracks:
    """The events of a file by process and thread, and what these are called."""

    def __init__(self) -> None:
        self.count = 0
        self.left_out = 0
        self.negative = 0  # durations
        self._events: dict[tuple[str, str], list[_Event]] = {}
        self._planes: dict[str, str] = {}
        self._lines: dict[tuple[str, str], str] = {}
        self._names: dict[str, str] = {}  # each text is kept once
        self._room = Room()

    def extend(self, events: Sequence[Any]) -> None:
        """Keep events, and names."""
        for event in events:
            phase = event.get("ph") if type(event) is dict else ""
            if phase == "M":
                self._name(event)
            elif phase == "X":
                self._complete(event)

    def planes(self) -> Iterator[_Plane]:
        """What the file holds; a thread without a name is called by its number."""
        by_plane: dict[str, list[_Line]] = {}
        for (process, thread), events in self._events.items():
            line = _Line(self._lines.get((process, thread), thread), events)
            by_plane.setdefault(process, []).append(line)
        for process, lines in by_plane.items():
            yield _Plane(self._planes.get(process, process), lines, _NO_FACTS)

    def _name(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if type(args) is not dict or len(self._planes) + len(self._lines) > _MAX_LINES:
            return
        process, thread = _track(event)
        name = cut_name(args.get("name"))
        if event.get("name") == "process_name":
            self._planes[process] = name.partition(" (pid ")[0]
        elif event.get("name") == "thread_name":
            self._lines[process, thread] = name

    def _complete(self, event: dict[str, Any]) -> None:
        start, length = event.get("ts"), event.get("dur", 0)
        if not (is_number(start, _MAX_US) and is_number(length, _MAX_US)):
            self.left_out += 1
            return
        self.count += 1
        self.negative += length < 0
        if self.count > _MAX_KEPT:
            raise TraceFileError(f"it holds more than {_MAX_KEPT:,} events: profile fewer steps")
        track = _track(event)
        if track not in self._events and len(self._events) >= _MAX_LINES:
            raise TraceFileError(f"it has more than {_MAX_LINES:,} threads: it is damaged")
        name = self._kept(event.get("name"))
        times = (start * 1e3, (start + max(length, 0)) * 1e3)
        self._events.setdefault(track, []).append(_Event(name, *times, self._facts(event)))

    def _facts(self, event: dict[str, Any]) -> Mapping[str, Any]:
        """What the rules ask for; numbers are texts in the file."""
        args = event.get("args")
        if type(args) is not dict or not any(fact in args for fact in _FACTS):
            return _NO_FACTS
        facts: dict[str, Any] = {f: self._kept(args[f]) for f in _FACTS if f in args}
        number = facts.pop("step_num", "")
        if number.isascii() and number.isdecimal() and len(number) < 18:
            facts["step_num"] = int(number)
        return facts

    def _kept(self, value: Any) -> str:
        text = cut_name(value, MAX_SPAN_NAME)
        if text not in self._names:
            self._names[text] = self._room.take(text)
        return self._names[text]


def _track(event: dict[str, Any]) -> tuple[str, str]:
    return cut_name(event.get("pid"), 100), cut_name(event.get("tid"), 100)
