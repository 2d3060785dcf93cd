"""Predictions from native runs: a step is one chain, and each question shortens its own parts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import SettingsError
from kit.ir.plan import OpStream
from kit.runs.knob import OwnKnob
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.whatif.predict import predict
from kit.trace.kinds import OF_WORKERS
from tests.factories import empty_run, make_run, native_run

MS = 1_000_000
INPUT, HOST, KERNELS, ASLEEP = 40, 10, 30, 20  # milliseconds of a step of `native_run`


def ms_of(run: Run, **asked: Any) -> float:
    return predict(run, **asked).step_ms


def test_settings_without_the_builders_knobs_ask_for_the_runs_own() -> None:
    """It was an AttributeError natively, and "width=None cannot be predicted" on device kit."""
    own = (OwnKnob("width", 32, (16, 32), 16),)
    native, lazy = native_run(), make_run(Settings("lazy", own=own))
    native = replace(native, settings=native.settings.replace(own=own))
    asked = native.settings.replace(own=(), prefetch=2)
    assert predict(native, asked).settings.own == own
    assert predict(lazy, Settings("bulked")).settings.own == own
    with pytest.raises(SettingsError, match="width=16 cannot be predicted"):
        predict(lazy, Settings("lazy", own=(own[0].set(16),)))


@pytest.mark.parametrize("slowed", [1, 3])
def test_a_replay_takes_what_the_untraced_steps_took(slowed: int) -> None:
    assert ms_of(native_run(slowed=slowed)) == pytest.approx(100)


@pytest.mark.parametrize("slowed", [1, 3])
def test_each_question_shortens_the_parts_that_it_names(slowed: int) -> None:
    run = native_run(slowed=slowed)
    assert ms_of(run, device_speed=2) == pytest.approx(100 - KERNELS / 2)
    assert ms_of(run, host_speed=5) == pytest.approx(100 - HOST * 4 / 5)
    ahead = run.settings.replace(prefetch=2)
    assert ms_of(run, settings=ahead) == pytest.approx(HOST + KERNELS + ASLEEP)
    both = predict(run, ahead, device_speed=1e9, host_speed=1e9)  # now the loader bounds the step
    assert both.step_ms == pytest.approx(max(INPUT, ASLEEP))


@given(device=st.floats(0.1, 100), host=st.floats(0.1, 100), depth=st.integers(0, 3))
def test_the_chain_adds_up(device: float, host: float, depth: int) -> None:
    run = native_run()
    made = predict(run, run.settings.replace(prefetch=depth), device_speed=device, host_speed=host)
    rest = HOST / host + KERNELS / device + ASLEEP
    expected = max(INPUT, rest) if depth else INPUT + rest
    assert made.step_ms == pytest.approx(expected, rel=1e-4)
    steps = made.timeline.intervals(kind="step")
    assert [stop - start for start, stop in steps] == pytest.approx([expected * MS] * 2, rel=1e-4)


def test_it_says_what_it_assumed_and_that_nobody_has_compared_it() -> None:
    made = predict(native_run(), native_run().settings.replace(prefetch=2))
    assert made.headline() == (
        "modelled: 60 ms (± unknown) a step; from train.py (natively) at 100 ms"
    )
    assert made.timeline.origin == "modelled"
    assert math.isnan(made.low_ms)
    said = " ".join(made.assumptions)
    assert "40 ms that the step spends on it now" in said
    assert "DataLoader(num_workers=1)" in said
    assert "no prediction of native steps was compared with a run" in said
    assert made.timeline.notes == made.assumptions


def test_the_batch_of_a_step_is_loaded_beside_the_one_before() -> None:
    made = predict(native_run(), native_run().settings.replace(prefetch=1), device_speed=1e9)
    lanes = {s.lane for s in made.timeline.spans if s.kind == "input"}
    assert "host/loader" in lanes
    assert made.step_ms == pytest.approx(INPUT)
    waits = [s for s in made.timeline.spans if s.kind == "input" and s.lane == "host/main"]
    assert [round((s.stop_ns - s.start_ns) / MS) for s in waits] == [INPUT - HOST - ASLEEP] * 2


def test_workers_that_do_not_keep_up_are_to_be_more() -> None:
    run = native_run(batch=OF_WORKERS)
    made = predict(run, run.settings.replace(prefetch=2), host_speed=1e9, device_speed=1e9)
    assert made.step_ms == pytest.approx(ASLEEP)
    assert "so many workers that no batch is waited for; now a step waits 40 ms" in " ".join(
        made.assumptions
    )


STREAM = OpStream.of(make_run().graphs[0], make_run().segments)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"settings": {"bulk_forward": 2}}, "bulk_forward=2 cannot be predicted from a native run"),
        ({"settings": {"mode": "lazy"}}, "mode='lazy' .* run it on device kit"),
        ({"settings": {"batch_size": 2}}, "its program follows no setting of kit's"),
        ({"without": ["train.py"]}, "no wait to take away"),
        ({"launch_ns": 1.0}, "are of device kit"),
        ({"stream": STREAM}, "are of device kit"),
        ({"host_speed": 0.0}, "host_speed must be a finite number above 0"),
        ({"device_speed": math.nan}, "device_speed must be a finite number above 0"),
    ],
    ids=str,
)
def test_what_a_program_cannot_follow_is_refused_in_words(asked: dict[str, Any], why: str) -> None:
    run = native_run()
    if "settings" in asked:
        asked = {"settings": run.settings.replace(**asked["settings"])}
    with pytest.raises(SettingsError, match=why):
        predict(run, **asked)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (native_run(lane="device/0 stream 7"), "natively on a GPU"),
        (native_run(origin="imported"), "not an imported trace"),
    ],
    ids=["gpu", "imported"],
)
def test_a_run_that_does_not_tell_is_refused_in_words(run: Run, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        predict(run)


def test_a_run_without_traced_steps_is_refused() -> None:
    empty = empty_run()
    run = Run(Settings(mode="torch"), (), (5,), empty.timeline)
    with pytest.raises(SettingsError, match="this run has no timeline"):
        predict(run)


def test_a_run_that_prefetched_keeps_its_waits_and_tells_no_other_depth() -> None:
    """What a step waits was put beside it once more: its own replay was too short."""
    run = native_run()
    ahead = replace(run, settings=run.settings.replace(prefetch=2))
    assert ms_of(ahead) == pytest.approx(100)
    assert ms_of(ahead, device_speed=2) == pytest.approx(100 - KERNELS / 2)
    with pytest.raises(SettingsError, match="prefetch=0 cannot be predicted from a native run"):
        predict(ahead, run.settings)
