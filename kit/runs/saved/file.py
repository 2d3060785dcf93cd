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
import os
import re
import struct
import zipfile
import zlib
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from kit.errors import RunFileError, SettingsError, TimelineError, but_of_handlers
from kit.files import as_path, open_plain, write_whole
from kit.runs.saved.checks import MAX_SPANS, check_run, within
from kit.runs.saved.encoding import decoder, encode
from kit.trace import COLUMNS, KINDS, SyncPoint, Timeline
from kit.trace.communication import calls_python

__all__ = ["FORMAT", "MAX_FILE_BYTES", "MAX_JSON_BYTES", "VERSION", "read_run",
           "write_run"]  # fmt: skip

FORMAT = "overlap-kit run"
# 2: label; 3: the knobs of a workload's builder; 4: pins, callers; 5: changes; 6: sorts of steps
VERSION = 6
MAX_FILE_BYTES = 256 << 20
MAX_JSON_BYTES = 64 << 20  # about 200,000 nodes
MAX_RATIO = 200  # real runs are packed 5 to 30 times; zeros 1000 times
_FREE_BYTES = 8 << 20  # so much may be unpacked from any file
_JSON = "run.json"
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
    check_run(run)
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
        check_run(run)
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
    within(columns["kind"], "kind", 0, len(kinds))
    columns["kind"] = np.array([KINDS.index(k) for k in kinds], np.int32)[columns["kind"]]
    # Kernels that call Python were of kind "kernel" before they had one of their own.
    calls = [i for i, name in enumerate(values["names"]) if calls_python(name)]
    older = np.isin(columns["name"], calls) & (columns["kind"] == KINDS.index("kernel"))
    columns["kind"][older] = KINDS.index("callback")
    try:
        return Timeline(**values, **columns)
    except TimelineError as error:
        raise RunFileError(str(error)) from None
