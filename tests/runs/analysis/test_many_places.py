"""A trace of a job whose waits are at thousands of places."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.runs.analysis import advice
from kit.runs.analysis.cures import Advice, sync_cure
from kit.runs.run import Run
from kit.trace import SyncPoint, SyncRow
from tests.factories import make_run


def test_only_waits_that_are_told_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cure goes through all waits: one for each place of 8,000 took 18 s."""
    asked: list[str] = []

    def cure_of(row: SyncRow, run: Run) -> Advice:
        asked.append(row.site)
        return sync_cure(row, run)

    monkeypatch.setattr(advice, "sync_cure", cure_of)
    made = make_run(syncs=0)
    begin, end = made.timeline.intervals(kind="step")[0].tolist()
    short = [SyncPoint(begin + i, 1, "item", f"a.py:{i}") for i in range(200)]
    syncs = (*short, SyncPoint(begin + 300, (end - begin) // 2, "item", "a.py:900"))
    timeline = replace(made.timeline, syncs=syncs)
    made = replace(made, timeline=timeline, sync_points=100 * syncs)  # of 200 measured steps
    found = [told.site for told in made.advice() if told.site]
    assert found == asked == ["a.py:900"]
