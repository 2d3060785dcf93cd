"""The tables of sync points, and of ops that ran on the host."""

from __future__ import annotations

import dataclasses

from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import Span, SyncPoint, Timeline
from kit.widgets.numbers.syncs import syncs_drawn, unlowered_html
from tests.factories import empty_run, make_run
from tests.widgets.read import Reader, run_with


def test_sync_points_are_counted_and_timed_a_step():
    text = str(Reader(syncs_drawn(run_with(5.0, syncs=3, wait_ms=1.5))[0]))
    assert "train.py:4 through lib.py:2 try step_mode='speculate' item 3 4.5 unknown" in text
    assert "10 untraced steps" in text


def test_without_untraced_steps_the_traced_ones_are_counted_and_said():
    spans = [Span("host/main", f"step {i}", "step", 10 * i, 10 * i + 10) for i in range(2)]
    timeline = Timeline.of(spans, [SyncPoint(3, 2_000_000, "print", "a.py:1")])
    run = Run(Settings(), (), (), timeline)
    text = str(Reader(syncs_drawn(run)[0]))
    assert "a.py:1 try step_mode='speculate' print 0.5 1 unknown" in text
    assert "2 traced steps" in text


def test_no_sync_point_is_said_in_words():
    text = str(Reader(syncs_drawn(run_with(5.0))[0]))
    assert "No sync points in 10 untraced steps: the host never waited" in text
    assert "No step was measured" in syncs_drawn(empty_run())[0]


def test_many_places_are_cut_with_their_sum_said():
    points = [SyncPoint(0, 1_000_000, "item", f"a.py:{i}") for i in range(20)]
    run = Run(Settings(), (1.0,), (10_000_000,), Timeline.of([]), tuple(points))
    assert "Not shown: 8 places, together 8 ms a step." in syncs_drawn(run)[0]


def test_a_disturbed_run_has_no_cure_beside_its_sync_points():
    run = make_run()
    assert "try " in syncs_drawn(run)[0]
    busy = dataclasses.replace(run, conditions=Conditions(cores=2, others=1.3))
    assert "try " not in syncs_drawn(busy)[0]
    assert "train.py:44" in syncs_drawn(busy)[0]


def test_unlowered_ops_are_listed_most_frequent_first():
    run = dataclasses.replace(make_run(), unlowered={"a at x.py:1": 2, "b at y.py:2": 30})
    text = str(Reader(unlowered_html(run)))
    assert text.index("b at y.py:2 30") < text.index("a at x.py:1 2")
    assert unlowered_html(make_run()) == ""
