"""The kernel timeline: its columns, its figure, its redraw."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from bokeh.embed import file_html
from bokeh.models import Button, CustomJS, HoverTool, Legend
from bokeh.plotting import column
from bokeh.resources import INLINE
from hypothesis import given
from hypothesis import strategies as st

from kit.trace import Span, SyncPoint, Timeline
from kit.widgets import timeline as timeline_module
from kit.widgets.theme import COLORS
from kit.widgets.timeline import (
    MAX_GLYPHS,
    TIMELINE_JS,
    TimelineView,
    apply_timeline,
    sync_columns,
    timeline_axis,
    timeline_columns,
    timeline_js_args,
    timeline_model,
    timeline_payload,
    timeline_title,
)
from tests.browser.labserver import open_browser
from tests.factories import empty_run, make_run, one_span_run


def _timeline(*spans, syncs=()):
    return Timeline.of([Span(*s) for s in spans], syncs)


def _jsonable(payload):
    return json.loads(json.dumps(payload, default=lambda x: x.tolist()))


def _by_name(columns, name, what):
    return columns[what][columns["name"].index(name)]


def test_bars_are_in_milliseconds_and_carry_their_own_text():
    t = _timeline(("host/main", "forward", "record", 0, 2_500_000, 3, 7))
    bars = timeline_columns(t)
    assert bars["left_ms"].tolist() == [0.0]
    assert bars["right_ms"].tolist() == [2.5]
    assert bars["duration"] == ["2.5 ms"]
    assert bars["duration_us"].tolist() == [2500.0]
    assert (bars["segment"][0], bars["node"][0], bars["lane"][0]) == (3, 7, "host/main")
    assert bars["color"] == [COLORS["forward"]]


def test_time_begins_at_the_first_span():
    t = _timeline(("host/main", "a", "plan", 5_000_000, 6_000_000),
                  syncs=[SyncPoint(7_000_000, 1, "item")])  # fmt: skip
    assert timeline_columns(t)["left_ms"].tolist() == [0.0]
    assert sync_columns(t)["x"].tolist() == [2.0]


def test_host_lanes_stand_above_device_lanes_whatever_came_first():
    t = _timeline(
        ("device/0 kernels", "k", "kernel", 0, 9),
        ("other", "o", "plan", 1, 2),
        ("host/worker", "d", "dispatch", 2, 3),
        ("host/main", "f", "record", 3, 4),
    )
    bars, axis = timeline_columns(t), timeline_axis(t)
    tops = [_by_name(bars, name, "top") for name in ("f", "d", "o", "k")]
    assert tops == sorted(tops)
    assert axis["labels"] == ["steps", "sync points", "host/main", "host/worker", "other",
                              "device/0 kernels"]  # fmt: skip
    assert axis["ticks"] == sorted(axis["ticks"])
    assert axis["end"] > bars["bottom"].max()


def test_a_wait_inside_recording_lies_under_it():
    t = _timeline(("host/main", "update", "record", 0, 100), ("host/main", "item", "wait", 40, 90),
                  ("host/main", "next batch", "input", 100, 120))  # fmt: skip
    bars = timeline_columns(t)
    assert _by_name(bars, "item", "top") >= _by_name(bars, "update", "bottom")
    assert _by_name(bars, "next batch", "top") == _by_name(bars, "update", "top")


@given(
    st.lists(
        st.tuples(st.sampled_from(["host/main", "host/worker", "device/0 a"]),
                  st.integers(0, 50), st.integers(1, 20)),
        max_size=25,
    )
)  # fmt: skip
def test_bars_never_cover_each_other_while_there_are_free_rows(spans):
    t = _timeline(*((lane, "x", "plan", a, a + n) for lane, a, n in spans))
    bars = timeline_columns(t)
    assert len(bars["name"]) == len(spans)
    for r in set(bars["row"].tolist()):
        mine = bars["row"] == r
        if len({*bars["row"].tolist()}) < 8:  # a lane has at most 8 sub-rows
            left, right = bars["left_ms"][mine], bars["right_ms"][mine]
            order = np.argsort(left, kind="stable")
            assert np.all(left[order][1:] >= right[order][:-1])


def test_many_device_threads_are_merged_by_family():
    spans = [(f"device/0 tf_XLAEigen/{i}", "k", "kernel", i, i + 1) for i in range(6)]
    axis = timeline_axis(_timeline(*spans, ("device/0 tf_PjRt/9", "p", "kernel", 0, 1)))
    assert axis["labels"][2:] == ["device/0 tf_XLAEigen ×6", "device/0 tf_PjRt/9"]


def test_up_to_four_device_lanes_keep_a_row_each():
    spans = [(f"device/0 tf_XLAEigen/{i}", "k", "kernel", i, i + 1) for i in range(4)]
    assert len(timeline_axis(_timeline(*spans))["labels"]) == 2 + 4


def test_steps_are_bands_not_bars():
    payload = timeline_payload(make_run(steps=3))
    assert len(payload["steps"]["name"]) == 3
    assert payload["steps"]["name"][0].startswith("step 0 · ")
    assert "step" not in payload["spans"]["kind"]


def test_sync_marks_are_where_the_host_began_to_wait():
    run = make_run(syncs=2, steps=3)
    marks = sync_columns(run.timeline)
    assert marks["x"].tolist() == [s.at_ns / 1e6 for s in run.timeline.syncs]
    assert np.allclose(marks["right"] - marks["x"], marks["wait"])
    assert marks["site"][0] == run.timeline.syncs[0].site
    assert marks["cause"][0] in marks["label"][0]


def test_labels_of_crowded_syncs_are_left_to_the_hover_card():
    t = _timeline(("host/main", "f", "record", 0, 10**9),
                  syncs=[SyncPoint(i * 1000, 10, "item") for i in range(50)])  # fmt: skip
    marks = sync_columns(t)
    assert sum(bool(x) for x in marks["text"]) == 1
    assert all(marks["label"])


def test_a_bar_tells_its_op_line_and_segment():
    run = make_run()
    bars = timeline_payload(run)["spans"]
    i = next(i for i, n in enumerate(bars["node"]) if n >= 0)
    node = run.graphs[0].nodes[bars["node"][i]]
    assert node.op in bars["detail"][i]
    assert node.site in bars["detail"][i]
    assert f"segment {bars['segment'][i]}: " in bars["detail"][i]


def test_too_many_spans_are_merged_and_the_note_says_so():
    spans = [("device/0 kernels", f"k{i}", "kernel", i * 10, i * 10 + 4 + i % 5)
             for i in range(40_000)]  # fmt: skip
    run = replace(one_span_run(), timeline=_timeline(*spans))
    payload = timeline_payload(run)
    bars = payload["spans"]
    assert len(bars["name"]) <= MAX_GLYPHS
    assert bars["count"].sum() == 40_000
    assert bars["duration_us"].sum() == pytest.approx(sum(s[4] - s[3] for s in spans) / 1e3)
    assert "40,000 spans drawn as" in payload["note"]
    assert "spans, the longest is k" in bars["name"][0]


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 300)), min_size=1, max_size=60),
    st.integers(5, 20),
)
def test_merging_loses_no_span_and_no_time(spans, most):
    t = _timeline(*(("device/0 a", "k", "kernel", a, a + n) for a, n in spans))
    bars, all_bars = timeline_columns(t, max_glyphs=most), timeline_columns(t)
    assert bars["count"].sum() == len(spans)
    assert bars["duration_us"].sum() == pytest.approx(all_bars["duration_us"].sum())
    assert bars["right_ms"].max() == all_bars["right_ms"].max()


def test_few_spans_are_not_merged_and_nothing_is_said():
    assert timeline_columns(make_run().timeline)["count"].max() == 1
    assert "merged" not in timeline_payload(make_run())["note"]


@pytest.mark.parametrize("run", [None, empty_run(), one_span_run(), make_run(),
                                 make_run(hostile=True)])  # fmt: skip
def test_every_run_draws_and_its_payload_is_plain_data(run):
    payload = timeline_payload(run)
    plot, sources = timeline_model(payload)
    text = json.dumps(_jsonable(payload), ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    for name, source in sources.items():
        assert len({len(v) for v in source.data.values()}) <= 1, name
    assert len(file_html(column(plot), INLINE).encode()) > 0


def test_an_empty_timeline_says_so():
    assert timeline_payload(empty_run())["message"]["text"] == ["no spans were recorded"]
    assert timeline_payload(make_run())["message"]["text"] == []


def test_the_title_says_workload_device_and_origin():
    run = replace(make_run(), name="bert", environment={"device": "cpu"})
    assert timeline_title(run) == "kernel timeline (origin: profiled) - bert, cpu"
    assert timeline_model(timeline_payload(run))[0].title.text == timeline_title(run)


def test_the_figure_has_units_a_legend_of_all_kinds_and_text_that_bokeh_escapes():
    plot, _ = timeline_model(timeline_payload(make_run()))
    assert "(ms)" in plot.xaxis[0].axis_label
    assert len(plot.select_one(Legend).items) == len(COLORS)
    for hover in plot.select(HoverTool):
        assert "{safe}" not in hover.tooltips


def test_a_redraw_clears_the_selection_before_the_data_change():
    view = TimelineView(make_run())
    view.sources["spans"].selected.indices = [5]
    seen = []

    def look(attr, old, new):
        seen.append(list(view.sources["spans"].selected.indices))

    view.sources["spans"].on_change("data", look)
    view.run = make_run(seed=4, kernels=12)
    assert seen == [[]]
    assert view.segment is None


def test_a_redrawn_figure_equals_one_drawn_afresh():
    old, new = timeline_payload(make_run()), timeline_payload(make_run(kernels=9, steps=1, seed=2))
    plot, sources = timeline_model(old)
    fresh, fresh_sources = timeline_model(new)
    apply_timeline(new, plot, sources)
    assert plot.x_range.end == fresh.x_range.end
    assert plot.x_range.reset_end == fresh.x_range.end
    assert plot.height == fresh.height
    assert plot.yaxis[0].major_label_overrides == fresh.yaxis[0].major_label_overrides
    for name, source in sources.items():
        assert set(source.data) == set(fresh_sources[name].data), name
    assert sources["spans"].data["name"] == fresh_sources["spans"].data["name"]


def test_clicking_a_bar_sets_segment_and_node():
    view = TimelineView(make_run())
    data = view.sources["spans"].data
    i = next(i for i, n in enumerate(data["node"]) if n >= 0)
    view.sources["spans"].selected.indices = [i]
    assert (view.segment, view.node) == (data["segment"][i], data["node"][i])
    view.sources["spans"].selected.indices = []
    assert (view.segment, view.node) == (None, None)


def test_a_failed_redraw_is_shown_under_the_view_and_the_next_one_works(monkeypatch):
    view = TimelineView(make_run())

    def fail(run):
        raise ValueError("<b>broken</b>")

    with monkeypatch.context() as patch:
        patch.setattr(timeline_module, "timeline_payload", fail)
        view.run = make_run(seed=1)
    assert "timeline</b>: ValueError: &lt;b&gt;broken" in view.children[-1].value
    view.run = empty_run()
    assert view.children[-1].value == ""
    assert view.sources["message"].data["text"] == ["no spans were recorded"]


DEEP = """(selector) => {
  const all = (root) => [...root.querySelectorAll('*')].flatMap(
    (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  return all(document).filter((e) => e.matches(selector));
}"""


@pytest.fixture
def offline():
    with open_browser(offline=True) as opened:
        yield opened


@pytest.mark.browser
def test_in_a_browser_names_are_text_and_a_payload_replaces_another(offline, tmp_path):
    plot, sources = timeline_model(timeline_payload(make_run(hostile=True, kernels=6, steps=1)))
    new = _jsonable(timeline_payload(make_run(kernels=60, steps=2, seed=3)))
    button = Button(label="next")
    code = f"const payload = {json.dumps(new)};" + TIMELINE_JS
    button.js_on_click(CustomJS(args=timeline_js_args(plot, sources), code=code))
    path = tmp_path / "timeline.html"
    path.write_text(file_html(column(button, plot, sizing_mode="stretch_width"), INLINE))
    page = offline.page
    page.goto(path.as_uri())
    page.wait_for_function("window.Bokeh && Bokeh.documents[0]?.is_idle")
    box = page.locator(".bk-Canvas").first.bounding_box()
    card = ""
    for x, y in itertools.product(range(200, 1000, 90), range(40, 220, 18)):
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.wait_for_timeout(20)
        texts = page.evaluate(f"({DEEP})('.bk-tooltip-content').map((e) => e.textContent)")
        card = next((t for t in texts if "<script>" in t), card)
        if card:
            break
    assert "</script><script>alert('kit')</script><img src=x onerror=" in card
    assert page.evaluate(f"({DEEP})('img[src=x]').length") == 0
    page.get_by_role("button", name="next").click()
    page.wait_for_function("Bokeh.documents[0].is_idle")
    state = page.evaluate(
        """() => { const f = Bokeh.documents[0].get_model_by_name('timeline');
        return [f.title.text, f.x_range.end, f.height, f.renderers.find(
          (r) => r.name == 'spans').data_source.get_length(),
          [...f.left[0].major_label_overrides.values()]]; }"""
    )
    assert state[:3] == [new["title"], new["axis"]["x_end"], new["height"]]
    assert state[3] == len(new["spans"]["name"])
    assert state[4] == new["axis"]["labels"]
    assert (offline.outside, offline.errors()) == ([], [])
