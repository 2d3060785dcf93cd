"""The table of views: one row makes a view of the explorer and a section of a report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kit
from kit.ir import Graph
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace.imported import Caller
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


def _lost() -> Run:
    """Of half of its kernels the profiler does not say what they compute."""
    run = make_run()
    node = run.timeline.node.copy()
    node[np.flatnonzero(run.timeline.where(kind="kernel"))[::2]] = -1
    return replace(run, timeline=replace(run.timeline, node=node))


def _busy() -> Run:
    return replace(make_run(), conditions=Conditions(cores=2, others=1.5))


IN_DOUBT = [
    (_lost(), "of the kernels&#x27; time could be matched with ops of the traced steps"),
    (_busy(), "Measured on a busy machine: others used 1.5 of 2 cores."),
]


@pytest.mark.parametrize(("run", "said"), IN_DOUBT, ids=["lost", "busy"])
@pytest.mark.parametrize("kind", [kit.GapView, kit.KernelView, kit.SegmentView, kit.SourceView])
def test_a_view_of_numbers_that_stands_alone_says_why_they_may_be_off(kind, run: Run, said: str):
    view = kind(run)
    assert said in view.value
    assert "The numbers may be off." in view.value
    view.run = make_run()
    assert "may be off" not in view.value


def test_so_does_the_view_of_what_launched_the_work():
    run = replace(_busy(), callers=(Caller("aten::mm"),))
    assert IN_DOUBT[1][1] in kit.CallerView(run).value


@pytest.mark.parametrize(("run", "said"), IN_DOUBT, ids=["lost", "busy"])
def test_a_page_of_all_views_says_it_with_the_numbers_live_and_in_a_report(run: Run, said: str):
    texts, live = {}, {}
    for row in VIEWS:
        view = row.widget(lambda change: None)
        view.run = run
        texts[row.key] = row.text(run)
        live[row.key] = getattr(view, "value", "")
    for shown in (texts, live):
        assert said in shown["headline"]
        assert [key for key, html in shown.items() if "The numbers may be off" in html] == [
            "headline"
        ]


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


def test_no_run_lies_under_a_picture_that_cannot_be_drawn_and_it_is_back_under_the_next():
    good, ghost = make_run(), make_run(kernels=5)
    names = np.full_like(good.timeline.name, 10**4)
    bad = replace(good, timeline=replace(good.timeline, name=names))
    for first in (good, bad):  # where the ghost was drawn before, and where it was not
        view = TimelineView()
        with view.hold_trait_notifications():
            view.run, view.ghost = first, ghost
        view.run = bad
        assert view.sources["ghost"].data == {}
        view.run = good
        assert view.sources["ghost"].data["name"] == ["the run before"]


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
