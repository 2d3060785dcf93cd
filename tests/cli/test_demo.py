"""`kit demo` measures what it says: a step that reads a number, and the same without the read."""

from __future__ import annotations

import pytest

from kit.cli import main


def test_the_demo_shows_a_wait_and_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NPROC", "1")  # as the demo sets it, and here it is taken back
    assert main.main(["demo"]) == 0
    out = capsys.readouterr().out
    first, second = (line for line in out.splitlines() if " a step, device busy " in line)
    assert first.startswith("1. The host looks ('dynamic, host check')")
    assert first.endswith("1 sync point a step")
    assert second.endswith("0 sync points a step")
    assert "masked_lm.py:" in out, "the line that waits"
    words = " ".join(out.split())  # its lines break between any two
    assert "The losses of the two are bitwise the same" in words or "of a loss at most" in words
