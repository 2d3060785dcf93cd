"""Which file is read by what: one row for each format that `kit.open_trace` knows.

The table is read by `open_trace`, by the command line's help and by docs/traces.md. A new format is
a row here, and a function from a path to `Imported`.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import TraceFileError
from kit.files import as_path, open_plain
from kit.formats.refused import why_refused
from kit.text import markdown_table

if TYPE_CHECKING:
    from kit.runs.run import Run
    from kit.shown import Progress
    from kit.trace.imported import Imported

__all__ = [
    "READERS",
    "Reader",
    "open_trace",
    "read_trace",
    "readers_table",
    "readers_text",
]

DIRECTORY = ""  # stands for a directory among the suffixes
_ZIP = b"PK"  # the first bytes of a saved run, whatever its name
_PACKED = b"\x1f\x8b"  # and of what gzip has packed
_SQLITE = "SQLite format 3\0"  # and of a database
# The name of a process of rocprof's, as an argument: events of others may be called so, too.
_ROCPROFS = (
    r'"name"\s*:\s*"(?:\d+ )?(?:CPU HIP API|CPU HSA API|COPY|GPU\d*|Markers and Ranges)"\s*\}'
)
_BEGIN = 4_096  # bytes of a file that tell who has written it


@dataclass(frozen=True, slots=True)
class Reader:
    """One format of traces."""

    suffixes: tuple[str, ...]
    names: str  # the file names, as help and docs show them
    program: str  # short name of the program that writes such files
    written_by: str  # the call that writes such files, as Markdown
    # of a Path; of `step_by`, where one may say what a step is; of torch's, of `progress`
    read: Callable[..., Imported | Run]
    takes_step_by: bool = True
    begins: re.Pattern[str] | None = None  # how its JSON begins, where a suffix does not tell


def _by(module: str, function: str) -> Callable[..., Imported]:
    """A reader that is imported when it is needed: jax and numpy are heavy."""

    def read(file: Path, *more: Any) -> Imported:
        found: Imported = getattr(import_module(module), function)(file, *more)
        return found

    return read


def _read_saved(file: Path) -> Run:
    from kit.runs.run import Run

    return Run.load(file)


_CHROME = Reader(
    (".json", ".json.gz"),
    "`.json`, `.json.gz`",
    "torch.profiler",
    "`prof.export_chrome_trace(path)` of torch.profiler, CPU and CUDA; `kit.export_trace`",
    _by("kit.formats.chrome.read", "read_chrome"),
)
_NSYS = Reader(
    (".sqlite",),
    "`.sqlite`",
    "nsys",
    "`nsys export --type sqlite` of Nsight Systems",
    _by("kit.formats.nsys", "read_nsys"),
)
_SAVED = Reader(
    (".kitrun",), "`.kitrun`", "kit", "`run.save(path)`", _read_saved, takes_step_by=False
)
READERS = (
    _CHROME,
    Reader(
        (DIRECTORY, ".pb"),
        "a directory, or `*.xplane.pb`",
        "jax",
        "`jax.profiler.trace(directory)`, CPU and GPU; of TPUs one real file was met",
        _by("kit.formats.xplane", "read_xplane"),
    ),
    Reader(
        (),
        "`*.trace.json.gz`",
        "jax's trace viewer",
        "`jax.profiler.trace(directory)`, beside `*.xplane.pb`, which says more",
        _by("kit.formats.trace_viewer", "read_trace_viewer"),
        begins=re.compile(
            r'"highres-ticks"|"process_name"\s*,\s*"args"\s*:\s*\{\s*"name"\s*:\s*"/(host|device):'
        ),
    ),
    Reader(
        (),
        "`*_results.json`",
        "rocprofv3",
        "`rocprofv3 --output-format json`; of its calls and copies no real file was met yet",
        _by("kit.formats.rocprof", "read_rocprofv3"),
        begins=re.compile(r'\s*\{\s*"rocprofiler-sdk-tool"'),
    ),
    Reader(
        (),
        "`results.json`",
        "rocprof",
        "`rocprof --hip-trace`; no real file was met yet",
        _by("kit.formats.rocprof", "read_rocprof"),
        begins=re.compile(
            rf'"process_name"[^{{}}]*\{{\s*{_ROCPROFS}|{_ROCPROFS}[^{{}}]*"process_name"'
        ),
    ),
    Reader(
        (),
        "`*.json`",
        "Chakra",
        "Chakra's `trace_link`: torch's execution trace with times; real files of 2023 were met",
        _by("kit.formats.chakra", "read_chakra"),
        begins=re.compile(
            r'\s*\{\s*"schema"\s*:\s*"|\A(\s*\{\s*"workload_graph"|[\s\S]{1,40}?\n\x06schema)'
        ),
    ),
    _NSYS,
    _SAVED,
)


def open_trace(
    path: str | os.PathLike[str], *, step_by: str = "", progress: Progress | None = None
) -> Run:
    """A run from a trace that was recorded elsewhere; its timeline's origin says "imported".

    `kit.TimelineView(kit.open_trace("trace.json.gz"))`. docs/traces.md says which files open, and
    what is a step. What had to be repaired or left out stands in `run.timeline.notes`.

    Args:
        path: torch.profiler's Chrome trace (`.json`, `.json.gz`); a jax profile, as a directory,
            one `*.xplane.pb` or `*.trace.json.gz`; Nsight Systems (`nsys export --type sqlite`);
            rocprof and rocprofv3; Chakra; what `export_trace` wrote as JSON; or a run that kit
            saved.
        step_by: what a step is: an annotation or function that repeats, or milliseconds,
            "12.5..80". By default what the file has marked, else what fits best.
        progress: called with a text and the part, from 0 to 1, that is done; of Chrome traces only.

    Raises:
        TraceFileError: it is damaged, of another format, or too large; the message says which.
        RunFileError: the same of a saved run.
        OSError: there is no such file, or it cannot be read.
    """
    from kit.formats.run_of import run_of
    from kit.trace.imported import Imported

    file = as_path(path)
    read = read_trace(file, step_by, progress)
    return run_of(read, file) if isinstance(read, Imported) else read


def read_trace(file: Path, step_by: str, progress: Progress | None = None) -> Imported | Run:
    """What a file holds: a foreign trace, or a saved run. Arguments and errors as `open_trace`."""
    reader = _reader_of(file)
    if reader is _CHROME:  # the only one whose files take minutes
        return reader.read(file, step_by, progress)
    if not step_by:
        return reader.read(file)
    if not reader.takes_step_by:
        raise TraceFileError(
            f"{file.name!r}: step_by is for traces that do not mark their steps; what "
            f"{reader.program} writes has its own steps"
        )
    return reader.read(file, step_by)


def _reader_of(file: Path) -> Reader:
    """The reader for the suffix; what has an unknown one is a saved run or a Chrome trace."""
    end = DIRECTORY if file.is_dir() else file.suffix or file.name
    for reader in READERS:
        if end in reader.suffixes and reader is not _CHROME:
            return reader
    with open_plain(file) as opened:
        first = opened.read(len(_ZIP))
    if first == _ZIP:
        return _SAVED
    text = _first_text(file)
    if why := why_refused(file.name.replace("\n", " "), text):
        raise TraceFileError(f"{file.name!r} cannot be opened: {why}")
    if first != _PACKED and text.startswith(_SQLITE):
        return _NSYS
    inner = Path(file.stem).suffix if end == ".gz" else ""
    is_other = inner and any(inner in each.suffixes for each in READERS if each is not _CHROME)
    if is_other or text.startswith(_SQLITE):
        raise TraceFileError(
            f"{file.name!r} is packed by gzip, from which only traces in JSON are read: unpack it "
            "first, as by gunzip"
        )
    known = (reader for reader in READERS if reader.begins is not None)
    return next((reader for reader in known if reader.begins.search(text)), _CHROME)  # type: ignore[union-attr]


def _first_text(file: Path) -> str:
    """Some thousand characters of a file, packed or not; "" of one that is damaged."""
    with open_plain(file) as opened:
        is_packed = opened.read(len(_PACKED)) == _PACKED
        opened.seek(0)
        try:
            return (
                (gzip.GzipFile(fileobj=opened) if is_packed else opened)
                .read(_BEGIN)
                .decode(errors="replace")
            )
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return ""


def readers_text() -> str:
    """The formats in one line, for the help of the command line."""
    rows = (f"{reader.names.replace('`', '')} ({reader.program})" for reader in READERS)
    return "; ".join(rows)


def readers_table() -> str:
    """The formats as Markdown; docs/traces.md holds it."""
    rows = [(reader.names, reader.written_by) for reader in READERS]
    return markdown_table(("file", "written by"), rows, has_numbers=False)
