"""The table of views: one row makes a view of the explorer and a section of a report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kit.ir import Graph
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.widgets.base.html_view import HtmlView
from kit.widgets.graph.view import GraphView
from kit.widgets.memory.view import MemoryView
from kit.widgets.timeline.view import TimelineView
from kit.widgets.views import PLACES, VIEWS, ViewRow
from tests.factories import HOSTILE, empty_run, make_run, one_span_run


def test_each_row_has_a_key_of_its_own_a_place_and_something_for_a_report():
    keys = [row.key for row in VIEWS]
    assert len(set(keys)) == len(keys)
    assert all(key.isidentifier() for key in keys)
    assert {row.place for row in VIEWS} == set(PLACES)
    assert all((row.html is None) != (row.figure is None) for row in VIEWS)


@pytest.mark.parametrize("row", VIEWS, ids=lambda row: row.key)
def test_a_live_view_draws_any_run_after_any_other(row: ViewRow):
    view = row.widget(lambda change: None)
    odd = [empty_run(), one_span_run(), make_run(hostile=True), make_run(Settings(mode="torch"))]
    for run in [make_run(), *odd, make_run()]:
        view.run = run
        assert view.run is run
        if hasattr(view, "value"):
            assert "<script" not in view.value
            assert 'role="alert"' not in view.value


@pytest.mark.parametrize("row", VIEWS, ids=lambda row: row.key)
def test_what_a_report_says_is_what_the_live_view_says(row: ViewRow):
    view, run = row.widget(lambda change: None), make_run()
    view.run = run
    if row.html is not None and hasattr(view, "value"):
        assert row.text(run) in view.value


def test_a_row_that_does_not_apply_has_no_text():
    row = ViewRow(
        "mine", "my view", "right", html=lambda _: "x", applies=lambda run: bool(run.name)
    )
    assert row.text(replace(empty_run(), name="")) == ""
    assert row.text(replace(empty_run(), name="mlp")) == "x"


def test_what_cannot_be_drawn_leaves_no_picture_of_the_run_before():
    run = make_run()
    graph, t = run.graphs[0], run.timeline
    node = replace(graph.nodes[-1], inputs=((10**6, 0),))
    graphs, timeline, memory = GraphView(run), TimelineView(run), MemoryView(run)
    errors = graphs._error, timeline._error, memory.error
    graphs.run = replace(run, graphs=(Graph((*graph.nodes[:-1], node)),))
    timeline.run = replace(run, timeline=replace(t, name=np.full_like(t.name, 10**4)))
    memory.run = replace(run, graphs=(Graph(graph.nodes[:5]),))
    assert all('role="alert"' in error.value for error in errors)
    assert not len(graphs.sources["scene"].tags[0]["rows"]["parent"])
    assert graphs.svg().count("<text") == 0
    assert not len(timeline.sources["timeline"].data["spans.key"][0])
    assert not memory.sources["area"].data["left"]
    assert memory.by_op.value == ""
    said = [
        graphs.sources["scene"].tags[0]["message"],
        *timeline.sources["timeline"].data["message"],
        *memory.sources["message"].data["text"],
    ]
    assert said == ["this run cannot be drawn"] * 3
    graphs.run = timeline.run = memory.run = run
    assert all(error.value == "" for error in errors)
    assert len(timeline.sources["timeline"].data["spans.key"][0]) > 10
    assert len(memory.sources["area"].data["left"]) > 10
    assert graphs.svg().count("<text") > 3


def test_a_view_of_text_says_what_went_wrong_and_draws_the_next_run():
    def draw(run: Run) -> str:
        if not run.graphs:
            raise ValueError(HOSTILE)
        return "fine"

    view = HtmlView("mine", draw, empty_run())
    assert "<b>mine</b>: ValueError" in view.value
    assert "<script" not in view.value
    view.run = make_run()
    assert view.value == "fine"
    view.run = None
    assert view.value == ""
