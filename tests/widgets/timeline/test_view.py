"""The timeline's view: what a click, a selection, a range and a new run do to its traits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipywidgets import Widget

import kit
from kit.errors import TimelineError
from kit.ir import Graph, Node
from kit.runs.settings import Settings
from kit.trace import Span, SyncPoint, Timeline, critical_path, idle_gaps
from kit.trace.imported import Caller
from kit.trace.kinds import ON_DEVICE
from kit.trace.timeline import COLUMNS
from kit.widgets.base.selection import NOTHING, Selection
from kit.widgets.timeline import columns as timeline_data
from kit.widgets.timeline import range as timeline_range
from kit.widgets.timeline import view as timeline_module
from kit.widgets.timeline.payload import as_run, flat
from kit.widgets.timeline.range import around, range_metrics
from kit.widgets.timeline.view import TimelineView
from tests.factories import empty_run, make_run, native_run
from tests.formats.chrome.traces import cuda_trace
from tests.reliability.growth import alive
from tests.widgets.timeline.test_columns import _timeline, pick, with_kernels_as


def bar_of(view, wanted):
    keys = view.sources["timeline"].data["keys.kind"][0]
    return next(
        i for i, k in enumerate(view.sources["timeline"].data["spans.key"][0]) if keys[k] == wanted
    )


@pytest.mark.parametrize("kind", ON_DEVICE)
def test_clicking_a_kernel_selects_its_nodes_and_lines_and_nothing_echoes(kind):
    run = with_kernels_as(kind)
    view = TimelineView(run)
    i = bar_of(view, kind)
    changes = []
    view.observe(lambda change: changes.append(change["new"]), "selection")
    pick(view, "span", i)
    assert view.node is not None
    assert view.selection.nodes == {view.node}
    assert view.selection.sites == {run.graphs[0].nodes[view.node].site}
    assert view.selection.label.startswith("kernel ") == (kind == "kernel")
    assert view.sources["lit"].data["nodes"] == [str(view.node)]
    assert view.sources["picked"].data["index"] == [i]
    assert len(changes) == 1
    pick(view, "", -1)
    assert (view.segment, view.node, view.selection) == (None, None, NOTHING)
    assert view.sources["lit"].data["nodes"] == [""]


def test_clicking_a_dispatch_selects_its_segment_and_a_sync_point_its_line():
    run = make_run()
    view = TimelineView(run)
    pick(view, "span", bar_of(view, "dispatch"))
    assert view.selection.nodes == set(run.segments[view.segment].nodes)
    pick(view, "sync", 1)
    assert view.selection.sites == {run.timeline.syncs[1].site}
    assert view.segment is None
    for late in (("sync", 99), ("sync", -5), ("span", 9_999)):  # of the picture before
        pick(view, *late)
        assert not view.selection
    assert view.children[-1].value == ""


def test_a_selection_from_elsewhere_is_handed_to_the_browser_and_not_set_again():
    view = TimelineView(make_run())
    changes = []
    view.observe(lambda change: changes.append(change["new"]), "selection")
    chosen = Selection(frozenset({4, 2}), frozenset({"b.py:2", "a.py:1"}), "two nodes")
    view.selection = chosen
    handed = {"nodes": ["2 4"], "sites": ["a.py:1\nb.py:2"], "label": ["two nodes"], "serial": [0]}
    assert view.sources["lit"].data == handed
    assert changes == [chosen]
    assert view.sources["picked"].data["index"] == [-1]


def test_a_new_run_drops_selection_and_range_before_its_columns_come():
    view = TimelineView(make_run())
    pick(view, "span", bar_of(view, "kernel"))
    view.range_ns = (0, 1000)
    seen = []

    def look(attr, old, new):
        seen.append((view.selection, view.range_ns, view.segment))

    view.sources["timeline"].on_change("data", look)
    view.run = make_run(seed=4, kernels=12)
    assert seen == [(NOTHING, None, None)]
    assert view.sources["lit"].data["nodes"] == [""]
    assert view.sources["marked"].data["start"] == []


def test_a_second_run_and_a_prediction_can_be_shown_later():
    view = TimelineView(make_run(), outline=make_run(seed=2))
    assert view.sources["timeline"].data["parts.outline"] == [[False, True]]
    view.below = make_run(seed=3).timeline
    assert view.sources["timeline"].data["parts.outline"] == [[False, True, False]]
    view.outline = None
    assert view.sources["timeline"].data["parts.outline"] == [[False, False]]
    spans, keys = (view.sources["timeline"].data[x][0] for x in ("spans.key", "keys.part"))
    pick(view, "span", next(i for i, k in enumerate(spans) if keys[k] == 1))
    assert view.selection == NOTHING  # its nodes are not the first run's
    pick(view, "sync", len(view.run.timeline.syncs))
    assert view.selection == NOTHING


def test_a_range_from_the_browser_and_one_from_python_give_the_same_numbers():
    view = TimelineView(make_run())
    assert view.range_metrics() is None
    view.sources["marked"].data = {"start": [99.8], "stop": [500_000.2]}
    assert view.range_ns == (100, 500_000)
    assert view.range_metrics() == range_metrics(view.run.timeline, 100, 500_000)
    view.range_ns = (100, 77_000)  # another end is another range
    assert view.sources["marked"].data == {"start": [100], "stop": [77_000]}
    view.range_ns = (5, 77)
    assert view.sources["marked"].data == {"start": [5], "stop": [77]}
    view.range_ns = None
    assert view.sources["marked"].data == {"start": [], "stop": []}


def test_a_range_is_where_it_is_drawn_also_above_a_run_whose_first_step_comes_later(monkeypatch):
    monkeypatch.setattr(timeline_data, "MAX_GAP_KERNELS", 0)
    run = as_run(_timeline(("host/main", "step", "step", 0, 9), ("device/0", "k", "kernel", 2, 4)))
    late = _timeline(("host/main", "x", "record", 0, 5), ("host/main", "step", "step", 50, 59))
    alone, view = TimelineView(run), TimelineView(run, below=late)
    by = int(view.sources["timeline"].data["steps.start"][0][0])
    assert by == 50
    alone.range_ns, view.range_ns = (1, 7), (by + 1, by + 7)
    assert alone.range_metrics() == view.range_metrics()
    assert view.range_metrics().busy_ns == {"device/0": 2}
    assert view.sources["reply"].data["text"] == alone.sources["reply"].data["text"]
    view.pin(by + 3, "here")
    assert [pin.at_ns for pin in view.run.pins] == [3]
    assert view.sources["timeline"].data["pins.at"][0] == [by + 3]


def test_python_says_why_devices_were_idle_where_the_page_cannot(monkeypatch):
    monkeypatch.setattr(timeline_data, "MAX_GAP_KERNELS", 3)
    view = TimelineView(make_run())
    view.range_ns = (0, view.run.timeline.duration_ns)
    assert "idle: " in view.sources["reply"].data["text"][0]
    kernel = next(span for span in view.run.timeline.spans if span.kind == "kernel")
    begin = kernel.start_ns - int(view.run.timeline.start_ns.min())
    view.range_ns = (begin, begin + kernel.stop_ns - kernel.start_ns)  # busy throughout
    assert view.sources["reply"].data["text"] == ["idle\tnone"]
    monkeypatch.setattr(timeline_module, "MAX_LIVE_KERNELS", 3)
    view.range_ns = (0, 1000)
    assert "view.range_metrics()" in view.sources["reply"].data["text"][0]


def test_a_timeline_alone_is_drawn_too():
    timeline = make_run().timeline
    view = TimelineView(timeline)
    assert view.run.timeline is timeline
    pick(view, "span", bar_of(view, "kernel"))
    assert view.selection == NOTHING  # there is no graph whose nodes it could name


def test_the_page_that_a_notebook_keeps_joins_spans_where_there_are_many(monkeypatch):
    small = len(TimelineView(make_run()).page())
    many = [
        ("device/0 a", f"k{i % 9}", "kernel", i * 100, i * 100 + i % 77, -1, -1)
        for i in range(40_000)
    ]
    view = TimelineView(_timeline(*many))
    assert len(view.sources["timeline"].data["spans.key"][0]) == 40_000
    monkeypatch.setattr(timeline_module, "MAX_STATIC_SPANS", 500)
    before = alive(Widget)
    whole = len(view.page())
    assert alive(Widget) <= before
    monkeypatch.undo()
    assert len(view.page()) > whole + 50_000
    assert whole < small + 10_000


def test_a_failed_redraw_is_shown_under_the_view_and_the_next_one_works():
    run = make_run()
    view, t = TimelineView(run), run.timeline
    view.run = replace(run, timeline=replace(t, name=np.full_like(t.name, len(t.names))))
    assert "timeline</b>: IndexError" in view.children[-1].value
    view.run = empty_run()
    assert view.children[-1].value == ""
    assert view.sources["timeline"].data["message"] == ["no spans were recorded"]
    view.run = None
    assert view.sources["timeline"].data["message"] == ["no run yet"]


def test_the_whole_picture_is_one_column_a_row():
    row = flat({"a": {"x": [1, 2], "y": "z"}, "b": 3})
    assert row == {"a.x": [[1, 2]], "a.y": ["z"], "b": [3]}


kinds_and_lanes = st.sampled_from([
    ("host/main", "record"), ("host/main", "wait"), ("host/main", "input"),
    ("host/loader", "record"), ("device/0 a", "kernel"), ("device/0 b", "kernel"),
    ("device/1 a", "kernel"),
])  # fmt: skip


@given(
    st.lists(st.tuples(kinds_and_lanes, st.integers(0, 40), st.integers(0, 15)), max_size=14),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 12)), max_size=4),
    st.integers(-5, 60),
    st.integers(0, 40),
)
def test_what_a_range_holds_equals_counting_its_nanoseconds(given_spans, waits, low, length):
    t = _timeline(
        *((lane, "x", kind, a, a + n) for (lane, kind), a, n in given_spans),
        syncs=[SyncPoint(a, n, "item") for a, n in waits],
    )
    origin = min((a for _, a, _ in given_spans), default=0)
    inside = range(low + origin, low + origin + length)

    def at(wanted):
        return {
            x
            for (lane, kind), a, n in given_spans
            for x in range(a, a + n)
            if wanted(lane, kind) and x in inside
        }

    busy = at(lambda _, kind: kind == "kernel")
    recording = at(lambda lane, kind: kind == "record" and "loader" not in lane)
    recording -= at(lambda _, kind: kind in ("wait", "input"))
    found = range_metrics(t, low, low + length)
    for device in ("device/0", "device/1"):
        wanted = at(lambda lane, kind, d=device: kind == "kernel" and lane.startswith(d))
        assert found.busy_ns.get(device, 0) == len(wanted)
    assert (found.recording_ns, found.hidden_ns) == (len(recording), len(recording & busy))
    assert found.waited_ns == sum(len(set(range(a, a + n)) & set(inside)) for a, n in waits)
    assert found.length_ns == length


def test_all_of_the_time_has_the_idle_time_of_the_whole_run():
    t = make_run(syncs=2).timeline
    gaps = idle_gaps(t)
    found = range_metrics(t, 0, t.duration_ns)
    assert sum(found.idle_ns.values()) == sum(g.length_ns for g in gaps)
    assert list(found.idle_ns.values()) == sorted(found.idle_ns.values(), reverse=True)


def test_near_a_range_the_causes_are_those_of_the_whole_run(monkeypatch):
    t = make_run(syncs=2, steps=6, kernels=30).timeline
    steps = t.intervals(kind="step")
    low, high = int(steps[2, 0]) + 1000, int(steps[3, 1]) - 1000
    whole = range_metrics(t, low, high)
    near = around(t, low, high)
    assert near.intervals(kind="step").tolist() == steps[1:5].tolist()
    monkeypatch.setattr(timeline_range, "EXACT_KERNELS", 3)
    assert range_metrics(t, low, high) == whole
    alone = replace(t, **{c: getattr(t, c)[t.where(kind="kernel")] for c in COLUMNS})
    assert 0 < len(around(alone, low, low + 100_000)) < len(alone)


def test_where_torch_computes_in_the_calls_nothing_is_hidden():
    t = native_run().timeline
    found = range_metrics(t, 0, t.duration_ns)
    assert (found.recording_ns, str(found.hidden_ns)) == (80_000_000, "nan")
    assert range_metrics(native_run(lane="device/0 stream 7").timeline, 0, 9**9).hidden_ns > 0


def test_a_range_that_ends_before_it_begins_is_an_error():
    with pytest.raises(TimelineError, match="ends at 3 ns, before it begins at 9 ns"):
        range_metrics(make_run().timeline, 9, 3)


def test_a_line_that_no_node_has_still_marks_its_sync_points():
    graph = Graph((Node("input", (), (), (), "train.py:1", "forward", ""),), ())
    run = replace(make_run(), graphs=(graph,), segments=(), fused=())
    view = TimelineView(run)
    pick(view, "sync", 0)
    assert view.selection.nodes == frozenset()
    assert view.selection.sites == {run.timeline.syncs[0].site}


def test_without_a_graph_what_was_launched_alike_is_picked_by_its_caller():
    spans = [
        Span("device/0", "gemm", "kernel", 0, 10, node=1),
        Span("device/0", "all_reduce", "communication", 20, 30, node=0),
    ]
    callers = (Caller("c10d::allreduce_"), Caller("aten::mm", site="train.py:7"))
    run = replace(empty_run(), timeline=Timeline.of(spans), callers=callers)
    view = TimelineView(run)
    names = [view._payload["keys"]["name"][k] for k in view._payload["spans"]["key"]]
    pick(view, "span", names.index("gemm"))
    assert view.selection == Selection(frozenset({1}), frozenset({"train.py:7"}), "kernel gemm")
    pick(view, "span", names.index("all_reduce"))
    assert view.selection == Selection(frozenset({0}), frozenset(), "all_reduce")
    graph = view._payload["graph"]  # the same for a page without a kernel
    assert (graph["site"].tolist(), graph["sites"]) == ([-1, 0], ["train.py:7"])


def test_what_the_page_said_of_the_run_before_is_not_done_to_this_one():
    view = TimelineView(make_run(kernels=9))
    was = view.sources["timeline"].data["drawing"]
    view.run = run = make_run(seed=3)  # while a cell runs, the page's messages wait
    view.sources["marked"].data = {"start": [100.0], "stop": [900.0], "drawing": was}
    view.sources["picked"].data = {"kind": ["span"], "index": [bar_of(view, "kernel")],
                                   "serial": [1], "drawing": was}  # fmt: skip
    asked = {"what": ["pin"], "text": ["slow"], "serial": [1], "can": ["pin"], "drawing": was}
    view.sources["asked"].data = asked
    assert (view.run, view.range_ns, view.selection) == (run, None, NOTHING)
    assert "pin &#x27;slow&#x27; was not set" in view.children[-1].value
    view.range_ns = (100, 900)  # of this run; the page had said the same of the one before
    now = view.sources["timeline"].data["drawing"]
    assert view.sources["marked"].data == {"start": [100], "stop": [900]}
    view.sources["asked"].data = {**asked, "serial": [2], "drawing": now}
    assert [pin.text for pin in view.run.pins] == ["slow"]
    assert view.sources["timeline"].data["drawing"] == now  # its spans are the same
    view.sources["marked"].data = {"start": [5.0], "stop": [7.0], "drawing": now}
    assert view.range_ns == (5, 7)


def test_a_run_that_lies_under_another_goes_to_the_page_and_away_again():
    view = TimelineView(make_run())
    assert view.sources["ghost"].data == {}
    with view.hold_trait_notifications():
        view.run, view.ghost, view.axis_ns = make_run(seed=1), make_run(kernels=5), 1e9
    under = view.sources["ghost"].data
    assert under["name"] == ["the run before"]
    assert len(under["spans.key"][0]) == len(make_run(kernels=5).timeline) - 3  # but for the steps
    assert view.sources["timeline"].data["axis_ns"] == [1e9]
    view.run = make_run(seed=2)
    assert view.sources["ghost"].data is under  # the same run does not go to the page again
    view.ghost = None
    assert view.sources["ghost"].data == {}


def test_a_prediction_stands_under_the_mode_that_it_predicts():
    run = make_run(Settings(mode="lazy"))
    for outline in (run.timeline, make_run(Settings(mode="lazy"), seed=2)):
        view = TimelineView(run, outline=outline)
        (labels,) = view.sources["timeline"].data["parts.label"]
        assert [label.split("  ·  ")[:2] for label in labels] == [
            ["synthetic", "lazy"], ["predicted", "lazy"],
        ]  # fmt: skip
    bare = TimelineView(run.timeline, outline=run.timeline)
    assert "bulked" not in str(bare.sources["timeline"].data["parts.label"])


# -- what is asked of a range


def ask(view: TimelineView, what: str, text: str = "") -> None:
    """As the page does."""
    was = view.sources["asked"].data
    serial = was["serial"][0] + 1
    view.sources["asked"].data = {**was, "what": [what], "text": [text], "serial": [serial]}


def test_a_text_is_pinned_to_the_begin_of_the_range_and_the_picture_stays():
    view = TimelineView(make_run(kernels=9, steps=1))
    origin = int(view.run.timeline.start_ns.min())
    assert view.sources["asked"].data["can"] == ["pin"]
    view.range_ns = (2_000, 9_000)
    view.sources["shown"].data = {"start": [0], "stop": [50_000]}
    pick(view, "span", bar_of(view, "kernel"))
    picked = view.selection, view.segment, view.node
    ask(view, "pin", "late")
    assert (view.selection, view.segment, view.node) == picked != (NOTHING, None, None)
    assert [(pin.at_ns - origin, pin.text) for pin in view.run.pins] == [(2_000, "late")]
    assert view.range_ns == (2_000, 9_000)
    assert view.sources["shown"].data == {"start": [0], "stop": [50_000]}
    assert view.sources["timeline"].data["pins.text"] == [["late"]]
    ask(view, "pin", "x" * 2_000)
    assert "a pin has a text of 1 to 1,000 characters" in view.children[-1].value
    assert len(view.run.pins) == 1
    assert TimelineView().sources["asked"].data["can"] == [""]


def test_a_pin_is_taken_away_from_the_page_and_the_picture_stays():
    run = make_run(kernels=9, steps=1)
    origin = int(run.timeline.start_ns.min())
    view = TimelineView(run.pin(origin + 10, "first").pin(origin + 20, "second"))
    view.range_ns = (2_000, 9_000)
    view.sources["shown"].data = {"start": [0], "stop": [50_000]}
    ask(view, "unpin", "0")
    assert [pin.text for pin in view.run.pins] == ["second"]
    assert view.range_ns == (2_000, 9_000)
    assert view.sources["shown"].data == {"start": [0], "stop": [50_000]}
    assert view.sources["timeline"].data["pins.text"] == [["second"]]
    view.range_ns = None
    ask(view, "unpin", "0")
    assert view.run.pins == ()
    ask(view, "unpin", "0")
    assert "there is no pin to take away" in view.children[-1].value
    with pytest.raises(TimelineError, match="no timeline"):
        TimelineView().unpin(0)


def test_a_range_of_a_trace_is_its_step_by_the_rule_of_step_by(tmp_path: Path):
    trace = cuda_trace()
    trace["traceEvents"] = [
        {**e, "ts": e["ts"] + 50} if "ts" in e else e
        for e in trace["traceEvents"]
        if not e["name"].startswith("ProfilerStep")
    ]
    first = min(
        (e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"), key=lambda e: e["ts"]
    )
    early = {**first, "cat": "python_function", "name": "train.py(1): main"}
    early |= {"ts": first["ts"] - 40, "dur": 2, "args": {"Python id": 1}}
    trace["traceEvents"].append(early)  # before the first span that is drawn
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace))
    run = kit.open_trace(path)
    view = TimelineView(run, reopen=kit.open_trace)
    assert view.sources["asked"].data["can"] == ["pin step"]
    view.range_ns = (100_000, 700_000)
    ask(view, "step")
    assert view.children[-1].value == ""
    (step,) = [s for s in view.run.timeline.spans if s.kind == "step"]
    origin = int(run.timeline.start_ns.min())
    assert (step.start_ns - origin, step.stop_ns - origin) == (100_000, 700_000)
    assert view.run.step_times_ns == (600_000,)
    assert sum(row.exposed_ms for row in view.run.breakdown()) == pytest.approx(0.6)
    assert view.run.limited_by().share > 0
    assert critical_path(view.run.timeline)


def test_what_cannot_be_read_again_says_so(tmp_path: Path):
    view = TimelineView(make_run(), reopen=kit.open_trace)
    view.range_ns = (0, 5_000)
    ask(view, "step")
    assert "reopen=kit.open_trace" in view.children[-1].value
    path = tmp_path / "own.kitrun"
    make_run().save(path)
    view = TimelineView(kit.open_trace(path), reopen=kit.open_trace)
    view.range_ns = (0, 5_000)
    ask(view, "step")
    assert "step_by is for traces that do not mark" in view.children[-1].value
