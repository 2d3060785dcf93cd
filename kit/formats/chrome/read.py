"""Open a Chrome trace: one that torch.profiler wrote, or one that kit exported.

    imported = read_chrome("trace.json.gz")
    imported.timeline.origin == "imported"

Files come from strangers: nothing in one is executed, memory is bounded
(`kit.formats.chrome.json`), and whatever is wrong is a `TraceFileError` or a repair that
`timeline.notes` states.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kit.errors import TraceFileError
from kit.formats.chrome.events import Events
from kit.formats.chrome.json import read_events
from kit.formats.chrome.roles import Role
from kit.formats.chrome.torch import read_torch
from kit.shown import Progress
from kit.text import format_ms, format_percent
from kit.trace.devices import TORCH_CPU
from kit.trace.imported import (
    DAY_NS,
    MAX_SYNCS,
    NOT_TRACED,
    STALLED,
    Imported,
    Member,
    Spans,
    cut_name,
    is_number,
    naming,
    whole,
)
from kit.trace.intervals import within, without
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import ORIGINS, SyncPoint, Timeline

__all__ = ["FORMAT", "VERSION", "Imported", "read_chrome"]

FORMAT = "overlap-kit trace"  # in "otherData" of what kit exports
VERSION = 1
MAX_RANKS = 65_536
_MAX_CLOCK_NS = 1 << 61  # 73 years from 1970 on; sums of two must fit into 64 bits
_MAX_NS = 1 << 53
_SAID, _MUCH = 0.01, 0.1  # of the steps: what is worth a note, and what leaves no limit to tell

_READING = 0.6  # of the time that it takes to open 7 million events
_WHOLE = "Trace"  # torch's event for all of a recording


def read_chrome(
    path: str | os.PathLike[str], step_by: str = "", progress: Progress | None = None
) -> Imported:
    """The trace in a `.json` or `.json.gz` file.

    Args:
        step_by: what the steps are; see `kit.formats.chrome.steps`.
        progress: see `read_events`.

    Raises:
        TraceFileError: it is damaged, not a trace that kit knows, or too large; says which.
        OSError: there is no such file, or it cannot be read.
    """
    with naming(path):
        return _read(path, step_by, progress)


def _read(path: str | os.PathLike[str], step_by: str, progress: Progress | None) -> Imported:
    events = Events(step_by)
    tell = progress or (lambda text, part: None)
    head = read_events(path, events.extend, lambda text, part: tell(text, _READING * part))
    tell("finding what ran when", _READING)
    events.close()
    own = head.get("otherData")
    if isinstance(own, dict) and own.get("format") == FORMAT:
        if step_by:
            raise TraceFileError("kit exported it with its steps: step_by is for other traces")
        imported = _exported(events, own)
    elif events.is_known:
        imported = _torchs(events, head)
    else:
        raise TraceFileError(_of_strangers(events))
    notes = (*imported.timeline.notes, *events.repaired, *_notes(events, head, imported))
    return replace(imported, timeline=replace(imported.timeline, notes=notes))


def _torchs(events: Events, head: dict[str, Any]) -> Imported:
    imported = _with_stalls(read_torch(events, "torch.profiler"), events)
    environment = {**imported.environment, **_environment(head, events)}
    if "device" in environment and TORCH_CPU in imported.timeline.lanes:
        # torch's profiler waits for each GPU that it traces, whatever the program does
        if (events.column("role") == Role.WAIT).any():
            del environment["device"]
        else:
            environment["device"] += NOT_TRACED
    member = _placed(imported.member, head, events)
    return replace(imported, environment=environment, member=member)


def _notes(events: Events, head: dict[str, Any], imported: Imported) -> Iterator[str]:
    """What was amiss with the file, and what of it is not shown."""
    if "unclosed" in head:
        yield "the list of events has no end: the program may have been stopped"
    if "mended" in head:
        yield (
            "the file has single backslashes, or numbers such as inf, which is no JSON: they were "
            "mended, and a name with backslashes may be wrong"
        )
    if "tail" in head:
        yield "what follows the end of the trace in its file was left out"
    if imported.environment.get("device", "").endswith(NOT_TRACED):
        yield (
            "the file names a GPU and has nothing of it: torch's ops may have computed, or only "
            "launched. Trace with ProfilerActivity.CUDA, too"
        )
    if others := events.other_devices:
        yield (
            f"events of {', '.join(others)} are not read: what such a device ran, or what "
            "launched it, is missing"
        )
    if events.left_out:
        most = ", ".join(
            f"{n:,} {cut_name(c) or 'unnamed'}" for c, n in events.left_out.most_common(5)
        )
        yield f"events that are no span of a step were left out: {most}"


def _with_stalls(imported: Imported, events: Events) -> Imported:
    """With what of the steps was the profiler's and the driver's own work, and no kernel ran."""
    t = imported.timeline
    steps = t.intervals(kind="step")
    idle = without(events.stalls.times(imported.member.zero_ns), t.intervals(kind=ON_DEVICE))
    stalled_ns = int(within(idle, steps).sum())
    part = stalled_ns / max(int((steps[:, 1] - steps[:, 0]).sum()), 1)
    if part < _SAID or not t.where(kind=ON_DEVICE).any():
        return imported
    names = ", ".join(name for name, _ in events.stalls.names.most_common(3))
    note = (
        f"for {format_ms(stalled_ns / len(steps) / 1e6)} a step no kernel ran, and the profiler or "
        f"CUDA's driver did work of its own, which holds up the calls of the program: {names}"
    )
    said = {STALLED: f"{format_percent(part)} of the steps"} if part >= _MUCH else {}
    t = replace(t, notes=(*t.notes, note))
    return replace(imported, timeline=t, environment={**imported.environment, **said})


def _of_strangers(events: Events) -> str:
    """Why these are no events that are read; their categories tell who has written them."""
    if not len(events) and (repaired := events.repaired):
        return (
            f"it is JSON, but its list holds no event of a trace ({repaired[0]}). torch writes a "
            "trace by prof.export_chrome_trace(path)"
        )
    if not len(events) and set(events.left_out) <= {_WHOLE}:
        return (
            "none of its events says what ran: nothing was recorded, as where the schedule of a "
            "profiler never came to its active steps"
        )
    most = [
        repr(cut_name(c)[:40]) for c, _ in events.left_out.most_common(3) if c and c != "others"
    ]
    said = f" (of {', '.join(most)})" if most else ""
    return (
        f"its events{said} are neither torch.profiler's nor kit's own; docs/traces.md has what is "
        "read. Of a jax profile open the directory or its *.xplane.pb"
    )


def _placed(member: Member, head: dict[str, Any], events: Events) -> Member:
    """With the rank, the clock and the process that the file names."""
    info = head.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    host = cut_name(head.get("host_name"))[:80] if isinstance(head.get("host_name"), str) else ""
    threads = (key for key in events.lanes.numbers if isinstance(key, tuple))
    process = next((process for process, _ in threads if type(process) is int), -1)
    zero = member.zero_ns + max(whole(head.get("baseTimeNanoseconds"), 1 << 62), 0)
    return replace(
        member,
        rank=whole(info.get("rank"), MAX_RANKS),
        world=max(whole(info.get("world_size"), MAX_RANKS), 0),
        zero_ns=zero if abs(zero) < _MAX_CLOCK_NS else 0,
        process=f"{host} {process}" if host and process >= 0 else "",
        host=host,
    )


def _environment(head: dict[str, Any], events: Events) -> dict[str, str]:
    """The devices that the file names."""
    said = head.get("deviceProperties")
    devices = [d for d in said[:64] if isinstance(d, dict)] if isinstance(said, list) else []
    names = [cut_name(d["name"])[:80] for d in devices if d.get("name")]
    found = {"imported from": "torch.profiler"}
    kind = next(iter(events.other_devices), "cuda" if devices else "")
    if kind:
        found["device"] = f"{kind} ({', '.join(dict.fromkeys(names))})" if names else kind
    for key in ("cuda_runtime_version", "cuda_driver_version", "host_name"):
        if isinstance(head.get(key), str | int):
            found[key] = cut_name(head[key])[:80]
    return found


def _exported(events: Events, own: dict[str, Any]) -> Imported:
    """A file of our own: the spans are as they were."""
    version = own.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise TraceFileError(
            f"its format is version {cut_name(version)[:20]}; this kit reads "
            f"versions up to {VERSION}: a newer kit may read it"
        )
    timeline = _own_timeline(events, own)
    environment = own.get("environment")
    texts = environment.items() if isinstance(environment, dict) else ()
    times = own.get("step_times_ns")
    is_times = isinstance(times, list) and all(type(x) is int and 0 <= x < _MAX_NS for x in times)
    return Imported(
        timeline,
        FORMAT,
        {cut_name(k): cut_name(v) for k, v in list(texts)[:100]},
        cut_name(own.get("name", "")),
        tuple(times or ()) if is_times else None,
        Member(has_clock=False),  # as a saved run: its times count from its own begin
        exported_as=own["origin"] if is_times and own.get("origin") in ORIGINS else "",
        conditions=_numbers(own.get("conditions")),
        sync_points=_measured_waits(own) if is_times else None,
        sorts=_sorts(own.get("sorts"), timeline.steps),
    )


def _measured_waits(own: dict[str, Any]) -> tuple[SyncPoint, ...] | None:
    """The sync points of the measured steps; None if the file does not say them."""
    places, rows = own.get("places"), own.get("sync_points")
    if not (isinstance(places, list) and isinstance(rows, list) and len(rows) <= MAX_SYNCS):
        return None
    if not all(isinstance(place, list) and len(place) == 3 for place in places):
        return None
    texts = [[cut_name(text) for text in place] for place in places]
    found = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and {*map(type, row)} == {int}):
            return None
        place, at, wait = row
        if not (0 <= place < len(texts) and abs(at) < _MAX_NS and 0 <= wait < DAY_NS):
            return None
        found.append(SyncPoint(at, wait, *texts[place]))
    return tuple(found)


def _sorts(said: object, steps: int) -> tuple[int, ...]:
    """Of each traced step its sort, as a run may hold it."""
    sorts = said if isinstance(said, list) and len(said) == steps else []
    return tuple(sorts) if all(whole(x, steps - 1) >= 0 for x in sorts) else ()


def _numbers(said: object) -> dict[str, float]:
    """Those that a run may hold, by name."""
    found = list(said.items())[:100] if isinstance(said, dict) else []
    return {cut_name(k): float(v) for k, v in found if is_number(v, _MAX_NS) and v >= 0}


def _own_timeline(events: Events, own: dict[str, Any]) -> Timeline:
    start, stop, kept = events.times()
    role = events.column("role").astype(np.int64)
    chosen = np.flatnonzero(kept & (role >= Role.OWN))
    first = _first_ns(events, chosen)
    shift = first - (int(start[chosen].min()) if len(chosen) else 0)
    thread = events.column("thread").astype(np.int64)[chosen]
    part = Spans(
        thread.astype(np.int32),
        (role[chosen] - Role.OWN).astype(np.int32),
        events.column("name")[chosen].astype(np.int32),
        start[chosen] + shift,
        stop[chosen] + shift,
        events.column("link")[chosen].astype(np.int64),
        events.column("node")[chosen].astype(np.int64),
    )
    notes = [cut_name(n) for n in own["notes"][:100]] if isinstance(own.get("notes"), list) else []
    notes.append(f"exported by kit from a timeline of origin {cut_name(own.get('origin'))[:20]!r}")
    lanes = _own_lanes(events, own)
    syncs = [s for s in events.own_syncs if abs(s.at_ns - first) < 2 * DAY_NS]
    if far := len(events.own_syncs) - len(syncs):
        events.repairs["sync point", "days away from the spans: left out"] += far
    return Spans.timeline([part], lanes, events.names, syncs, notes)


def _first_ns(events: Events, chosen: Any) -> int:
    """The first span's own time, so that sync points beside it stay where they were."""
    if not len(chosen):
        return 0
    return round(float(events.column("start_us")[chosen].min()) * 1e3)


def _own_lanes(events: Events, own: dict[str, Any]) -> list[str]:
    """The lane of each track; a lane whose spans overlap was written as several tracks."""
    tracks = own.get("tracks")
    lanes = []
    for key in events.lanes.numbers:
        lane = tracks.get(str(key[1])) if isinstance(tracks, dict) else None
        lanes.append(cut_name(lane)[:200] or f"host/track {cut_name(key[1])}")
    return lanes
