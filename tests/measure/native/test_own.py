"""Native loops whose own code takes most of a step, beside what torch computes."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kit
from kit.measure.native.events import _compiles
from kit.runs.verdict.advice import advise
from kit.runs.verdict.cures import compile_cures
from kit.runs.verdict.verdict import verdict
from kit.trace import Span, Timeline
from kit.trace.intervals import Ints
from kit.trace.limits import limited_by
from tests.measure.native.test_blocked import line_of, share, watched
from tests.runs.verdict.advised import synthetic

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread does"),
    pytest.mark.usefixtures("one_torch_thread"),
]


def computes_python_long() -> None:
    sum(i * i for i in range(300_000))


def collects() -> None:
    gc.collect()


def writes_a_checkpoint() -> None:
    torch.save([[i] for i in range(100_000)], io.BytesIO())


OWN = {
    computes_python_long: "sum(i * i for i in range(300_000))",
    collects: "gc.collect()",
    writes_a_checkpoint: "torch.save([[i] for i in range(100_000)], io.BytesIO())",
}


@pytest.mark.alone
@pytest.mark.parametrize("compute", OWN)
def test_a_loop_that_computes_without_torch_says_at_which_line(compute: Callable[[], None]) -> None:
    """It was recording at no line, with the advice to use torch.compile."""
    kept = [[i] for i in range(300_000)]  # the collector skips what sessions of others have frozen
    before = sys.getswitchinterval()
    run = watched(compute)
    assert sys.getswitchinterval() == before
    assert limited_by(run.timeline).what == "own"
    assert share(run, "own code") > 0.5
    assert len(kept) == 300_000
    advice = next(a for a in advise(run) if a.rule == "own code")
    assert advice.site == line_of(OWN[compute], __file__)
    assert "(Python, or a library that it calls)" in advice.text
    line = int(advice.site.rpartition(":")[2])
    shown = {s.first + i: text for s in run.sources for i, text in enumerate(s.lines)}
    assert OWN[compute] in shown[line]


def compiles_anew() -> None:
    torch.compiler.reset()
    torch.compile(torch.nn.Tanh(), backend="eager")(torch.ones(4))


@pytest.mark.alone
def test_a_loop_that_compiles_in_each_step_says_at_which_line() -> None:
    """It was own code of the line, to be done with ops of torch."""
    run = watched(compiles_anew)
    assert limited_by(run.timeline).what == "compile"
    advice = run.advice()[0]
    assert advice.rule == "torch.compile"
    line = line_of('torch.compile(torch.nn.Tanh(), backend="eager")(torch.ones(4))', __file__)
    assert advice.site == line
    assert f"torch.compile compiles at {line}, " in advice.text
    assert 0.2 * min(run.step_ms, run.traced_ms) < advice.ms < run.step_ms
    verdict_on = verdict(run)
    assert verdict_on is not None
    assert not verdict_on.next_step or verdict_on.limit.doubt


def test_a_trace_is_not_gone_through_for_each_name_or_event_that_is_no_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 3,000 names of 300,000 spans that took 4 s, each time advice was asked."""
    spans = [Span("device/0", f"kernel {i}", "kernel", i, i + 1) for i in range(9)]
    compiled = Span("host/main", "torch.compile at train.py:3", "compile", 0, 9 * 1_000_000)
    run = synthetic([*spans, compiled])
    asked: list[object] = []
    ask = Timeline.intervals

    def intervals(timeline: Timeline, **which: str) -> Ints:
        asked.append(which.get("name"))
        return ask(timeline, **which)

    monkeypatch.setattr(Timeline, "intervals", intervals)
    (advice,) = compile_cures(run, 1.0)
    assert (advice.site, advice.ms) == ("train.py:3", 9.0)
    assert [*filter(None, asked)] == ["torch.compile at train.py:3"]
    assert not [*_compiles([SimpleNamespace(name="aten::mm")], [], ())]  # and its parents unasked


@pytest.mark.alone
def test_what_an_optimizer_does_before_its_ops_is_recording() -> None:
    """Its line "computes on the host": AdamW goes through 1,000 parameters before one fused op."""

    @kit.workload
    def of_many_parameters(ctx: kit.Context) -> Callable[[], Any]:
        parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(1_000)]
        optimizer = torch.optim.AdamW(parameters, fused=True)
        gradient = torch.ones(1)

        def step() -> Any:
            for parameter in parameters:
                parameter.grad = gradient
            loss = gradient.sum()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return step

    run = kit.run(of_many_parameters, kit.Settings(mode="torch", device="cpu", warmup=1, steps=1))
    names = {run.timeline.names[i] for i in run.timeline.name[run.timeline.where(kind="own")]}
    updates = (line_of(f"optimizer.{does}()", __file__) for does in ("step", "zero_grad"))
    assert not names.intersection(updates)
    assert share(run, "update recording") > 0.05
