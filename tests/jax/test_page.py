"""docs/jax.md: its code runs from top to bottom, and what it says about it is so."""

from __future__ import annotations

import re

import pytest

from tests.pages import page, run_page

PAGE = page("jax.md")


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page(PAGE)
    printed = capsys.readouterr().out
    assert "not read yet" in printed
    assert "jax.jit" in printed
    assert names["run"].losses == pytest.approx(names["baseline"].losses, rel=1e-5)
    assert {n.scope for n in names["run"].graphs[0]} == {"", "hidden"}
    promised = re.findall(r"^# (.*)$", PAGE.read_text(encoding="utf-8"), re.M)
    lines = [line for line in promised if "equation" in line or "was traced" in line]
    assert len(lines) == 3
    promise = re.sub(r"train\.py:\d+", "HERE", "\n".join(lines))
    assert promise == re.sub(r"jax\.md:\d+", "HERE", names["twice"].explain())
