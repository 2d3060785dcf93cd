"""What is measured for a report outlives a page that is not written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.errors import SweepInterrupted
from kit.runs.settings import Settings
from tests.factories import make_run


def test_runs_that_were_measured_outlive_a_page_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def build(ctx: Any) -> Any:
        return lambda: torch.zeros(())

    def full(*args: Any) -> None:
        raise OSError("disk full")

    settings = Settings(mode="torch", steps=1, warmup=0)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full") as caught:
        kit.report(build, {"seed": [0, 1]}, tmp_path / "r.html", settings=settings)
    assert [run.settings.seed for run in caught.value.runs] == [0, 1]  # type: ignore[attr-defined]
    assert "its 2 runs are in this error's .runs: kit.report(error.runs" in notes_of(caught.value)
    with pytest.raises(OSError, match="disk full") as caught:
        kit.report(make_run(), path=tmp_path / "r.html")
    assert not hasattr(caught.value, "runs")  # they are the caller's


def test_an_interrupted_report_says_how_to_go_on(tmp_path: Path):
    def build(ctx: Any) -> Any:
        if ctx.seed:
            raise KeyboardInterrupt
        return lambda: torch.zeros(())

    settings = Settings(mode="torch", steps=1, warmup=0)
    with pytest.raises(SweepInterrupted, match="1 of 2 cells") as caught:
        kit.report(build, {"seed": [0, 1]}, tmp_path / "r.html", settings=settings)
    assert len(caught.value.runs) == 1
    assert "With path=" not in str(caught.value)
    assert "`path` of kit.report is the page" in notes_of(caught.value)


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))
