"""Write a run for other tools: Chrome/Perfetto JSON, CSV, Markdown.

Chrome's Trace Event Format: one complete event ("X") for each span, tracks named by metadata
("M"), a flow ("s", "f") from each dispatch to the first kernel of its segment. Perfetto draws a
track as nested slices, so a lane whose spans overlap without nesting is written as several tracks.
`kit.open_trace` reads the JSON back: the same spans, to the nanosecond, what is known of the
measured steps, and why their run was doubted.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from kit.errors import SettingsError
from kit.files import as_path, write_whole
from kit.formats.chrome.read import FORMAT, VERSION
from kit.formats.chrome.roles import EXPORTED
from kit.runs.compiles import COMPILED_MS, COMPILES
from kit.runs.conditions import Conditions
from kit.runs.given import one_run
from kit.runs.run import KNOWN_FRACTION, Run
from kit.runs.verdict.markdown import run_markdown
from kit.text import no_formula
from kit.trace import KINDS, SyncPoint, Timeline
from kit.trace.active import by_segment
from kit.trace.imported import MAX_SYNCS
from kit.trace.intervals import Ints
from kit.trace.kinds import ON_DEVICE

__all__ = ["SUFFIXES", "export_trace"]

SUFFIXES = (".json", ".json.gz", ".csv", ".md")
_MAX_TRACKS = 200  # of one lane: beyond that Perfetto may draw a span too short
_PROCESSES = {"steps": 1, "host": 2, "device": 3}  # the order in which Perfetto shows them
_STEP = KINDS.index("step")
_HEAD = ("lane", "name", "kind", "start_ns", "stop_ns", "segment", "node", "op", "scope", "site")


def export_trace(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run for other tools; the suffix says how. An older file is replaced at the end.

    Args:
        path: `.json` or `.json.gz`: Chrome's trace format, for ui.perfetto.dev, with all that is
            known of a kernel's node; `.csv`: a row for each span; `.md`: the step's breakdown, the
            20 kernels that took most time, and the sync points. `run.save(path)` keeps all.

    Raises:
        SettingsError: `run` is none, or the suffix is another one.
        OSError: the file cannot be written; an older file of this name is then untouched.
    """
    one_run(run)
    path = as_path(path)
    name = os.fspath(path).lower()
    if name.endswith((".json", ".json.gz")):
        data = "".join(_chrome(run)).encode()
        if name.endswith(".gz"):
            data = gzip.compress(data, mtime=0)  # the bytes depend on the run only
    elif name.endswith(".csv"):
        data = _csv(run).encode(errors="backslashreplace")
    elif name.endswith(".md"):
        data = run_markdown(run).encode(errors="backslashreplace")
    else:
        raise SettingsError(
            f"{os.fspath(path)!r:.200} ends in none of {', '.join(SUFFIXES)}: the suffix says what "
            "to write. All of a run, for kit itself, is written by run.save(path)"
        )
    write_whole(path, data)
    return path


def _chrome(run: Run) -> Iterator[str]:
    """The file piece by piece: the head first, so that a reader knows what it reads."""
    t = run.timeline
    track, tracks = _tracks(t)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "name": run.name,
        "origin": run.traced_as,
        "notes": list(t.notes),
        "environment": {str(k): str(v) for k, v in run.environment.items()},
        "step_times_ns": [int(x) for x in run.step_times_ns],
        "conditions": _conditions(run),
        "sorts": list(run.sorts),
        **_measured_waits(run),
        "tracks": {str(i): lane for i, (lane, _, _) in enumerate(tracks, 1)},
    }
    yield f'{{"displayTimeUnit":"ns","otherData":{json.dumps(head)},"traceEvents":[\n'
    events = [
        *_metadata(tracks),
        *_spans(run, track, tracks),
        *_syncs(t, len(tracks)),
        *_flows(t, track, tracks),
    ]
    yield ",\n".join(json.dumps(e, separators=(",", ":"), allow_nan=False) for e in events)
    yield "\n]}\n"


def _conditions(run: Run) -> dict[str, float]:
    """What is known of the machine, of compiles in the measured steps, and for how much of the
    kernels' time an op is known.
    """
    said = {f.name: getattr(run.conditions, f.name) for f in fields(Conditions)}
    said[KNOWN_FRACTION] = run.known_fraction
    if run.measured.count:
        said |= {COMPILES: run.measured.count, COMPILED_MS: run.measured.compiled_ms}
    return {name: float(x) for name, x in said.items() if math.isfinite(x)}


def _measured_waits(run: Run) -> dict[str, Any]:
    """The waits of the measured steps, which headline and tables tell; those of the traced ones
    are events. Nothing where nobody saw them, or they are more than a trace may have.
    """
    syncs = run.sync_points
    if not (run.measures_untraced and run.sees_waits_untraced) or len(syncs) > MAX_SYNCS:
        return {}
    places = {place: i for i, place in enumerate(dict.fromkeys(map(_place, syncs)))}
    return {
        "places": list(places),
        "sync_points": [[places[_place(s)], s.at_ns, s.wait_ns] for s in syncs],
    }


def _place(sync: SyncPoint) -> tuple[str, str, str]:
    return sync.cause, sync.site, sync.via


_Track = tuple[str, int, str]  # lane, process, the name that is shown


def _tracks(t: Timeline) -> tuple[Ints, list[_Track]]:
    """The track of each span, and all tracks; numbers of tracks begin at 1 in the file."""
    track = np.zeros(len(t), np.int64)
    tracks: list[_Track] = []
    for is_step in (True, False):
        for i, lane in enumerate(t.lanes):
            mask = (t.lane == i) & ((t.kind == _STEP) == is_step)
            if not mask.any():
                continue
            group = "steps" if is_step else lane.partition("/")[0]
            layer = _layers(t.start_ns[mask], t.stop_ns[mask])
            track[mask] = len(tracks) + layer
            name = "steps" if is_step else lane
            tracks += [
                (lane, _PROCESSES.get(group, 4), name if not k else f"{name} ({k + 1})")
                for k in range(int(layer.max()) + 1)
            ]
    return track, tracks


def _layers(start: Ints, stop: Ints) -> Ints:
    """The first layer in which each span nests in what is open there, or nothing is."""
    layers: list[list[int]] = []  # stops of the open spans, outermost first
    found = np.zeros(len(start), np.int64)
    if np.all(start[1:] >= np.maximum.accumulate(stop)[:-1]):
        return found
    for i, (begin, end) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        for number, open_ in enumerate(layers):
            while open_ and open_[-1] <= begin:
                open_.pop()
            if not open_ or end <= open_[-1] or number == _MAX_TRACKS - 1:
                open_.append(end)
                found[i] = number
                break
        else:
            found[i] = len(layers)
            layers.append([end])
    return found


def _metadata(tracks: Sequence[_Track]) -> Iterator[dict[str, Any]]:
    names = {number: name for name, number in _PROCESSES.items()} | {4: "other"}
    for process in sorted({_PROCESSES["host"], *(p for _, p, _ in tracks)}):
        for what, value in (("name", names[process]), ("sort_index", process)):
            yield {"ph": "M", "name": f"process_{what}", "pid": process, "tid": 0,
                   "args": {what: value}}  # fmt: skip
    for number, (_, process, name) in enumerate(tracks, 1):
        yield from _track_name(process, number, name)


def _track_name(process: int, number: int, name: str) -> Iterator[dict[str, Any]]:
    for what, value in (("name", name), ("sort_index", number)):
        yield {"ph": "M", "name": f"thread_{what}", "pid": process, "tid": number,
               "args": {what: value}}  # fmt: skip


def _spans(run: Run, track: Ints, tracks: Sequence[_Track]) -> Iterator[dict[str, Any]]:
    t = run.timeline
    facts = _Facts(run)
    columns = (track, t.kind, t.name, t.start_ns, t.stop_ns, t.segment, t.node)
    for lane, kind, name, start, stop, segment, node in zip(
        *(c.tolist() for c in columns), strict=True
    ):
        yield {"ph": "X", "cat": EXPORTED + KINDS[kind], "name": t.names[name],
               "pid": tracks[lane][1], "tid": lane + 1, "ts": start / 1e3,
               "dur": (stop - start) / 1e3,
               "args": facts.of(segment, node, t.names[name], kind)}  # fmt: skip


class _Facts:
    """What is known of the node that a span is named after, and of its segment."""

    def __init__(self, run: Run) -> None:
        self.members = run.members
        self.nodes = run.whole.nodes
        self.caller = run.caller  # of kernels, where there is no graph
        self.cuts = {s.index: s.cut for s in run.segments}
        self._known: dict[tuple[int, int, str], dict[str, Any]] = {}

    def of(self, segment: int, node: int, name: str, kind: int) -> dict[str, Any]:
        key = (segment, node, name if KINDS[kind] in ON_DEVICE else "")
        if key not in self._known:
            self._known[key] = self._of(segment, node, key[2])
        return self._known[key]

    def _of(self, segment: int, node: int, kernel: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if segment >= 0:
            found["segment"] = segment
            if segment in self.cuts:
                found["cut"] = self.cuts[segment]
        elif segment < -1:
            found["launch"] = -2 - segment  # from 0 on: of a call, and of what it launched
        if node >= 0:
            found["node"] = node
            if node < len(self.nodes):
                n = self.nodes[node]
                found |= {"op": n.op, "scope": n.scope, "site": n.site, "phase": n.phase}
            elif (c := self.caller(node)) is not None:
                found |= {"op": c.op, "scope": "/".join(c.module), "site": c.site}
        members = [i for i in self.members.get((segment, kernel), ()) if 0 <= i < len(self.nodes)]
        if len(members) > 1:
            found["computes"] = [f"%{i} {self.nodes[i].op}" for i in members[:100]]
        return found


def _syncs(t: Timeline, tracks: int) -> Iterator[dict[str, Any]]:
    """Waits on tracks of their own, after the others: threads may wait at the same time."""
    at = np.array([s.at_ns for s in t.syncs], np.int64)
    stop = at + np.array([s.wait_ns for s in t.syncs], np.int64)
    layer = _layers(at, stop)
    host = _PROCESSES["host"]
    for k in range(int(layer.max(initial=-1)) + 1):
        name = "sync points" if not k else f"sync points ({k + 1})"
        yield from _track_name(host, tracks + k + 1, name)
    for s, k in zip(t.syncs, layer.tolist(), strict=True):
        yield {"ph": "X", "cat": f"{EXPORTED}sync", "name": s.cause, "pid": host,
               "tid": tracks + k + 1, "ts": s.at_ns / 1e3, "dur": s.wait_ns / 1e3,
               "args": {"cause": s.cause, "site": s.site, "via": s.via}}  # fmt: skip


def _flows(t: Timeline, track: Ints, tracks: Sequence[_Track]) -> Iterator[dict[str, Any]]:
    """An arrow from each dispatch to the first kernel of its segment that begins after it and
    before the segment is dispatched again.
    """
    number = 0
    is_known = t.segment >= 0
    kernels = by_segment(t, np.flatnonzero(is_known & t.where(kind=ON_DEVICE)))
    dispatches = np.flatnonzero(is_known & t.where(kind="dispatch"))
    for segment, from_ in by_segment(t, dispatches).items():
        to = kernels.get(segment, from_[:0])
        first = np.searchsorted(t.start_ns[to], t.start_ns[from_], "left")
        until = np.append(first[1:], len(to))
        for i, (a, b) in enumerate(zip(first.tolist(), until.tolist(), strict=True)):
            if a >= b:
                continue
            number += 1
            for phase, span in (("s", from_[i]), ("f", to[a])):
                event = {"ph": phase, "id": number, "cat": "dispatch", "name": "dispatch",
                         "pid": tracks[track[span]][1], "tid": int(track[span]) + 1,
                         "ts": int(t.start_ns[span]) / 1e3}  # fmt: skip
                yield event | ({"bp": "e"} if phase == "f" else {})


def _csv(run: Run) -> str:
    """One row a span. A text that a spreadsheet would take for a formula gets a "'" before it."""
    t = run.timeline
    facts = _Facts(run)
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(_HEAD)
    columns = (t.lane, t.name, t.kind, t.start_ns, t.stop_ns, t.segment, t.node)
    for lane, name, kind, *numbers in zip(*(c.tolist() for c in columns), strict=True):
        known = facts.of(numbers[2], numbers[3], t.names[name], kind)
        texts = (known.get(x, "") for x in ("op", "scope", "site"))
        writer.writerow([no_formula(t.lanes[lane]), no_formula(t.names[name]), KINDS[kind],
                         *numbers, *map(no_formula, texts)])  # fmt: skip
    return buffer.getvalue()
