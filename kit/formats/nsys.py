"""Open what Nsight Systems exports: `nsys export --type sqlite report.nsys-rep`.

Its kernels, copies, calls of CUDA and NVTX ranges become events as torch.profiler would write them,
and are then read by the same rules. The format: "SQLite Schema Reference" of Nsight Systems' user
guide; a column that a version lacks is done without.

The file is a stranger's: it is opened to be read only, and asked for nothing but columns of plain
tables; what SQLite may do for that is bounded.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median_low
from typing import Any
from urllib.parse import quote

from kit.errors import TraceFileError
from kit.files import check_plain
from kit.formats.chrome.events import Events
from kit.formats.chrome.json import MAX_EVENTS
from kit.formats.chrome.names import Room
from kit.formats.chrome.twins import MERGED
from kit.formats.foreign import Clock, Streams, as_event, foreign_imported, link_of
from kit.formats.nvtx import category_and_name
from kit.formats.refused import why_refused_database
from kit.runs.tables.sqlite import Budget, as_text, may_read
from kit.text import format_count
from kit.trace.imported import MAX_SPAN_NAME, Imported, cut_name, naming

__all__ = ["FORMAT", "read_nsys"]

FORMAT = "Nsight Systems"
_MAX_OPERATIONS = 4_000_000_000
_FEW = 1_001  # of the times, to know what is usual
_MAX_TEXT = 1 << 20
_MAX_CHARS = 1 << 30  # of all names
_MAX_TABLES = 10_000
_MAX_THREADS = 100_000  # half a kilobyte each
_CUPTI = "CUPTI_ACTIVITY_KIND_"
_CALLS = f"{_CUPTI}RUNTIME"
_GRAPHS = f"{_CUPTI}GRAPH_TRACE"  # each run of one as a whole: no row for what is in it
_DIAGNOSTICS = "DIAGNOSTIC_EVENT"
_WARNINGS = (2, 3)  # of its severities; 3 are errors
_MAX_WARNINGS = 4
_TABLES = frozenset(
    {
        _DIAGNOSTICS,
        "StringIds",
        "NVTX_EVENTS",
        "TARGET_INFO_GPU",
        "TARGET_INFO_CUDA_DEVICE",
        *(f"{_CUPTI}{what}" for what in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")),
    }
)
_RANGES = (59, 60)  # of NVTX: pushed and popped, started and ended
# CUPTI's numbers of directions, in the words that torch's copies are named with.
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_PINNED = 1  # memory of the host's from and to which a copy does not block its call
_WHOLE = (
    "each is shown as one kernel, busy from its begin to its end. What is in it, copies, "
    "collectives and idle time too, is seen with `nsys profile --cuda-graph-trace=node`"
)
_TOGETHER = (
    "and are shown together. To compare them as ranks, trace each into a file of its own, as by "
    "`torchrun --no-python nsys profile -o rank%q{RANK} python train.py`"
)


def read_nsys(path: str | os.PathLike[str], step_by: str = "") -> Imported:
    """The trace in a `.sqlite` file; arguments and errors as of `read_chrome`."""
    check_plain(path)
    address = f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1"
    budget = Budget(_MAX_OPERATIONS)
    with naming(path):
        try:
            with closing(sqlite3.connect(address, uri=True)) as database:
                return _imported(_Tables(database, budget), step_by)
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            if budget.was_interrupted(error):
                raise KeyboardInterrupt from None
            raise TraceFileError(f"SQLite says: {cut_name(str(error))[:200]}") from None


def _imported(tables: _Tables, step_by: str) -> Imported:
    events = Events(step_by)
    threads = _calling_threads(tables)
    for thread in threads[:1]:
        events.lanes.number(_track(thread))  # the first is the main one
    names = _names(tables)
    runs = 0
    for count, event in enumerate(_events(tables, names)):
        runs += "graph" in event["args"]
        if count >= MAX_EVENTS:
            raise TraceFileError(_too_many())
        events.add(event)
    gpus = (name for (name,) in tables.rows("TARGET_INFO_GPU", "name"))
    notes = [f"{format_count(runs, 'run')} of CUDA graphs: {_WHOLE}"] if runs else []
    processes = {thread >> 24 for thread in threads if type(thread) is int}
    if len(processes) > 1:
        notes.append(f"{len(processes):,} processes call CUDA, {_TOGETHER}")
    found = foreign_imported(
        events,
        program=FORMAT,
        nothing=_nothing(tables),
        devices=gpus,
        notes=notes,
    )
    timeline = found.timeline  # of several processes it is said above
    told = tuple(note for note in timeline.notes if note != MERGED)
    return replace(found, timeline=replace(timeline, notes=told))


def _nothing(tables: _Tables) -> Iterator[str]:
    """Why a database has no work of CUDA, as far as it says so itself."""
    if tables.of_others:
        yield tables.of_others
        return
    yield (
        "it has no kernels, launches or waits of CUDA and no ranges of NVTX: trace with `nsys "
        "profile --trace cuda,nvtx`, then `nsys export --type sqlite`."
    )
    found = tables.rows(_DIAGNOSTICS, "severity", "text")
    texts = (text for severity, text in islice(found, _FEW) if severity in _WARNINGS)
    said = dict.fromkeys(cut_name(text)[:100].strip() for text in texts)
    if said:
        yield f"Nsight Systems has written: {', '.join(map(repr, islice(said, _MAX_WARNINGS)))}"


class _Links:
    """Numbers that join calls and what they launched: CUDA counts anew in each process.

    A thread's number and a process's have the process in the bits from 24 on.
    """

    def __init__(self) -> None:
        self._processes: dict[Any, int] = {}

    def of_call(self, thread: Any, number: Any) -> int:
        """Of a call on this thread."""
        process = thread >> 24 if type(thread) is int else None
        return link_of(self._processes.setdefault(process, len(self._processes)), number)

    def of_work(self, process: Any, number: Any) -> int:
        """Of what ran on a device; -1 if it is not known which process had launched it."""
        if type(process) is int and process > 0:
            return link_of(self._processes.get(process >> 24, -1), number)
        return link_of(0 if len(self._processes) == 1 else -1, number)


class _Gpus:
    """Numbers of GPUs: with CUDA_VISIBLE_DEVICES each process may call another one its 0."""

    def __init__(self, tables: _Tables) -> None:
        rows = tables.rows("TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
        self._gpus = {
            (process, number): gpu
            for process, number, gpu in islice(rows, _MAX_THREADS)
            if type(gpu) is int and gpu >= 0
        }
        pairs = {(number, gpu) for (_, number), gpu in self._gpus.items()}
        if len(pairs) == len({number for number, _ in pairs}):
            self._gpus.clear()  # all processes mean the same one: it is called as they do

    def of(self, process: Any, number: Any) -> Any:
        """The machine's number of what a process calls so; as it is where nothing says more."""
        return self._gpus.get((_process(process), number), number)


def _process(number: Any) -> int | None:
    """A process as the system numbers it, of Nsight's number for it; None: it does not say."""
    return number >> 24 & 0xFFFFFF if type(number) is int and number > 0 else None


class _Tables:
    """The plain tables of a file, row by row."""

    def __init__(self, database: sqlite3.Connection, budget: Budget) -> None:
        self._database = database
        database.text_factory = as_text
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT)
        database.execute("pragma trusted_schema = off")
        database.execute("pragma temp_store = memory")  # where rows are sorted
        budget.watch(database)
        found = database.execute("select name from sqlite_master where type = 'table'")
        names = [name for (name,) in islice(found, _MAX_TABLES)]
        self.of_others = why_refused_database(names)
        self._columns = {name: self._known(name) for name in names if name in _TABLES}
        database.set_authorizer(may_read)
        self._clock = Clock(self._usual_time())

    def _usual_time(self) -> int | None:
        """The middle one of some times, from which a lonely time 0 is far away."""
        for table in (_CALLS, f"{_CUPTI}KERNEL", f"{_CUPTI}MEMCPY", "NVTX_EVENTS", _GRAPHS):
            starts = [at for (at,) in islice(self.rows(table, "start"), _FEW) if type(at) is int]
            if starts:
                return median_low(starts)
        return None

    def rows(self, table: str, *columns: str, in_time: bool = False) -> Iterator[tuple[Any, ...]]:
        """These columns of each row, None for one that is not there; nothing without the table.

        Args:
            in_time: by their begin, what lasts longest first; else as the table has them.
        """
        known = self._columns.get(table, set())
        if not known & set(columns):
            return
        chosen = ", ".join(f'"{c}"' if c in known else "null" for c in columns)
        order = 'order by "start", "end" desc' if in_time and {"start", "end"} <= known else ""
        rows = self._database.execute(f'select {chosen} from "{table}" {order}')
        if columns[:2] == ("start", "end"):
            rows = ((*self._clock.since(row[:2]), *row[2:]) for row in rows)  # type: ignore[assignment]
        yield from rows

    def _known(self, table: str) -> set[str]:
        rows = self._database.execute("select name from pragma_table_info(?)", (table,))
        return {name for (name,) in rows}


def _names(tables: _Tables) -> dict[Any, str]:
    """The texts of the file by their numbers."""
    room = Room(_MAX_CHARS)
    return {
        number: room.take(cut_name(text, MAX_SPAN_NAME))
        for number, text in tables.rows("StringIds", "id", "value")
    }


def _events(tables: _Tables, names: dict[Any, str]) -> Iterator[dict[str, Any]]:
    """Everything that becomes a span; of the host first."""
    links, gpus, streams = _Links(), _Gpus(tables), Streams()

    def place(device: Any, stream: Any, process: Any, number: Any) -> tuple[Any, Any, int]:
        gpu = gpus.of(process, device)
        return gpu, streams.of(_process(process), gpu, stream), links.of_work(process, number)

    yield from _on_host(tables, names, links)
    where = ("start", "end", "deviceId", "streamId", "globalPid", "correlationId")
    for start, end, device, stream, *link, whole, short in tables.rows(
        f"{_CUPTI}KERNEL", *where, "demangledName", "shortName"
    ):
        name = names.get(whole) or names.get(short) or "unnamed kernel"
        yield _on_device("kernel", name, (start, end), place(device, stream, *link))
    for start, end, device, stream, *link, size, kind, source, target in tables.rows(
        f"{_CUPTI}MEMCPY", *where, "bytes", "copyKind", "srcKind", "dstKind"
    ):
        pinned = " (Pinned)" * (_PINNED in (source, target))
        name = f"Memcpy {_COPIES.get(kind, 'of another kind')}{pinned}"
        yield _on_device("gpu_memcpy", name, (start, end), place(device, stream, *link), bytes=size)
    for start, end, device, stream, *link in tables.rows(f"{_CUPTI}MEMSET", *where):
        yield _on_device("gpu_memset", "Memset", (start, end), place(device, stream, *link))
    for start, end, device, stream, *link, graph in tables.rows(_GRAPHS, *where, "graphId"):
        name = f"CUDA graph {graph}" if type(graph) is int else "CUDA graph"
        times = (start, end) if start != end else (None, None)  # both are 0 where CUPTI has none
        yield _on_device("kernel", name, times, place(device, stream, *link), graph=True)


def _on_host(tables: _Tables, names: dict[Any, str], links: _Links) -> Iterator[dict[str, Any]]:
    """Calls of CUDA, and NVTX ranges."""
    latest: dict[Any, tuple[Any, Any]] = {}  # thread -> number and end of its latest call
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for start, end, thread, link, name in tables.rows(_CALLS, *columns, in_time=True):
        if not _is_twin((link, end), latest.get(thread)):
            latest[thread] = link, end
            args = {"correlation": links.of_call(thread, link)}
            yield as_event("cuda_runtime", names.get(name), (start, end), _track(thread), args)
    for start, end, kind, text, number, thread in tables.rows(
        "NVTX_EVENTS", "start", "end", "eventType", "text", "textId", "globalTid"
    ):
        if kind in _RANGES and end is not None:
            text = text or names.get(number)
            category, name = category_and_name(text if isinstance(text, str) else "")
            yield as_event(category, name, (start, end), _track(thread), {})


def _calling_threads(tables: _Tables) -> list[Any]:
    """The threads with calls of CUDA, that with most of them first."""
    calls: dict[Any, int] = {}
    for count, (thread,) in enumerate(tables.rows(_CALLS, "globalTid")):
        calls[thread] = calls.get(thread, 0) + 1
        if len(calls) > _MAX_THREADS:
            raise TraceFileError(f"it has more than {_MAX_THREADS:,} threads: it is damaged")
        if count >= MAX_EVENTS:  # before they are sorted
            raise TraceFileError(_too_many())
    return sorted(calls, key=lambda thread: -calls[thread])


def _is_twin(call: tuple[Any, Any], before: tuple[Any, Any] | None) -> bool:
    """Is this the same call once more?

    Nsight Systems of 2022 writes a call twice: as the program names it, and inside of that with
    CUDA's version at the end of the name. Both have one number. In time the outer one comes first.
    """
    link, end = call
    if before is None or not link or link != before[0]:
        return False
    return type(end) is int and type(before[1]) is int and end <= before[1]


def _on_device(
    category: str, name: Any, times: tuple[Any, Any], place: Sequence[Any], **more: Any
) -> dict[str, Any]:
    device, stream, link = place
    args = {"device": device, "stream": stream, "correlation": link, **more}
    return as_event(category, name, times, _track(stream), args)


def _track(thread: Any) -> tuple[Any, Any]:
    """Process and thread; the lower 24 bits of a thread's number are the system's own."""
    return (thread >> 24, thread & 0xFFFFFF) if type(thread) is int else (None, thread)


def _too_many() -> str:
    return f"it holds more than {MAX_EVENTS:,} events: trace fewer steps"
