"""The worked examples of CONTRIBUTING.md, done word for word in a copy of the kit: they work.

The blocks are taken from the page. One with a file's docstring is a new file, one with `...` rows
extends the table that it names, one with tests is run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
IMPORT = "from kit.widgets.numbers.losses import losses_html\n"
HEAD = f"""
from pathlib import Path
import pytest
import torch
import kit
from kit.errors import TraceFileError
from kit.torch.device import open_session
{IMPORT}from tests.factories import empty_run, make_run
"""


def test_the_worked_examples_work(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "kit", tmp_path / "kit")  # with its bytecode
    (tmp_path / "tests").mkdir()
    for name in ("__init__.py", "factories.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")

    function, row, tests = _blocks("a lowering rule")
    linalg = tmp_path / "kit/runtime/rules/linalg.py"
    _insert(linalg, "LINALG_RULES = Rules({\n", row, before=function)

    view, row, more = _blocks("a view")
    (tmp_path / "kit/widgets/numbers/losses.py").write_text(view, encoding="utf-8")
    views = tmp_path / "kit/widgets/views.py"
    _insert(views, "VIEWS: tuple[ViewRow, ...] = (\n", row)
    _insert(views, "from kit.widgets.base.html_view import HtmlView\n", IMPORT)
    tests += more

    reader, row, more = _blocks("a trace reader")
    (tmp_path / "kit/formats/spans_csv.py").write_text(reader, encoding="utf-8")
    function, _, row = row.partition("READERS = (\n")
    _insert(tmp_path / "kit/formats/readers.py", "READERS = (\n", row, before=function)
    tests += more

    (tmp_path / "tests" / "test_examples.py").write_text(HEAD + tests, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(re.findall(r'^def test_', tests, re.M)) + 1} passed" in done.stdout  # one has two


def _blocks(example: str) -> list[str]:
    """The blocks of Python of one example, in order."""
    part = PAGE.split(f"## Example: {example}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", part, re.M | re.S)
    assert len(blocks) == 3, example
    return blocks


def _insert(file: Path, head: str, row: str, before: str = "") -> None:
    """Put `row` behind the line `head` that the file has once, and `before` in front of it."""
    row = row.removeprefix(head).removesuffix("})  # fmt: skip\n")
    row = re.sub(r"^    # \.\.\. the rows.*\n", "", row, flags=re.M)
    if row.endswith("\n)\n"):  # the table's end
        row = row.removesuffix(")\n")
    source = file.read_text(encoding="utf-8")
    assert source.count(head) == 1, (file, head)
    file.write_text(source.replace(head, before + head + row), encoding="utf-8")
