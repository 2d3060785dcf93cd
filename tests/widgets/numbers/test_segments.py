"""The table of segments: sums, the dearest ones, hostile names."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from kit.runs.analysis.segments import segment_costs
from kit.runs.settings import Settings
from kit.text import format_ns
from kit.trace import Timeline
from kit.widgets.base.theme import COLORS
from kit.widgets.numbers.segments import MAX_ROWS, SegmentView, folded_segments_html, segments_html
from tests.factories import empty_run, make_run


def test_there_is_a_row_for_each_segment_and_a_sum() -> None:
    run = make_run(Settings(bulk_forward=5, bulk_backward=5))
    html = segments_html(run)
    costs = segment_costs(run)
    assert html.count("<tr") == len(costs) + 2
    assert f"<b>{len(costs)} segments</b>" in html
    assert format_ns(sum(c.device_ns for c in costs)) in html


def test_a_segments_number_and_phase_stay_on_one_line() -> None:
    html = segments_html(make_run(Settings(bulk_forward=5, bulk_backward=5)))
    cells = re.findall(r'white-space:nowrap"><span [^>]*></span>(\d+ \w+)</span>', html)
    assert "2 backward" in cells


def test_of_many_the_dearest_are_shown_and_all_are_summed() -> None:
    run = make_run(Settings(bulk_forward=1, bulk_backward=1), scopes=30, kernels=400)
    assert len(run.segments) > MAX_ROWS
    html = segments_html(run)
    assert html.count("<tr") == MAX_ROWS + 2
    assert f"The {MAX_ROWS} dearest of {len(run.segments):,} segments" in html


def test_hostile_names_stay_text_and_no_segments_is_said() -> None:
    assert "<script>" not in segments_html(make_run(hostile=True))
    assert "nothing was cut" in segments_html(empty_run())
    assert folded_segments_html(empty_run()) == ""


def test_the_view_follows_its_run() -> None:
    view = SegmentView()
    assert view.value == ""
    view.run = make_run()
    assert "Segments" in view.value
    view.run = make_run(Settings(mode="torch"))
    assert "nothing was cut" in view.value


def test_the_longest_gap_stands_out_and_is_named() -> None:
    run = make_run(Settings(bulk_forward=5, bulk_backward=5))
    longest = max(
        (c for c in segment_costs(run) if not math.isnan(c.gap_ns)), key=lambda c: c.gap_ns
    )
    html = segments_html(run)
    assert html.count(f"{COLORS['backward']}40") == 1
    said = f"{format_ns(longest.gap_ns)}, is before segment {longest.index} ({longest.phase})"
    assert said in html


def test_without_kernels_the_device_is_unknown_not_idle() -> None:
    run = make_run()
    host = [s for s in run.timeline.spans if s.kind != "kernel"]
    unseen = replace(run, timeline=Timeline.of(host, run.timeline.syncs))
    html = segments_html(unseen) + folded_segments_html(unseen)
    assert "what the device did is unknown" in html
    assert "nan" not in html
    assert "of gaps" not in html
