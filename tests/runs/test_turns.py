"""Several runs of each side make a change surer where they took turns, and only there."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from kit.runs.change import SHORT_MS, by_turns, doubt_of, error_of, step_interval, steps_difference
from kit.runs.conditions import Conditions
from kit.runs.labels import TIME
from kit.runs.run import Run
from kit.runs.spread import _median_loss
from tests.factories import make_run
from tests.runs.ratios import ratio_of

STILL = make_run()


def measured_at(run: Run, *seconds: int) -> list[Run]:
    """Runs like this one, which ended in these seconds."""
    return [replace(run, environment={TIME: f"2026-01-01 00:00:{s:02} UTC"}) for s in seconds]


def test_runs_of_two_folders_that_took_no_turns_are_no_surer_for_being_many() -> None:
    """All of one side may be of a slow hour; so the doubt stays, and what a rerun differs by."""
    still = make_run()
    slow = replace(still, step_times_ns=tuple(round(1.06 * t) for t in still.step_times_ns))
    busy = replace(slow, conditions=Conditions(cores=2, others=1.3))
    one = steps_difference(measured_at(still, 1), measured_at(slow, 2))
    apart = steps_difference(measured_at(still, 1, 2, 3), measured_at(slow, 4, 5, 6))
    turns = steps_difference(measured_at(still, 1, 3, 5), measured_at(slow, 2, 4, 6))
    assert turns.spread < 0.7 * one.spread
    assert 0.7 * one.spread < apart.spread <= one.spread
    apart = steps_difference(measured_at(still, 1, 2, 3), measured_at(busy, 4, 5, 6))
    assert (apart.kind, apart.doubt) == ("unclear", doubt_of(busy))


@pytest.mark.parametrize(
    ("old", "new", "are_turns"),
    [
        ("135", "246", True),
        ("145", "236", True),  # the other one begins, each second time
        ("123", "456", False),
        ("126", "345", False),
        ("111", "111", True),  # within one second
        ("112", "223", True),
        ("1", "2", True),
        ("12", "34", False),
    ],
)
def test_sides_take_turns_where_they_change_as_often_as_there_are_runs(
    old: str, new: str, are_turns: bool
) -> None:
    assert by_turns(old, new) == are_turns
    assert not by_turns([*old, ""], [*new])


def rerun(rng: np.random.Generator, sd: float) -> Run:
    """A run whose speed differs by `sd` from that of others, and is steady in itself."""
    steps = 10e6 * math.exp(rng.normal(0, sd)) * np.exp(rng.normal(0, 0.01, 40))
    return replace(STILL, step_times_ns=tuple(map(round, steps)))


@pytest.mark.parametrize(("repeats", "sd"), [(1, 0.014), (3, 0.014), (9, 0.014), (9, 0.03)])
def test_the_interval_of_reruns_holds_nearly_all_reruns_also_of_many_repeats(
    repeats: int, sd: float
) -> None:
    rng, held = np.random.default_rng(1), 0
    for _ in range(100):
        low, high = step_interval(*(rerun(rng, sd) for _ in range(repeats)))
        held += low <= rerun(rng, sd).step_ms <= high
    assert held >= 92


@pytest.mark.parametrize(("repeats", "sd"), [(3, 0.1), (9, 0.03)])
def test_turns_of_runs_alike_are_called_changed_at_most_five_times_of_a_hundred(
    repeats: int, sd: float
) -> None:
    """The median of nine runs is off by a fifth more than their mean, and was called as sure."""
    rng, changed = np.random.default_rng(4), 0
    for _ in range(200):
        sides = ([replace(rerun(rng, sd), environment=at.environment) for at in turns]
                 for turns in both_sides(repeats))  # fmt: skip
        changed += steps_difference(*sides).is_changed
    assert changed <= 10


def test_runs_apart_whose_speeds_differ_are_called_changed_as_seldom() -> None:
    rng, changed = np.random.default_rng(6), 0
    for _ in range(200):
        sides = ([replace(rerun(rng, 0.1), environment=at.environment) for at in apart]
                 for apart in (measured_at(make_run(), *range(9)),
                               measured_at(make_run(), *range(9, 18))))  # fmt: skip
        changed += steps_difference(*sides).is_changed
    assert changed <= 16  # 5 of 100, and two standard deviations; 23 as if it were a mean


def test_a_median_is_less_sure_than_a_mean_by_what_draws_show() -> None:
    draws = np.random.default_rng(7).normal(size=(40_000, 10))
    for count in range(1, 11):
        seen = count * np.median(draws[:, :count], axis=1).var()
        assert _median_loss(count) == pytest.approx(seen, rel=0.03)


def test_turns_of_short_runs_show_what_reruns_differ_by_and_it_is_not_assumed() -> None:
    rng = np.random.default_rng(5)
    old, new = ([short(replace(rerun(rng, 0.01), environment=at.environment)) for at in turns]
                for turns in both_sides(3))  # fmt: skip
    assert sum(old[0].step_times_ns) < SHORT_MS * 1e6
    assert steps_difference(old, [times(run, 1.1) for run in new]).kind == "more"
    assert steps_difference(old, new).kind == "same"
    apart = measured_at(new[0], 10, 11, 12)  # no turns: all may be of another phase
    assert steps_difference(old, [times(run, 1.1) for run in apart]).kind == "unclear"


def test_a_model_is_compared_with_the_median_of_repeats_which_is_surer_than_a_rerun() -> None:
    rng = np.random.default_rng(2)
    runs = [rerun(rng, 0.014) for _ in range(9)]
    low, high = step_interval(*runs)
    assert (high - low) / low > 2 * error_of(10.0, runs).spread


def rounds(rng: np.random.Generator, sides: int, sd: float) -> list[list[Run]]:
    """Two runs of each side, by turns, of ten steps whose times differ by a tenth."""
    found: list[list[Run]] = [[] for _ in range(sides)]
    for second in range(2 * sides):
        [at] = measured_at(rerun(rng, sd), second)
        steps = (t * math.exp(rng.normal(0, 0.1)) for t in at.step_times_ns[:10])
        found[second % sides].append(replace(at, step_times_ns=tuple(map(round, steps))))
    return found


def test_two_rounds_of_several_settings_say_together_what_reruns_differ_by() -> None:
    """Of two runs each the half of an interval was 26 %, for one degree of freedom a side."""
    rng = np.random.default_rng(8)
    changed, found, alone = 0, 0, 0
    for _ in range(100):
        a, b, *beside = rounds(rng, 5, 0.01)
        changed += steps_difference(a, b, beside=beside).is_changed
        slower = [times(run, 1.2) for run in b]
        found += steps_difference(a, slower, beside=beside).kind == "more"
        alone += steps_difference(a, slower).kind == "more"
    assert changed <= 5
    assert found >= 80 > 40 > alone


@pytest.mark.parametrize("sides", [4, 8])
def test_two_rounds_of_settings_alike_are_called_changed_at_most_five_times_of_a_hundred(
    sides: int,
) -> None:
    """What all differ by counts once: as four estimates it was too sure, 10 of 100."""
    rng = np.random.default_rng(10)
    changed = 0
    for _ in range(200):
        a, b, *beside = rounds(rng, sides, 0.1)
        changed += steps_difference(a, b, beside=beside).is_changed
    assert changed <= 12  # 4 to 5 of 100, and a standard deviation


def test_what_others_differ_by_counts_only_where_they_took_turns() -> None:
    a, b, *beside = rounds(np.random.default_rng(9), 5, 0.01)
    later = [measured_at(run, 50 + i)[0] for i, side in enumerate(beside) for run in side]
    apart = steps_difference(a, b, beside=[later[:2], later[2:4], later[4:]])
    assert apart == steps_difference(a, b)
    assert steps_difference(a, b, beside=beside).spread < apart.spread


def test_two_runs_of_a_side_that_disagree_say_how_much_reruns_differ() -> None:
    rng = np.random.default_rng(3)
    old, new = ([replace(rerun(rng, 0), environment=at.environment) for at in
                 measured_at(make_run(), *seconds)] for seconds in ((1, 3), (2, 4)))  # fmt: skip
    assert steps_difference(old, [times(run, 1.22) for run in new]).kind == "more"
    wild = [times(old[0], 1.0), times(old[1], 1.2)], [times(new[0], 1.26), times(new[1], 1.44)]
    assert steps_difference(*wild).kind == "unclear"


def test_two_runs_that_disagree_a_little_more_than_is_assumed_are_a_little_less_sure() -> None:
    """The interval leapt from 7 to 70 % where their difference passed what is assumed."""
    still = make_run()
    widths = []
    for other in np.exp(np.linspace(0, 0.06, 61)):
        low, high = step_interval(*measured_at(still, 1), *measured_at(times(still, other), 3))
        widths.append(math.log(high / low))
    assert min(np.diff(widths)) > -1e-6
    assert max(np.diff(widths)) < 0.5 * widths[0]
    assert widths[-1] > 4 * widths[0]


def test_the_spread_of_single_steps_is_not_known_from_two_runs_of_them() -> None:
    single = replace(make_run(), step_times_ns=(100_000_000,))
    sides = ([times(run, 1 + i / 1e4) for i, run in enumerate(measured_at(single, *seconds))]
             for seconds in ((1, 3), (2, 4)))  # fmt: skip
    old, new = sides
    found = steps_difference(old, [times(run, 1.01) for run in new])
    assert found.text().endswith("too few steps to know the spread")


def both_sides(repeats: int) -> tuple[list[Run], ...]:
    """Runs of two sides that took turns."""
    first = make_run()
    sides = (range(side, 2 * repeats, 2) for side in (0, 1))
    return tuple(measured_at(first, *seconds) for seconds in sides)


def short(run: Run) -> Run:
    """The run without most of its steps."""
    return replace(run, step_times_ns=run.step_times_ns[:12])


def times(run: Run, factor: float) -> Run:
    """The run with steps that took so many times as long."""
    return replace(run, step_times_ns=tuple(round(factor * t) for t in run.step_times_ns))


def test_the_numbers_of_long_runs_are_not_kept_to_know_them_again() -> None:
    """Of each comparison some megabytes stayed, up to a thousand times."""
    rng = np.random.default_rng(0)
    tracemalloc.start()
    try:
        for _ in range(3):
            ratio_of([rng.normal(10, 1, 100_000)], [rng.normal(10, 1, 100_000)])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20
