"""The source view: a line, its three costs and its wait; picked here, marked from elsewhere."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from kit.runs.analysis.lines import line_costs
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.sources import Snippet
from kit.widgets.base.selection import NOTHING, Links, Selection
from kit.widgets.numbers.excerpt import Piece, code_html, listing
from kit.widgets.numbers.source import SourceView, source_html
from tests.factories import HOSTILE, empty_run, make_run, one_span_run

LINES = tuple(f"line_{i}()" for i in range(1, 61))


def run_with_text(**options: object) -> Run:
    run = make_run(**options)
    return replace(run, sources=(Snippet("train.py", 1, LINES),))


def rows_of(text: str) -> dict[str, str]:
    """site -> the HTML of its line."""
    found = re.findall(r'data-site="([^"]*)"(.*?)(?=<div|<details|</details|$)', text, re.DOTALL)
    return dict(found)


def test_a_line_has_its_text_its_costs_and_its_sync_point():
    run = run_with_text()
    rows = rows_of(source_html(run))
    costs = {row.site: row for row in line_costs(run)}
    assert set(rows) == set(costs) - {""}
    assert "line_11()" in rows["train.py:11"]
    assert f">{costs['train.py:11'].recording_ms:.3g}<" in rows["train.py:11"]
    assert "sync point, once a step: waits" in rows["train.py:44"]
    cause = "item through torch/amp/grad_scaler.py:371"
    assert cause in rows["train.py:44"].replace("<wbr>", "")
    assert "sync point" not in rows["train.py:11"]


def test_the_dearest_line_of_each_kind_is_said_first():
    run = run_with_text()
    rows = [row for row in line_costs(run) if row.site]
    device = max(rows, key=lambda row: row.device_ms).site
    said = re.sub("<[^>]*>", "", source_html(run).split('kit-source-lines"')[0])
    assert "train.py:44 waits most" in said
    assert f"{device} has most of the device" in said


def test_each_line_carries_the_nodes_that_a_page_needs_to_pick_it():
    run = run_with_text()
    links, shown = Links(run), source_html(run)
    for row in line_costs(run):
        if row.site:
            (text,) = re.findall(rf'data-site="{row.site}" data-nodes="([\d,-]*)"', shown)
            pairs = [[int(x) for x in part.split("-")] for part in text.split(",") if part]
            nodes = {i for p in pairs for i in range(p[0], p[-1] + 1)}
            assert nodes == links.of_site(row.site).nodes
            assert set(row.nodes) <= nodes


def test_lines_without_cost_are_folded_but_for_those_next_to_one_with_a_cost():
    pieces = list(listing("train.py", {5: 0, 30: 1}, (Snippet("train.py", 1, LINES),)))
    shown = [(p.lines[0][0], p.lines[-1][0], p.is_folded) for p in pieces if isinstance(p, Piece)]
    assert shown == [(1, 4, False), (5, 5, False), (6, 7, False), (8, 27, True), (28, 29, False),
                     (30, 30, False), (31, 32, False), (33, 60, True)]  # fmt: skip
    text = source_html(run_with_text())
    assert "lines without cost" in text
    assert text.count("<details>") == text.count("</details>") > 0


def test_lines_are_shown_without_the_indentation_that_all_of_them_have():
    snippets = (Snippet("a.py", 1, ("    if x:", "        y", "")), Snippet("b.py", 1, (" z",)))
    pieces = [piece for piece in listing("a.py", {1: 0}, snippets) if isinstance(piece, Piece)]
    assert [line for piece in pieces for line in piece.lines] == [(1, "if x:"), (2, "    y")]


def test_a_run_without_text_shows_its_lines_all_the_same():
    text = source_html(make_run())
    assert "train.py" in text
    assert "its text was not kept" in text


@pytest.mark.parametrize("run", [empty_run(), one_span_run(), make_run(kernels=0, syncs=0)])
def test_little_is_shown_of_runs_of_which_little_is_known(run: Run):
    assert "Source lines" in source_html(run)


def test_where_nothing_is_known_by_line_it_says_so_instead_of_showing_lines_without_cost():
    run = replace(empty_run(), settings=Settings(mode="torch"), sources=run_with_text().sources)
    text = source_html(run)
    assert "What each line costs is not known: mode 'torch' does not record ops." in text
    assert "line_11()" not in text


def test_native_torch_shows_the_step_and_where_it_waits():
    text = source_html(run_with_text(settings=Settings(mode="torch")))
    assert set(rows_of(text)) == {"train.py:44"}
    assert "Recording: not known by line" in text


def test_a_strangers_text_stays_text():
    snippets = (
        Snippet("train.py" + HOSTILE, 1, (HOSTILE,) * 3),
        Snippet("<b>.py", 1, ("'\"><script>",)),
    )
    run = replace(make_run(hostile=True), sources=snippets)
    for text in (source_html(run), SourceView(run).html.value):
        assert "<script" not in text
        assert "<img" not in text
        assert "\x1b" not in text
        text.encode()  # no lone surrogates


def test_code_is_coloured_and_says_what_it_said():
    for code in (
        'def f(x):  # "no string"',
        "s = 'a # b' + f\"{x}\"",
        "x = 1 if y else '",
        "\tif 1:",
    ):
        shown = code_html(code)
        assert unescape(re.sub(r"<[^>]*>", "", shown)) == code.expandtabs(4)
    assert '<b class="kit-k">def</b>' in code_html("def f(): pass")
    assert "kit-k" not in code_html("'def'")


def test_a_picked_line_becomes_the_selection_and_again_nothing():
    run = run_with_text()
    view = SourceView(run)
    at = next(i for i, row in enumerate(line_costs(run)) if row.site == "train.py:12")
    view._field.value = f"{at} 1 1"
    assert view.selection == Links(run).of_site("train.py:12")
    assert f"[data-row='{at}']" in view._marks.value
    view._field.value = f"{at} 2 1"
    assert view.selection == NOTHING
    assert view._marks.value == ""


@pytest.mark.parametrize("said", ["", "x", "999 1 1", "-1 1 1", "1", "9" * 20 + " 1 1", "\x00 1 1"])
def test_what_is_no_line_picks_nothing(said: str):
    view = SourceView(run_with_text())
    view._field.value = said
    assert view.selection == NOTHING


def test_what_is_picked_elsewhere_is_marked_without_drawing_the_lines_again():
    run = run_with_text()
    view = SourceView(run)
    drawn: list[object] = []
    view.html.observe(drawn.append, "value")
    view.selection = Links(run).of_nodes(run.segments[0].nodes)
    marked = {int(i) for i in re.findall(r"data-row='(\d+)'", view._marks.value)}
    rows = line_costs(run)
    assert {rows[i].site for i in marked} == view.selection.sites
    view.selection = Selection(sites=frozenset({"other.py:1"}))
    assert view._marks.value == ""
    assert drawn == []


def test_a_new_run_is_drawn_and_the_selection_is_gone():
    view = SourceView(run_with_text())
    view.selection = Links(view.run).of_site("train.py:12")
    view.run = make_run()
    assert view.selection == NOTHING
    assert "its text was not kept" in view.html.value
    view.run = None
    assert view.html.value == ""


def test_without_a_kernel_the_lines_are_a_page_of_their_own():
    page = SourceView(run_with_text()).page()
    assert "line_11()" in page
    assert "sync point, once a step" in page
