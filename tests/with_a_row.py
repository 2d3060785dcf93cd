"""Python with one more row in a table of kit: what a test of "a concept has one table" needs.

Tables are read when modules are imported, so the row is there before: an interpreter of its own
loads the table's module from changed source.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[1]

_LOADER = """
import importlib.abc, importlib.util, sys

class Changed(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    def find_spec(self, name, path, target=None):
        if name == MODULE:
            return importlib.util.spec_from_loader(name, self, origin=FILE)
    def get_filename(self, name):
        return FILE
    def get_data(self, path):
        source = open(FILE, encoding="utf-8").read()
        assert source.count(BEFORE) == 1, (BEFORE, source.count(BEFORE))
        return source.replace(BEFORE, BEFORE + ROW).encode()

sys.meta_path.insert(0, Changed())
"""


def output_with_row(file: str, before: str, row: str, code: str) -> str:
    """What `code` prints where `row` stands after the text `before` in a file of kit.

    Args:
        file: "kit/trace/kinds.py"
        before: text that the file has once: the head of the table.
    """
    values = {
        "MODULE": file.removesuffix(".py").replace("/", "."),
        "FILE": str(REPO / file),
        "BEFORE": before,
        "ROW": row,
    }
    head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    done = subprocess.run(
        [sys.executable, "-c", f"{head}{_LOADER}exec(compile({code!r}, 'code', 'exec'))"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=REPO,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
