"""The HTML of a run: right numbers, said in words too, and nothing of a stranger's text live."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import safe_html
from kit.trace import Span, SyncPoint, Timeline
from kit.trace.devices import TORCH_CPU
from kit.widgets.base.cards import headline_html
from kit.widgets.base.change import BETTER, WORSE
from kit.widgets.base.selection import Selection
from kit.widgets.base.tables import (
    breakdown_html,
    failure_html,
    run_notes_html,
    sync_table_html,
    table,
    unlowered_html,
)
from tests.factories import HOSTILE, empty_run, make_run, one_span_run

TABLES = (headline_html, sync_table_html, breakdown_html, unlowered_html, run_notes_html)
TAGS = {"div", "span", "b", "table", "caption", "thead", "tbody", "colgroup", "col", "tr", "th",
        "td", "details", "summary", "pre"}  # fmt: skip
VOID = {"col"}


class Reader(HTMLParser):
    """The text, the tags in order, and whether every tag was closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html.replace("<wbr>", ""))  # where a word may go on in the next line
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def __str__(self):
        return " ".join(" ".join(self.text).split())


def run_with(step_ms: float, syncs: int = 0, wait_ms: float = 0.0, noise: float = 0.0,
             rounds: int = 1) -> Run:  # fmt: skip
    """Ten untraced steps, so many times over; each waits `syncs` times."""
    points = [SyncPoint(0, int(wait_ms * 1e6), "item", "train.py:4", "lib.py:2")] * (10 * syncs)
    times = [step_ms * (1 + noise * (i % 5 - 2)) for i in (3, 0, 7, 2, 9, 4, 1, 8, 5, 6)]
    nanoseconds = tuple(round(t * 1e6) for t in times)
    return Run(
        Settings(), (1.0,) * 10, nanoseconds * rounds, Timeline.of([]), tuple(points) * rounds
    )


def long_run(step_ms: float, **more: float) -> Run:
    """Long enough to know the machine's phases."""
    return run_with(step_ms, rounds=10, **more)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("run", [empty_run(), one_span_run(), make_run(), make_run(hostile=True),
                                 make_run(Settings(mode="torch"))])  # fmt: skip
def test_every_table_is_well_formed_and_has_only_our_tags(table, run):
    page = Reader(table(run))
    assert set(page.tags) <= TAGS
    assert not any(name.startswith("on") for name in page.names)
    assert "nan" not in str(page)


@pytest.mark.parametrize("table", TABLES)
def test_hostile_text_can_be_sent_as_json_and_stays_short(table):
    html = table(make_run(hostile=True))
    assert html.encode("utf-8")  # no lone surrogate
    assert "\x00" not in html
    assert "\u202e" not in html
    assert "<script" not in html
    assert len(html) < 20_000


@given(st.text())
def test_safe_html_never_opens_a_tag_and_can_always_be_encoded(text):
    safe = safe_html(text)
    assert not set("<>\"'") & set(safe)
    assert safe.encode("utf-8") is not None


def test_both_times_of_a_slowed_run_are_said_once():
    made = make_run(steps=4)
    steps = made.timeline.intervals(kind="step")
    short = int((steps[:, 1] - steps[:, 0]).mean()) // 10
    slowed = dataclasses.replace(made, step_times_ns=(short, short + 9) * 20)
    assert "A traced step took" in headline_html(slowed)
    assert "a traced step took" not in run_notes_html(slowed)
    assert "timeline: " in run_notes_html(slowed)


def test_safe_html_keeps_both_ends_of_a_long_name():
    assert safe_html("abcdefghij", 7) == "abc…hij"
    assert safe_html("abcdefg", 7) == "abcdefg"


def test_a_faster_step_is_better_in_words_and_sign():
    text = str(Reader(headline_html(long_run(5.0), long_run(10.0))))
    assert "step time 5 ms median of 100; 8 in 10 took 5 ms ▼ −50% better ± 2%" in text


def test_a_slower_step_is_worse():
    assert "▲ +100% worse" in str(Reader(headline_html(long_run(10.0), long_run(5.0))))


def test_sync_points_that_appear_from_none_have_no_percentage():
    text = str(Reader(headline_html(long_run(5.0, syncs=3, wait_ms=1.0), long_run(5.0))))
    assert "▲ from 0 to 3 worse" in text
    assert "no change beyond the spread (0% ± 4%)" in text  # the step time


def test_a_wait_that_is_gone_or_came_has_a_unit():
    with_waits, without = long_run(5.0, syncs=3, wait_ms=1.0), long_run(5.0)
    assert re.search(r"from 0 to [0-9.]+ ms worse", str(Reader(headline_html(with_waits, without))))
    assert re.search(r"from [0-9.]+ ms to 0 ", str(Reader(headline_html(without, with_waits))))


def test_a_card_without_a_number_says_why():
    def card(run: Run) -> str:
        said = str(Reader(headline_html(run)))
        return said.partition("recording hidden unknown ")[2].partition(" sync wait")[0]

    def spans(*more: Span) -> Run:
        step = Span("host/main", "step 0", "step", 0, 100)
        return replace(make_run(), timeline=Timeline.of([step, *more], (), "profiled"))

    kernel = Span("device/0 thread 1", "add", "kernel", 10, 20)
    assert card(spans(replace(kernel, lane=TORCH_CPU))).startswith("on a CPU torch computes")
    assert card(spans(kernel)) == "nothing was recorded in the traced steps"
    assert card(spans()) == "no kernel was seen"


def test_noise_is_neither_better_nor_worse():
    html = headline_html(long_run(5.2, noise=0.02), long_run(5.0, noise=0.02))
    assert "no change beyond the spread (+4.0% ± 4.2%)" in str(Reader(html))
    assert BETTER not in html
    assert WORSE not in html
    wide = str(Reader(headline_html(run_with(6.0, noise=0.15), run_with(5.0, noise=0.15))))
    assert "maybe ▲ +20% (0.46 to 3.1 times)" in wide


def test_steps_of_other_batch_sizes_are_compared_by_the_sample():
    small = dataclasses.replace(long_run(5.0), settings=Settings(batch_size=4))
    large = dataclasses.replace(long_run(8.0), settings=Settings(batch_size=8))
    assert "a sample: ▼ −20% better" in str(Reader(headline_html(large, small)))


def test_an_unsure_change_of_a_sample_says_that_it_is_one_of_a_sample():
    """The step of twice the batch is longer, and stands in the same card."""
    small = dataclasses.replace(run_with(5.0, noise=0.15), settings=Settings(batch_size=4))
    large = dataclasses.replace(run_with(6.0, noise=0.15), settings=Settings(batch_size=8))
    assert "a sample: maybe ▼ −40%" in str(Reader(headline_html(large, small)))


def test_a_higher_fraction_is_better_and_counted_in_points():
    def busy(ns: int) -> Run:
        spans = []
        for at in (0, 100, 200, 300):
            spans += [Span("host/main", "step", "step", at, at + 100)]
            spans += [Span("device/0", "k", "kernel", at, at + ns)]
        alike = run_with(0.0001)  # as long as a traced one
        return dataclasses.replace(alike, timeline=Timeline.of(spans))

    text = str(Reader(headline_html(busy(75), busy(50))))
    assert "device busy 75% of the traced step ▲ +25 points better ±" in text


def test_the_first_run_and_an_unknown_number_show_no_change():
    for html in (headline_html(run_with(5.0)), headline_html(run_with(5.0), empty_run())):
        assert "better" not in html
        assert "worse" not in html


def test_what_cannot_be_known_is_called_unknown():
    assert str(Reader(headline_html(empty_run()))).count("unknown") == 5


def test_sync_points_are_counted_and_timed_a_step():
    text = str(Reader(sync_table_html(run_with(5.0, syncs=3, wait_ms=1.5))))
    assert "train.py:4 through lib.py:2 try step_mode='speculate' item 3 4.5 unknown" in text
    assert "10 untraced steps" in text


def test_without_untraced_steps_the_traced_ones_are_counted_and_said():
    spans = [Span("host/main", f"step {i}", "step", 10 * i, 10 * i + 10) for i in range(2)]
    timeline = Timeline.of(spans, [SyncPoint(3, 2_000_000, "print", "a.py:1")])
    run = Run(Settings(), (), (), timeline)
    text = str(Reader(sync_table_html(run)))
    assert "a.py:1 try step_mode='speculate' print 0.5 1 unknown" in text
    assert "2 traced steps" in text


def test_no_sync_point_is_said_in_words():
    text = str(Reader(sync_table_html(run_with(5.0))))
    assert "No sync points in 10 untraced steps: the host never waited" in text
    assert "No step was measured" in sync_table_html(empty_run())


def test_many_places_are_cut_with_their_sum_said():
    points = [SyncPoint(0, 1_000_000, "item", f"a.py:{i}") for i in range(20)]
    run = Run(Settings(), (1.0,), (10_000_000,), Timeline.of([]), tuple(points))
    assert "Not shown: 8 places, together 8 ms a step." in sync_table_html(run)


def test_the_breakdown_lists_every_category_and_its_sum():
    run = make_run()
    text = str(Reader(breakdown_html(run)))
    assert '"In all" counts what is hidden' in text  # the column: "In all counts" is no sentence
    assert all(row.category in text for row in run.breakdown())
    step = sum(row.exposed_ms for row in run.breakdown())
    assert f"step {step:.3g} 100.0%" in text


def test_a_run_without_traced_steps_has_no_breakdown():
    assert "No step was traced" in breakdown_html(empty_run())


def test_unlowered_ops_are_listed_most_frequent_first():
    run = dataclasses.replace(make_run(), unlowered={"a at x.py:1": 2, "b at y.py:2": 30})
    text = str(Reader(unlowered_html(run)))
    assert text.index("b at y.py:2 30") < text.index("a at x.py:1 2")
    assert unlowered_html(make_run()) == ""


def test_the_notes_say_machine_tracing_and_clock():
    made = make_run()
    steps = made.timeline.intervals(kind="step")
    alike = tuple((steps[:, 1] - steps[:, 0]).tolist()) * 2
    text = str(Reader(run_notes_html(dataclasses.replace(made, step_times_ns=alike))))
    assert "device imaginary · kit 0.0" in text
    assert "a traced step took" in text
    assert "100% of the kernels' time is known by op and line" in text
    assert "synthetic" in text
    assert "bulk 15 forward, 15 backward" in text
    unlimited = make_run(Settings(bulk_forward=UNLIMITED))
    assert "bulk unlimited forward, 15 backward" in str(Reader(run_notes_html(unlimited)))
    assert "bulk" not in str(Reader(run_notes_html(make_run(Settings(mode="lazy")))))


def test_the_notes_of_an_empty_run_claim_nothing():
    assert "no traced step to compare with" in run_notes_html(empty_run())


def test_a_failure_shows_its_first_line_and_folds_the_traceback_away():
    html = failure_html(ValueError(f"bad {HOSTILE}\nline two"), "Traceback <b>\n")
    page = Reader(html)
    assert "ValueError bad" in str(page)
    assert "script" not in page.tags
    assert html.index("</b>") < html.index("<details")
    assert "Traceback <b>" in str(page)
    assert "details" not in failure_html(ValueError("bad"))


def test_a_failure_says_where_in_the_users_program_it_was():
    error = ValueError("bad")
    error.add_note("kit: in the workload 'mine', mode 'lazy', at train.py:25")
    assert "in the workload 'mine', mode 'lazy', at train.py:25" in str(Reader(failure_html(error)))


@pytest.mark.parametrize(("ms", "shown"), [(0.0004, "400 ns"), (0.0123, "12.3 µs"),
                                           (1.234, "1.23 ms"), (1240.4, "1.24 s"), (0, "0 ms"),
                                           (999.9, "1 s")])  # fmt: skip
def test_times_have_three_figures_and_no_exponent(ms, shown):
    assert f"step time {shown} " in str(Reader(headline_html(run_with(ms))))


def test_tables_have_a_caption_and_headings_of_rows_and_columns():
    html = breakdown_html(make_run()) + sync_table_html(make_run())
    assert html.count("<caption ") == html.count("<table ") == 2
    assert ">Step breakdown</caption>" in html
    assert ">Sync points</caption>" in html
    assert "<!--caption-->" not in html
    assert html.count('<th scope="row"') == html.count("<tr ") - 2
    assert html.count('<th scope="col"') == 4 + 5
    assert html.count("<th ") == html.count("</th>")
    assert 'role="heading" aria-level="3"' in html


def test_a_disturbed_run_has_no_cure_beside_its_sync_points():
    run = make_run()
    assert "try " in sync_table_html(run)
    busy = dataclasses.replace(run, conditions=Conditions(cores=2, others=1.3))
    assert "try " not in sync_table_html(busy)
    assert "train.py:44" in sync_table_html(busy)


@pytest.mark.parametrize(
    ("times_ms", "said"),
    [
        ((144.1, 144.2), "median of 2; all took 144 ms"),
        ((144, 160), "median of 2; they took 144 ms to 160 ms"),
        ((100.0,) * 19 + (200.0,), "median of 20; 8 in 10 took 100 ms"),
        ((100,), "one step"),
    ],
)
def test_a_spread_is_not_said_from_a_number_to_itself(times_ms: tuple[float, ...], said: str):
    times = tuple(int(x * 1e6) for x in times_ms)
    run = dataclasses.replace(make_run(), step_times_ns=times)
    assert said in str(Reader(headline_html(run)))


@pytest.mark.parametrize("least_px", [0, 400])
def test_tab_stops_at_one_row_of_a_table_that_is_a_grid_and_not_at_its_box(least_px: int):
    rows = [["a", "1"]] * 4
    line = Selection(sites=frozenset({"train.py:1"}))
    picks = enumerate([None, line, None, line], 6)
    made = table(["op", "ms"], rows, "lr", widths=(80, 20), picks=picks, least_px=least_px)
    assert re.findall(r'tabindex="(-?\d)" data-row="(\d)"', made) == [("0", "7"), ("-1", "9")]
    assert made.count("tabindex") == 2
    assert made.count('<table role="grid"') == 1
    plain = table(["op", "ms"], rows, "lr", widths=(80, 20), least_px=least_px)
    assert plain.count("tabindex") == plain.count('tabindex="0"') == (least_px > 0)  # to scroll
    assert "grid" not in plain
