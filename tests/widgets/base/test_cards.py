"""The headline cards: right numbers, and what is better or worse said in words too."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace

import pytest

from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.trace import Span, Timeline
from kit.trace.devices import TORCH_CPU
from kit.widgets.base.cards import headline_html
from kit.widgets.base.tables import BETTER, WORSE
from tests.factories import empty_run, make_run
from tests.widgets.read import Reader, long_run, run_with


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


@pytest.mark.parametrize(("ms", "shown"), [(0.0004, "400 ns"), (0.0123, "12.3 µs"),
                                           (1.234, "1.23 ms"), (1240.4, "1.24 s"), (0, "0 ms"),
                                           (999.9, "1 s")])  # fmt: skip
def test_times_have_three_figures_and_no_exponent(ms, shown):
    assert f"step time {shown} " in str(Reader(headline_html(run_with(ms))))


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
