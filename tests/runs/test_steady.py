"""The rule for steps that still get faster or slower, and what is said of unequal ones."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.reports.html import report_html
from kit.reports.markdown import report_markdown
from kit.runs.analysis.headline import headline_text, syncs_of_steps
from kit.runs.change import ends_text, step_interval, step_text, told_interval, within_text
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.spread import _heads
from kit.runs.steady import (
    ALIKE,
    SURE,
    drift,
    drift_text,
    rare_reads,
    rare_reads_text,
    unequal_text,
)
from kit.runs.verdict.summary import summary
from kit.runs.whatif.predict import predict
from kit.trace import Span, SyncPoint, Timeline
from kit.widgets.base.cards import headline_html
from kit.widgets.numbers.whatif import whatif_html
from tests.factories import make_run
from tests.widgets.compare.drawn import columns_of


@pytest.mark.parametrize(("times", "expected"), [
    ([5000, 60, 61, 60, 59, 60], 0.0),  # the first step compiled: the rest is steady
    ([5000, 3000, 61, 60, 59, 58], pytest.approx(59 / 3000 - 1)),  # the second one, too
    ([100, 80, 70, 62, 58, 55], pytest.approx(58 / 80 - 1)),
    ([100, 98, 99, 97, 96, 98], 0.0),  # less than 5 %
    ([60, 60, 60, 90, 60, 60], 0.0),  # a single slow step
    ([60, 90, 60, 90, 60, 90], 0.0),  # steps of two sorts
    ([50, 51, 52, 70, 72, 71], pytest.approx(71 / 51 - 1)),  # a queue that ran empty
    ([100, 50], 0.0), ([], 0.0), ([0, 0, 0, 0, 0, 0], 0.0),
])  # fmt: skip
def test_a_trend_is_one_that_nearly_all_pairs_of_steps_show(
    times: list[float], expected: float
) -> None:
    assert drift(times) == expected


def test_steady_steps_are_rarely_called_otherwise_however_noisy_and_a_decay_nearly_always() -> None:
    rng = np.random.default_rng(0)
    for noise in (0.01, 0.1, 0.4):
        for count in (6, 10):
            made = rng.lognormal(0, noise, (1000, count))
            assert sum(bool(drift(times)) for times in made) <= 130, (noise, count)
    falling = rng.lognormal(0, 0.02, (1000, 10)) * np.linspace(1.3, 1.0, 10)
    assert sum(drift(times) < -ALIKE for times in falling) >= 900


def test_a_run_whose_measured_steps_were_not_steady_says_so() -> None:
    falling = [100, 95, 90, 84, 80, 70, 66, 64, 62, 60]
    run = replace(make_run(), step_times_ns=tuple(1_000_000 * t for t in falling))
    said = "the measured steps were still getting faster: the later half took 29% less"
    assert drift_text(falling).startswith(said)
    assert said in summary(run)
    assert said in run.to_markdown()
    assert "he measured steps were still getting faster" in headline_html(run)
    assert drift_text(falling).endswith("Measure again, or raise warmup")
    steady = replace(run, step_times_ns=(1_000_000,) * 10)
    assert steady.drift == ""
    assert "getting faster" not in summary(steady)


def test_steps_that_get_slower_are_not_sent_to_a_longer_warm_up() -> None:
    """A step that adds to a list got "raise warmup": it would have begun slower still."""
    said = drift_text([60, 62, 64, 66, 70, 80, 84, 90, 95, 100])
    assert "still getting slower: the later half took 41% more than the earlier one" in said
    assert "look for what grows" in said
    assert "warmup" not in said


def test_a_run_of_unequal_steps_says_the_mean_that_its_middle_step_hides() -> None:
    """A loader that is slow every fourth time: the middle step never shows it."""
    run = replace(make_run(), step_times_ns=(2_500_000, 2_500_000, 2_500_000, 22_500_000) * 5)
    said = "the measured steps are unequal, 2.5 ms to 22.5 ms: the middle one took 2.5 ms, but the "
    each = "as every 4 steps one takes 20 ms more"
    assert unequal_text(run).startswith(f"{said}mean of all is 7.5 ms, {each}. That of the ")
    for shown in (summary(run), run.to_markdown(), headline_html(run)):
        assert said[1:] in shown
    alike = replace(run, step_times_ns=(2_500_000,) * 29 + (7_000_000,))
    assert unequal_text(alike) == unequal_text(replace(run, step_times_ns=(7,))) == ""


def _ns(times_ms: Sequence[float]) -> tuple[int, ...]:
    return tuple(round(1e6 * ms) for ms in times_ms)


def _unequal(times_ms: Sequence[float]) -> str:
    return unequal_text(replace(make_run(), step_times_ns=_ns(times_ms)))


def _told_period(times_ms: Sequence[float]) -> str:
    return _unequal(times_ms).partition(", as every ")[2].partition(" more")[0]


@given(st.integers(3, 9), st.integers(0, 8), st.integers(3, 40), st.lists(st.integers(0, 99)))
def test_it_is_said_every_how_many_steps_a_long_one_comes(
    each: int, first: int, count: int, disturbed: list[int]
) -> None:
    """As a checkpoint. Single others may be as long, if they are few."""
    times = [2 + 0.001 * (i % 7) for i in range(each * count)]
    times[first % each :: each] = [50.0] * count
    others = [i for i in disturbed if i < len(times) and i % each != first % each][: count // 4]
    for i in others:
        times[i] = 60.0
    assert _told_period(times).startswith(f"{each} steps one takes 4")


def test_steps_that_are_long_by_chance_come_at_no_distance() -> None:
    rng = np.random.default_rng(0)
    told = sum(bool(_told_period(rng.lognormal(0, 1, 30).tolist())) for _ in range(200))
    assert told <= 10


SORTS_OF_STEPS: dict[str, Callable[[np.random.Generator, int], list[float]]] = {
    "lognormal": lambda rng, count: rng.lognormal(0, 1, count).tolist(),
    "two sorts": lambda rng, count: np.where(rng.random(count) < 0.25, 60.0, 10.0).tolist(),
}


@pytest.mark.parametrize("sort", SORTS_OF_STEPS)
@pytest.mark.parametrize("count", [10, 12, 16, 30])
def test_of_few_steps_a_distance_is_told_as_one_that_chance_may_give(sort: str, count: int) -> None:
    """Of 12 steps at random 4 % were told every how many a longer one comes, as if it were sure."""
    rng = np.random.default_rng(1)
    said = [_unequal(SORTS_OF_STEPS[sort](rng, count)) for _ in range(500)]
    told = [text for text in said if ", as every " in text]
    assert sum("it may be chance" not in text for text in told) <= 5


def test_a_distance_is_told_for_sure_once_chance_gives_it_in_one_run_of_a_hundred() -> None:
    few, many = _unequal([10.0, 10, 10, 60] * 3), _unequal([10.0, 10, 10, 60] * 6)
    assert ", as every 4 steps one takes 50 ms more (so few that it may be chance)" in few
    assert ", as every 4 steps one takes 50 ms more. That of the " in many


@pytest.mark.parametrize("disturbed", [(17,), (17, 18, 19)])
def test_steps_that_are_hardly_longer_do_not_explain_a_mean(disturbed: tuple[int, ...]) -> None:
    """It was said that every 4 steps one takes −32.9 ms more: another one had been disturbed."""
    times = [10.0, 10.0, 10.0, 10.1] * 10
    for i in disturbed:
        times[i] = 1000
    assert "are unequal" in _unequal(times)
    assert not _told_period(times)


UNEQUAL_MS = (4.65, 9, 40, 310, 900, 7_000, 25_800)  # of a step


def test_of_three_steps_that_differ_it_is_said_what_they_took() -> None:
    """Of a published trace it was said that 95% of reruns take 1.14 ms to 2.55 s."""
    few = replace(make_run(), step_times_ns=(53_920_428, 34_580_333, 73_953_595))
    assert step_text(few) == "53.9 ms (steps took 34.6 ms to 74 ms)"
    assert "reruns" not in headline_text(few)


def test_of_very_unequal_steps_it_is_said_what_they_took_and_not_what_a_rerun_may() -> None:
    wild = replace(make_run(), step_times_ns=tuple(int(ms * 1e6) for ms in UNEQUAL_MS))
    low, high = step_interval(wild)
    assert (high - low) / 2 > wild.step_ms
    assert all(map(math.isnan, told_interval(wild)))
    said = "steps very unequal: 4.65 ms to 25.8 s"
    assert step_text(wild) == f"310 ms ({said})"
    assert f"step 310 ms ({said})" in headline_text(wild)
    told = " ".join(" ".join(columns_of([wild])["titles"]["text"]).split())
    assert f"310 ms a step ({said})" in told
    assert said in whatif_html(wild, [])
    assert "± unknown" in predict(wild, wild.settings).step_text
    page = report_html([wild, make_run(Settings(batch_size=4))])
    cells = json.loads(page.split('id="index">')[1].split("</script>")[0])["cells"]
    assert [cell["low"] is None for cell in cells] == [True, False]


def test_an_interval_wider_than_the_step_is_told_of_no_run() -> None:
    few = replace(make_run(), step_times_ns=(5_000_000, 6_500_000))
    low, high = step_interval(few)
    assert (high - low) / 2 > few.step_ms
    assert within_text(few, before="reruns: ") == "steps took 5 ms to 6.5 ms"
    one = replace(make_run(), step_times_ns=(5_000_000,))
    assert within_text(one, before="reruns: ") == "reruns: ± unknown"
    steady = make_run()
    low, high = told_interval(steady)
    assert (low, high) == step_interval(steady)
    assert within_text(steady, before="reruns: ") == f"reruns: {ends_text(low, high)}"


def test_parts_that_are_not_shown_are_not_said_to_come_from_the_traced_steps() -> None:
    unequal = replace(make_run(), step_times_ns=(1_000_000,) * 8 + (9_000_000,) * 4)
    busy = replace(unequal, conditions=Conditions(cores=2, others=1.3))
    assert "from which the limit, the fractions and the advice come, is" in summary(unequal)
    for shown in (summary(busy), headline_html(busy)):
        assert "from which the fractions come, is" in shown
    reads = replace(with_reads(2, 1), conditions=busy.conditions)
    assert "traced steps. The fractions and idle" in summary(reads)


def with_reads(measured: int, traced: int, *, mode: str = "lazy") -> Run:
    """Twelve measured steps and three traced ones, so many of which log their loss."""
    step = 10_000_000
    times = [(i * step, (i + 1) * step) for i in range(3)]
    steps = [Span("host/main", f"step {i}", "step", *ends) for i, ends in enumerate(times)]
    syncs = [SyncPoint(i * step + step // 2, 1000, "item", "train.py:9") for i in range(12)]
    timeline = Timeline.of(steps, syncs[:traced], origin="profiled")
    settings = Settings(mode=mode, device="cpu" if mode == "torch" else "auto")
    return Run(settings, (1.0,), (step,) * 12, timeline, tuple(syncs[:measured]))


@pytest.mark.parametrize(
    ("measured", "traced", "said"),
    [
        (2, 1, "waits 0.167 times a measured step, and 1 time in the 3 traced steps"),
        (2, 0, "waits 0.167 times a measured step, and 0 times in the 3 traced steps"),
        (0, 1, "waits 0 times a measured step, and 1 time in the 3 traced steps"),
        (4, 1, ""),
        (12, 3, ""),
        (0, 0, ""),
    ],
)
def test_a_loss_that_some_steps_log_is_told_if_the_traced_ones_do_it_more_or_less_often(
    measured: int, traced: int, said: str
) -> None:
    """Logged every fifth step, one of three traced ones had it: the idle time was 5 / 3 of it."""
    run = with_reads(measured, traced)
    assert rare_reads_text(run).partition(". ")[0] == (f"line train.py:9 {said}" if said else "")
    for shown in (summary(run), headline_html(run), report_markdown([run])):
        assert ("traced steps. The limit, the fractions" in shown) == bool(said)
        assert "Train.py" not in shown  # no file is called so
    assert rare_reads_text(with_reads(measured, traced, mode="torch")) == ""  # nobody looked


def test_a_burst_of_reads_in_every_tenth_step_is_not_one_read_a_step() -> None:
    """Ten reads in each of three of thirty steps, none in the traced ones: nothing was said."""
    step = 10_000_000
    steps = [Span("host/main", f"step {i}", "step", i * step, (i + 1) * step) for i in range(3)]
    burst = [SyncPoint(10 * i * step + j, 1000, "item", "val.py:3")
             for i in range(3) for j in range(10)]  # fmt: skip
    each = [SyncPoint(i * step + step // 2, 1000, "item", "train.py:9") for i in range(30)]
    timeline = Timeline.of(steps, each[:3], origin="profiled")
    run = Run(Settings(), (1.0,), (step,) * 30, timeline, (*each, *burst))
    said = "line val.py:3 waits once a measured step, and 0 times in the 3 traced steps"
    assert rare_reads_text(run).partition(". ")[0] == said
    assert rare_reads(run) == ["val.py:3"]
    found = [len(syncs) for syncs in syncs_of_steps(run)]  # no step has one read of the burst
    assert (found.count(11), found.count(1)) == (3, 27)
    alike = replace(run, sync_points=tuple(each))
    assert rare_reads(alike) == []
    assert len(syncs_of_steps(alike)) == 30


@given(st.lists(st.integers(1, 9), min_size=6, max_size=30))
def test_the_pairs_are_those_of_a_table_of_all(times: list[int]) -> None:
    half = len(times) // 2
    pairs = [(a, b) for a in times[:half] for b in times[-half:]]
    agreed = max(sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)) / len(pairs)
    change = np.median(times[-half:]) / np.median(times[:half]) - 1
    assert bool(drift(times)) == bool(abs(change) > ALIKE and agreed >= SURE)


def test_a_run_of_a_million_steps_is_told_at_once() -> None:
    """A table of all pairs took 2 TB, and the binomials of its median's error many minutes."""
    times = np.random.default_rng(0).normal(1e6, 1e4, 1_000_000).astype(int)
    run = replace(make_run(), step_times_ns=tuple(times.tolist()))
    began = time.process_time()
    assert "step 1 ms" in headline_text(run)
    assert not run.drift
    assert time.process_time() - began < 60
    assert _heads(2000, 970) == pytest.approx(
        sum(math.comb(2000, i) for i in range(971)) / 2**2000, rel=0.01
    )
