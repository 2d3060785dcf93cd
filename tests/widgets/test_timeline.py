"""The kernel timeline: its columns, its figure, its traits."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from bokeh.embed import file_html
from bokeh.plotting import column
from bokeh.resources import INLINE
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import TimelineError
from kit.ir import Graph, Node
from kit.run import Fused
from kit.trace import GAP_CAUSES, KINDS, Span, SyncPoint, Timeline, idle_gaps
from kit.trace.timeline import COLUMNS
from kit.widgets import timeline as timeline_module
from kit.widgets import timeline_data, timeline_range
from kit.widgets.selection import NOTHING, Selection
from kit.widgets.theme import COLORS
from kit.widgets.timeline import (
    TimelineView,
    apply_timeline,
    timeline_model,
    timeline_payload,
    timeline_title,
)
from kit.widgets.timeline_lanes import MAX_ROWS, group_of, place
from kit.widgets.timeline_payload import flat
from kit.widgets.timeline_range import around, range_metrics
from tests.factories import empty_run, make_run, one_span_run


def _timeline(*spans, syncs=()):
    return Timeline.of([Span(*s) for s in spans], syncs)


def _jsonable(payload):
    return json.loads(json.dumps(payload, default=lambda x: x.tolist()))


def drawn(payload):
    """(row, start, stop, key) of every bar, as the browser works them out."""
    spans, first = (
        payload["spans"],
        np.append(payload["rows"]["first"], len(payload["spans"]["key"])),
    )
    out = []
    for r in range(len(first) - 1):
        at = 0
        for i in range(int(first[r]), int(first[r + 1])):
            at += int(spans["delta"][i])
            out.append((r, at, at + int(spans["length"][i]), int(spans["key"][i])))
    return out


def _named(payload, name):
    keys = payload["keys"]["name"]
    return next((r, a, b) for r, a, b, k in drawn(payload) if keys[k] == name)


spans_anywhere = st.lists(
    st.tuples(st.sampled_from(["host/main", "host/worker", "device/0 a", "x"]),
              st.sampled_from(["one", "two"]), st.sampled_from(["plan", "kernel", "wait"]),
              st.integers(0, 60), st.integers(0, 25)),
    max_size=40,
)  # fmt: skip


@given(spans_anywhere)
def test_every_span_is_drawn_once_with_its_own_time_kind_name_and_lane(given_spans):
    t = _timeline(*((lane, n, k, a, a + d) for lane, n, k, a, d in given_spans))
    payload = timeline_payload(t)
    keys = payload["keys"]
    found = sorted((keys["where"][k], keys["name"][k], keys["kind"][k], a, b)
                   for _, a, b, k in drawn(payload))  # fmt: skip
    origin = min((a for *_, a, _ in given_spans), default=0)
    assert found == sorted((lane, n, k, a - origin, a + d - origin)
                           for lane, n, k, a, d in given_spans)  # fmt: skip


@given(spans_anywhere)
def test_spans_of_one_row_never_cover_each_other_and_are_in_order(given_spans):
    t = _timeline(*((lane, n, k, a, a + d) for lane, n, k, a, d in given_spans))
    places = place(t)
    assert not places.is_crowded.any()
    for low, high in zip(places.first[:-1], places.first[1:], strict=True):
        mine = places.order[low:high]
        assert np.all(t.start_ns[mine][1:] >= t.stop_ns[mine][:-1])


def test_what_no_row_has_room_for_shares_the_last_one_and_the_note_says_so():
    t = _timeline(*(("host/main", "f", "record", i, 1000 - i) for i in range(MAX_ROWS + 9)))
    payload = timeline_payload(t)
    assert len(payload["rows"]["top"]) == MAX_ROWS
    assert len(drawn(payload)) == MAX_ROWS + 9
    assert payload["rows"]["crowded"].tolist() == [0] * (MAX_ROWS - 1) + [1]
    assert "some cover others" in payload["note"]


def test_a_span_inside_another_lies_under_it():
    t = _timeline(("host/main", "update", "record", 0, 100), ("host/main", "item", "wait", 40, 90),
                  ("host/main", "next batch", "input", 100, 120))  # fmt: skip
    payload = timeline_payload(t)
    assert _named(payload, "item")[0] == _named(payload, "update")[0] + 1
    assert _named(payload, "next batch")[0] == _named(payload, "update")[0]


def test_times_are_whole_nanoseconds_after_a_hundred_days():
    day = 86_400 * 10**9
    t = _timeline(("device/0 a", "x", "kernel", 5, 6),
                  ("device/0 a", "y", "kernel", 100 * day + 3, 100 * day + 4))  # fmt: skip
    assert [(a, b) for _, a, b, _ in drawn(timeline_payload(t))] == [
        (0, 1), (100 * day - 2, 100 * day - 1)]  # fmt: skip


def test_hosts_stand_above_devices_whatever_came_first():
    t = _timeline(
        ("device/0 Stream #7", "k", "kernel", 0, 9),
        ("other", "o", "plan", 1, 2),
        ("host/worker", "d", "dispatch", 2, 3),
        ("host/main", "f", "record", 3, 4),
        ("device/1 Stream #7", "k", "kernel", 5, 9),
    )
    lanes = timeline_payload(t)["lanes"]
    assert list(zip(lanes["group"], lanes["label"], strict=True)) == [
        ("host", "main"), ("host", "worker"), ("", "other"), ("device/0", "Stream #7"),
        ("device/1", "Stream #7"),
    ]  # fmt: skip
    assert np.all(np.diff(lanes["top"]) > 0)


def test_each_process_has_its_own_group_of_host_and_devices():
    lanes = ("rank 1 device/0 kernels", "rank 0 device/0 kernels", "rank 1 host/main",
             "rank 0 host/main")  # fmt: skip
    t = _timeline(*((lane, "x", "plan", 0, 1) for lane in lanes))
    assert timeline_payload(t)["headings"]["text"] == [
        "rank 1 host", "rank 1 device/0", "rank 0 host", "rank 0 device/0"]  # fmt: skip


@pytest.mark.parametrize(
    ("lane", "group", "label"),
    [
        ("host/main", "host", "main"),
        ("device/0 Stream #7(Compute)", "device/0", "Stream #7(Compute)"),
        ("device/3", "device/3", "device/3"),
        ("rank 2 / host/main", "rank 2 host", "main"),
        ("anything", "", "anything"),
        ("", "", ""),
    ],
)
def test_a_lane_is_split_into_group_and_label(lane, group, label):
    assert group_of(lane) == (group, label)


def test_many_threads_of_a_device_are_one_lane_and_its_streams_are_not():
    spans = [(f"device/0 tf_XLAEigen/{i}", "k", "kernel", i, i + 1) for i in range(6)]
    streams = [(f"device/1 Stream #{i}", "k", "kernel", i, i + 1) for i in range(6)]
    lanes = timeline_payload(_timeline(*spans, ("device/0 tf_PjRt/9", "p", "kernel", 0, 1),
                                       *streams))["lanes"]  # fmt: skip
    assert lanes["label"] == ["tf_XLAEigen ×6", "tf_PjRt/9", *(f"Stream #{i}" for i in range(6))]


def test_five_hundred_lanes_have_a_row_each():
    payload = timeline_payload(_timeline(*((f"host/t{i}", "x", "plan", i, i + 5)
                                           for i in range(500))))  # fmt: skip
    assert len(payload["rows"]["top"]) == len(payload["lanes"]["label"]) == 500
    assert payload["content_px"] > 500 * 19
    assert payload["height"] < 800  # the rest is reached by scrolling


def test_steps_and_syncs_have_rows_of_their_own():
    run = make_run(syncs=2, steps=3)
    payload = timeline_payload(run)
    assert payload["steps"]["name"] == ["step 0", "step 1", "step 2"]
    assert "step" not in {payload["keys"]["kind"][k] for *_, k in drawn(payload)}
    syncs = run.timeline.syncs
    assert payload["syncs"]["at"].tolist() == [s.at_ns for s in syncs]
    assert payload["syncs"]["wait"].tolist() == [s.wait_ns for s in syncs]
    assert payload["syncs"]["site"][0] == syncs[0].site


def test_a_kernel_tells_its_op_line_segment_and_all_its_nodes():
    run = make_run()
    kernel = next(s for s in run.timeline.spans if s.kind == "kernel" and s.node >= 0)
    fused = Fused(kernel.segment, kernel.name, (kernel.node, kernel.node + 1))
    both = f"{kernel.node} {kernel.node + 1}"
    for one, nodes in ((run, f"{kernel.node}"), (replace(run, fused=(fused,)), both)):
        keys = timeline_payload(one)["keys"]
        k = next(k for k in range(len(keys["name"]))
                 if keys["kind"][k] == "kernel" and keys["name"][k] == kernel.name
                 and keys["segment"][k] == kernel.segment)  # fmt: skip
        node = run.graphs[0].nodes[kernel.node]
        assert node.op in keys["detail"][k]
        assert node.site in keys["detail"][k]
        assert f"segment {kernel.segment}: " in keys["detail"][k]
        assert keys["nodes"][k] == nodes


def test_equal_spans_share_one_key():
    t = _timeline(*(("device/0 a", f"k{i % 3}", "kernel", i * 10, i * 10 + 5) for i in range(300)))
    assert len(timeline_payload(t)["keys"]["name"]) == 3


def test_where_segments_are_many_they_are_told_span_by_span(monkeypatch):
    monkeypatch.setattr(timeline_data, "MAX_FOREIGN_KEYS", 10)
    t = _timeline(
        *(("device/0 a", f"k{i % 3}", "kernel", i * 10, i * 10 + 5, i) for i in range(40))
    )
    payload = timeline_payload(t)
    assert len(payload["keys"]["name"]) == 3
    assert payload["spans"]["segment"].tolist() == list(range(1, 41))
    view = TimelineView(t)
    pick(view, "span", 7)
    assert view.segment == 7
    assert len(timeline_payload(make_run())["spans"]["segment"]) == 0


def test_of_too_many_names_the_longest_are_told(monkeypatch):
    monkeypatch.setattr(timeline_data, "MAX_KEYS", 10)
    t = _timeline(*(("device/0 a", f"k{i}", "kernel", i * 1000, i * 1000 + 900 - i)
                    for i in range(40)), ("host/main", "short", "plan", 0, 1))  # fmt: skip
    payload = timeline_payload(t)
    names = [payload["keys"]["name"][k] for *_, k in drawn(payload)]
    assert names.count(timeline_data.LEFT_OUT) == 31
    assert {f"k{i}" for i in range(10)} < set(names)
    assert len(payload["keys"]["name"]) == 12  # one for each lane and kind of the others


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 300)), min_size=1, max_size=80),
    st.integers(5, 20),
)
def test_joining_loses_no_span_and_covers_the_same_time(given_spans, most):
    t = _timeline(*(("device/0 a", "k", "kernel", a, a + n) for a, n in given_spans))
    payload = timeline_payload(t, max_spans=most)
    count = payload["spans"]["count"]
    bars = drawn(payload)
    origin = min(a for a, _ in given_spans)
    assert (count.sum() if len(count) else len(bars)) == len(given_spans)
    assert max(b for _, _, b, _ in bars) == max(a + n for a, n in given_spans) - origin
    for a, n in given_spans:
        assert any(x <= a - origin and a + n - origin <= y for _, x, y, _ in bars)


def test_joined_spans_are_said_and_few_spans_are_not_joined():
    t = _timeline(*(("device/0 a", f"k{i}", "kernel", i * 10, i * 10 + 4) for i in range(4000)))
    assert "4,000 spans drawn as" in timeline_payload(t, max_spans=500)["note"]
    assert len(timeline_payload(t, max_spans=500)["spans"]["key"]) <= 500
    assert "drawn as" not in timeline_payload(t)["note"]


def test_a_second_run_lies_below_and_their_first_steps_begin_together():
    early = _timeline(("host/main", "prepare", "plan", 0, 70), ("host/main", "x", "plan", 100, 150),
                      ("host/main", "step", "step", 100, 200))  # fmt: skip
    late = _timeline(("host/main", "step", "step", 0, 50), ("host/main", "y", "plan", 0, 10))
    payload = timeline_payload(early, below=late, outline=late)
    assert payload["steps"]["start"].tolist() == [100, 100, 100]
    assert payload["parts"]["outline"] == [False, True, False]
    tops = payload["lanes"]["top"].tolist()
    assert tops == sorted(tops)
    assert payload["lanes"]["part"].tolist() == [0, 1, 2]
    assert [(a, b) for _, a, b, _ in drawn(payload)] == [
        (0, 70),
        (100, 150),
        (100, 110),
        (100, 110),
    ]
    lane = [payload["lanes"]["part"][x] for x in payload["rows"]["lane"]]
    assert lane == payload["rows"]["part"].tolist()
    names = [payload["keys"]["name"][k] for *_, k in drawn(payload)]
    assert names == ["prepare", "x", "y", "y"]


def test_idle_time_is_told_by_cause_unless_there_are_very_many_kernels(monkeypatch):
    payload = timeline_payload(make_run())
    gaps = payload["gaps"]
    causes = {GAP_CAUSES[i] for i in gaps["cause"]}
    assert payload["parts"]["gaps_known"] == [True]
    assert causes
    assert gaps["length"].sum() == sum(g.length_ns for g in idle_gaps(make_run().timeline))
    monkeypatch.setattr(timeline_data, "MAX_GAP_KERNELS", 3)
    payload = timeline_payload(make_run())
    assert (payload["parts"]["gaps_known"], len(payload["gaps"]["start"])) == ([False], 0)


BAD = {
    "nothing": None,
    "empty": empty_run(),
    "one span": one_span_run(),
    "usual": make_run(),
    "hostile": make_run(hostile=True),
    "one instant": _timeline(*(("device/0 a", "k", "kernel", 7, 7) for _ in range(50))),
    "hundred days": _timeline(("host/main", "x", "plan", 0, 100 * 86_400 * 10**9)),
    "many scripts": _timeline(("host/主", "ядро <b>核</b> نواة \u202e", "kernel", 0, 9),
                              ("host/main", "W" * 10_000, "plan", 0, 3),
                              syncs=[SyncPoint(2, 5, "<img src=x>", "\ud800.py:1")]),
}  # fmt: skip


@pytest.mark.parametrize("run", BAD.values(), ids=BAD)
def test_every_run_draws_and_its_payload_is_plain_data(run):
    payload = timeline_payload(run)
    plot, sources = timeline_model(payload)
    text = json.dumps(_jsonable(payload), ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    for name, source in sources.items():
        assert len({len(v) for v in source.data.values()}) <= 1, name
    assert all(len(x) <= 200 for x in payload["keys"]["name"])
    assert len(file_html(column(plot), INLINE).encode()) > 0


def test_an_empty_timeline_says_so():
    assert timeline_payload(empty_run())["message"] == "no spans were recorded"
    assert timeline_payload(make_run())["message"] == ""


def test_the_picture_is_told_in_words():
    run = make_run(kernels=40, steps=3, syncs=1)
    summary = timeline_payload(run)["summary"]
    for fact in ("3 steps", "120 kernels", "The device is busy for", "3 sync points"):
        assert fact in summary
    assert timeline_payload(None)["summary"].startswith("An empty timeline")


def test_the_title_says_workload_device_and_origin():
    run = replace(make_run(), name="bert", environment={"device": "cpu"})
    assert timeline_title(run) == "kernel timeline (origin: profiled) - bert, cpu"
    assert timeline_model(timeline_payload(run))[0].title.text == timeline_title(run)


def test_a_redrawn_figure_equals_one_drawn_afresh():
    old, new = timeline_payload(make_run()), timeline_payload(make_run(kernels=9, steps=1, seed=2))
    plot, sources = timeline_model(old)
    fresh, fresh_sources = timeline_model(new)
    sources["lit"].data = {"nodes": ["1"], "sites": ["a.py:1"], "label": ["x"], "serial": [0]}
    apply_timeline(new, plot, sources)
    assert (plot.height, plot.title.text) == (fresh.height, fresh.title.text)
    for name, source in sources.items():
        was, now = (dict(x.data) for x in (source, fresh_sources[name]))
        assert _jsonable(was) == _jsonable(now), name


def test_all_kinds_have_a_colour_in_the_payload():
    payload = timeline_payload(make_run())
    assert dict(zip(payload["colors"]["kind"], payload["colors"]["color"], strict=True)) == COLORS
    assert set(payload["keys"]["kind"]) <= set(KINDS)


def pick(view, kind, index):
    serial = view.sources["picked"].data["serial"][0] + 1
    view.sources["picked"].data = {"kind": [kind], "index": [index], "serial": [serial]}


def bar_of(view, wanted):
    keys = view.sources["timeline"].data["keys.kind"][0]
    return next(i for i, k in enumerate(view.sources["timeline"].data["spans.key"][0])
                if keys[k] == wanted)  # fmt: skip


def test_clicking_a_kernel_selects_its_nodes_and_lines_and_nothing_echoes():
    run = make_run()
    view = TimelineView(run)
    i = bar_of(view, "kernel")
    changes = []
    view.observe(lambda change: changes.append(change["new"]), "selection")
    pick(view, "span", i)
    assert view.node is not None
    assert view.selection.nodes == {view.node}
    assert view.selection.sites == {run.graphs[0].nodes[view.node].site}
    assert view.selection.label.startswith("kernel ")
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
    view.range_ns = (5, 77)
    assert view.sources["marked"].data == {"start": [5], "stop": [77]}
    view.range_ns = None
    assert view.sources["marked"].data == {"start": [], "stop": []}


def test_python_says_why_devices_were_idle_where_the_page_cannot(monkeypatch):
    monkeypatch.setattr(timeline_data, "MAX_GAP_KERNELS", 3)
    view = TimelineView(make_run())
    view.range_ns = (0, view.run.timeline.duration_ns)
    assert "idle: " in view.sources["reply"].data["text"][0]
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
    many = [("device/0 a", f"k{i % 9}", "kernel", i * 100, i * 100 + i % 77, -1, -1)
            for i in range(40_000)]  # fmt: skip
    view = TimelineView(_timeline(*many))
    assert len(view.sources["timeline"].data["spans.key"][0]) == 40_000
    monkeypatch.setattr(timeline_module, "MAX_STATIC_SPANS", 500)
    whole = len(view.page())
    monkeypatch.undo()
    assert len(view.page()) > whole + 50_000
    assert whole < small + 10_000


def test_a_failed_redraw_is_shown_under_the_view_and_the_next_one_works(monkeypatch):
    view = TimelineView(make_run())

    def fail(run, **_):
        raise ValueError("<b>broken</b>")

    with monkeypatch.context() as patch:
        patch.setattr(timeline_module, "timeline_payload", fail)
        view.run = make_run(seed=1)
    assert "timeline</b>: ValueError: &lt;b&gt;broken" in view.children[-1].value
    view.run = empty_run()
    assert view.children[-1].value == ""
    assert view.sources["timeline"].data["message"] == ["no spans were recorded"]


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
    st.integers(-5, 60), st.integers(0, 40),
)  # fmt: skip
def test_what_a_range_holds_equals_counting_its_nanoseconds(given_spans, waits, low, length):
    t = _timeline(*((lane, "x", kind, a, a + n) for (lane, kind), a, n in given_spans),
                  syncs=[SyncPoint(a, n, "item") for a, n in waits])  # fmt: skip
    origin = min((a for _, a, _ in given_spans), default=0)
    inside = range(low + origin, low + origin + length)

    def at(wanted):
        return {x for (lane, kind), a, n in given_spans for x in range(a, a + n)
                if wanted(lane, kind) and x in inside}  # fmt: skip

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
