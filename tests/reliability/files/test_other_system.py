"""Where Python has fewer names, as on Windows, a step is measured and a report is written."""

from __future__ import annotations

import json
import ntpath
import os
import re
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest

from kit.cli.scripts import script
from kit.formats.ranks import read
from kit.runtime.recording import sites

ROOT = Path(__file__).parents[3]
RULES = """
import os, sys
from pathlib import Path
from tests.reliability.files.windows_files import with_windows_rules
folder = Path(sys.argv[1])
with_windows_rules(folder)
(folder / "a.txt").write_text("here", encoding="utf-8")
kept = open(folder / "open.txt", "w", encoding="utf-8")
(folder / "new.txt").write_text("here", encoding="utf-8")
os.replace(folder / "new.txt", folder / "a.txt")
try:
    (folder / "b.txt").write_text("", encoding="utf-8")
    os.replace(folder / "b.txt", folder / sys.argv[2])
except OSError as error:
    print(error)
"""


def test_a_run_a_file_and_a_report_are_made_without_the_names_that_windows_lacks(
    tmp_path: Path,
) -> None:
    cache = tmp_path / ".cache"
    environment = {**os.environ, "HOME": str(tmp_path), "KIT_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-Xwarn_default_encoding", "-m", "tests.reliability.files.other_system",
         str(tmp_path)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["system"].startswith("Windows")
    assert found["losses"] == 2
    assert found["kernels"] > 0
    assert found["cached"] > 0  # the folder is below the user's own
    assert found["report"] > 10_000
    assert "on Windows" in found["doctor"]
    assert (found["exported"], found["said"]) == (4, [0, 0, 0])
    assert found["reopened"] > 0
    assert found["swept"] == [".kitrun"] * 2
    assert found["watched"] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a:b.kitrun", "no such name"),
        ("run 12:30", "no such name"),
        ("nul.json", "no such name"),
        ("dot.", "no such name"),
        ("A.txt", "on Windows it is 'a.txt'"),
        ("open.txt", "the file is open"),
    ],
)
def test_the_rules_for_files_are_windows_own(tmp_path: Path, name: str, text: str) -> None:
    done = subprocess.run([sys.executable, "-c", RULES, str(tmp_path), name], cwd=ROOT,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert text in done.stdout


def test_files_on_two_drives_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as windows:
        windows.setattr(os, "path", ntpath)
        with pytest.raises(ValueError, match=r"drive|mount"):
            ntpath.relpath("D:\\code\\train.py")
        shown = script.near("D:\\code\\train.py")
        files = [PureWindowsPath(f"{drive}:\\traces\\rank0.json") for drive in "CD"]
        windows.setattr(PureWindowsPath, "resolve", lambda self: self, raising=False)
        name = read._name(iter(files), files)  # type: ignore[arg-type]
    assert (shown, name) == ("D:\\code\\train.py", "2 files")


def test_a_folder_that_cannot_be_removed_loses_no_result() -> None:
    """Windows removes no file that a program which is just ending, or a virus scanner, has open."""
    made = re.compile(r"TemporaryDirectory\(([^)]*)\)")
    sources = {file: file.read_text("utf-8") for file in (ROOT / "kit").rglob("*.py")}
    found = [(file, call[1]) for file, text in sources.items() for call in made.finditer(text)]
    assert len(found) > 3
    assert [file for file, given in found if "ignore_cleanup_errors=True" not in given] == []


def test_the_line_of_a_library_has_slashes_and_no_folder_of_an_installation(monkeypatch) -> None:
    with monkeypatch.context() as windows:
        windows.setattr(os, "sep", "\\")
        windows.setattr(sites, "_STANDARD", "C:\\Python\\Lib\\")
        package = sites.installed("C:\\Python\\Lib\\site-packages\\transformers\\trainer.py")
        module = sites.installed("C:\\Python\\Lib\\logging\\__init__.py")
    assert (package, module) == ("transformers/trainer.py", "logging/__init__.py")
