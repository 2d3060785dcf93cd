"""How sure a prediction is: the interval that it gives, and where none is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from kit.runs.change import step_interval
from kit.runs.conditions import Conditions
from kit.runs.knob import knobs_of
from kit.runs.settings import Settings
from kit.runs.whatif.errors import KNOWN_ERRORS
from kit.runs.whatif.predict import calibrated, predict
from kit.text import format_ms
from tests.factories import native_run
from tests.runs.whatif.measured import measured


def test_a_prediction_says_in_which_interval_the_measured_step_is_expected() -> None:
    run = measured()
    same = predict(run)
    assert same.low_ms < 0.95 * same.step_ms < 1.05 * same.step_ms < same.high_ms
    assert same.low_ms * same.high_ms == pytest.approx(same.step_ms**2)
    other = predict(run, run.settings.replace(mode="lazy"))
    assert other.high_ms / other.step_ms > same.high_ms / same.step_ms  # known to be more wrong
    assert other.step_text in other.headline()
    assert other.step_text.startswith(f"{format_ms(other.step_ms)} ({format_ms(other.low_ms)} to ")
    assert "nine of ten" in other.assumptions[-1] == other.timeline.notes[-1]
    noisy = replace(
        run, step_times_ns=tuple(t * (i % 5 + 5) for i, t in enumerate(run.step_times_ns))
    )
    assert predict(noisy).high_ms / predict(noisy).step_ms > same.high_ms / same.step_ms


def test_the_interval_has_the_spread_beside_which_the_known_errors_were_measured() -> None:
    """That of the median; where a rerun lies was in it a second time."""
    run = measured()
    low, high = step_interval(run, of_rerun=False)
    wide = step_interval(run)
    assert wide[0] < low < high < wide[1]
    same = predict(run)
    half = math.hypot(math.log1p(KNOWN_ERRORS[0].at_most), math.log(high / low) / 2)
    assert math.log(same.high_ms / same.step_ms) == pytest.approx(half)


def test_steps_that_took_longer_than_their_parts_make_other_settings_less_sure() -> None:
    """As where the measured steps were disturbed or not warm: what took longer no part shows."""
    run = replace(measured(), step_times_ns=(measured().step_times_ns[0],) * 10)
    slow = replace(run, step_times_ns=tuple(3 * t for t in run.step_times_ns))
    lazy = run.settings.replace(mode="lazy")
    fast, wide = predict(run, lazy), predict(slow, lazy)
    by = calibrated(slow).stretch
    assert by == pytest.approx(3 * calibrated(run).stretch)
    assert by > 2
    assert wide.high_ms / wide.step_ms > max(by, fast.high_ms / fast.step_ms)
    assert f"took {by:.1f} times what their traced parts come to" in wide.assumptions[-1]
    assert "traced parts" not in predict(slow).assumptions[-1]  # a replay is the measured step
    quick = replace(run, step_times_ns=tuple(t // 3 for t in run.step_times_ns))
    assert "traced parts" not in predict(quick, lazy).assumptions[-1]  # a trace only slows


def test_where_nobody_measured_how_wrong_it_is_the_interval_is_unknown() -> None:
    run = measured()
    single = replace(run, step_times_ns=run.step_times_ns[:1])
    asked = {
        "device speed": predict(run, device_speed=4.0),
        "few steps": predict(single),
    }
    for what, found in asked.items():
        assert math.isnan(found.low_ms), what
        assert math.isnan(found.high_ms), what
        assert found.step_text.endswith("(± unknown)")
        assert what in found.assumptions[-1]


def test_a_replay_of_recorded_steps_is_less_sure_than_other_cuts_and_surer_than_prefetch() -> None:
    run = measured(syncs=0)

    def width(**changes: Any) -> float:
        made = predict(run, run.settings.replace(**changes))
        return made.high_ms / made.low_ms

    widths = [width(), width(mode="lazy"), width(step_mode="replay"), width(prefetch=2)]
    assert widths == sorted(widths)
    assert len(set(widths)) == 4
    assert width(step_mode="replay", mode="lazy") == pytest.approx(widths[2])
    assert width(step_mode="speculate") == pytest.approx(widths[1])


def test_each_known_error_is_of_settings_that_there_are() -> None:
    names = {name.partition("=")[0] for row in KNOWN_ERRORS for name in row.settings}
    assert names < {knob.name for knob in knobs_of(Settings)}
    assert all(0 < row.at_most < 1 and row.origin for row in KNOWN_ERRORS)


def test_what_is_predicted_of_a_disturbed_run_says_so_first() -> None:
    """It had an interval, "nine of ten such predictions", and no warning."""
    busy = Conditions(cores=2, others=1.31)
    for run in (measured(), native_run()):
        disturbed = replace(run, conditions=busy)
        said = f"the run may be off, and what is made of it: {disturbed.doubt}"
        found = predict(disturbed)
        assert found.assumptions[0] == found.timeline.notes[0] == said
        assert found.step_text.endswith("(± unknown)")
        assert not any("may be off" in text for text in predict(run).assumptions)


def test_a_second_run_that_was_disturbed_is_told_too() -> None:
    run, other = measured(Settings(batch_size=8)), measured(Settings(batch_size=16))
    other = replace(other, conditions=Conditions(cores=2, others=1.0))
    found = predict([run, other], run.settings.replace(batch_size=12))
    assert other.doubt in found.assumptions[0]


def test_steps_that_a_damaged_file_says_took_weeks_are_predicted_at_once() -> None:
    """A piece of work was made for each 5 ms of them, without end."""
    run = replace(measured(), step_times_ns=(1 << 52,) * 3)
    assert predict(run).step_ms == pytest.approx(run.step_ms, rel=0.01)
    assert len(predict(run).timeline) < 50_000
