"""A `Run` as one file: a zip of `run.json` and one `.npy` for each column of the timeline.

    name.kitrun ::= run.json  timeline/lane.npy ... timeline/node.npy       exactly these members

The class `Run` saves and loads itself with these functions, so it is given to them: nothing here
imports it.

Files come from strangers. Sizes are checked before anything is unpacked, every value is checked
against the type of the field it fills, and nothing is evaluated: no pickle, no numpy header
parser. Whatever is wrong is a `RunFileError` that says where.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from kit.errors import (
    GraphError,
    RunFileError,
    SettingsError,
    TimelineError,
    but_of_handlers,
)
from kit.files import as_path, open_plain, write_whole
from kit.ir import Aval
from kit.runs.compiles import MOST_CHANGES
from kit.runs.encoding import decoder, encode
from kit.runs.sources import MAX_SOURCE_BYTES
from kit.trace import COLUMNS, KINDS, SyncPoint, Timeline
from kit.trace.communication import calls_python
from kit.trace.imported import MAX_CALLERS, MeasuredMemory
from kit.trace.timeline import MAX_PINS, MAX_TEXT

__all__ = ["FORMAT", "MAX_FILE_BYTES", "MAX_JSON_BYTES", "MAX_SPANS", "VERSION", "read_run",
           "write_run"]  # fmt: skip

FORMAT = "overlap-kit run"
# 2: label; 3: the knobs of a workload's builder; 4: pins, callers; 5: changes; 6: sorts of steps
VERSION = 6
MAX_FILE_BYTES = 256 << 20
MAX_JSON_BYTES = 64 << 20  # about 200,000 nodes
MAX_SPANS = 4_000_000
MAX_NS = 1 << 53  # 104 days: beyond it a float64, as plots use, is no longer exact

MAX_RATIO = 200  # real runs are packed 5 to 30 times; zeros 1000 times
_FREE_BYTES = 8 << 20  # so much may be unpacked from any file
_JSON = "run.json"
_COUNTED = ("overhead.", "compile.", "exported.")  # begin of the metrics that the kit computes with
_MEMBERS = {_JSON: MAX_JSON_BYTES} | {
    f"timeline/{column}.npy": MAX_SPANS * np.dtype(dtype).itemsize + 128
    for column, dtype in COLUMNS.items()
}
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(<i[48])', 'fortran_order': False, "
    rb"'shape': \(([0-9]{1,9}),\), \} *\n",
    re.DOTALL,
)
_UNPACK = ": unpack it first if it holds a trace"  # of a zip as CI makes them of what it keeps
R = TypeVar("R")
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, RuntimeError,
           NotImplementedError, struct.error, OverflowError)  # fmt: skip


def write_run(run: Any, path: str | os.PathLike[str]) -> None:
    """Write `run` to `path`: all of it or nothing; what was loaded saves to the same bytes.

    Raises:
        RunFileError: the run is larger than a file may be, or `read_run` would refuse it.
        OSError: the file cannot be written; an older file of this name is then untouched.
    """
    path = as_path(path)
    _check(run)
    data = _pack(run)
    if len(data) > MAX_FILE_BYTES:
        raise RunFileError(f"the run takes {len(data):,} bytes, more than {MAX_FILE_BYTES:,}")
    write_whole(path, data)


def read_run(cls: type[R], path: str | os.PathLike[str]) -> R:
    """The run that `write_run` wrote to `path`, as this class.

    Raises:
        RunFileError: the file is damaged, foreign, too new or too large; the message says which.
        OSError: there is no such file, or it cannot be read.
    """
    path = as_path(path)
    with open_plain(path) as file:
        # Not so much of a smaller file: `read` asks for the memory of what it is told.
        data = file.read(min(os.fstat(file.fileno()).st_size, MAX_FILE_BYTES) + 1)
    try:
        if len(data) > MAX_FILE_BYTES:
            raise RunFileError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
        run: R = _unpack(cls, _members(data), os.fspath(path))
        _check(run)
        return run
    except RunFileError as error:
        raise RunFileError(f"{os.fspath(path)!r} is not a run that can be read: {error}") from None


def _pack(run: Any) -> bytes:
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    head |= {name: encode(getattr(run, name)) for name in _saved(run)}
    t = run.timeline
    kinds = KINDS[: int(t.kind.max(initial=-1)) + 1]  # a kit without the later ones reads it
    texts = {name: encode(getattr(t, name)) for name in ("lanes", "names", "syncs", "notes")}
    head["timeline"] = {"origin": t.origin, "kinds": kinds, **texts}
    text = json.dumps(head, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_JSON_BYTES:
        raise RunFileError(
            f"the run's graphs and texts take {len(text):,} bytes as JSON, more "
            f"than {MAX_JSON_BYTES:,}"
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, _JSON, text)
        for column, dtype in COLUMNS.items():
            array = io.BytesIO()
            little = np.dtype(dtype).newbyteorder("<")
            np.lib.format.write_array(
                array, getattr(t, column).astype(little), version=(1, 0), allow_pickle=False
            )
            _add(archive, f"timeline/{column}.npy", array.getvalue())
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    # Dated 1980, not now, and on each system as on Unix: the bytes depend on the run only.
    member = zipfile.ZipInfo(name)
    member.create_system = 3
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, data)


def _members(data: bytes) -> dict[str, bytes]:
    """Unpack the zip, once its directory says that it holds the right members at allowed sizes."""
    # The end record, without comment or zip64: so the directory that zipfile will parse is small.
    end = data[-22:]
    if len(end) < 22 or end[:4] != b"PK\x05\x06" or data[-42:-38] == b"PK\x06\x07":
        raise RunFileError("it is not a zip file, or was cut off")
    if struct.unpack("<I", end[12:16])[0] > 4096:
        raise RunFileError(f"it holds more members than a run has{_UNPACK}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sorted(m.filename for m in members) != sorted(_MEMBERS):
                raise RunFileError(f"its members are not those of a run{_UNPACK}")
            for m in members:
                if m.file_size > _MEMBERS[m.filename]:
                    raise RunFileError(
                        f"{m.filename} would unpack to {m.file_size:,} bytes, more "
                        f"than {_MEMBERS[m.filename]:,}"
                    )
            total = sum(m.file_size for m in members)
            if total > max(_FREE_BYTES, MAX_RATIO * len(data)):
                raise RunFileError(
                    f"it would unpack to {total:,} bytes, more than {MAX_RATIO} times its size, as "
                    "no run does: it was made to fill the memory"
                )
            return {m.filename: archive.read(m) for m in members}
    except (RunFileError, RecursionError):  # the latter is the caller's: the file may be right
        raise
    except but_of_handlers(*_BROKEN) as error:
        raise RunFileError(f"the zip is damaged ({type(error).__name__})") from None


def _saved(cls: Any) -> dict[str, Field[Any]]:
    """The fields that are saved as JSON: those that tell one run from another."""
    return {f.name: f for f in fields(cls) if f.compare and f.name != "timeline"}


def _unpack(cls: Any, members: dict[str, bytes], file: str) -> Any:
    try:
        head = json.loads(members[_JSON])
    except ValueError:
        raise RunFileError(f"{_JSON} is damaged: it is not JSON") from None
    except RecursionError:  # of the file's nesting, or of the program that loads it
        raise RunFileError(
            f"{_JSON} nests deeper than the recursion limit has room for from here"
        ) from None
    if not isinstance(head, dict) or head.pop("format", None) != FORMAT:
        raise RunFileError("it was not written by overlap-kit")
    version = head.pop("version", None)
    if type(version) is not int or not 1 <= version <= VERSION:
        raise RunFileError(
            f"its format is version {str(version)[:20]}; this kit reads versions "
            f"up to {VERSION}: a newer kit may read it"
        )
    columns = {c: _column(members[f"timeline/{c}.npy"], c) for c in COLUMNS}
    timeline = _timeline(head.pop("timeline", None), columns)
    hints = get_type_hints(cls)
    kept = _saved(cls)
    needed = {n for n, f in kept.items() if f.default is MISSING and f.default_factory is MISSING}
    if wrong := (needed - set(head)) | (set(head) - set(kept)):
        names = ", ".join(repr(x)[:40] for x in sorted(wrong)[:5])
        raise RunFileError(f"{_JSON} lacks fields or has unknown ones: {names}")
    try:
        values = {name: decoder(hints[name])(value, name) for name, value in head.items()}
    except SettingsError as error:
        raise RunFileError(f"{error!s:.500}") from None
    return cls(timeline=timeline, file=file, **values)


def _column(data: bytes, column: str) -> NDArray[Any]:
    match = _NPY.match(data)
    dtype = np.dtype(COLUMNS[column])
    if not match or match[1] != dtype.newbyteorder("<").str.encode():
        raise RunFileError(f"timeline/{column}.npy is not an array of {dtype}")
    body = memoryview(data)[match.end() :]
    if len(body) != int(match[2]) * dtype.itemsize:
        raise RunFileError(f"timeline/{column}.npy has another length than its header says")
    return np.frombuffer(body, dtype.newbyteorder("<")).astype(dtype)


def _timeline(head: Any, columns: dict[str, Any]) -> Timeline:
    known = {"lanes": tuple[str, ...], "names": tuple[str, ...], "kinds": tuple[str, ...],
             "syncs": tuple[SyncPoint, ...], "notes": tuple[str, ...], "origin": str}  # fmt: skip
    if not isinstance(head, dict) or set(head) != set(known):
        raise RunFileError(f"timeline in {_JSON} lacks fields or has unknown ones")
    values = {name: decoder(hint)(head[name], f"timeline.{name}") for name, hint in known.items()}
    kinds = values.pop("kinds")
    if unknown := [k for k in kinds if k not in KINDS]:
        raise RunFileError(
            f"spans of kind {unknown[0]!r:.40} are not known to this kit: a newer kit may read it"
        )
    _within(columns["kind"], "kind", 0, len(kinds))
    columns["kind"] = np.array([KINDS.index(k) for k in kinds], np.int32)[columns["kind"]]
    # Kernels that call Python were of kind "kernel" before they had one of their own.
    calls = [i for i, name in enumerate(values["names"]) if calls_python(name)]
    older = np.isin(columns["name"], calls) & (columns["kind"] == KINDS.index("kernel"))
    columns["kind"][older] = KINDS.index("callback")
    try:
        return Timeline(**values, **columns)
    except TimelineError as error:
        raise RunFileError(str(error)) from None


def _check(run: Any) -> None:
    """What `Run` itself does not check, and every view relies on."""
    t = run.timeline
    if len(t) > MAX_SPANS:
        raise RunFileError(
            f"a timeline of {len(t):,} spans is longer than {MAX_SPANS:,}: trace fewer steps"
        )
    _within(t.kind, "kind", 0, len(KINDS))
    _within(t.lane, "lane", 0, len(t.lanes))
    _within(t.name, "name", 0, len(t.names))
    _check_numbers(run)
    for column in ("start_ns", "stop_ns"):
        _within(getattr(t, column), column, -MAX_NS, MAX_NS)
    _within(t.segment, "segment", -1 << 31, 1 << 31)
    _within(t.node, "node", -1, 1 << 31)
    try:
        counts = [len(graph.check()) for graph in run.graphs]
        for change in run.changes:
            change.before.check(), change.now.check()
    except GraphError as error:
        raise RunFileError(f"{error!s:.500}") from None
    if len(run.changes) > MOST_CHANGES:
        raise RunFileError(f"more than {MOST_CHANGES} pairs of graphs of recompiles")
    for change in run.changes:
        _one_within(change.compile, "the recompile of a pair of graphs", 0, len(run.compiles))
        _one_within(change.left_out, "the number of ops left out", 0, MAX_NS)
        if not change.is_small:
            raise RunFileError("a pair of graphs of a recompile is larger than the kit writes them")
    nodes = counts[0] if counts else 0
    for s in run.segments:
        ids = [*s.nodes, *(i for i, _ in s.reads), *(i for i, _ in s.writes)]
        if ids and not 0 <= min(ids) <= max(ids) < nodes:
            raise RunFileError(f"segment {s.index} names a node that is not in the graph")
        for node, output in (*s.reads, *s.writes):
            if not 0 <= output < len(run.graphs[0].nodes[node].avals):
                raise RunFileError(f"segment {s.index} names output {output} of node {node}")
    for fused in run.fused:
        if fused.nodes and not 0 <= min(fused.nodes) <= max(fused.nodes) < sum(counts):
            raise RunFileError("a kernel names a node that is not in the graph")
    if len(run.callers) > MAX_CALLERS or (run.callers and run.graphs):
        raise RunFileError("it has more callers than a run can have, or callers beside a graph")
    if len(run.recorded_ns) > sum(counts) or any(not -1 <= t < MAX_NS for t in run.recorded_ns):
        raise RunFileError("the times at which the nodes were recorded are not those of its graph")
    if run.sorts and not 0 <= min(run.sorts) <= max(run.sorts) < len(run.sorts):
        raise RunFileError("the sorts of its traced steps are not numbered from 0")
    if any(not 1 <= s.first < 1 << 31 for s in run.sources):
        raise RunFileError("a snippet of source begins before line 1")
    size = sum(len(s.file) + 1 + sum(len(x) + 1 for x in s.lines) for s in run.sources)
    if size > 2 * MAX_SOURCE_BYTES:  # names of files come on top of the text
        raise RunFileError(f"its source text is longer than {2 * MAX_SOURCE_BYTES:,} characters")
    if len(run.pins) > MAX_PINS or any(len(pin.text) > MAX_TEXT for pin in run.pins):
        raise RunFileError(f"more than {MAX_PINS:,} pins, or one of over {MAX_TEXT:,} characters")
    if any(not -MAX_NS <= pin.at_ns < MAX_NS for pin in run.pins):
        raise RunFileError("a pin has an impossible time")
    for sync in (*t.syncs, *run.sync_points):
        if not -MAX_NS <= sync.at_ns < MAX_NS or not 0 <= sync.wait_ns < MAX_NS:
            raise RunFileError(f"a sync point has an impossible time: {sync.at_ns}, {sync.wait_ns}")


def _check_numbers(run: Any) -> None:
    """What a file may say and no measurement can: views compute with these numbers."""
    _one_within(run.metrics.get("parallel.devices", 1), "metrics['parallel.devices']", 1, 1 << 31)
    for name, value in run.metrics.items():
        if name.startswith(_COUNTED):
            _one_within(value, f"metrics[{name!r:.60}]", 0, MAX_NS)
    _one_within(run.predicted_ms, "predicted_ms", 0, MAX_NS)
    for i, time in enumerate(run.step_times_ns):
        _one_within(time, f"step_times_ns[{i}]", 0, MAX_NS)
    for i, segment in enumerate(run.segments):
        _one_within(segment.index, f"segments[{i}].index", -1 << 31, 1 << 31)
    for f in fields(run.conditions):
        if not math.isnan(value := getattr(run.conditions, f.name)):  # nan: not known
            _one_within(value, f"conditions.{f.name}", -1, MAX_NS)
    changed = (graph for change in run.changes for graph in (change.before, change.now))
    for g, graph in enumerate((*run.graphs, *changed)):
        for n, node in enumerate(graph.nodes):
            _check_shapes(node.avals, f"graphs[{g}].nodes[{n}]")
    for n, memory in enumerate(run.memory):
        _check_memory(memory, f"memory[{n}]")
    for n, total in enumerate(run.copies):
        for number in (total.count, total.size_bytes, total.total_ns):
            _one_within(number, f"copies[{n}]", 0, MAX_NS)
    for n, caller in enumerate(run.callers):
        for count in (caller.calls, caller.kernels):
            _one_within(count, f"callers[{n}]", 0, 1 << 31)
        _check_shapes(caller.inputs, f"callers[{n}]")


def _check_memory(memory: MeasuredMemory, where: str) -> None:
    if len(memory.times_ns) != len(memory.allocated):
        raise RunFileError(f"{where} has {len(memory.times_ns):,} times and other sizes")
    if any(a > b for a, b in pairwise(memory.times_ns)):
        raise RunFileError(f"the times of {where} are not in order")
    for at in (*memory.times_ns, memory.peak_ns):
        _one_within(at, f"a time of {where}", -MAX_NS, MAX_NS)
    for size in (*memory.allocated, memory.peak_bytes, memory.events):
        _one_within(size, f"a size of {where}", -MAX_NS, MAX_NS)


def _check_shapes(avals: Iterable[Aval], where: str) -> None:
    for shape in {aval.shape for aval in avals}:
        if min(shape, default=0) < 0 or math.prod(shape) >= MAX_NS:
            raise RunFileError(f"{where} has an impossible shape: {shape}")


def _one_within(value: float, name: str, least: int, end: int) -> None:
    if not least <= value < end:
        raise RunFileError(f"{name} is not in [{least}, {end}): {value}")


def _within(column: NDArray[Any], name: str, least: int, end: int) -> None:
    if len(column) and (column.min() < least or column.max() >= end):
        raise RunFileError(f"the {name} of a span is not in [{least}, {end})")
