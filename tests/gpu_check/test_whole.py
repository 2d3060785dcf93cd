"""`python -m kit.gpu_check`: the whole, in tiny sizes on the CPU, as it will run on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.gpu_check.base.checks import NOT_OK
from kit.gpu_check.base.journal import MAX_FILE_BYTES
from kit.gpu_check.table import PARTS
from kit.runs.run import Run
from tests.warm import warm_python

ROOT = Path(__file__).parents[2]
BLOCKED = ("bokeh", "ipywidgets", "graphviz", "jupyter_bokeh", "IPython", "traitlets", "psutil")
BLOCKER = f"""
import sys

class Without:
    # A finder that knows nothing of some packages, as if they were not installed.

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        is_blocked = name.split(".")[0] in {BLOCKED!r}
        return None if is_blocked else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
for name in [name for name in sys.modules if name.split(".")[0] in {BLOCKED!r}]:
    del sys.modules[name]
"""
# As `python -m` runs a module: each part is one, in a process of its own.
PART = f"""{BLOCKER}
import runpy
sys.argv[:] = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def ask(
    *command: str, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *command], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=1800)  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the results, and the summary; without bokeh, ipywidgets and graphviz."""
    folder = tmp_path_factory.mktemp("check")
    part, python = folder / "part.py", folder / "python"
    part.write_text(PART)
    python.write_text(f'#!/bin/sh\nexec "{warm_python()}" "{part}" "$@"\n')
    python.chmod(0o700)
    (folder / "sitecustomize.py").write_text(f"{BLOCKER}\nsys.executable = {str(python)!r}")
    path = os.pathsep.join([str(folder), str(ROOT)])
    out = folder / "out"
    said = ask("-m", "kit.gpu_check", "--tiny", "--budget", "1500", "--out", str(out),
               PYTHONPATH=path)  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr + (out / "log.txt").read_text()
    return out, json.loads((out / "summary.json").read_text())


@pytest.mark.slow
def test_every_part_runs_on_a_cpu_and_nothing_is_wrong(found: tuple[Path, dict[str, Any]]):
    _, summary = found
    for part, expected in zip(summary["parts"], PARTS, strict=True):
        states = [check["state"] for check in part["checks"]]
        assert part["part"] == expected.letter
        assert states, f"part {expected.letter} gave no check"
        assert NOT_OK not in states
        assert {"ok", "measured"} & set(states)


@pytest.mark.slow
def test_each_check_says_what_the_brief_of_a_reader_needs(found: tuple[Path, dict[str, Any]]):
    _, summary = found
    checks = [check for part in summary["parts"] for check in part["checks"]]
    assert all(check["why"] for check in checks if check["state"] == "not run")
    assert all(check["target"] for check in checks if check["state"] == "ok")
    assert {"jax runs on", "torch", "jax", "python", "measured at"} <= summary["facts"].keys()


@pytest.mark.slow
def test_the_results_are_few_small_files_and_the_runs_open(found: tuple[Path, dict[str, Any]]):
    folder, _ = found
    files = sorted(folder.iterdir())
    assert len(files) <= 8
    assert all(file.stat().st_size <= MAX_FILE_BYTES for file in files)
    runs = [Run.load(file) for file in files if file.suffix == ".kitrun"]
    assert runs
    assert all(len(run.timeline) for run in runs)


@pytest.mark.slow
def test_the_page_names_each_part_and_each_check(found: tuple[Path, dict[str, Any]]):
    folder, summary = found
    page = (folder / "summary.md").read_text()
    for part in summary["parts"]:
        assert f"## {part['part']}) " in page
        assert all(check["state"] in page for check in part["checks"])


def test_it_lists_its_parts_without_torch_jax_or_any_widget():
    code = BLOCKER + (
        "from kit.gpu_check.__main__ import main\n"
        "assert main(['--list']) == 0\n"
        "print(sorted({'torch', 'jax', 'numpy'} & set(sys.modules)))"
    )
    said = ask("-c", code)
    assert said.returncode == 0, said.stderr
    *lines, loaded = said.stdout.splitlines()
    assert [line[0] for line in lines] == [part.letter for part in PARTS]
    assert loaded == "[]"


def test_every_part_can_be_imported_without_bokeh_and_ipywidgets():
    names = [f"kit.gpu_check.parts.{part.module}" for part in PARTS]
    code = BLOCKER + f"from importlib import import_module\nfor n in {names}: import_module(n).run"
    said = ask("-c", code, python=warm_python())
    assert said.returncode == 0, said.stderr
