"""A builder's parameters are settings like kit's own, in every place that lists settings."""

from __future__ import annotations

import inspect
import json
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.errors import RunFileError, SettingsError
from kit.measure.base.context import Context, workload
from kit.measure.base.knobs import RESERVED, knob
from kit.measure.search.autotune import axes_of as tuned_axes
from kit.measure.search.tuned import in_words, program_of, training_of
from kit.reports.grid import axes_of as report_axes
from kit.runs.knob import OwnKnob, knobs_of
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runs.text_form import write_text
from kit.widgets.base.controls import Controls
from kit.widgets.compare.data import run_labels
from kit.widgets.explorer.view import Explorer
from kit.widgets.numbers.headline import changed_html
from tests.factories import make_run


@workload
def mine(
    ctx: Context,
    width: int = knob(8, 32, step=8, default=16),
    workers: int = knob(0, 2, 4, changes_numbers=False),
    fused: bool = knob(label="fused <b>{x}</b>"),
    rate: float = knob(0.1, 0.25),
    act: str = knob("relu", "gelu"),
) -> Any:
    """A step whose loss says what the builder was given."""
    total = width + workers + fused * 100 + rate + 1000 * (act == "gelu")
    weights = torch.ones(width, width, device=ctx.device)
    return lambda: (weights * total).mean()


SMALL = Settings(mode="torch", steps=1, warmup=0)


def at(**values: Any) -> Settings:
    return mine.settings(mode="lazy", **values)


def run_at(**values: Any) -> Run:
    return replace(make_run(), settings=at(**values), name="mine")


def test_a_parameter_is_a_setting_at_its_default():
    settings = mine.settings()
    own = {name: getattr(settings, name) for name in ("width", "workers", "fused", "rate", "act")}
    assert own == {"width": 16, "workers": 0, "fused": False, "rate": 0.1, "act": "relu"}
    assert own.items() <= settings.as_dict().items()
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert {settings: 1}[mine.settings(width=16)] == 1
    assert settings != mine.settings(width=8)
    with pytest.raises(AttributeError, match="no setting is called 'wide'"):
        _ = settings.wide


def test_each_verb_gives_the_builder_its_values(tmp_path: Path):
    assert kit.run(mine, SMALL).losses == (pytest.approx(16.1),)
    made = kit.run(mine, SMALL, fused=True, act="gelu", rate=0.25, seed=3)
    assert made.losses == (pytest.approx(1116.25),)
    assert made.settings == mine.settings(
        **SMALL.replace(seed=3).as_dict(), fused=True, act="gelu", rate=0.25
    )
    runs = kit.sweep(mine, {"width": [8, 32]}, SMALL, workers=2, path=tmp_path, progress=False)
    assert [run.losses[0] for run in runs] == pytest.approx([10.1, 34.1])
    again = kit.sweep(mine, {"width": [8, 32]}, SMALL, workers=2, path=tmp_path, progress=False)
    assert [r.step_times_ns for r in again] == [r.step_times_ns for r in runs], "measured again"
    compared = kit.compare(mine, [SMALL, mine.settings(**SMALL.as_dict(), width=8)], rate=0.25)
    assert [run.losses[0] for run in compared.runs] == pytest.approx([16.25, 8.25])
    stream = kit.plan(mine, at(width=24))
    assert any(aval.shape == (24, 24) for node in stream.graph.nodes for aval in node.avals)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"width": 17},
            r"width of mine \(test_knobs.py:\d+\) must be one of 8, 16, 24, 32, not 17",
        ),
        ({"fused": 1}, r"fused of mine .* must be one of False, True, not 1"),
        ({"act": "tanh"}, r"act of mine .* must be one of 'relu', 'gelu', not 'tanh'"),
        ({"workers": True}, r"workers of mine .* must be one of 0, 2, 4, not True"),
        ({"layers": 8}, r"no argument 'layers'; the knobs of 'mine' are width, workers, fused"),
        ({"widht": 8}, r"no argument 'widht'; did you mean 'width'\?"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_the_builders_line(values: Any, said: str):
    with pytest.raises(SettingsError, match=said):
        kit.run(mine, SMALL, **values)


def test_settings_of_one_workload_are_not_those_of_another():
    def other(ctx: Context, depth: int = knob(1, 2)) -> Any: ...

    with pytest.raises(
        SettingsError, match=r"act='relu', a knob of another .* has the knobs depth"
    ):
        kit.run(other, mine.settings())
    with pytest.raises(SettingsError, match=r"'plain' has none of its own"):
        kit.run(kit.Workload("plain", lambda ctx: None), mine.settings())


def _many(ctx: Context, label: int = knob(1, 2)) -> Any: ...
def _as_setting(ctx: Context, batch_size: int = knob(1, 2)) -> Any: ...
def _as_method(ctx: Context, as_dict: int = knob(1, 2)) -> Any: ...
def _before(ctx: Context, width: int = knob(1, 2), /) -> Any: ...
def _default(ctx: Context, width: int = knob(1, 2, default=3)) -> Any: ...
def _large(ctx: Context, width: int = knob(10**30, 1)) -> Any: ...
def _self(ctx: Context, self: int = knob(1, 2)) -> Any: ...
def _unicode(ctx: Context, größe: int = knob(1, 2)) -> Any: ...
def _control(ctx: Context, width: int = knob(1, 2, label="a\x1b[1m")) -> Any: ...


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (_many, r"label of _many \(test_knobs.py:\d+\) has the name of an argument of kit.run"),
        (_as_method, "no knob can be called 'as_dict'"),
        (_as_setting, "no knob can be called 'batch_size'"),
        (_before, "width of _before .* cannot stand before /"),
        (_default, r"^width of _default \([^)]*\): must be one of 1, 2, not 3"),
        (_large, "width: a knob's whole numbers are at most 9,223,"),
        (_self, "self of _self .* has the name of an argument"),
        (_unicode, r"'größe' cannot be a knob's name, .* use the letters a to z"),
        (_control, "the texts of 'width' must be of one line"),
    ],
)
def test_a_parameter_that_cannot_be_a_knob_is_refused_at_its_builder(build: Any, said: str):
    with pytest.raises(SettingsError, match=said):
        workload(build).settings()


@pytest.mark.parametrize(
    "make",
    [
        lambda: knob(1, "a"),
        lambda: knob(None),
        lambda: knob(1, 2, 3, step=1),
        lambda: knob(2, 1, step=1),
        lambda: knob(1, 2, step=0),
        lambda: knob(0, 10**9, step=1),
        lambda: knob(0, float("inf"), step=1),
        lambda: knob(1, 10**400, step=1),
        lambda: knob(10**400, 10**400 + 2, step=0.5),
        lambda: knob(0, 1, step=float("nan")),
    ],
)
def test_values_that_are_none_of_a_knob_are_refused(make: Any):
    with pytest.raises(SettingsError):
        make()


def test_ranges_have_both_ends_and_fractions_are_exact():
    def build(ctx: Context, a: int = knob(64, 512, step=64), b: float = knob(0, 1, step=0.1)): ...

    a, b = workload(build).knobs
    assert a.values == tuple(range(64, 513, 64))
    assert b.values == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert b.set(1).value == 1.0
    assert knob(64, 500, step=64).values == tuple(range(64, 449, 64))
    with pytest.raises(SettingsError, match="one of"):
        a.set(100)


def test_no_argument_of_a_verb_can_be_a_knob():
    verbs = (kit.run, kit.sweep, kit.compare, kit.autotune, kit.Explorer, kit.report, kit.plan)
    names = {name for verb in verbs for name in inspect.signature(verb).parameters}
    assert names - {"options"} <= RESERVED


def test_settings_as_text_have_the_knobs():
    text = at(width=32, fused=True, rate=0.25, act="gelu").to_string()
    assert text == "mode=lazy&width=32&fused=on&rate=0.25&act=gelu"
    assert Settings.parse(text, mine.knobs) == at(width=32, fused=True, rate=0.25, act="gelu")
    assert Settings.parse("fused=true&rate=0.250", mine.knobs).to_string() == "fused=on&rate=0.25"
    with pytest.raises(SettingsError, match="no setting is called 'width'"):
        Settings.parse(text)
    with pytest.raises(SettingsError, match=r"rate of mine .* one of 0\.1, 0\.25, not '0\.3'"):
        Settings.parse("rate=0.3", mine.knobs)
    assert write_text(knobs_of(at()), at().as_dict()) == "mode=lazy"


def test_a_saved_run_opens_without_its_builder(tmp_path: Path):
    run_at(width=32).save(tmp_path / "a.kitrun")
    run = Run.load(tmp_path / "a.kitrun")
    assert run.settings == at(width=32)
    assert run.settings.replace(width=8).width == 8
    with pytest.raises(SettingsError, match=r"width of mine .* not 9"):
        run.settings.replace(width=9)


@pytest.mark.parametrize(
    "changes",
    [{"name": "mode"}, {"name": "a b"}, {"value": 7}, {"values": []}, {"widget": "iframe"},
     {"label": "x" * 101}, {"values": [True, 16]}, {"name": "workers"}],
)  # fmt: skip
def test_a_file_cannot_bring_a_knob_that_cannot_be(changes: dict[str, Any], tmp_path: Path):
    run_at().save(tmp_path / "a.kitrun")
    with zipfile.ZipFile(tmp_path / "a.kitrun") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    head = json.loads(members["run.json"])
    head["settings"]["own"][0] |= changes
    members["run.json"] = json.dumps(head).encode()
    with zipfile.ZipFile(tmp_path / "b.kitrun", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(RunFileError):
        Run.load(tmp_path / "b.kitrun")


def test_reports_comparisons_and_diffs_tell_runs_apart_by_the_knobs():
    runs = [run_at(width=32, fused=True), run_at(width=8), run_at(width=8, fused=True)]
    assert [axis.as_dict() for axis in report_axes(runs)] == [
        {"name": "width", "label": "width", "number": True, "values": ["8", "32"]},
        {"name": "fused", "label": "fused <b>{x}</b>", "number": False, "values": ["off", "on"]},
    ]
    assert run_labels(runs)[:2] == [
        "width 32 · fused <b>{x}</b> on", "width 8 · fused <b>{x}</b> off",
    ]  # fmt: skip
    assert kit.diff_runs(runs[0], runs[1]).settings == (("width", 32, 8), ("fused", True, False))
    plain = replace(make_run(), settings=Settings(mode="lazy"), name="plain")
    assert ("width", 32, None) in kit.diff_runs(runs[0], plain).settings
    width = next(axis for axis in report_axes([*runs, plain]) if axis.name == "width")
    assert width.as_dict()["values"] == ["8", "32", "no such knob"]
    assert len(set(run_labels([*runs, plain]))) == 4
    assert "width 32 → 8; fused &lt;b&gt;{x}&lt;/b&gt; on → off:" in changed_html(*runs[:2])
    assert "width" not in changed_html(plain, runs[0])


def test_each_kind_has_its_control():
    controls = Controls(at(), on_invalid=lambda error: None)
    kinds = {name: type(controls[name]).__name__ for name in ("width", "workers", "fused", "act")}
    assert kinds == {
        "width": "SelectionSlider", "workers": "Dropdown", "fused": "Checkbox", "act": "Dropdown",
    }  # fmt: skip
    controls["width"].value, controls["fused"].value = 24, True
    assert controls.settings == at(width=24, fused=True)
    controls.settings = at(act="gelu")
    assert (controls["width"].value, controls["fused"].value) == (16, False)
    assert at(act="gelu", fused=True) in controls.neighbours()


def test_the_explorer_reads_the_text_and_settings_from_elsewhere():
    seen: list[Settings] = []

    def run_step(settings: Settings, **options: Any) -> Run:
        seen.append(settings)
        return replace(make_run(), settings=settings)

    explorer = Explorer(run_step, at(width=8), name="mine", auto_run=False)
    explorer.history.text.value = "mode=lazy&width=32&fused=on"
    assert explorer.wait(30).settings == at(width=32, fused=True)
    explorer.settings = Settings(mode="lazy", batch_size=4)
    assert explorer.wait(30).settings == at(batch_size=4)
    explorer.history.text.value = "width=9"
    assert "must be one of 8, 16, 24, 32, not" in explorer.failure.value
    explorer.close()


def test_autotune_varies_only_what_changes_no_number():
    start = at()
    assert tuned_axes(start, {})["workers"] == [{"workers": n} for n in (0, 2, 4)]
    assert not {"width", "fused", "rate", "act"} & tuned_axes(start, {}).keys()
    assert tuned_axes(start, {"width": [8]})["width"] == [{"width": 8}]
    assert training_of(at(width=8)) != training_of(start) == training_of(at(workers=2))
    assert program_of(at(workers=2)) != program_of(start)
    assert in_words(at(fused=True, workers=2), start) == "workers 2 + fused on"


def test_what_a_builder_does_with_a_knob_is_not_predicted():
    with pytest.raises(SettingsError, match=r"width=8 cannot be predicted: it is a parameter"):
        kit.predict(run_at(), at(width=8))


def test_a_run_of_another_width_is_no_second_batch_size():
    small, wide = run_at(batch_size=2, width=8), run_at(batch_size=4, width=32)
    asked = at(batch_size=8, width=8)
    assert kit.predict([small, run_at(batch_size=4, width=8)], asked).step_ms > 0
    with pytest.raises(SettingsError, match="batch"):
        kit.predict([small, wide], asked)


def test_two_knobs_are_equal_if_their_values_are():
    a = OwnKnob("width", 8, values=(8, 16), default=8, where="mine (a.py:3)")
    assert a == replace(a, values=(8, 32), where="mine (a.py:9)") != a.set(16)
