"""docs/your_own_model.md: its code runs from top to bottom, and what it says about it is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "your_own_model.md"


def run_page() -> dict[str, Any]:
    """The names that the page's code leaves behind."""
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.finditer(r"```python\n(.*?)```", text, re.S):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), str(PAGE), "exec"), names)
    return names


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_page()
    assert names["run"].losses == pytest.approx(names["native"].losses, rel=1e-4)
    assert names["run"].sync_points == ()
    assert capsys.readouterr().out.startswith("item your_own_model.md:")
    assert "1 sync points" in names["report"]
    assert [key.split()[0] for key in names["missing"]] == ["page.squash.default"]
    assert torch.equal(names["on_host"], names["on_device"])
