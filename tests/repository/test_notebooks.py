"""Each notebook runs from top to bottom with `KIT_FAST=1`; its outputs are absent or fresh.

Those in `LIVE` do so in a page, in `browser/test_notebook.py`, and not once more here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from scripts.kept_outputs import GALLERY, faults, stamp
from tests.browser.test_notebook import LIVE
from tests.smaller import with_smaller_bert
from tests.warm import warm_kernel

ROOT = Path(__file__).parents[2]
MOST_CELLS = 12  # of code
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.notebook
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    return book


def code_of(path: Path) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == "code"]


def made_book(data: dict[str, Any]) -> nbformat.NotebookNode:
    """A notebook of one cell with one output, as `make notebooks` leaves it."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    book.cells[0].outputs = [nbformat.v4.new_output("display_data", data)]
    stamp(book)
    return book


def test_there_are_notebooks_and_those_that_run_in_a_page():
    assert set(LIVE) < {path.stem for path in NOTEBOOKS}


@each_notebook
def test_the_outputs_of_a_notebook_are_absent_or_small_and_fresh(path: Path):
    assert faults(read(path)) == []


def test_pictures_of_notebooks_are_of_those_that_are_there():
    first = read(NOTEBOOKS[0])
    for cell in (cell for cell in first.cells if cell.id == GALLERY):
        shown = re.findall(r"\]\((\w+)\.ipynb\)", cell.source)
        assert sorted(shown) == [path.stem for path in NOTEBOOKS[1:]]
        assert {f"{name}.png" for name in shown} == set(cell.attachments)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"image/png": "iVBORw0KGgo=" * 30_000}, "bytes with its outputs"),
        ({"application/vnd.jupyter.widget-view+json": {}}, "which is not one of"),
        ({"text/html": "<iframe srcdoc=''></iframe>"}, "<iframe, which a code host"),
        ({"text/plain": f"wrote {Path.home()}/report.html"}, "the home folder of a machine"),
    ],
)
def test_an_output_that_a_code_host_does_not_show_is_a_fault(data: dict[str, Any], fault: str):
    book = made_book(data)
    assert [fault in found for found in faults(book)] == [True]


def test_outputs_of_other_code_are_a_fault_and_the_hook_clears_them(tmp_path: Path):
    book = made_book({"text/plain": "2"})
    assert faults(book) == []
    book.cells[0].source = "1 + 2"
    assert [found.split(":")[0] for found in faults(book)] == [
        "its code has changed since its outputs were made"
    ]
    nbformat.write(book, tmp_path / "a.ipynb")
    command = [sys.executable, ROOT / "scripts" / "kept_outputs.py", tmp_path / "a.ipynb"]
    assert subprocess.run(command, check=True, capture_output=True).stdout.endswith(b"cleared\n")
    left = read(tmp_path / "a.ipynb")
    assert (left.cells[0].outputs, faults(left)) == ([], [])


@each_notebook
def test_a_notebook_names_the_kernel_that_every_machine_has(path: Path):
    assert read(path).metadata["kernelspec"]["name"] == "python3"


@each_notebook
def test_a_notebook_opens_with_its_question(path: Path):
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.splitlines()[0].endswith("?")


@each_notebook
def test_a_notebook_ends_with_what_its_reader_can_do_now(path: Path):
    last = read(path).cells[-1]
    assert last.cell_type == "markdown"
    assert last.source.startswith("## What you can now do")


@each_notebook
def test_a_notebook_is_read_in_one_go(path: Path):
    assert len(code_of(path)) <= MOST_CELLS


@each_notebook
def test_a_notebook_needs_nothing_but_the_package_and_tells_no_bare_step_time(path: Path):
    code = "\n".join(code_of(path))
    assert "sys.path" not in code
    assert "tests." not in code
    assert re.findall(r"(?:step_ms|advice\.ms):", code) == []  # use `step_text`


def test_the_first_notebook_leads_to_each_other_one():
    links = re.findall(r"\]\((\w+)\.ipynb\)", read(NOTEBOOKS[0]).cells[0].source)
    assert sorted(links) == [path.stem for path in NOTEBOOKS[1:]]


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem not in LIVE], ids=lambda path: path.stem
)
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("KIT_FAST", "1")
    monkeypatch.setenv("JUPYTER_PATH", warm_kernel(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "work").mkdir()  # what a notebook saves lands here, not in the repository
    book = with_smaller_bert(read(path))
    NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(tmp_path / "work")}}
    ).execute()
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")
