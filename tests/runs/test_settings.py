"""The table of settings: a new row is in every place that lists settings, and in the docs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

import kit
from kit.errors import SettingsError
from kit.measure.search.autotune import axes_of as tuned_axes
from kit.measure.search.sweeps import sweep
from kit.measure.search.tuned import in_words, program_of, training_of, work_of
from kit.reports.grid import axes_of as report_axes
from kit.runs.knob import OwnKnob, knobs_of, setting, settings_table
from kit.runs.loss_scaling import LOSS_SCALING, loss_scaling
from kit.runs.settings import Settings, names_checked
from kit.widgets.base.controls import Controls
from kit.widgets.compare.data import run_labels
from tests.factories import empty_run, make_run


@names_checked
@dataclass(frozen=True)
class Wider(Settings):
    """The settings of a kit that has one more."""

    echo: int = setting(
        2, "how often the step answers", widget="slider", label="echo count", offered=(1, 2, 4),
        modes=("torch", "lazy"), tried=(2, 4), is_compiled=True, is_training=True,
    )  # fmt: skip


def test_one_of_what_is_counted_is_in_the_singular():
    """A run of one step was labelled "1 steps"."""
    rows = [row for row in knobs_of(Settings) if row.phrase[:2] == "{}" != row.phrase[-2:]]
    assert [row.name for row in rows] == ["accumulate", "steps", "warmup"]
    assert [row.in_words(1) for row in rows] == ["1 micro-batch", "1 step", "1 warm-up step"]


def test_each_field_has_a_row_that_asks_something():
    rows = knobs_of(Settings)
    assert [row.name for row in rows] == [f.name for f in fields(Settings) if f.name != "own"]
    assert all(row.asks and row.label for row in rows)
    for row in rows:
        row.check(row.default)
        assert row.read(row.write(row.default)) == row.default


def test_a_new_row_is_checked():
    assert Wider().echo == 2
    with pytest.raises(SettingsError, match="echo must be a whole number of at least 1, not 0"):
        Wider(echo=0)
    for make in (Wider, Wider().replace):
        with pytest.raises(SettingsError, match="no setting is called 'ecko'; did you mean 'echo'"):
            make(ecko=1)
        with pytest.raises(SettingsError, match=r"'zzz'; there are: .*echo") as raised:
            make(zzz=1)
        assert " own" not in str(raised.value)


def test_a_new_row_is_in_the_text_form():
    assert Wider(echo=4, batch_size=2).to_string() == "batch_size=2&echo=4"
    assert Wider.parse("echo=4") == Wider(echo=4)
    with pytest.raises(SettingsError, match="no setting is called 'echo'"):
        Settings.parse("echo=4")


def test_a_new_row_has_a_control_that_follows_and_is_followed():
    controls = Controls(Wider(mode="lazy", echo=3), on_invalid=lambda error: None)
    assert [x for _, x in controls["echo"].options] == [1, 2, 3, 4]
    controls["echo"].value = 4
    assert controls.settings == Wider(mode="lazy", echo=4)
    assert Wider(mode="lazy", echo=3) in controls.neighbours()
    controls.settings = Wider(mode="bulked")
    assert controls["echo"].disabled


def test_a_new_row_can_be_swept_and_tuned():
    def build(context):
        return lambda: __import__("torch").tensor(float(context.settings.echo))

    base = Wider(mode="torch", steps=1, warmup=0)
    assert [run.losses for run in sweep(build, {"echo": [1, 4]}, base)] == [(1.0,), (4.0,)]
    assert tuned_axes(base, {})["echo"] == [{"echo": 2}, {"echo": 4}]
    assert in_words(base.replace(echo=4), base) == "echo 4"
    for told_apart in (program_of, training_of, work_of):
        assert told_apart(base.replace(echo=4)) != told_apart(base)


def test_a_new_row_is_in_reports_and_comparisons():
    runs = [replace(empty_run(), settings=Wider(mode="lazy", echo=n)) for n in (4, 1)]
    (axis,) = report_axes(runs)
    assert axis.as_dict() == {
        "name": "echo", "label": "echo count", "number": True, "values": ["1", "4"],
    }  # fmt: skip
    assert run_labels(runs) == ["echo count 4", "echo count 1"]


def test_a_new_row_is_not_predicted_before_it_says_that_the_model_knows_it():
    """It was predicted to change nothing."""
    run = replace(make_run(), settings=Wider(mode="lazy"))
    with pytest.raises(SettingsError, match=r"echo=4 cannot be predicted from a run with 2"):
        kit.predict(run, run.settings.replace(echo=4))


def test_a_new_row_is_in_the_table_of_the_documentation():
    assert "| `echo` | 1 and up | 2 | how often the step answers |" in settings_table(Wider)


def test_a_mode_of_loss_scaling_is_one_row():
    rows = [loss_scaling(name) for name in LOSS_SCALING]
    assert [row.name for row in rows] == list(LOSS_SCALING)
    assert all(row.native in LOSS_SCALING and row.costs for row in rows)
    assert not any(loss_scaling(row.native).takes_back for row in rows)  # which plain torch cannot
    with pytest.raises(SettingsError, match=r"loss_scaling must be one of 'none', .* not 'some'"):
        loss_scaling("some")


def test_the_words_of_the_table_of_settings_are_taken_in_code_too() -> None:
    """`Settings(steps="enough")` was refused, though the table and the text form have it."""
    named = Settings(steps="enough", warmup="steady", bulk_inference="unlimited")  # type: ignore[arg-type]
    assert named == Settings()
    assert Settings(steps=5).replace(steps="enough") == Settings()
    with pytest.raises(SettingsError, match="steps must be"):
        Settings(steps="many")  # type: ignore[arg-type]


def test_settings_are_shown_without_all_that_a_knob_offers() -> None:
    own = OwnKnob("width", 2, tuple(range(900)), 1)
    assert repr(Settings(own=(own,))).endswith("own=(OwnKnob(name='width', value=2),))")
