"""Runs that were measured several times by turns: one number for each, in every form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.runs.change import median_run, within_text
from kit.text import format_ms
from kit.widgets.base.tables import amount
from kit.widgets.compare.data import comparison_rows, fastest_text
from kit.widgets.compare.view import comparison_text
from tests.factories import timed
from tests.runs.test_turns import measured_at
from tests.widgets.compare.drawn import columns_of


def test_repeats_make_a_small_change_sure():
    one, other = (timed(x, 1.03 * x, 0.97 * x) for x in (10.0, 9.5))
    old, new = measured_at(one, 1, 3, 5, 7, 9, 11), measured_at(other, 2, 4, 6, 8, 10, 12)
    alone = comparison_rows([old[0], new[0]])
    many = comparison_rows([old[0], new[0]], repeats=[old, new])
    assert alone[1].change.kind != "less"
    assert many[1].change.kind == "less"


@settings(max_examples=20)
@given(
    st.lists(st.lists(st.integers(500, 2000), min_size=2, max_size=4), min_size=4, max_size=4),
    st.sampled_from([1, 2, 4]),
)
def test_table_sentence_and_titles_tell_one_number_whatever_the_repeats(
    times: list[list[int]], count: int
):
    old, new = (
        [timed(*(factor * t / 100 for t in run)) for run in times[:count]] for factor in (3, 1)
    )
    runs, every = [median_run(old), median_run(new)], [old, new]
    rows = comparison_rows(runs, repeats=every)
    change = rows[1].change
    assert change is not None
    assert (rows[0].step_ms, rows[1].step_ms) == (change.old, change.new)
    assert rows[1].ratio == pytest.approx(1 + change.amount)
    assert all(row.step_low_ms <= row.step_high_ms for row in rows)
    said = comparison_text(comparison_rows(runs, repeats=every))
    assert f"\n2 {amount(change.new)} (" in re.sub(" +", " ", said)
    titles = " ".join(columns_of(runs, repeats=every)["titles"]["text"])
    assert f"{format_ms(change.new)} a step" in titles
    assert within_text(*new, before="reruns: ") in " ".join(titles.split())
    assert amount(change.new) in fastest_text(rows)
