"""Which file is read by what: one row for each format that `kit.open_trace` knows.

The table is read by `open_trace`, by the command line's help and by docs/traces.md. A new format is
a row here, and a function from a path to a `Run` (a reader's `Imported`, given to `run_of`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import TraceFileError
from kit.files import open_plain
from kit.text import markdown_table

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = [
    "READERS",
    "Reader",
    "open_trace",
    "readers_table",
    "readers_text",
    "reads_chrome",
    "reads_saved",
]

DIRECTORY = ""  # stands for a directory among the suffixes
_ZIP = b"PK"  # the first bytes of a saved run, whatever its name
_SQLITE = b"SQLite format 3\0"  # and of a database


@dataclass(frozen=True, slots=True)
class Reader:
    """One format of traces."""

    suffixes: tuple[str, ...]
    names: str  # the file names, as help and docs show them
    program: str  # short name of the program that writes such files
    written_by: str  # the call that writes such files, as Markdown
    read_by: str  # the module and what it builds on, as Markdown
    read: Callable[[Path], Run]
    read_by_step: Callable[[Path, str], Run] | None = None  # where one may say what a step is


# The modules that read are imported when they are needed: jax and numpy are heavy.
def _read_chrome(file: Path, step_by: str = "") -> Run:
    from kit.formats.chrome.read import read_chrome
    from kit.formats.run_of import run_of

    return run_of(read_chrome(file, step_by), file)


def _read_xplane(file: Path) -> Run:
    from kit.formats.run_of import run_of
    from kit.formats.xplane import read_xplane

    return run_of(read_xplane(file), file)


def _read_nsys(file: Path, step_by: str = "") -> Run:
    from kit.formats.nsys import read_nsys
    from kit.formats.run_of import run_of

    return run_of(read_nsys(file, step_by), file)


def _read_saved(file: Path) -> Run:
    from kit.runs.run import Run

    return Run.load(file)


_CHROME = Reader(
    (".json", ".json.gz"),
    "`.json`, `.json.gz`",
    "torch.profiler",
    "`prof.export_chrome_trace(path)` of torch.profiler, CPU and CUDA; `kit.export_trace`",
    "`kit/formats/chrome/read.py`: the standard library's JSON scanner, one event at a time",
    _read_chrome,
    _read_chrome,
)
_NSYS = Reader(
    (".sqlite",),
    "`.sqlite`",
    "nsys",
    "`nsys export --type sqlite` of Nsight Systems; no real file was met yet",
    "`kit/formats/nsys.py`: the standard library's SQLite, read only",
    _read_nsys,
    _read_nsys,
)
_SAVED = Reader(
    (".kitrun",), "`.kitrun`", "kit", "`run.save(path)`", "`kit/runs/file.py`", _read_saved
)
READERS = (
    _CHROME,
    Reader(
        (DIRECTORY, ".pb"),
        "a directory, or `*.xplane.pb`",
        "jax",
        "`jax.profiler.trace(directory)`, CPU and GPU",
        "`kit/formats/xplane.py`: `jax.profiler.ProfileData`",
        _read_xplane,
    ),
    _NSYS,
    _SAVED,
)


def open_trace(path: str | os.PathLike[str], step_by: str = "") -> Run:
    """The run that a file or a directory holds; see `kit.open_trace`."""
    file = Path(path)
    reader = _reader_of(file)
    if not step_by:
        return reader.read(file)
    if reader.read_by_step is None:
        raise TraceFileError(
            f"{file.name!r}: step_by is for traces of torch.profiler and nsys; what "
            f"{reader.program} writes has its own steps"
        )
    return reader.read_by_step(file, step_by)


def reads_chrome(file: Path) -> bool:
    """Would `open_trace` read this as a Chrome trace?"""
    return _reader_of(file) is _CHROME


def reads_saved(file: Path) -> bool:
    """Would `open_trace` read this as a saved run?"""
    return _reader_of(file) is _SAVED


def _reader_of(file: Path) -> Reader:
    """The reader for the suffix; what has an unknown one is a saved run or a Chrome trace."""
    end = DIRECTORY if file.is_dir() else file.suffix or file.name
    for reader in READERS:
        if end in reader.suffixes and reader is not _CHROME:
            return reader
    with open_plain(file) as opened:
        first = opened.read(len(_SQLITE))
    if first == _SQLITE:
        return _NSYS
    return _SAVED if first.startswith(_ZIP) else _CHROME


def readers_text() -> str:
    """The formats in one line, for the help of the command line."""
    rows = (f"{reader.names.replace('`', '')} ({reader.program})" for reader in READERS)
    return "; ".join(rows)


def readers_table() -> str:
    """The formats as Markdown; docs/traces.md holds it."""
    rows = [(reader.names, reader.written_by, reader.read_by) for reader in READERS]
    return markdown_table(("file", "written by", "read by"), rows, has_numbers=False)
