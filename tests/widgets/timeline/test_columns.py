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

from kit.ir.names import computed_by
from kit.runs.run import Fused
from kit.trace import GAP_CAUSES, KINDS, Span, SyncPoint, Timeline, critical_path, idle_gaps
from kit.trace.kinds import ON_DEVICE
from kit.widgets.base.theme import COLORS
from kit.widgets.timeline import columns as timeline_data
from kit.widgets.timeline.columns import end_ns
from kit.widgets.timeline.lanes import MAX_ROWS, group_of, place
from kit.widgets.timeline.view import (
    TimelineView,
    apply_timeline,
    timeline_model,
    timeline_payload,
    timeline_title,
)
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


def pick(view, kind, index):
    serial = view.sources["picked"].data["serial"][0] + 1
    view.sources["picked"].data = {"kind": [kind], "index": [index], "serial": [serial]}


spans_anywhere = st.lists(
    st.tuples(
        st.sampled_from(["host/main", "host/worker", "device/0 a", "x"]),
        st.sampled_from(["one", "two"]),
        st.sampled_from(["plan", "kernel", "wait"]),
        st.integers(0, 60),
        st.integers(0, 25),
    ),
    max_size=40,
)


@given(spans_anywhere)
def test_every_span_is_drawn_once_with_its_own_time_kind_name_and_lane(given_spans):
    t = _timeline(*((lane, n, k, a, a + d) for lane, n, k, a, d in given_spans))
    payload = timeline_payload(t)
    keys = payload["keys"]
    found = sorted(
        (keys["where"][k], keys["name"][k], keys["kind"][k], a, b) for _, a, b, k in drawn(payload)
    )
    origin = min((a for *_, a, _ in given_spans), default=0)
    assert found == sorted(
        (lane, n, k, a - origin, a + d - origin) for lane, n, k, a, d in given_spans
    )


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
    t = _timeline(
        ("host/main", "update", "record", 0, 100),
        ("host/main", "item", "wait", 40, 90),
        ("host/main", "next batch", "input", 100, 120),
    )
    payload = timeline_payload(t)
    assert _named(payload, "item")[0] == _named(payload, "update")[0] + 1
    assert _named(payload, "next batch")[0] == _named(payload, "update")[0]


def test_times_are_whole_nanoseconds_after_a_hundred_days():
    day = 86_400 * 10**9
    t = _timeline(
        ("device/0 a", "x", "kernel", 5, 6),
        ("device/0 a", "y", "kernel", 100 * day + 3, 100 * day + 4),
    )
    assert [(a, b) for _, a, b, _ in drawn(timeline_payload(t))] == [
        (0, 1),
        (100 * day - 2, 100 * day - 1),
    ]


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
        ("host", "main"),
        ("host", "worker"),
        ("", "other"),
        ("device/0", "Stream #7"),
        ("device/1", "Stream #7"),
    ]
    assert np.all(np.diff(lanes["top"]) > 0)


def test_each_process_has_its_own_group_of_host_and_devices():
    lanes = (
        "rank 1 device/0 kernels",
        "rank 0 device/0 kernels",
        "rank 1 host/main",
        "rank 0 host/main",
    )
    t = _timeline(*((lane, "x", "plan", 0, 1) for lane in lanes))
    assert timeline_payload(t)["headings"]["text"] == [
        "rank 0 host",
        "rank 0 device/0",
        "rank 1 host",
        "rank 1 device/0",
    ]


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
    lanes = timeline_payload(
        _timeline(*spans, ("device/0 tf_PjRt/9", "p", "kernel", 0, 1), *streams)
    )["lanes"]
    assert lanes["label"] == ["tf_PjRt/9", "tf_XLAEigen ×6", *(f"Stream #{i}" for i in range(6))]


def test_five_hundred_lanes_have_a_row_each():
    payload = timeline_payload(
        _timeline(*((f"host/t{i}", "x", "plan", i, i + 5) for i in range(500)))
    )
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


def with_kernels_as(kind):
    """A run whose devices do nothing but this."""
    run = make_run()
    kinds = np.where(run.timeline.where(kind="kernel"), KINDS.index(kind), run.timeline.kind)
    return replace(run, timeline=replace(run.timeline, kind=kinds))


@pytest.mark.parametrize("kind", ON_DEVICE)
def test_a_kernel_tells_its_op_line_segment_and_all_its_nodes(kind):
    run = with_kernels_as(kind)
    kernel = next(s for s in run.timeline.spans if s.kind == kind and s.node >= 0)
    fused = Fused(kernel.segment, kernel.name, (kernel.node, kernel.node + 1))
    both = f"{kernel.node} {kernel.node + 1}"
    for one, nodes in ((run, f"{kernel.node}"), (replace(run, fused=(fused,)), both)):
        keys = timeline_payload(one)["keys"]
        k = next(
            k
            for k in range(len(keys["name"]))
            if keys["kind"][k] == kind
            and keys["name"][k] == kernel.name
            and keys["segment"][k] == kernel.segment
        )
        node = run.graphs[0].nodes[kernel.node]
        assert node.op in keys["detail"][k]
        assert node.site in keys["detail"][k]
        assert f"segment {kernel.segment}: " in keys["detail"][k]
        assert keys["nodes"][k] == nodes
        members = [run.graphs[0].nodes[int(i)] for i in nodes.split()]
        assert keys["bar"][k] == computed_by(members)
        others = {b for b, other in zip(keys["bar"], keys["kind"], strict=True) if other != kind}
        assert others == {""}


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
    t = _timeline(
        *(("device/0 a", f"k{i}", "kernel", i * 1000, i * 1000 + 900 - i) for i in range(40)),
        ("host/main", "short", "plan", 0, 1),
    )
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
    "many scripts": _timeline(
        ("host/主", "ядро <b>核</b> نواة \u202e", "kernel", 0, 9),
        ("host/main", "W" * 10_000, "plan", 0, 3),
        syncs=[SyncPoint(2, 5, "<img src=x>", "\ud800.py:1")],
    ),
}


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
    alone = Timeline.of([Span("device/0", "k", "kernel", 0, 10)])
    summary = timeline_payload(replace(run, timeline=alone))["summary"]
    assert "0 steps, 1 kernel among 1 span on 1 lane. The device is busy for 100% of it" in summary


def test_the_title_says_workload_device_and_origin():
    run = replace(make_run(), name="bert", environment={"device": "cpu"})
    assert timeline_title(run) == "kernel timeline: bert, cpu (profiled)"
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


def test_lanes_stand_in_the_same_order_whichever_was_seen_first():
    lanes = ["device/0 Stream #13", "host/loader", "device/0 Stream #7", "host/main", "host/a"]

    def shown(order: list[str]) -> list[str]:
        t = _timeline(*((lane, "x", "plan", 0, 1) for lane in order))
        return list(timeline_payload(t)["lanes"]["label"])

    assert shown(lanes) == shown(lanes[::-1])
    assert shown(lanes) == ["main", "a", "loader", "Stream #7", "Stream #13"]


def test_the_axis_reaches_as_far_as_spans_and_waits():
    t = Timeline.of([Span("host/main", "x", "plan", 10, 60)], [SyncPoint(50, 40, "item")])
    assert end_ns(t) == timeline_payload(t)["end_ns"] == 80
    assert end_ns(Timeline.of([])) == 0
    assert timeline_payload(t)["axis_ns"] == 0
    assert timeline_payload(t, axis_ns=500)["axis_ns"] == 500


def test_the_critical_path_goes_through_the_rows_of_its_spans():
    run = make_run(steps=2)
    payload, edges = timeline_payload(run), critical_path(run.timeline)
    path, rows = payload["path"], payload["rows"]
    origin = int(run.timeline.start_ns.min())
    assert path["start"].tolist() == [e.start_ns - origin for e in edges]
    assert path["length"].tolist() == [e.length_ns for e in edges]
    lanes = run.timeline.lanes
    for edge, row in zip(edges, path["row"], strict=True):
        if edge.span < 0:
            assert row == -1
            continue
        label = payload["lanes"]["label"][rows["lane"][row]]
        assert lanes[run.timeline.lane[edge.span]].endswith(label)
    assert timeline_payload(one_span_run())["path"]["row"] == []  # no step, no path


def test_of_very_many_spans_there_is_no_path(monkeypatch):
    monkeypatch.setattr(timeline_data, "MAX_PATH_SPANS", 3)
    assert timeline_payload(make_run())["path"]["kind"] == []


def test_a_gap_says_which_device_was_idle():
    gaps = timeline_payload(make_run())["gaps"]
    assert set(gaps["device"]) == {"device/0"}
    assert len(gaps["device"]) == len(gaps["start"])
