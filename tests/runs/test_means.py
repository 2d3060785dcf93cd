"""Where the mean step contradicts the median one, both are told; and a margin denies no verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kit.runs.analysis.diff import diff_runs
from kit.runs.analysis.headline import headline_differences
from kit.runs.analysis.sentence import change_sentence
from kit.runs.change import Difference, StepTimes, step_difference, steps_difference
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.widgets.base.change import change_html
from kit.widgets.compare.data import comparison_rows
from kit.widgets.compare.view import comparison_html, comparison_text
from tests.factories import make_run
from tests.runs.ratios import ratio_of
from tests.runs.test_turns import measured_at


def stepping(*ms: float, times: int = 50) -> Run:
    """A run whose steps took these times, again and again."""
    return replace(make_run(), step_times_ns=tuple(round(1e6 * t) for t in ms) * times)


STILL = stepping(1.0, 1.01, 0.99, 1.0, 1.0)
STALLS = stepping(1.0, 1.01, 0.99, 1.0, 11.0)  # three times as long in all


def test_no_change_is_not_said_where_the_mean_step_got_slower() -> None:
    found = step_difference(STILL, STALLS)
    assert (found.kind, round(found.amount, 2)) == ("unclear", 0.0)
    assert found.text().startswith("no change seen (± 4%), but the mean: 200% ± ")
    assert found.text().endswith("% slower")
    assert found.times_text().startswith("maybe 1x ± 4%, but the mean: 3x ± ")
    assert "but the mean: 200% ± " in change_html(found)
    assert StepTimes([STILL, STALLS]).difference(0, 1).text() == found.text()
    assert found.text() in change_sentence(headline_differences(STILL, STALLS))
    assert found.text() in diff_runs(STILL, STALLS).text()
    assert "(its mean step: 200% ± " in comparison_text(comparison_rows([STILL, STALLS]))
    wide = stepping(*[1.0, 1.01, 0.99, 1.0] * 9, 90.0, times=2)  # told by the ratio's ends
    assert "times)</div>" in comparison_html(comparison_rows([STILL, wide]))


def test_what_casts_doubt_on_the_median_does_so_on_the_mean() -> None:
    busy = replace(STALLS, conditions=Conditions(cores=2, others=1.5))
    found = step_difference(STILL, busy)
    assert ", but the mean: maybe 200% ± " in found.text()
    assert found.text().count(found.doubt) == 1
    assert ", but the mean: maybe 3x ± " in found.times_text()
    assert "but the mean: maybe 200% ± " in change_html(found)
    assert "but the mean: maybe 200% ± " in comparison_text(comparison_rows([STILL, busy]))


def test_of_median_and_mean_either_is_enough_to_be_slower() -> None:
    assert diff_runs(STILL, STALLS).slower_than(0.05)
    assert not diff_runs(STALLS, STILL).slower_than(0.0)
    once = replace(STILL, step_times_ns=(*STILL.step_times_ns[:-1], 90_000_000))  # one slow step
    assert step_difference(STILL, once).kind == "unclear"
    assert not diff_runs(STILL, once).slower_than(0.05)  # which proves nothing
    busy = replace(STALLS, conditions=Conditions(cores=2, others=1.5))
    assert not diff_runs(STILL, busy).slower_than(0.05)


def test_a_median_that_the_mean_bears_out_is_a_change() -> None:
    slower = stepping(1.5, 1.51, 1.49, 1.5, 20.0)
    assert step_difference(STILL, slower).text().startswith("50% ± ")
    faster = stepping(0.8, 0.81, 0.79, 0.8, 5.0)  # each step but the fifth, and slower in all
    assert step_difference(STILL, faster).text().startswith("maybe 20% ± 3% faster, but the mean: ")


@pytest.mark.parametrize("repeats", [2, 3])
def test_one_of_several_runs_that_was_hit_does_not_speak_for_all(repeats: int) -> None:
    old = measured_at(STILL, *range(0, 2 * repeats, 2))
    new = measured_at(STALLS, *range(1, 2 * repeats, 2))
    assert steps_difference(old, new).means is not None
    hit = [*measured_at(STILL, *range(1, 2 * repeats - 2, 2)), new[-1]]
    assert (steps_difference(old, hit).means is None) == (repeats == 3)


@pytest.mark.parametrize("factor", [1.039, 1.04, 1.041, 0.961, 0.962])
def test_amount_and_margin_never_read_alike_where_one_is_larger(factor: float) -> None:
    """`4% ± 4% slower`, a change, and `+4% ± 4%`, none."""
    old: Sequence[float] = [10.0, 10.01, 9.99, 10.0, 10.02, 9.98] * 8
    found = ratio_of([old], [[factor * t for t in old]])
    assert "4% ± 4%" not in found.text() or found.amount < 0  # there the larger is the amount
    if found.is_changed:
        assert "4% ± 4%" not in found.text()
        assert "(1 to" not in found.text()


def test_the_ends_of_a_change_are_never_one() -> None:
    assert Difference(10.0, 10.4, 1.0004, 1.0818).text() == "4.0% slower (1.0004 to 1.08 times)"
    assert Difference(10.0, 10.41, 1.001, 1.0802).text() == "4.1% ± 4.0% slower"
    assert Difference(10.0, 10.4, 0.9995, 1.0818).text() == (
        "no change beyond the spread (+4.0% ± 4.1%)"
    )
    assert "+4.1% worse" in change_html(Difference(10.0, 10.41, 1.001, 1.0802))
