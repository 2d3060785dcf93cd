"""What `choose` chooses among settings that were measured, and how `Tuned` says so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kit.measure.search.tuned import Tuned, choose
from kit.runs.change import error_of
from kit.runs.conditions import Conditions
from kit.runs.knob import OwnKnob
from kit.runs.settings import Settings
from tests.measure.search.test_autotune import trial


def test_of_two_that_are_equally_fast_the_simpler_one_is_chosen():
    start = trial(Settings(), [[9.0] * 4] * 2)
    one = trial(Settings(mode="lazy"), [[5.0, 5.1, 5.0, 5.1]] * 2)
    two = trial(Settings(mode="lazy", prefetch=2), [[4.99, 5.09, 4.99, 5.09]] * 2)
    many = trial(Settings(bulk_forward=5, bulk_backward=5), [[4.9, 5.2, 4.9, 5.2]] * 2, compiles=9)
    for order in ([start, one, two, many], [many, two, one, start]):
        assert choose(order, start) is one


def test_an_erratic_setting_is_not_chosen_because_it_cannot_be_told_from_the_fastest():
    start = trial(Settings(), [[10.0, 10.1]] * 3)
    fastest = trial(Settings(mode="lazy", prefetch=2), [[8.0, 8.1]] * 3)
    erratic = trial(Settings(mode="lazy"), [[7.0, 7.2], [12.0, 12.2], [16.0, 16.3]])
    assert erratic.since(fastest).kind == "unclear"
    assert choose([start, fastest, erratic], start) is fastest


def test_a_setting_whose_mean_step_is_slower_is_not_chosen_for_its_median():
    """Each fifth step took twelve times as long: "1.09x as fast as what you gave"."""
    start = trial(Settings(), [[12.0, 12.1, 12.0, 11.9, 12.0]] * 3)
    stalls = trial(Settings(mode="lazy"), [[9.0, 9.1, 9.0, 8.9, 130.0]] * 3)
    steady = trial(Settings(mode="lazy", prefetch=2), [[10.0, 10.1, 10.0, 9.9, 10.0]] * 3)
    assert choose([start, stalls], start) is start
    assert choose([start, stalls, steady], start) is steady
    said = Tuned.of(start, start, [start, stalls], budget_s=10, spent_s=3).summary()
    assert "mode lazy: maybe 25% ± 2% faster, but the mean: 177% ± 47% slower" in said


def test_what_is_kept_is_not_called_faster_than_what_may_be_faster():
    """It said "no other is faster beyond the spread, ± 0.16 ms"; one was 0.83 ms faster."""
    start = trial(Settings(), [[9.99, 10.0]] * 3)
    other = trial(Settings(mode="lazy"), [[8.6, 8.7], [9.1, 9.2], [9.8, 9.9]])
    assert choose([start, other], start) is start
    said = Tuned.of(start, start, [start, other], budget_s=10, spent_s=3).summary()
    assert "none is surely faster; the next is mode lazy: maybe 8% ± " in said


def test_staying_with_the_start_is_said_with_the_spread():
    start = trial(Settings(), [[5.0] * 4, [5.3] * 4])
    tuned = Tuned.of(start, start, [start, trial(Settings(prefetch=2), [[4.9] * 4])],
                     budget_s=1, spent_s=1, left_out=["prefetch", "prefetch"])  # fmt: skip
    assert tuned.summary().startswith(
        "What you gave is kept: 5.15 ms a step. Of 1 other setting none is surely faster; the next "
        f"is prefetch 2: {tuned.tried[0]['change'].text()}."
    )
    assert 0.1 < start.spread_ms < 1.1
    known = error_of(start.step_ms, start.runs)  # how far off the median is, not a further rerun
    assert start.spread_ms == pytest.approx(known.spread * start.step_ms, rel=0.01)
    assert tuned.left_out == ("prefetch",)


def test_what_is_faster_on_a_busy_machine_is_so_perhaps():
    """A budget without time for turns said "2x as fast, 50% ± 4% faster", whatever else ran."""
    start, best = trial(Settings(), [[10.0] * 9]), trial(Settings(mode="lazy"), [[5.0] * 9])
    busy = Conditions(cores=2, others=1.8)
    for each in (start, best):
        each.runs[:] = [replace(run, conditions=busy) for run in each.runs]
    assert choose([start, best], start) is best
    said = Tuned.of(best, start, [start, best], budget_s=10, spent_s=3).summary()
    assert said.startswith("mode lazy: maybe 2x as fast as what you gave (5 ms a step instead of ")
    assert "faster: measured on a busy machine: others used 1.8 of 2 cores); " in said


def test_times_have_the_unit_that_reads_best():
    start, best = (
        trial(Settings(), [[4700.0] * 4] * 3),
        trial(Settings(mode="lazy"), [[0.9] * 4] * 3),
    )
    for best_, first in ((best, start), (start, start)):
        said = Tuned.of(best_, first, [start, best], budget_s=10, spent_s=3).summary()
        assert ("900 µs a step instead of 4.7 s" in said) == (best_ is best)
        assert "4.7 s" in said


@pytest.mark.parametrize(("ms", "compiles"), [(9.9, 9), (10.1, 1)], ids=["faster", "compiles less"])
def test_what_may_be_as_fast_is_not_said_to_pay_a_compile_back_or_never_to(
    ms: float, compiles: int
):
    """1 % within the spread was "paid back after 800 steps", or "never"."""
    start = trial(Settings(), [[10.0, 10.6, 9.4]] * 3, compiles=5)
    other = trial(Settings(mode="lazy"), [[ms, ms + 0.6, ms - 0.6]] * 3, compiles=compiles)
    assert not other.since(start).is_changed
    tuned = Tuned.of(start, start, [start, other], budget_s=10, spent_s=3)
    (after,) = (row["pays_off_after"] for row in tuned.tried if not row["is_start"])
    assert math.isnan(after)


def test_a_value_with_a_plus_is_one_change():
    """Two were counted, and a simpler setting was chosen in its place."""
    norms = ("batch", "batch + layer")
    start, other = (
        Settings(own=(OwnKnob("norm", x, values=norms, default="batch", where="mine (a.py:3)"),))
        for x in norms
    )
    changed = trial(other, [[5.0]], start=start)
    assert (changed.words, changed.changes) == ("norm batch + layer", 1)
