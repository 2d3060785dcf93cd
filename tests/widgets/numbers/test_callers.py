"""What launched the device's work: its rows, what they stand for, and a stranger's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import kit
from kit.runs.device.callers import callers_text
from kit.runs.run import Run
from kit.trace.imported import Caller
from kit.trace.timeline import COLUMNS
from kit.widgets.numbers.callers import CallerView, callers_drawn
from kit.widgets.timeline.view import TimelineView
from kit.widgets.views import VIEWS
from tests.factories import HOSTILE, empty_run, make_run

BERT = Path(__file__).parents[2] / "data" / "published" / "h100_bert.json.gz"


def hostile_run() -> Run:
    run = make_run(kernels=3)
    t = run.timeline
    node = np.where(t.where(kind="kernel"), 0, -1).astype(np.int32)
    caller = Caller(HOSTILE, (HOSTILE, HOSTILE), (HOSTILE,), HOSTILE, calls=1, kernels=3)
    return replace(run, graphs=(), segments=(), timeline=replace(t, node=node), callers=(caller,))


def test_modules_stand_under_those_they_are_in_and_lines_below() -> None:
    text = callers_drawn(kit.open_trace(BERT))[0]
    assert text.index("BertLayer") < text.index("BertAttention") < text.index("BertSdpaSelf")
    assert "text_base_model.py:28" in text
    assert "aten::addmm" in text


def test_a_strangers_names_are_text() -> None:
    for by in ("", "module", "annotation", "op", "line"):
        text = callers_drawn(hostile_run(), by)[0]
        assert "<script" not in text
        assert "<img" not in text


def test_runs_without_callers_say_so_and_have_no_section() -> None:
    (row,) = (row for row in VIEWS if row.key == "callers")
    assert row.text(empty_run()) == ""
    bare = replace(make_run(), graphs=())
    for run, cure in ((make_run(), "kit.KernelView(run)"), (bare, "with_stack=True")):
        assert "Nothing says what launched" in callers_drawn(run)[0]
        assert cure in callers_drawn(run)[0]
        assert cure in callers_text(run, "op")
        assert cure in str(kit.caller_table(run))


def test_a_run_without_kernels_blames_no_profiler() -> None:
    """A loop that ended before a step was traced; kit recorded it, and torch's profiler did not."""
    assert callers_text(empty_run(), "op") == "No kernel was seen: no step was traced."


def test_times_are_of_a_step_only_where_there_are_steps() -> None:
    run = hostile_run()
    assert ">ms a step</th>" in callers_drawn(run)[0]
    bare = run.timeline.where(kind="kernel")
    columns = {name: getattr(run.timeline, name)[bare] for name in COLUMNS}
    stepless = replace(run, timeline=replace(run.timeline, syncs=(), **columns))
    assert ">ms</th>" in callers_drawn(stepless)[0]
    assert "a step" not in callers_drawn(stepless)[0]


def test_a_row_lights_up_its_kernels_and_a_kernel_its_rows() -> None:
    run = kit.open_trace(BERT)
    view, timeline = CallerView(run, "op"), TimelineView(run)
    picks = callers_drawn(run, "op")[1]
    timeline.selection = picks[0]
    lit = {int(i) for i in timeline.sources["lit"].data["nodes"][0].split()}
    assert lit == set(picks[0].nodes)
    assert {run.callers[i].op for i in lit} == {"aten::addmm"}
    keys = timeline._payload["keys"]
    shown = {int(i) for ids in keys["nodes"] for i in ids.split()}
    assert lit <= shown
    view.selection = picks[0]
    assert "data-row='0'" in view._marks.value
