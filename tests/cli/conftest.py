"""The command line as a test calls it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from kit.cli import main as cli
from tests.cli.calls import Kit, Said


@pytest.fixture
def kit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kit:
    """`kit(*arguments)` in a folder of its own: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])

    def call(*arguments: object) -> Said:
        try:
            status = cli.main([str(a) for a in arguments])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.fixture
def kit_run(kit: Kit) -> Kit:
    """`kit run` of a script that imports `beside`: arguments, path and `__main__` are put back."""
    Path("beside.py").write_text("WORD = 'beside'\n", "utf-8")

    def call(*arguments: object) -> Said:
        before, main = (list(sys.argv), list(sys.path)), sys.modules["__main__"]
        threads = threading.active_count()
        said = kit("run", *arguments)
        sys.modules.pop("beside", None)
        assert (list(sys.argv), list(sys.path)) == before
        goes_on = threading.active_count() > threads  # a thread of the script keeps its `__main__`
        assert goes_on or sys.modules["__main__"] is main
        sys.modules["__main__"] = main
        return said

    return call
