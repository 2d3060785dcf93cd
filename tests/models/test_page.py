"""docs/your_own_model.md: its code runs from top to bottom, and what it says about it is so."""

from __future__ import annotations

import pytest
import torch

from tests.pages import page, run_page

PAGE = page("your_own_model.md")


def test_the_code_of_the_page_runs() -> None:
    names = run_page(PAGE)
    assert names["run"].losses == pytest.approx(names["native"].losses, rel=1e-4)
    assert names["run"].sync_points == ()
    assert "1 sync point, " in names["report"]
    assert [key.split()[0] for key in names["missing"]] == ["page.squash.default"]
    assert torch.equal(names["on_host"], names["on_device"])
