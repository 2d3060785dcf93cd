"""The HTML of a run is well formed, and nothing of a stranger's text in it is live."""

from __future__ import annotations

import re

import pytest

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.widgets.base.cards import headline_html
from kit.widgets.base.selection import Selection
from kit.widgets.base.tables import table
from kit.widgets.numbers.step import breakdown_html, run_notes_html
from kit.widgets.numbers.syncs import syncs_drawn, unlowered_html
from tests.factories import empty_run, make_run, one_span_run
from tests.widgets.read import Reader


def syncs_html(run: Run) -> str:
    return syncs_drawn(run)[0]


TABLES = (headline_html, syncs_html, breakdown_html, unlowered_html, run_notes_html)
TAGS = {"div", "span", "b", "table", "caption", "thead", "tbody", "colgroup", "col", "tr", "th",
        "td", "details", "summary", "pre"}  # fmt: skip


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


def test_tables_have_a_caption_and_headings_of_rows_and_columns():
    html = breakdown_html(make_run()) + syncs_html(make_run())
    assert html.count("<caption ") == html.count("<table ") == 2
    assert ">Step breakdown</caption>" in html
    assert ">Sync points</caption>" in html
    assert "<!--caption-->" not in html
    assert html.count('<th scope="row"') == html.count("<tr ") - 2
    assert html.count('<th scope="col"') == 4 + 5
    assert html.count("<th ") == html.count("</th>")
    assert 'role="heading" aria-level="3"' in html


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
