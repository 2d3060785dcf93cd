"""The tables of span kinds, categories and causes of gaps: complete, and read everywhere."""

from __future__ import annotations

from kit.trace import CATEGORIES, GAP_CAUSES, KINDS
from kit.trace.gaps import _RULES
from kit.trace.kinds import CATEGORY_ROWS, CAUSES, LEGEND, LIMITS, RECORDING, SPAN_KINDS
from tests.with_a_row import output_with_row

_NEW_KIND = """
    SpanKind("nap", "a nap (device)", "plan", "reduction", "the device sleeps"),
"""
_USE_OF_KIND = """
import json, tempfile
import kit
from kit.trace import Span, Timeline, breakdown
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.widgets.base.theme import COLORS, LABELS, kind_color
from kit.widgets.timeline.payload import timeline_payload
from kit.runs.verdict.summary import summary
from kit.widgets.numbers.step import breakdown_html

spans = [Span("host/main", "step 0", "step", 0, 100), Span("device/0", "k", "kernel", 0, 40),
         Span("device/0", "rest", "nap", 40, 70)]
timeline = Timeline.of(spans)
run = Run(Settings(steps=1), losses=(1.0,), step_times_ns=(100,), timeline=timeline)
payload = timeline_payload(run)
assert (LABELS["nap"], COLORS["nap"]) == ("a nap (device)", COLORS["plan"]) and kind_color("nap")
assert "nap" in payload["colors"]["kind"] and "a nap (device)" in payload["colors"]["label"]
rows = {row.category: row for row in breakdown(timeline)}
assert rows["reduction"].share == 0.3, rows
assert "reduction" in summary(run) and "reduction" in breakdown_html(run)
with tempfile.TemporaryDirectory() as folder:
    run.save(f"{folder}/a.kitrun")
    assert kit.open_trace(f"{folder}/a.kitrun").timeline.spans == timeline.spans
    kit.export_trace(run, f"{folder}/a.json")
    assert kit.open_trace(f"{folder}/a.json").timeline.spans == timeline.spans
print("seen everywhere")
"""
_NEW_CAUSE = """
    GapCause("tea", "plan", "input", "everyone had tea"),
"""
_USE_OF_CAUSE = """
from kit.trace import GAP_CAUSES, LIMITS, Span, Timeline, idle_table, limited_by
from kit.trace import gaps
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.verdict.summary import summary
from kit.widgets.numbers.gaps import CAUSE_COLORS, gaps_html
from kit.widgets.timeline.payload import timeline_payload

gaps._RULES = (gaps._Rule("tea", lambda c: c.of >= 0, lambda c: c.nothing), *gaps._RULES)
timeline = Timeline.of([Span("host/main", "step 0", "step", 0, 100),
                        Span("device/0", "k", "kernel", 0, 40)])
run = Run(Settings(steps=1), losses=(1.0,), step_times_ns=(100,), timeline=timeline)
assert [row.cause for row in idle_table(timeline)] == ["tea"]
assert limited_by(timeline).what == "input"
assert "tea" in CAUSE_COLORS and "everyone had tea" in gaps_html(run)
assert "tea" in timeline_payload(run)["colors"]["causes"] and "tea" in summary(run)
print("seen everywhere")
"""


def test_a_new_kind_of_span_is_one_row():
    shown = output_with_row("kit/trace/kinds.py", "SPAN_KINDS = (", _NEW_KIND, _USE_OF_KIND)
    assert shown == "seen everywhere\n"


def test_a_new_cause_of_gaps_is_one_row_and_one_rule():
    shown = output_with_row("kit/trace/kinds.py", "\nCAUSES = (", _NEW_CAUSE, _USE_OF_CAUSE)
    assert shown == "seen everywhere\n"


def test_kinds_and_categories_name_each_other():
    named = {kind.category for kind in SPAN_KINDS if kind.category}
    assert named == {RECORDING} | {
        row.name for row in CATEGORY_ROWS if not row.phase and row.name != "unknown"
    }
    assert sorted(row.charged for row in CATEGORY_ROWS) == list(range(len(CATEGORY_ROWS)))
    assert {row.limit for row in (*CATEGORY_ROWS, *CAUSES)} == set(LIMITS)
    assert len(set(KINDS)) == len(KINDS)
    assert len(set(CATEGORIES)) == len(CATEGORIES)
    assert len({key.color for key in LEGEND}) == len(LEGEND)


def test_each_kind_says_what_it_is():
    assert all(kind.title and kind.meaning for kind in SPAN_KINDS)


def test_each_cause_has_a_rule_and_each_rule_a_cause():
    assert {rule.cause for rule in _RULES} == set(GAP_CAUSES)
    assert all(row.said for row in CAUSES)
