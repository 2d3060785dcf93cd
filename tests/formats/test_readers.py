"""The table of trace formats: `kit.open_trace`, the command line and docs/traces.md follow it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import kit
from kit.errors import TraceFileError
from kit.formats.readers import READERS, readers_table, readers_text
from tests.factories import make_run
from tests.with_a_row import REPO, output_with_row

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


def test_the_page_on_traces_holds_the_table():
    assert readers_table() in (REPO / "docs" / "traces.md").read_text("utf-8")


def test_each_suffix_has_one_reader():
    suffixes = [suffix for reader in READERS for suffix in reader.suffixes]
    assert len(set(suffixes)) == len(suffixes)
    assert all(reader.program in readers_text() for reader in READERS)


@pytest.mark.parametrize("name", ["a.kitrun", "a.json", "a", ".kitrun", "a.gz"])
def test_a_saved_run_is_known_by_its_first_bytes_whatever_its_name(tmp_path: Path, name: str):
    make_run().save(tmp_path / name)
    assert kit.open_trace(tmp_path / name).timeline == make_run().timeline


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
