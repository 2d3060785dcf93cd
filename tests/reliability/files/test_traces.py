"""A damaged file of any kind is a run that can be shown, or a clear error, and takes little."""

from __future__ import annotations

from pathlib import Path

import kit
from kit.runs.run import Run
from tests.factories import make_run
from tests.reliability.files.traces import KINDS, look, try_files


def test_damaged_files_are_shown_or_say_why_not(tmp_path: Path) -> None:
    outcomes = try_files(4, 1, list(KINDS), tmp_path)
    assert sum(outcomes.values()) == 4 * len(KINDS)
    assert {name.split()[-1] for name in outcomes} >= {"run", "ranks", "TraceFileError"}


def test_an_exported_trace_has_kernels_of_a_graph_that_it_does_not_hold(tmp_path: Path) -> None:
    """Their nodes are nobody's: the table of kernels ended in an IndexError."""
    kit.export_trace(make_run(hostile=True), tmp_path / "own.json")
    run: Run = kit.open_trace(tmp_path / "own.json")
    assert run.timeline.node.max() > 0
    assert not run.graphs
    assert {row.ops for row in kit.kernel_table(run)} == {()}
    assert look(tmp_path / "own.json") == "run"
