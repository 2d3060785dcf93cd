"""What a prompt shows of what the kit returns: a line or a table, never a wall of numbers."""

from __future__ import annotations

import pytest

from kit.ir.plan import OpStream
from kit.runs.analysis.diff import diff_runs
from kit.runs.analysis.memory import memory
from kit.runs.verdict.advice import AdviceRows
from kit.runs.verdict.cures import Advice
from kit.runs.whatif.predict import predict
from tests.factories import empty_run, make_run


def test_large_things_are_one_line() -> None:
    run = make_run(scopes=9, syncs=2)
    graph = run.graphs[0]
    shown = {
        repr(graph): f"Graph({len(graph.ops)} ops, {len(graph) - len(graph.ops)} variables)",
        repr(graph.diff(graph)): f"GraphDiff({len(graph)} same)",
        repr(run.timeline): f"Timeline({run.timeline.where(kind='step').sum()} steps, ",
        repr(OpStream.of(graph, run.segments)): f"OpStream({graph!r}, ",
        repr(memory(run)): "MemoryReport(at most ",
        repr(predict(run)): "Prediction(modelled: ",
    }
    for text, begin in shown.items():
        assert text.startswith(begin)
        assert len(text) < 200
        assert "\n" not in text


def test_a_diff_is_its_text() -> None:
    found = diff_runs(make_run(), make_run(seed=1))
    assert repr(found) == str(found) == found.text()


@pytest.mark.parametrize("of", ["breakdown", "idle", "advice"])
def test_rows_of_a_run_are_tables_and_tuples_still(of: str) -> None:
    run = make_run(scopes=9, syncs=2)
    rows = {"breakdown": run.breakdown(), "idle": run.idle, "advice": run.advice()}[of]
    assert rows == tuple(rows)
    head, *lines = repr(rows).splitlines()
    assert head.split()[0] == str(len(rows))
    assert len(lines) == len(rows) + 2
    assert "<table>" in rows._repr_html_()  # type: ignore[attr-defined]
    assert empty_run().breakdown() == ()


def test_advice_is_told_whole_and_a_strangers_name_in_it_is_text() -> None:
    text = f"train.py:9 waits: {'read it less often, ' * 20}<img src=x>\x1b[31m."
    rows = AdviceRows([Advice("sync", text, ms=1.5), Advice("input", "Prefetch.")])
    assert "read it less often, " * 20 in repr(rows)
    assert "\x1b" not in repr(rows)
    assert "<img" not in rows._repr_html_()
    assert "up to 1.5 ms" in repr(rows)
    assert "unknown  Prefetch." in repr(rows)
