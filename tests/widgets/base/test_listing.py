"""Rows that can be picked, and one selection in all views."""

from __future__ import annotations

import re

import pytest

from kit.runs.run import Run
from kit.widgets.base.listing import Listing
from kit.widgets.base.selection import NOTHING, Links, Selection
from kit.widgets.base.tables import row_attributes
from kit.widgets.explorer.linked import (
    SelectionBar,
    link_selections,
    selection_text,
)
from kit.widgets.memory.tables import memory_drawn
from kit.widgets.numbers.kernels import KernelView, kernels_drawn
from kit.widgets.numbers.source import SourceView
from kit.widgets.numbers.syncs import syncs_drawn
from kit.widgets.views import VIEWS
from tests.factories import HOSTILE, make_run

RUN = make_run()


def kernel_picks(run: Run) -> list[Selection]:
    return kernels_drawn(run)[1]


def view_of(key: str) -> Listing:
    """A live view of the table, without a run."""
    return next(row for row in VIEWS if row.key == key).widget(lambda change: None)


def pick(view: Listing, row: int, times: int = 1) -> None:
    """As the page's script does: the row's number, a count that makes each pick a change, and which
    drawing it is a row of."""
    for _ in range(times):
        pick.count += 1  # type: ignore[attr-defined]
        drawing = view.value.split('data-drawing="')[1].split('"')[0]
        view._field.value = f"{row} {pick.count} {drawing}"  # type: ignore[attr-defined]


pick.count = 0  # type: ignore[attr-defined]


def test_a_row_of_the_sync_table_stands_for_its_line_and_what_it_recorded():
    view = view_of("syncs")
    view.run = RUN
    pick(view, 0)
    (site,) = view.selection.sites
    assert site == syncs_drawn(RUN)[1][0].label
    assert view.selection == Links(RUN).of_site(site)


def test_a_row_of_the_kernel_table_stands_for_the_nodes_of_the_kernel():
    view = KernelView(RUN)
    pick(view, 1)
    assert view.selection == kernel_picks(RUN)[1]
    assert view.selection.nodes


def test_the_same_row_again_picks_nothing():
    view = KernelView(RUN)
    pick(view, 0, times=2)
    assert view.selection == NOTHING


def test_each_copy_of_a_listing_counts_its_picks_by_the_clock():
    view = KernelView(RUN)
    drawing = view.value.split('data-drawing="')[1].split('"')[0]
    view._field.value = f"0 1764000000000 {drawing}"
    assert view.selection == kernel_picks(RUN)[0]
    assert "Date.now()" in view.value


@pytest.mark.parametrize(
    "message", ["", "x", "-1 1 1", "999999 1 1", "0", "0 1", "9" * 20 + " 1 1", "0 1 <b>", "0 1 1"]
)
def test_what_a_page_makes_up_picks_nothing_or_a_row_that_is_there(message: str):
    view = KernelView(RUN)
    view._field.value = message
    assert view.selection in (NOTHING, kernel_picks(RUN)[0])


def test_another_run_forgets_what_was_picked():
    view = KernelView(RUN)
    pick(view, 0)
    view.run = make_run(seed=1)
    assert view.selection == NOTHING


def test_a_row_that_was_picked_in_the_table_before_picks_none_of_this_one():
    view = KernelView(RUN)
    view.run = make_run(seed=1)  # while a cell runs, the page's messages wait
    view._field.value = "1 1 1"
    assert view.selection == NOTHING
    view._field.value = "1 2 2"
    assert view.selection == kernel_picks(make_run(seed=1))[1]


def test_a_selection_of_another_view_marks_the_rows_that_share_a_node_or_a_line():
    view = KernelView(RUN)
    picks = kernel_picks(RUN)
    view.selection = Selection(nodes=frozenset(picks[2].nodes))
    marked = {int(i) for i in re.findall(r"data-row='(\d+)'", view._marks.value)}
    assert marked == {i for i, p in enumerate(picks) if p.nodes & picks[2].nodes}
    view.selection = NOTHING
    assert view._marks.value == ""


def test_linked_views_have_one_selection_whoever_picks():
    views = [KernelView(RUN), view_of("syncs"), SourceView(RUN)]
    views[1].run = RUN
    link_selections(views)
    pick(views[0], 0)
    assert {view.selection for view in views} == {kernel_picks(RUN)[0]}
    pick(views[1], 0)
    assert {view.selection for view in views} == {syncs_drawn(RUN)[1][0]}
    pick(views[1], 0)
    assert {view.selection for view in views} == {NOTHING}


def test_the_bar_says_what_is_picked_and_lets_go_of_it():
    views = [KernelView(RUN), SourceView(RUN)]
    link_selections(views)
    bar = SelectionBar(views)
    assert bar.layout.display == "none"
    pick(views[0], 0)
    assert "kernel" in bar.text.value
    assert bar.layout.display == ""
    bar.clear.click()
    assert {view.selection for view in views} == {NOTHING}
    assert bar.layout.display == "none"


@pytest.mark.parametrize(
    ("picked", "text"),
    [
        (NOTHING, ""),
        (Selection(frozenset({1}), frozenset({"a.py:1"}), "a.py:1"), "1 op at a.py:1"),
        (
            Selection(frozenset({1, 2}), frozenset({"a.py:1", "b.py:2"}), "kernel k"),
            "kernel k: 2 ops on 2 lines",
        ),
        (Selection(frozenset(), frozenset({"a.py:1"}), "a.py:1"), "no ops at a.py:1"),
    ],
)
def test_a_selection_in_words(picked: Selection, text: str):
    assert selection_text(picked) == text


def test_hostile_text_stays_in_its_attribute():
    html = row_attributes(0, Selection(frozenset({1, 2, 3, 9}), frozenset({HOSTILE}), HOSTILE))
    assert 'data-nodes="1-3,9"' in html
    assert html.count('"') == 8  # of four attributes
    assert "<" not in html


def test_a_table_that_cannot_be_made_says_so():
    def fail(run: object) -> tuple[str, list[Selection]]:
        raise ValueError("<b>no</b>")

    view = Listing("a table", fail, RUN)
    assert "&lt;b&gt;no" in view.html.value


def test_a_row_of_the_memory_table_stands_for_what_holds_or_writes_it():
    view = view_of("memory")
    view.run = RUN
    rows = [int(i) for i in re.findall(r'data-row="(\d+)"', view.value)]
    assert len(rows) == len({*rows}) > 1
    for row in rows:
        pick(view, row)
        assert view.selection == memory_drawn(RUN)[1][row]
        assert view.selection.nodes
        pick(view, row)
