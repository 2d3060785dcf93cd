"""`Settings` and `Run`: what may be set, what is derived, how a run prints."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import SettingsError
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.run import BASELINE, JIT, Run
from kit.runs.settings import DEVICES, MODES, Settings
from kit.trace import Span, Timeline, sync_table
from tests.factories import empty_run, make_run


def test_a_run_without_traced_steps_shows_why_so_much_is_unknown():
    why = "no step was traced: the recording ended after 12 steps"
    run = replace(make_run(), timeline=Timeline.of([], notes=[why]))
    assert f"recording hidden unknown, 1 sync/step; {why})" in repr(run)


def test_a_run_prints_as_one_readable_line():
    text = repr(make_run())
    assert text == (
        "Run('synthetic', mode 'bulked', 1.55 ms/step, device busy 83%, recording hidden 32%, "
        "1 sync/step)"
    )
    assert "unknown/step" in repr(empty_run())
    four = replace(
        make_run(), settings=Settings(mode="lazy", batch_size=4, dtype="float16", steps=9)
    )
    assert repr(four).startswith(
        "Run('synthetic', mode 'lazy', batch_size 4, dtype 'float16', 1.55"
    )
    assert "\n" not in repr(make_run(hostile=True))
    assert len(repr(make_run(hostile=True))) < 250


def test_a_callback_of_a_file_from_before_there_was_the_kind_is_one(tmp_path):
    """What the kit of the day before had called work of the device."""
    names = ("pure_callback.1", "pure")
    timeline = Timeline.of([Span("device/0", name, "kernel", 0, 1) for name in names])
    replace(empty_run(), timeline=timeline).save(tmp_path / "a.kitrun")
    assert [s.kind for s in Run.load(tmp_path / "a.kitrun").timeline.spans] == [
        "callback", "kernel"]  # fmt: skip


def test_the_sync_rows_are_of_the_waits_that_are_told():
    run = make_run()
    steps = len(run.step_times_ns)
    assert run.sync_rows == sync_table(run.sync_points, steps=steps, timeline=run.timeline)
    assert sum(row.count for row in run.sync_rows) == len(run.sync_points) > 0
    native = replace(run, settings=Settings(mode="torch"))  # whose measured steps nobody looks at
    waits, steps = native.timeline.syncs, native.timeline.steps
    assert native.sync_rows == sync_table(waits, steps=steps, timeline=native.timeline)
    assert replace(native, environment={BASELINE: JIT}, sync_points=()).sync_rows == ()


def test_step_ms_is_the_median_and_nan_without_steps():
    assert replace(empty_run(), step_times_ns=(1_000_000, 9_000_000, 2_000_000)).step_ms == 2.0
    assert np.isnan(empty_run().step_ms)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 0}, r"batch_size must be a whole number of at least 1, not 0\. Change it"),
        ({"bulk_forward": 1.5}, "bulk_forward must be a whole number of at least 1, not 1.5"),
        ({"batch_size": 2**70}, r"batch_size must be at most 1,000,000,000, not 11805916\d+\. Ch"),
        ({"accumulate": 2**70}, "accumulate must be at most 1,000,000, not 1180"),
        ({"prefetch": 2**70}, "prefetch must be at most 1,000, not 1180"),
        ({"steps": 2**70}, "steps must be at most 10,000,000, not 1180"),
        ({"warmup": 2**70}, "warmup must be at most 10,000,000, not 1180"),
        ({"seed": 2**70}, "seed must be at most 9,223,372,036,854,775,807, not 1180"),
        ({"bulk_forward": 2**70}, "bulk_forward must be at most 9,223,.*means no limit"),
        ({"bulk_inference": 1 << 20_000}, "at most 9,223,.*, not a number of 20,001 bits"),
        ({"batch_size": -(1 << 20_000)}, "of at least 1, not a number of 20,001 bits"),
        ({"steps": True}, "steps must be a whole number of at least 1, not True"),
        ({"mode": "fast"}, "mode must be one of 'torch', 'imperative', 'bulked', 'lazy'"),
        ({"loss_scaling": "maybe"}, "loss_scaling must be one of 'none'"),
        ({"batchsize": 4}, "no setting is called 'batchsize'; did you mean 'batch_size'?"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error_that_gives_the_allowed_values(changes, sentence):
    with pytest.raises(SettingsError, match=sentence):
        Settings().replace(**changes)


def test_a_misspelt_name_is_answered_and_the_signature_stays():
    with pytest.raises(SettingsError, match=r"'bulk_foward'; did you mean 'bulk_forward'\?"):
        Settings(mode="lazy", bulk_foward=5)
    assert list(inspect.signature(Settings).parameters)[:2] == ["mode", "bulk_forward"]
    assert Settings("lazy") == Settings(mode="lazy") == pickle.loads(pickle.dumps(Settings("lazy")))


def test_the_mode_decides_the_bulk_sizes():
    base = Settings(bulk_forward=7, bulk_backward=9)
    sizes = {mode: base.replace(mode=mode).bulk_sizes for mode in MODES}
    assert sizes["imperative"] == (1, 1)
    assert sizes["bulked"] == (7, 9)
    assert sizes["lazy"] == (UNLIMITED, UNLIMITED)


@given(
    st.sampled_from(MODES),
    st.sampled_from(LOSS_SCALING),
    st.sampled_from(DEVICES),
    st.integers(1, 99),
)
def test_settings_are_rebuilt_from_their_plain_values(mode, scaling, device, size):
    s = Settings(mode=mode, loss_scaling=scaling, device=device, batch_size=size)
    assert Settings(**s.as_dict()) == s
