"""The diff of two runs as HTML; a stranger's text stays text."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from kit.runs.analysis.diff import diff_runs
from kit.runs.analysis.rows import NodeChange
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.widgets.base.tables import BETTER, WORSE
from kit.widgets.numbers.run_diff import MAX_ROWS, RunDiffView, run_diff_html
from tests.factories import empty_run, make_run, one_span_run


def slowed(run: Run, factor: int = 4) -> Run:
    """The same run on a slower clock."""
    t = run.timeline
    longer = replace(t, start_ns=factor * t.start_ns, stop_ns=factor * t.stop_ns)
    times = tuple(factor * x for x in run.step_times_ns)
    return replace(run, timeline=longer, step_times_ns=times)


def test_a_rerun_has_no_red_and_no_green() -> None:
    text = run_diff_html(diff_runs(make_run(), make_run(seed=1)))
    assert WORSE not in text
    assert BETTER not in text
    assert "Where the traced step went: 3 rows whose spread may hide a change: the largest" in text
    assert "; 6 rows without a change beyond the spread." in text
    assert "no change beyond the spread (" in text


def test_settings_steps_and_what_changed_are_said() -> None:
    diff = diff_runs(make_run(), slowed(make_run(Settings(mode="lazy"), scopes=4, seed=3)))
    text = run_diff_html(diff)
    for said in ("mode: &#x27;bulked&#x27; → <b>&#x27;lazy&#x27;</b>", "Where the traced step went",
                 "Got slower", "Appeared", "slower", WORSE):  # fmt: skip
        assert said in text
    assert "Vanished" not in text
    back = run_diff_html(diff_runs(slowed(make_run()), make_run()))
    assert "faster" in back
    assert BETTER in back
    assert "▼ −75% faster" in back  # the step is a ratio, its parts are milliseconds
    assert "Vanished" in run_diff_html(diff_runs(make_run(scopes=4), make_run()))


def test_a_doubt_is_said_once_and_not_in_each_row() -> None:
    busy = replace(slowed(make_run(scopes=9)), conditions=Conditions(cores=2, others=1.3))
    text = run_diff_html(diff_runs(make_run(), busy))
    assert text.count("maybe ") > 2
    assert re.sub("<[^>]*>", "", text).count("measured on a busy machine") == 1
    assert diff_runs(make_run(), busy).text().count("measured on a busy machine") == 1
    assert 'title="measured on a busy machine: others used 1.3 of 2 cores">maybe ▲' in text


def test_what_no_kernel_computes_has_no_change() -> None:
    node = NodeChange("added", -1, 3, "kit.full", "train.py:9", "", math.nan, math.nan)
    text = run_diff_html(replace(diff_runs(make_run(), make_run()), nodes=(node,)))
    assert "no kernel" in text
    assert "spread unknown" not in text
    told = replace(diff_runs(make_run(), make_run()), nodes=(node,)).text()
    assert "kit.full at train.py:9: - -> -, no kernel of its own" in told


def test_a_long_list_says_how_much_is_not_shown() -> None:
    diff = diff_runs(make_run(scopes=3), make_run(scopes=9, seed=1))
    assert f"Not shown: {len(diff.appeared) - MAX_ROWS:,} nodes." in run_diff_html(diff)


def test_a_strangers_text_is_text() -> None:
    diff = diff_runs(make_run(hostile=True), make_run(hostile=True, scopes=4, seed=1))
    text = run_diff_html(diff)
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text


def test_runs_of_which_little_is_known_are_compared() -> None:
    for run in (empty_run(), one_span_run()):
        text = run_diff_html(diff_runs(run, make_run()))
        assert "Appeared" not in text  # a run without a graph may have had these nodes
        assert " appeared" in text
        assert "not there" in text


def test_a_new_diff_is_drawn_and_none_clears_the_view() -> None:
    view = RunDiffView(diff_runs(make_run(), make_run(seed=1)))
    assert "What changed" in view.table.value
    view.diff = diff_runs(make_run(), make_run(Settings(batch_size=3)))
    assert "batch_size" in view.table.value
    view.diff = None
    assert view.table.value == ""
