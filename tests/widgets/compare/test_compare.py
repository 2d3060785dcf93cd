"""`kit.compare` of a workload: what is run, how often, what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kit
from kit.errors import Cancelled, SettingsError
from kit.runs.change import median_run
from kit.runs.conditions import Conditions
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.widgets.compare.data import comparison_rows
from kit.widgets.compare.view import (
    comparison_html,
    comparison_markdown,
    comparison_text,
)
from kit.widgets.memory.tables import variants_html
from tests.factories import empty_run, make_run, timed
from tests.widgets.compare.drawn import columns_of

QUICK = Settings(steps=3, warmup=2, batch_size=2, mode="lazy")
CHECK = QUICK.replace(loss_scaling="dynamic, host check")


def test_a_comparison_takes_finished_runs_as_they_are(tmp_path: Path):
    runs = [make_run(), make_run(Settings(mode="torch"))]
    for i, run in enumerate(runs):
        run.save(tmp_path / f"{i}.kit")
    made = kit.compare([Run.load(tmp_path / "0.kit"), Run.load(tmp_path / "1.kit")], baseline=1)
    assert [r.settings for r in made.runs] == [r.settings for r in runs]
    assert made.baseline == 1
    assert made.rows() == comparison_rows(runs, 1)
    assert repr(made) == comparison_text(comparison_rows(runs, 1))
    assert made.to_markdown() == comparison_markdown(comparison_rows(runs, 1))
    assert kit.compare(runs[0]).runs == (runs[0],)


def test_markdown_says_which_run_is_the_fastest_and_what_bold_and_parentheses_are():
    fast, slow = (replace(make_run(), step_times_ns=(ns,) * 12) for ns in (1_000_000, 2_000_000))
    *_, marks, last = comparison_markdown(comparison_rows([slow, fast])).split("\n\n")
    assert marks.startswith("In bold the best of its column")
    assert "in parentheses the quartiles of the steps, and half of the 95% interval" in marks
    assert last.startswith("Run 2 is the fastest: 1 ms a step")
    assert comparison_markdown(comparison_rows([slow])).count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([],), "nothing to compare"),
        ((lambda ctx: None,), "nothing to compare"),
        ((lambda ctx: None, []), "nothing to compare"),
        ((lambda ctx: None, [3]), "must be a kit.Settings, not int"),
        ((["a"],), "only runs can be compared; number 0 is a str"),
        (([make_run()], [Settings()]), "these runs are finished"),
    ],
    ids=lambda x: x if isinstance(x, str) else "call",
)
def test_what_cannot_be_compared_is_refused(arguments: Any, words: str):
    with pytest.raises(SettingsError, match=words):
        kit.compare(*arguments)


@pytest.mark.parametrize("baseline", [-1, 2, True, 0.0, "0"])
def test_a_baseline_that_is_no_place_of_a_run_is_refused_before_anything_runs(baseline: Any):
    with pytest.raises(
        SettingsError, match="baseline must be the place of one of the runs, 0 to 1"
    ):
        kit.compare([make_run(), make_run()], baseline=baseline)
    with pytest.raises(SettingsError, match="baseline must be"):
        kit.compare(kit_must_not_run, [QUICK, CHECK], baseline=baseline)


@pytest.mark.parametrize("repeats", [0, 1.5, True])
def test_repeats_that_are_no_count_are_refused(repeats: Any):
    with pytest.raises(SettingsError, match="repeats must be a whole number of at least 1"):
        kit.compare(kit_must_not_run, [QUICK], repeats=repeats)


def kit_must_not_run(ctx: Any) -> Any:
    raise AssertionError("the workload was built")


def test_real_settings_are_run_and_their_waits_differ():
    from kit.workloads import mlp

    texts: list[str] = []
    made = kit.compare(
        mlp,
        [CHECK, CHECK.replace(loss_scaling="dynamic, on device"), CHECK.replace(mode="torch")],
        progress=lambda text, fraction: texts.append(text),
    )
    assert [r.syncs_per_step for r in made.rows()] == [1, 0, 0]
    losses = [r.loss for r in made.rows()]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-3)
    assert texts[-1].startswith("run 3 of 3")
    columns = columns_of(made.runs)
    assert len(columns["syncs"]["x"]) == len(made.runs[0].timeline.syncs) > 0
    assert set(columns["syncs"]["run"]) == {1}


def test_a_jax_workload_has_its_own_baseline():
    from kit.workloads import jax_mlp

    made = kit.compare(jax_mlp, [QUICK.replace(mode="torch"), QUICK], progress=False)
    assert [r.label for r in made.rows()] == ["jax.jit (native)", "lazy"]
    assert not math.isnan(made.rows()[0].device_busy_fraction)
    assert "jax.jit (native)" in comparison_html(comparison_rows(made.runs))


def test_repeats_take_turns_and_the_median_run_is_kept():
    import torch

    order: list[int] = []

    def step_of(ctx: Any) -> Any:
        order.append(ctx.batch_size)
        weight = torch.ones(2, device=ctx.device, requires_grad=True)

        def step() -> Any:
            loss = (weight * ctx.batch_size).sum()
            loss.backward()
            weight.grad = None
            return loss

        return step

    one = QUICK.replace(batch_size=1, steps=2, warmup=1, mode="torch")
    made = kit.compare(step_of, [one, one.replace(batch_size=2)], repeats=3, progress=False)
    assert order == [1, 2] * 3
    assert [r.settings.batch_size for r in made.runs] == [1, 2]
    assert [[r.settings.batch_size for r in every] for every in made.repeats] == [[1] * 3, [2] * 3]
    assert all(run in every for run, every in zip(made.runs, made.repeats, strict=True))


@pytest.mark.parametrize(("times", "kept"), [([5, 8, 3], 5), ([4, 1, 3, 2], 2), ([7], 7)])
def test_the_median_of_several_runs_is_the_faster_one_in_the_middle(times: list[int], kept: int):
    runs = [replace(empty_run(), step_times_ns=(t * 1_000_000,)) for t in times]
    assert median_run(runs).step_ms == kept


def test_cancelling_ends_a_comparison():
    from kit.workloads import mlp

    asked = iter([False] * 3 + [True])
    with pytest.raises(Cancelled):
        kit.compare(mlp, [QUICK, CHECK], cancelled=lambda: next(asked), progress=False)


def test_no_line_of_a_label_ends_between_a_number_and_its_word():
    runs = [make_run(Settings(bulk_forward=5, bulk_backward=k, batch_size=8)) for k in (2, 900)]
    runs[1] = replace(runs[1], settings=runs[1].settings.replace(loss_scaling="static"))
    assert "2 backward" in columns_of(runs)["titles"]["text"][0]
    assert ">2 backward</span>" in comparison_html(comparison_rows(runs))
    assert ">2 backward</span>" in variants_html(runs)


def test_a_disturbed_run_is_marked_with_the_reason_wherever_runs_are_compared():
    busy = timed(8, 8, 8, conditions=Conditions(cores=2, others=1.3))
    runs, why = [timed(10, 10, 10), busy], "disturbed: measured on a busy machine: others used 1.3"
    for form in (comparison_html, comparison_markdown, comparison_text):
        assert form(comparison_rows(runs)).count(why) == 1
        assert "disturbed" not in form(comparison_rows(runs[:1]))
    repeated = comparison_rows(runs[:1], repeats=[runs])
    assert comparison_html(repeated).count(why) == 1  # one of its repeats
