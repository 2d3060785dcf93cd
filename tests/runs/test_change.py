"""The rule for "changed": seldom wrong of reruns, sharp enough for ten percent, honest else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import kit
from kit import workloads
from kit.runs.analysis.diff import diff_runs
from kit.runs.change import (
    Difference,
    StepTimes,
    error_of,
    part_difference,
    shift_of,
    step_difference,
    step_interval,
    step_text,
    steps_difference,
    traced_text,
)
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.steady import enough_steps, unequal_text
from kit.runs.verdict.markdown import run_markdown
from kit.runs.verdict.summary import summary
from kit.text import format_ms
from kit.trace import Span, Timeline
from kit.widgets.base.cards import headline_changes, headline_html
from kit.widgets.base.change import change_html
from tests.factories import make_run
from tests.runs.ratios import ratio_of
from tests.runs.test_turns import measured_at

RUNS = 400  # simulated pairs
Rng = np.random.Generator
times = st.lists(st.floats(0.1, 1e3), min_size=2, max_size=12)


def steps_of(rng: Rng, count: int, noise: float, echo: float = 0.3) -> NDArray[np.float64]:
    """Step times of a quiet machine: each run has a speed of its own (1.2 %), neighbouring steps
    resemble each other, and one step in twelve is hit by something and takes longer."""
    level, *fresh = rng.normal(size=count + 1).tolist()
    wave = []
    for draw in fresh:
        level = echo * level + math.sqrt(1 - echo**2) * draw
        wave.append(level)
    speed = 10 * math.exp(rng.normal(0, 0.012))
    hits = rng.exponential(0.3, count) * (rng.random(count) < 1 / 12)
    return speed * np.exp(noise * np.array(wave)) * (1 + hits)


def rates(count: int, noise: float, echo: float, factor: float, repeats: int = 1) -> float:
    """In how many of a hundred comparisons a change is found, and in the right direction."""
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(RUNS):
        old, new = ([steps_of(rng, count, noise, echo) for _ in range(repeats)] for _ in "ab")
        kind = ratio_of(old, [run * factor for run in new]).kind
        found += kind == "more" if factor > 1 else kind in ("more", "less")
    return 100 * found / RUNS


@pytest.mark.parametrize("count", [2, 3, 5, 10, 20])
@pytest.mark.parametrize(("noise", "echo"), [(0.005, 0.0), (0.02, 0.0), (0.02, 0.5), (0.08, 0.3)])
def test_reruns_are_called_changed_at_most_five_times_of_a_hundred(
    count: int, noise: float, echo: float
) -> None:
    assert rates(count, noise, echo, 1.0) <= 5


@pytest.mark.parametrize(("noise", "echo"), [(0.005, 0.0), (0.02, 0.0), (0.015, 0.5)])
@pytest.mark.parametrize("step_ms", [5, 50, 150])
def test_ten_percent_is_found_with_the_default_number_of_steps(
    step_ms: float, noise: float, echo: float
) -> None:
    assert rates(enough_steps(step_ms / 1e3), noise, echo, 1.1) >= 90


def phases_of(rng: Rng, step_ms: float, session: float) -> NDArray[np.float64]:
    """As many steps as are measured by default, on a machine whose speed comes in phases of 100 ms
    that differ by 10 %; in the logarithm, `session` is that of the whole run."""
    count = enough_steps(step_ms / 1e3)
    slow = np.exp(session + rng.normal(0, 0.1, int(count * step_ms / 50) + 4))
    work = np.exp(0.02 * rng.normal(size=count)) * step_ms
    clock = np.cumsum(100 * np.ones_like(slow)) - rng.uniform(0, 100)  # the ends of the phases
    done = np.cumsum(np.diff(clock, prepend=0) / slow)  # work done by then
    ends = np.interp(np.cumsum(work), [0, *done], [0, *clock])
    return np.diff(ends, prepend=0)


def kinds_of(step_ms: float, factor: float, *, turns: int = 1, is_one_session: bool) -> list[str]:
    """What a hundred comparisons say on such a machine; sessions differ by 8.5 %."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(100):
        whole = rng.normal(0, 0.085)
        speeds = [whole if is_one_session else rng.normal(0, 0.085) for _ in range(2 * turns)]
        runs = [phases_of(rng, step_ms, speed) for speed in speeds]
        found.append(ratio_of(runs[::2], [factor * run for run in runs[1::2]]).kind)
    return found


@pytest.mark.parametrize("step_ms", [3, 20, 50])
def test_a_machine_whose_speed_comes_in_phases_is_not_taken_for_a_change(step_ms: float) -> None:
    for factor in (1.0, 1.1):  # of single runs: neither "changed" nor "the same" can be known
        kinds = kinds_of(step_ms, factor, is_one_session=False)
        assert kinds.count("less") + kinds.count("more") * (factor == 1.0) <= 5
        assert kinds.count("unclear") >= 80
    assert kinds_of(step_ms, 2.0, is_one_session=False).count("more") >= 90


def test_there_turns_find_ten_percent_and_do_not_find_nothing() -> None:
    assert kinds_of(10, 1.1, turns=9, is_one_session=True).count("more") >= 90
    kinds = kinds_of(10, 1.0, turns=9, is_one_session=True)
    assert kinds.count("more") + kinds.count("less") <= 5
    assert kinds.count("same") >= 90


def labelled(label: str, *speeds: float) -> list[Run]:
    """Runs of one label, each still in itself."""
    run = replace(make_run(), label=label)
    times = [tuple(round(speed * t) for t in run.step_times_ns) for speed in speeds]
    return [replace(run, step_times_ns=each) for each in times]


def test_what_reruns_of_one_label_differ_by_is_learned() -> None:
    wild = [*labelled("before", 1.0, 1.15, 0.9, 1.07), *labelled("after", 1.2)]
    assert StepTimes([wild[0], wild[-1]]).difference(0, 1).kind == "more"  # nothing tells of it
    assert StepTimes(wild).difference(0, 4).kind == "unclear"
    calm = [*labelled("before", 1.0, 1.01, 0.99, 1.0), *labelled("after", 1.2)]
    assert StepTimes(calm).difference(0, 4).kind == "more"
    unlabelled = [replace(run, label="") for run in wild]  # they may be of other code
    assert StepTimes(unlabelled).difference(0, 4).kind == "more"


def test_learned_reruns_replace_what_a_short_run_cannot_know() -> None:
    runs = [*labelled("before", *(1.0, 1.01, 0.99) * 3), *labelled("after", 1.2)]
    short = [replace(run, step_times_ns=run.step_times_ns[:20]) for run in runs]
    assert StepTimes(short[-2:]).difference(0, 1).kind == "unclear"
    assert StepTimes(short).difference(0, 9).kind == "more"


def test_steps_that_fill_too_short_a_time_cannot_know_the_next_phase() -> None:
    run = replace(make_run(), step_times_ns=(1_500_000, 1_510_000, 1_490_000, 1_500_000) * 3)
    slower = replace(run, step_times_ns=tuple(round(1.2 * t) for t in run.step_times_ns))
    assert step_difference(run, slower).kind == "unclear"  # 18 ms
    assert StepTimes([run, slower]).difference(0, 1).kind == "unclear"
    long = [replace(r, step_times_ns=r.step_times_ns * 15) for r in (run, slower)]
    assert step_difference(*long).kind == "more"
    assert step_difference(run, replace(run, step_times_ns=(9_000_000,) * 4)).kind == "more"


def test_repeats_find_what_a_single_pair_cannot() -> None:
    assert rates(10, 0.03, 0.3, 1.06, repeats=4) > rates(10, 0.03, 0.3, 1.06) + 20


def test_steps_of_two_sorts_are_no_change_when_the_median_falls_on_the_other_sort() -> None:
    old = [10.0, 10.1, 13.0, 10.0, 13.1, 10.2, 13.0, 10.1, 13.2, 10.0]
    new = [10.0, 13.1, 13.0, 10.0, 13.1, 10.2, 13.0, 10.1, 13.2, 13.1]
    found = ratio_of([old], [new])
    assert found.amount > 0.25
    assert found.kind == "unclear"
    assert found.text().startswith("maybe 28% slower (0.59 to 2.8 times)")


def test_two_different_runs_of_the_same_noise_are_told_apart_from_none() -> None:
    old = [10.0, 10.1, 9.9, 10.2, 10.0, 30.0, 10.1, 9.9, 10.0, 10.1]
    assert ratio_of([old], [old[::-1]]).kind == "same"
    slower = ratio_of([old], [[1.2 * t for t in old]])
    assert slower.kind == "more"
    assert slower.text() == "20% ± 5% slower"
    assert ratio_of([old], [[t / 1.2 for t in old]]).text() == "17% ± 3% faster"
    assert ratio_of([old], [old]).text() == "no change beyond the spread (0% ± 4%)"


def test_a_single_step_says_nothing_of_its_spread() -> None:
    found = ratio_of([[10.0]], [[20.0]])
    assert (found.kind, found.is_changed) == ("unclear", False)
    assert found.text() == "maybe 100% slower: too few steps to know the spread"
    assert ratio_of([[]], [[1.0]]).kind == ratio_of([], [[1.0]]).kind == "unknown"
    assert ratio_of([[math.nan, 0.0]], [[1.0]]).text() == "not measured in both"


@given(times, times)
def test_the_way_back_is_the_way_there(old: list[float], new: list[float]) -> None:
    there, back = ratio_of([old], [new]), ratio_of([new], [old])
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)
    assert {there.kind, back.kind} in ({"more", "less"}, {"same"}, {"unclear"}, {"same", "unclear"})


@given(times, times, st.floats(0.01, 100))
def test_the_unit_does_not_matter(old: list[float], new: list[float], unit: float) -> None:
    one, other = (ratio_of([[u * t for t in old]], [[u * t for t in new]]) for u in (1.0, unit))
    assert one.low == pytest.approx(other.low)
    assert one.high == pytest.approx(other.high)


@given(times)
def test_a_run_never_differs_from_itself(run: list[float]) -> None:
    assert not ratio_of([run], [run]).is_changed
    assert not shift_of([run], [run], rerun=0.0).is_changed


def test_a_slow_wave_widens_the_interval() -> None:
    wave = [10 + math.sin(i / 3) for i in range(20)]
    mixed = np.random.default_rng(0).permutation(wave)
    assert ratio_of([wave], [wave]).spread > 1.3 * ratio_of([mixed], [mixed]).spread


def test_of_a_spread_of_more_than_the_step_the_ends_are_said() -> None:
    found = ratio_of([[3.0, 9.0, 5.0]], [[6.0, 18.0, 9.0]])
    low, high = f"{found.low:.2g}", f"{found.high:.2g}"
    assert float(low) < 1 < 2 < float(high)
    assert found.text() == f"maybe 80% slower ({low} to {high} times)"
    assert f"({low} to {high} times)" in change_html(found)


def test_a_change_from_or_to_nothing_names_both_ends_and_no_percentage() -> None:
    gone, came = ((39.8, 0.0, -42.0, -37.6), (0.0, 39.8, 37.6, 42.0))
    assert "▼ from 39.8 to 0 better" in change_html(Difference(*gone, is_ratio=False))
    assert "± 2.2</span>" in change_html(Difference(*gone, is_ratio=False))
    assert "▲ from 0 to 39.8 worse" in change_html(Difference(*came, is_ratio=False))
    fraction = Difference(0.8, 0.1, -2.5, 1.1, is_ratio=False)
    cards = headline_changes({"overlap_fraction": fraction})
    assert ">maybe ▼ −70 points: its spread is not known<" in cards["overlap_fraction"]


def test_of_a_rise_a_hundred_percent_is_no_whole_and_of_a_fall_it_is() -> None:
    risen, fallen = Difference(1.0, 1.998, 1.9, 2.1), Difference(1.0, 0.002, 0.001, 0.003)
    assert risen.text().startswith("100% ± ")
    assert "▲ +100% worse" in change_html(risen)
    assert fallen.text().startswith("≈100% ± ")
    assert "▼ −≈100% better" in change_html(fallen)


def test_ends_that_would_say_nothing_are_not_told() -> None:
    found = Difference(1.0, 0.04, 3.9e-05, 36.0, is_ratio=True)
    assert found.text() == "maybe 96% faster (may be off a hundredfold)"
    assert found.times_text() == "maybe 0.04x (may be off a hundredfold)"
    assert "% (may be off a hundredfold)" in change_html(found)
    assert Difference(10.0, 510.0, 2.0, 9e5).margin() == "(2 to 900,000 times)"  # it says "more"


def test_fractions_are_compared_by_their_difference() -> None:
    found = shift_of([[0.35, 0.37]], [[0.89, 0.91]], rerun=0.03)
    assert (found.kind, round(found.amount, 2)) == ("more", 0.54)
    assert shift_of([[0.35, 0.37]], [[0.38, 0.41]], rerun=0.03).kind != "more"
    assert shift_of([[0.0, 0.0]], [[0.0, 0.0]], rerun=0.0).kind == "same"


def test_runs_are_compared_by_the_step_or_by_the_sample() -> None:
    one = make_run(Settings(batch_size=4))
    two = replace(one, settings=Settings(batch_size=8))
    assert step_difference(one, two).kind == "same"
    by_sample = step_difference(one, two, by_sample=True)
    assert (by_sample.kind, by_sample.amount) == ("less", -0.5)
    low, high = step_interval(one)
    assert low < one.step_ms < high
    single = replace(one, step_times_ns=(5_000_000,))
    assert all(math.isnan(x) for x in step_interval(single))
    assert step_text(one) == f"{format_ms(one.step_ms)} ({format_ms(low)} to {format_ms(high)})"
    assert step_text(single) == "5 ms (± unknown)"
    turns = steps_difference(measured_at(one, 1, 3, 5), measured_at(one, 2, 4, 6))
    assert turns.spread < step_difference(one, one).spread


def test_an_interval_that_hides_ten_percent_is_unclear() -> None:
    assert Difference(10.0, 10.5, 0.99, 1.11).kind == "same"
    assert Difference(10.0, 10.5, 0.90, 1.22).kind == "unclear"
    assert Difference(10.0, 10.5, 1.01, 1.90).kind == "more"
    assert Difference(10.0, 10.5, 0.99, 1.11).times_text() == "no change, 1.05x ± 6%"
    assert Difference(10.0, 10.5, 0.90, 1.22).times_text() == "maybe 1.05x ± 16%"
    assert Difference(10.0, 510.0, 49.0, 53.0).times_text() == "51x (49 to 53 times)"
    assert Difference(10.0, 10.5, math.nan, math.nan).times_text() == "maybe 1.05x"
    assert Difference(math.nan, 10.5, math.nan, math.nan).times_text() == "not measured in both"


def test_a_margin_never_denies_a_change_that_the_interval_shows_nor_asserts_another() -> None:
    """A ratio's interval reaches further upwards: half of it may be more than the change."""
    changed = Difference(58.6, 78.0, 1.02, 1.72)
    assert changed.is_changed
    assert changed.text() == "33% slower (1.02 to 1.72 times)"
    assert "33%" in change_html(changed)
    assert "±" not in change_html(changed)
    unsure = Difference(100.0, 60.0, 0.45, 1.01, doubt="a busy machine")
    assert unsure.text() == "maybe 40% faster (0.45 to 1.01 times): a busy machine"
    assert Difference(100.0, 150.0, 1.4, 1.6).text() == "50% ± 10% slower"


def test_a_models_error_is_one_only_beyond_the_spread_of_what_was_measured() -> None:
    run = make_run()
    assert error_of(1.02 * run.step_ms, [run]).kind == "same"
    wrong = error_of(1.5 * run.step_ms, [run])
    assert (wrong.kind, round(wrong.amount, 2)) == ("more", 0.5)
    assert wrong.low < 1.5 < wrong.high
    assert error_of(0.5 * run.step_ms, [run]).kind == "less"
    assert error_of(2.0, [replace(run, step_times_ns=(9,))]).kind == "unclear"
    assert error_of(2.0, [replace(run, step_times_ns=())]).kind == "unknown"
    assert error_of(1.5, [run, run, run]).spread < error_of(1.5, [run]).spread


def test_on_a_busy_machine_nothing_is_called_changed_but_by_turns() -> None:
    still = make_run()
    slow = replace(still, step_times_ns=tuple(2 * t for t in still.step_times_ns))
    busy = replace(slow, conditions=Conditions(cores=2, others=1.3))
    assert step_difference(still, slow).kind == "more"
    found = step_difference(still, busy)
    assert (found.kind, found.is_changed) == ("unclear", False)
    assert found.text().startswith("maybe 100% ± ")
    assert found.text().endswith("slower: measured on a busy machine: others used 1.3 of 2 cores")
    assert StepTimes([still, busy]).difference(0, 1).kind == "unclear"
    old, new = measured_at(still, 1, 3, 5), measured_at(busy, 2, 4, 6)
    assert steps_difference(old, new).kind == "more"
    assert diff_runs(still, busy).step.is_changed is False
    assert step_text(busy).endswith(", measured on a busy machine: others used 1.3 of 2 cores)")
    assert "100% ± " in headline_html(busy, still)
    assert "% worse" in headline_html(slow, still)
    assert "% worse" not in headline_html(busy, still)


def _with_traced(run: Run, steps_ms: Sequence[float], origin: str = "profiled") -> Run:
    """The run with traced steps of these lengths."""
    ends = np.cumsum([0, *steps_ms])
    spans = [
        Span("host/main", f"step {i}", "step", round(a * 1e6), round(b * 1e6))
        for i, (a, b) in enumerate(pairwise(ends.tolist()))
    ]
    return replace(run, timeline=Timeline.of(spans, origin=origin))


def test_a_run_says_with_both_times_that_tracing_made_its_steps_longer():
    measured = replace(make_run(), step_times_ns=(20_000_000, 20_400_000, 19_800_000) * 20)
    slowed = _with_traced(measured, (220, 224))
    said = traced_text(slowed)
    assert said.startswith("a traced step took 222 ms, a measured one 20 ms; 1,010% ")
    assert said.endswith(
        "longer. Timeline, fractions and parts of a step are of traced steps; what advice "
        "could save is not"
    )
    assert f"note: {said}" in summary(slowed)
    assert "- a traced step took 222 ms" in run_markdown(slowed)
    assert "A traced step took 222 ms" in headline_html(slowed)


def test_one_slow_step_among_the_traced_ones_is_said_with_their_mean() -> None:
    """A validation in one of three made the table's step three times the measured one, unsaid."""
    measured = replace(make_run(), step_times_ns=(7_500_000, 7_600_000, 7_400_000) * 20)
    assert traced_text(_with_traced(measured, (7.1, 57.8, 7.2))).startswith(
        "the traced steps took 7.1 ms to 57.8 ms, 24 ms in the mean, a measured one 7.5 ms. "
    )


def test_parts_that_do_not_fit_the_step_are_said_to_be_of_traced_steps() -> None:
    run = kit.open_trace(Path(workloads.__file__).parent / "recordings" / "bert_h100.kitrun")
    told = "the device waits 78.6 ms of the mean traced step's 118 ms"
    assert any(told in advice.text for advice in run.advice())
    assert run.step_ms == pytest.approx(79.8, abs=0.1)
    said = (
        "a traced step took 117 ms, a measured one 79.8 ms; maybe 46% longer (0.73 to 2.9 times)."
    )
    for shown in (summary(run), run_markdown(run)):
        assert said in shown
    one = _with_traced(replace(make_run(), step_times_ns=(20_000_000,) * 20), (30,))
    assert "maybe 50% longer: too few steps to know the spread" in traced_text(one)


def test_a_disturbed_run_says_that_its_parts_do_not_fit_its_step_and_not_how_sure() -> None:
    measured = replace(make_run(), step_times_ns=(664_000_000, 660_000_000) * 5)
    busy = replace(measured, conditions=Conditions(cores=2, others=1.0))
    near = "raced step took 400 ms, a measured one 662 ms. Timeline, fractions"
    far = " measured step took 662 ms and a traced one 209 ms: what the rest of its time went into"
    for traced, said in (((400, 400, 400), near), ((205, 221, 201), far)):
        run = _with_traced(busy, traced)
        for shown in (summary(run), run_markdown(run), headline_html(run)):
            assert said in shown


def test_nothing_is_said_of_tracing_where_it_changed_nothing_or_nobody_can_tell():
    measured = replace(make_run(), step_times_ns=(20_000_000, 20_400_000, 19_800_000) * 20)
    busy = replace(measured, conditions=Conditions(cores=2, others=1.5))
    for run in (
        _with_traced(measured, (20, 21)),
        _with_traced(measured, (23,)),  # one step has no spread
        _with_traced(measured, ()),
        _with_traced(measured, (220, 224), "imported"),  # its steps are what was measured
        _with_traced(measured, (220, 224), "modelled"),
        _with_traced(busy, (20, 23)),  # near enough, and how sure cannot be told
        replace(_with_traced(measured, (220, 224)), step_times_ns=()),
    ):
        assert traced_text(run) == ""


def test_a_run_of_which_most_was_not_traced_says_one_time_of_a_traced_step() -> None:
    run = _with_traced(replace(make_run(), step_times_ns=(20_000_000,) * 20), (2, 2, 5))
    assert "a measured step took 20 ms and a traced one 3 ms" in run.doubt  # the mean
    for shown in (headline_html(run), run_markdown(run)):
        assert "a traced one 3 ms" in shown
        assert "traced step took 2 ms" not in shown  # the middle one


def test_steps_that_took_no_time_are_equal_and_a_change_from_them_is_no_factor() -> None:
    run = make_run()
    none = replace(run, step_times_ns=(0, 0, 0))
    assert unequal_text(none) == ""
    assert "0 ms, but the mean of all is 2 ms" in unequal_text(
        replace(run, step_times_ns=(0, 0, 6_000_000))
    )
    shown = headline_html(run, none)
    assert "from 0 to 1.55" in shown
    assert "inf" not in shown


def test_an_unclear_change_that_rounds_to_none_is_shown_without_a_sign() -> None:
    found = Difference(52.0, 51.9, 0.79, 1.21, doubt="measured on a busy machine")
    assert found.kind == "unclear"
    assert ">no change seen ± 21%<" in change_html(found)
    assert found.text() == "no change seen (± 21%): measured on a busy machine"
    wide = Difference(5000.0, 5000.5, -2000, 2000, is_ratio=False, blur=1)
    assert ">no change seen ± 2 s<" in change_html(wide, form=format_ms)
    assert wide.text(form=format_ms) == "no change seen (± 2 s)"


def test_a_hiccup_in_a_wait_is_no_change_of_the_wait() -> None:
    """The mean has the few steps in which something came between; their median has not."""
    rng, called = np.random.default_rng(5), 0
    for _ in range(100):
        old, new = (
            rng.normal(1.0, 0.05, 30) + (rng.random(30) < 0.02) * rng.exponential(30.0, 30)
            for _ in range(2)
        )
        found = part_difference((old.mean(), new.mean()), (old, new), 10.0)
        called += found.is_changed
    assert called <= 3
    steady = rng.normal(1.0, 0.05, 30), rng.normal(3.0, 0.05, 30)
    assert part_difference((1.0, 3.0), steady, 10.0).kind == "more"
