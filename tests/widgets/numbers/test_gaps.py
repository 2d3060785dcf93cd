"""The table of idle time: causes, lines and milliseconds; a stranger's text stays text."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.verdict.summary import summary
from kit.trace import Span, SyncPoint, Timeline, idle_gaps
from kit.trace.kinds import GAP_CAUSES
from kit.widgets.base.theme import FAINT
from kit.widgets.numbers.gaps import CAUSE_COLORS, GapView, bar_html, gaps_html
from tests.factories import empty_run, make_run, one_span_run

MS = 1_000_000


def run_of(site: str = "train.py:7") -> Run:
    spans = [
        Span("host/main", "step 0", "step", 0, 10 * MS),
        Span("host/main", "forward", "record", 7 * MS, 10 * MS),
        Span("device/0 k", "k", "kernel", 0, 5 * MS),
    ]
    sync = SyncPoint(3 * MS, 2 * MS, "item", site)
    return Run(Settings(), (1.0,), (10 * MS,), Timeline.of(spans, [sync]))


def test_causes_lines_and_milliseconds_are_said() -> None:
    text = gaps_html(run_of())
    assert "train.py:7" in text
    assert "40.0%" in text
    assert "host recording" in text
    assert "60.0%" in text
    assert "<b>5</b>" in text
    assert "host wait 0%, kernel wait 0%, other 100%" in text


@pytest.mark.parametrize(("part", "least"), [(1, 360), (2800, 480)])
def test_a_table_asks_for_no_more_room_than_its_longest_number(part: int, least: int) -> None:
    run = run_of()  # idle for 5 ms
    spans = [replace(s, start_ns=s.start_ns // part, stop_ns=s.stop_ns // part)
             for s in run.timeline.spans]  # fmt: skip
    assert f"min-width:{least}px" in gaps_html(replace(run, timeline=Timeline.of(spans)))


def test_idle_time_of_several_devices_is_their_mean_and_fits_into_the_step() -> None:
    one = run_of()
    spans = [*one.timeline.spans, Span("device/1 k", "k", "kernel", 0, 8 * MS)]
    both = Run(Settings(), (1.0,), (10 * MS,), Timeline.of(spans, one.timeline.syncs))
    text = gaps_html(both)
    assert "<b>3.5</b>" in text  # of 5 and 2
    assert "Means of the traced steps and of the 2 devices" in text
    assert "ms a step, mean of 2 devices" in summary(both)
    assert "mean of" not in summary(one)


def test_the_lines_that_were_waited_for_are_named() -> None:
    run = make_run(syncs=0)
    assert any(g.before >= 0 and g.cause != "program" for g in idle_gaps(run.timeline))
    assert re.search(r"next to run: <[^>]*>train\.py:", gaps_html(run))


def test_a_kernel_of_a_node_that_the_run_does_not_hold_waits_for_no_line() -> None:
    run = make_run(syncs=0)
    t = run.timeline
    beyond = np.where(t.node >= 0, t.node + len(run.graphs[0]), t.node)
    other = replace(run, timeline=replace(t, node=beyond))
    assert "next to run" not in gaps_html(other)
    assert gaps_html(other).count("<tr") == gaps_html(run).count("<tr")


def test_every_cause_has_a_colour_of_its_own() -> None:
    assert set(CAUSE_COLORS) == set(GAP_CAUSES)
    assert len(set(CAUSE_COLORS.values())) == len(GAP_CAUSES)
    assert CAUSE_COLORS["unknown"] == FAINT  # as in the breakdown


@pytest.mark.parametrize("site", ["<img src=x onerror=alert(1)>", "</div><script>x</script>"])
def test_a_strangers_line_is_text(site: str) -> None:
    text = gaps_html(run_of(site))
    assert "<img" not in text
    assert "<script" not in text
    hostile = gaps_html(make_run(hostile=True, syncs=2))
    assert "<script" not in hostile
    assert "\x1b" not in hostile


def test_a_run_without_kernels_or_without_gaps_says_so() -> None:
    assert "No kernel was seen" in gaps_html(empty_run())
    assert "never idle" in gaps_html(one_span_run())


def test_a_bar_stays_in_its_cell() -> None:
    assert "width:100.0%" in bar_html(7, "#000000")
    assert "width:0.0%" in bar_html(-1, "#000000")


def test_a_new_run_is_drawn_and_none_clears_the_view() -> None:
    view = GapView(run_of())
    assert "train.py:7" in view.value
    view.run = run_of("train.py:9")
    assert "train.py:9" in view.value
    view.run = None
    assert view.value == ""
