"""Traced steps that do not stand for the measured ones: the verdict must not pretend they do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.reports.markdown import report_markdown
from kit.runs.compiles import FIRST_MEASURED, Compile
from kit.runs.conditions import Conditions
from kit.runs.verdict.summary import summary
from kit.runs.verdict.verdict import verdict
from kit.trace import Span, SyncPoint, Timeline
from kit.widgets.base.cards import headline_html
from kit.widgets.numbers.advice import advice_html
from kit.widgets.numbers.run_diff import run_diff_html

MS = 1_000_000
BUSY = Conditions(cores=2.0, others=1.5, warmup_steps=0.0)


def recorded(
    times_ms: tuple[float, ...], compiled_ms: float = 0.0, *, kind: str = "first", step: int = 0
) -> kit.Run:
    """Traced steps of 10 ms in which Python records; a compile in one of the measured steps."""
    spans = [
        Span("host/main", name, kind, start * MS, stop * MS)
        for name, kind, start, stop in (("step 0", "step", 0, 10), ("forward", "record", 0, 9))
    ]
    spans.append(Span("device/0", "k", "kernel", 9 * MS, 10 * MS))
    note = Compile(step, 0, "forward", kind, "x changed", 5, compile_ms=compiled_ms)
    return kit.Run(
        kit.Settings(mode="lazy", steps=max(len(times_ms), 1), warmup=0),
        (1.0,),
        tuple(int(ms * MS) for ms in times_ms),
        Timeline.of(spans, (), "profiled"),
        compiles=(note,) * bool(compiled_ms),
        conditions=Conditions(warmup_steps=0.0),
    )


def pages(run: kit.Run) -> dict[str, str]:
    return {
        "summary": summary(run),
        "report": report_markdown([run]),
        "advice": advice_html(run),
        "cards": headline_html(run),
        "markdown": run.to_markdown(),
        "repr": repr(run),
    }


def test_steps_that_mostly_compiled_are_said_to_and_are_not_called_recording_bound() -> None:
    run = recorded((900.0,), 700.0)
    assert (run.limited_by().what, run.limited_by().share) == ("compile", pytest.approx(7 / 9))
    found = verdict(run)
    assert found is not None
    assert [a.rule for a in found.advice] == ["compile"]
    assert "raise warmup" in found.advice[0].text
    shown = pages(run)
    assert not [name for name, page in shown.items() if "recording-bound" in page]
    for name in ("summary", "report", "advice"):
        assert "compile-bound" in shown[name]
    for name in ("summary", "report", "cards", "markdown", "repr"):
        assert "78% of the time of the 1 measured step went into compiling 1 program" in shown[name]
        assert "the traced steps, from which all parts of a step come, compiled no" in shown[name]


def test_a_run_that_compiled_less_than_that_says_how_much_and_keeps_its_verdict() -> None:
    run = recorded((10.0,) * 9 + (40.0,), 30.0)
    assert run.limited_by().what == "recording"
    assert "23% of the time of the 10 measured steps" in summary(run)
    assert "compiling" not in summary(recorded((10.0,) * 10, 1.0))
    assert "compiling" not in repr(recorded((10.0,) * 10))


def test_measured_steps_far_longer_than_traced_ones_get_no_verdict() -> None:
    run = recorded((300.0,))
    assert run.doubt == run.limited_by().doubt
    assert "a measured step took 300 ms and a traced one 10 ms" in run.doubt
    assert "if a thread fills a queue of batches" in summary(run)
    assert "raise warmup" in summary(run)
    assert "-bound" not in "".join(pages(run).values())
    with_compiles = recorded((300.0, 300.0), 60.0)
    assert with_compiles.limited_by().doubt
    assert "10% of the time of the 2 measured steps" in headline_html(with_compiles)
    assert not recorded((15.0, 300.0, 15.0)).doubt  # the step that is shown is the middle one
    assert not recorded((10.0, 10.0, 500.0), 480.0).doubt  # the rest of which is compiling


def test_what_only_the_traced_steps_compiled_is_not_what_limits_a_step() -> None:
    """As an evaluation that comes for the first time there; the next one compiles nothing."""
    run = recorded((10.0, 10.0), 7.0, step=2)
    spans = [*run.timeline.spans, Span("host/main", "compile", "compile", 1 * MS, 8 * MS)]
    syncs = (SyncPoint(8 * MS, 1 * MS, "item", "a.py:1"),)
    run = replace(run, timeline=Timeline.of(spans, syncs, "profiled"))
    shown = summary(run)
    assert "-bound" not in shown
    assert "spent 70% of their time on compiling 1 program, and the measured ones" in shown
    assert "a training pays that once" in shown
    assert "raise warmup" in shown
    assert "waited in none of the 2 measured steps (in the traced ones it did, 1 time)" in shown
    again = replace(run, step_times_ns=(10 * MS,) * 3)  # a measured step compiled, too
    assert "pays that once" not in again.doubt


def test_a_busy_machine_withholds_the_verdict_but_not_what_was_compiled() -> None:
    run = replace(recorded((900.0,), 700.0), conditions=BUSY)
    assert run.limited_by().doubt.startswith("measured on a busy machine")
    assert "78% of the time" in headline_html(run)


def test_comparisons_say_which_run_compiled() -> None:
    cold, warm = recorded((900.0,), 700.0), recorded((10.0,))
    said = "compiling: 78% -> 0% of the measured steps' time"
    found = kit.diff_runs(cold, warm)
    assert said in found.text()
    assert said in found.to_markdown()
    assert "compiling, of the measured steps" in run_diff_html(found)
    assert "compiling" not in kit.diff_runs(warm, warm).text()
    shown = str(kit.compare([cold, warm]))
    assert shown.count("78% of its time is compiling") == 1
    assert shown.count("is compiling") == 1


def test_steps_that_each_compile_programs_of_their_own_are_called_compile_bound() -> None:
    """The traced steps have programs of their own, too, each with its ops."""

    @kit.workload
    def growing(ctx: kit.Context) -> Callable[[], Any]:
        model, sizes = torch.nn.Linear(24, 24).to(ctx.device), itertools.count(2)

        def step() -> Any:
            loss = model(torch.ones(next(sizes), 24).to(ctx.device)).square().mean()
            loss.backward()
            model.zero_grad()
            return loss

        return step

    run = kit.run(growing, kit.Settings(mode="lazy", steps=4, warmup=2))
    run = replace(run, conditions=Conditions(warmup_steps=2.0))  # whatever else goes on here
    assert run.known_fraction > 0.9
    assert len(set(run.sorts)) == run.timeline.steps
    assert str(run.limited_by()).startswith("compile-bound")
    assert "batches should have one shape" in summary(run)
    assert run.doubt == ""


def test_compiles_before_the_measured_steps_are_not_theirs() -> None:
    late = recorded((20.0, 20.0), 15.0, kind="shape", step=7)
    assert late.measured.compiles == ()
    warm = replace(late, conditions=Conditions(warmup_steps=6.0))
    assert len(warm.measured.compiles) == 1
    again = replace(warm, metrics={FIRST_MEASURED: 8.0})  # of a session that ran on
    assert again.measured.compiles == ()


def _small(ctx: kit.Context) -> Callable[[], Any]:
    model = torch.nn.Sequential(*(torch.nn.Linear(24, 24) for _ in range(4))).to(ctx.device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(8, 24).to(ctx.device)

    def step() -> Any:
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return step


@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["lazy", "bulked"])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_first_steps_of_a_program_say_that_they_compile(
    mode: str, steps: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KIT_CACHE_DIR", str(tmp_path))
    run = kit.run(kit.workload(_small), kit.Settings(mode=mode, steps=steps, warmup=0))
    assert run.measured.compiles == run.compiles
    said = run.measured.compiled_text
    assert said.startswith(
        f"{run.measured.compiled_fraction:.0%} of the time of the {steps} measured step"
    )
    assert said[:60] in summary(run)
    assert "compile" in [advice.rule for advice in run.advice()]
    is_told = run.limited_by().what == "compile" or bool(run.limited_by().doubt)
    assert is_told or run.measured.compiled_fraction < 0.5


def test_warm_steps_say_nothing_of_compiling() -> None:
    run = kit.run(kit.workload(_small), kit.Settings(mode="lazy", steps=2, warmup=3))
    assert run.measured.compiled_text == ""
    assert "compile" not in [advice.rule for advice in run.advice()]


def test_a_second_recording_of_a_loop_does_not_take_the_compiles_of_the_first_for_its_own() -> None:
    with kit.Session():
        step = _small_loop()
        with kit.watch(steps=10, skip=2) as first:
            for i in range(24):
                step(9 + i if i in (5, 6) else 8)
        with kit.watch(steps=30, skip=2) as second:
            for _ in range(44):
                step(8)
    assert {note.kind for note in first.run.measured.compiles} == {"shape"}
    assert second.run.compiles[-1] == first.run.compiles[-1]
    assert second.run.measured.compiles == ()


def _small_loop() -> Callable[[int], None]:
    model = torch.nn.Linear(24, 24).to("kit")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: int) -> None:
        model(torch.ones(batch, 24).to("kit")).square().mean().backward()
        opt.step()
        opt.zero_grad()

    return step


def test_what_withholds_the_verdict_is_not_said_twice_above_the_numbers() -> None:
    run = recorded((662.0, 662.0, 662.0))
    assert run.doubt.startswith("a measured step took 662 ms and a traced one 10 ms")
    for shown in (headline_html(run), run.to_markdown().partition("##")[0]):
        assert shown.count("measured step took 662 ms and a traced one 10 ms") == 1
