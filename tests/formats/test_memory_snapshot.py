"""Snapshots of torch's allocator: peaks against a count, and files that want to run something.

They are made as torch's documentation of `_snapshot` describes them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.cli.main import main
from kit.errors import TraceFileError
from tests.formats.made_profiles import memory_snapshot


def dumped(folder: Path, value: object) -> Path:
    file = folder / "snapshot.pickle"
    file.write_bytes(pickle.dumps(value))
    return file


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 100, 1000, 4096])), max_size=30)
)
def test_the_peak_is_a_count_and_its_lines_add_up_to_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]]
):
    made, peak = memory_snapshot(steps)
    found = kit.open_memory(dumped(tmp_path_factory.mktemp("made"), made))
    assert found.peak[0] == peak
    assert sum(holder.bytes for holder in found.holders) == peak
    assert found.origin == "measured"


def test_the_lines_that_held_the_peak_are_the_users(tmp_path: Path):
    made, _ = memory_snapshot([(7, 1000), (8, 5000), (9, 300), (8, 0), (9, 0), (9, 200)])
    found = kit.open_memory(dumped(tmp_path, made))
    held = [(row.line, row.function, row.bytes, row.blocks) for row in found.holders]
    assert held == [("train.py:8", "step", 5000, 1), ("train.py:7", "step", 1000, 1),
                    ("train.py:9", "step", 300, 1)]  # fmt: skip
    assert (found.at_end[0], found.reserved[0]) == (1200, 1 << 21)
    assert "measured" in found.to_text()
    assert "train.py:8" in found.to_text()


def test_what_was_given_out_before_the_history_begins_counts(tmp_path: Path):
    made, peak = memory_snapshot([(7, 1000), (8, 5000), (9, 300), (8, 0), (9, 0)], forget=2)
    found = kit.open_memory(dumped(tmp_path, made))
    assert found.peak[0] == peak == 6300
    assert {row.line: row.bytes for row in found.holders} == {
        "allocated before the history begins": 5000, "train.py:7": 1000, "train.py:9": 300,
    }  # fmt: skip
    (note,) = found.notes
    assert "of device 0's peak were allocated before the history begins" in note
    assert "_record_memory_history() before the model" in note


def test_a_block_whose_stack_has_no_python_is_an_unknown_line(tmp_path: Path):
    made, _ = memory_snapshot([(7, 1000)])
    native = [{"filename": "??", "line": 0, "name": "c10::Allocator"}]
    for holder in (*made["segments"][0]["blocks"], *made["device_traces"][0]):
        holder["frames"] = native
    found = kit.open_memory(dumped(tmp_path, made))
    assert [row.line for row in found.holders] == ["unknown line"]
    assert found.notes == ("no block has a stack of Python, so no line is known",)


@pytest.mark.parametrize(
    "library", ["/usr/lib/python3.11/copy.py", "/tmp/torchinductor_root/ab/cab7.py"]
)
def test_a_file_of_pythons_own_or_of_torch_compile_holds_nothing(tmp_path: Path, library: str):
    """A copy of a model was said to be held by line 153 of copy.py."""
    made, _ = memory_snapshot([(7, 1000)])
    for holder in (*made["segments"][0]["blocks"], *made["device_traces"][0]):
        inner = {"filename": library, "line": 153, "name": "deepcopy"}
        holder["frames"] = [inner, *holder["frames"]]
    found = kit.open_memory(dumped(tmp_path, made))
    assert [row.line for row in found.holders] == ["train.py:7"]


def test_without_a_history_the_peak_is_that_of_the_end_and_a_note_says_so(tmp_path: Path):
    made, _ = memory_snapshot([(7, 1000)])
    found = kit.open_memory(dumped(tmp_path, {"segments": made["segments"]}))
    assert found.peak[0] == 1000
    assert "_record_memory_history" in found.notes[0]


class Evil:
    """Writes a file when it is unpickled as pickle does it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_a_file_that_wants_to_run_something_is_refused_and_runs_nothing(tmp_path: Path):
    target = tmp_path / "made by the pickle"
    file = dumped(tmp_path, {"segments": [Evil(target)]})
    with pytest.raises(TraceFileError, match=r"names (posix|nt)\.mkdir"):
        kit.open_memory(file)
    assert not target.exists()
    pickle.loads(file.read_bytes())  # the test itself: so it would have been
    assert target.exists()


def test_a_few_bytes_cannot_ask_for_gigabytes(tmp_path: Path):
    file = tmp_path / "small.pickle"
    file.write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")  # remembers a dict at place 4,294,967,295
    with pytest.raises(TraceFileError, match="more values than it has bytes"):
        kit.open_memory(file)
    file.write_bytes(b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.")
    with pytest.raises(TraceFileError, match="damaged"):
        kit.open_memory(file)
    file.write_bytes(b"")
    with pytest.raises(TraceFileError, match="damaged"):
        kit.open_memory(file)


@pytest.mark.parametrize("value", [[], {}, {"segments": 3}, "text", None])
def test_other_pickles_are_no_snapshots(tmp_path: Path, value: object):
    with pytest.raises(TraceFileError, match="segments"):
        kit.open_memory(dumped(tmp_path, value))


def test_damaged_files_are_clear_errors_or_read(tmp_path: Path):
    whole = pickle.dumps(memory_snapshot([(7, 1000), (8, 5000), (8, 0)])[0])
    file = tmp_path / "damaged.pickle"
    for i in range(0, len(whole), 7):
        for content in (whole[:i], whole[:i] + bytes([255 - whole[i]]) + whole[i + 1 :]):
            file.write_bytes(content)
            with contextlib.suppress(TraceFileError):
                assert kit.open_memory(file).to_text()


def test_values_of_the_wrong_type_are_left_out(tmp_path: Path):
    made: dict[str, Any] = {
        "segments": [3, {"blocks": [None, {"size": -5, "state": "active_allocated"}]}],
        "device_traces": [[{"action": [], "size": "x"}, {"action": "alloc", "size": True}], "no"],
    }
    assert kit.open_memory(dumped(tmp_path, made)).peak[0] == 0


def test_kit_view_prints_it_and_names_are_no_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made, _ = memory_snapshot([(7, 1000)])
    made["segments"][0]["blocks"][0]["frames"] = [
        {"filename": "\x1b[31m.py", "line": 3, "name": "\x1b[2J"}
    ]
    assert main(["view", str(dumped(tmp_path, made))]) == 0
    out = capsys.readouterr().out
    assert "measured" in out
    assert "\x1b" not in out
