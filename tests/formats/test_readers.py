"""The table of trace formats: `kit.open_trace`, the command line and docs/traces.md follow it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

import kit
from kit.errors import KitError, TraceFileError
from kit.formats.readers import READERS, readers_text
from kit.workloads.made_ranks import Job, write_ranks
from tests.factories import make_run
from tests.formats.chrome.traces import op, step, written
from tests.with_a_row import output_with_row

_NEW_ROW = """
    Reader((".nap",), "`*.nap`", "Morpheus", "sleep", lambda file: file.name),
"""
_USE = """
import contextlib, io
import kit
from kit.cli.main import main
from kit.errors import TraceFileError
from kit.formats.readers import readers_table

assert kit.open_trace("a.nap") == "a.nap"
assert "| `*.nap` | sleep |" in readers_table()
shown = io.StringIO()
with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
    main(["view", "--help"])
assert "Morpheus" in shown.getvalue(), shown.getvalue()
print("seen everywhere")
"""


def test_a_new_format_is_one_row():
    shown = output_with_row("kit/formats/readers.py", "READERS = (", _NEW_ROW, _USE)
    assert shown == "seen everywhere\n"


def test_each_suffix_has_one_reader():
    suffixes = [suffix for reader in READERS for suffix in reader.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(reader.program in readers_text() for reader in READERS)


@pytest.mark.parametrize("name", ["a.kitrun", "a.json", "a", ".kitrun", "a.gz"])
def test_a_saved_run_is_known_by_its_first_bytes_whatever_its_name(tmp_path: Path, name: str):
    make_run().save(tmp_path / name)
    assert kit.open_trace(tmp_path / name).timeline == make_run().timeline


@pytest.mark.parametrize(
    ("name", "begin", "what", "cure"),
    [
        ("a.nsys-rep", b"NVTR\0\1", "a report of Nsight Systems", "--type sqlite"),
        (
            "a.json",
            b'{"Type":80,"CudaEvent":{"startNs":"1"}}\n',
            "a JSON export of",
            "--type sqlite",
        ),
        ("report.html", b"<!doctype html>\n<html>", "an HTML page", "the saved run (.kitrun)"),
        ("a.ncu-rep", b"NVR\0", "a report of Nsight Compute", "nsys profile --trace cuda,nvtx"),
        ("1_kernel_trace.csv", b'"Kind","Agent_Id","Queue_Id"\n', "a table of rocprofv3", "json"),
        ("1_hip_api_trace.csv", b'"Domain","Function"\n', "a table of rocprofv3", "json"),
        ("a.pftrace", b"\n\x10\x08\x01", "a trace in Perfetto's own form", "export_chrome_trace"),
        (
            "a.json.gz",
            gzip.compress(b"[[17, 0, 512, 3]]", mtime=0),
            "memory",
            "chrome_trace",
        ),
        ("snapshot", pickle.dumps({"segments": []}), "a pickle", "kit.open_memory(path)"),
        ("snapshot.pickle", pickle.dumps({"segments": []}, 2), "a pickle", "kit.open_memory(path)"),
        ("a.json.zst", b"\x28\xb5\x2f\xfd\x04\x00\x99\x00", "packed by zstd", "zstd -d"),
        ("a.json.xz", lzma.compress(b"{}"), "packed by xz", "unxz"),
        ("a.json.bz2", bz2.compress(b"{}"), "packed by bzip2", "bunzip2"),
        ("a.json", b"a.json".ljust(257, b"\0") + b"ustar\x00", "a tar archive", "tar -xf"),
        (
            "a.tar.gz",
            gzip.compress(b"a\n".ljust(257, b"\0") + b"ustar  ", mtime=0),  # a name for all workers
            "a tar",
            "tar -xf",
        ),
        (
            "a.json",
            b'[{"name": "aten::mm", "ph": "X", "ts": 4.5, "dur": 1.2, "tid": 1, '
            b'"pid": "CPU functions", "args": {}}]',
            "short list",
            "prof.export_chrome_trace(path)",
        ),
    ],
)
def test_a_file_that_is_not_read_is_called_what_it_is_with_what_to_open_instead(
    tmp_path: Path, name: str, begin: bytes, what: str, cure: str
):
    (tmp_path / name).write_bytes(begin)
    with pytest.raises(TraceFileError) as caught:
        kit.open_trace(tmp_path / name)
    assert what in str(caught.value)
    assert cure in str(caught.value)


def test_a_zip_file_of_a_trace_is_to_be_unpacked(tmp_path: Path):
    for names in (["trace.json"], [f"{i}.json" for i in range(200)]):
        with zipfile.ZipFile(tmp_path / "artifacts.zip", "w") as archive:
            for name in names:
                archive.writestr(name, "{}")
        with pytest.raises(KitError, match="unpack it first if it holds a trace"):
            kit.open_trace(tmp_path / "artifacts.zip")


@pytest.mark.parametrize("name", ["COPY", "GPU", "GPU0", "Markers and Ranges"])
def test_an_event_that_is_called_as_a_process_of_rocprofs_is_torchs_all_the_same(
    tmp_path: Path, name: str
):
    (tmp_path / "a.json").write_text(json.dumps([step(0, 20) | {"name": name}, op()]))
    run = kit.open_trace(tmp_path / "a.json")
    assert run.environment["imported from"] == "torch.profiler"


def test_a_database_of_rocprofv3_is_not_asked_for_events_of_nsys(tmp_path: Path):
    for name, cure in (("rocpd_kernel_dispatch_00", "rocprofv3 --output-format json"),
                       ("mine", "nsys profile --trace cuda,nvtx")):  # fmt: skip
        path = tmp_path / f"{name}.db"
        with closing(sqlite3.connect(path)) as database:
            database.execute(f'create table "{name}" (id integer)')
        with pytest.raises(TraceFileError, match=cure):
            kit.open_trace(path)


@pytest.mark.parametrize("name", ["none.json", "none.kitrun", "none"])
def test_a_file_that_is_not_there_is_an_oserror(tmp_path: Path, name: str):
    with pytest.raises(FileNotFoundError):
        kit.open_trace(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("report.sqlite.gz", b"SQLite format 3\0" + bytes(84)),
        ("report.gz", b"SQLite format 3\0" + bytes(84)),
        ("a.xplane.pb.gz", b"\x0a\x04\x12\x02/x"),
        ("a.kitrun.gz", b"PK\3\4"),
    ],
)
def test_a_packed_file_that_is_no_json_is_called_packed_and_not_damaged(
    tmp_path: Path, name: str, data: bytes
):
    (tmp_path / name).write_bytes(gzip.compress(data))
    with pytest.raises(TraceFileError, match=r"is packed by gzip.*unpack it first"):
        kit.open_trace(tmp_path / name)


@pytest.mark.parametrize("name", ["long.json", "long.json.gz"])
def test_of_a_long_trace_the_part_that_is_done_is_told(tmp_path, name):
    events = [op(ts=10 * i, args={"more": "x" * 2_000}) for i in range(2_000)]
    file = written(tmp_path, {"traceEvents": events}, name)
    told: list[tuple[str, float]] = []
    kit.open_trace(file, progress=lambda text, part: told.append((text, part)))
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert parts[0] > 0
    assert parts[-1] < 1
    assert [text for text, _ in told[:-1]] == ["reading"] * (len(told) - 1)
    assert len(told) > (2 if name.endswith(".gz") else 4)
    assert told[-1][0] != "reading"


def test_of_a_folder_of_ranks_the_files_that_are_read_are_told(tmp_path):
    write_ranks(tmp_path, Job(ranks=3, steps=1))
    told: list[tuple[str, float]] = []
    kit.open_ranks(tmp_path, progress=lambda text, part: told.append((text, round(part, 2))))
    assert told == [("1 of 3 files read", 0.33), ("2 of 3 files read", 0.67),
                    ("3 of 3 files read", 1.0)]  # fmt: skip
