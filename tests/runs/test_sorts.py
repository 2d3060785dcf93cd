"""Traced steps that do not all do the same: each is matched with its own ops, and it is said."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.errors import RunFileError
from kit.reports.markdown import report_markdown
from kit.runs.analysis.kernels import kernel_table
from kit.runs.analysis.lines import line_costs
from kit.runs.conditions import Conditions
from kit.runs.steady import sorts_of_steps, sorts_text
from kit.runs.verdict.summary import summary
from kit.runs.verdict.verdict import verdict
from kit.trace import Span, Timeline, union_ns
from kit.trace.metrics import breakdown_ns
from kit.widgets.base.cards import headline_html
from kit.widgets.numbers.advice import advice_html

MS = 1_000_000
QUIET = Conditions(warmup_steps=3.0)  # whatever else goes on here
HERE = Path(__file__).name


def with_validation(every: int, mode: str) -> kit.Run:
    """A loop as people have it: each n-th step also validates, and reads the result."""

    @kit.workload
    def mine(ctx: kit.Context) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3))).to(ctx.device)
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        x, count = torch.randn(16, 32).to(ctx.device), itertools.count(1)

        def step() -> Any:
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            opt.zero_grad()
            if next(count) % every == 0:
                with torch.no_grad():
                    right = sum(model(x * k).abs().mean() for k in range(10))  # the pass
                float(right)
            return loss

        return step

    run = kit.run(mine, kit.Settings(mode=mode, steps=4, warmup=3))
    steps = run.timeline.intervals(kind="step")  # a busy machine stretches the measured ones
    mean_ns = int(steps[:, 1].max() - steps[:, 0].min()) // len(steps)
    return replace(run, conditions=QUIET, step_times_ns=(mean_ns,) * 4)


def differ(run: kit.Run) -> str:
    return sorts_of_steps(run.timeline, run.sorts)


def card_of(run: kit.Run) -> str:
    return sorts_text(run.timeline, run.sorts)


@pytest.fixture(scope="module", params=["lazy", "bulked"])
def run(request: pytest.FixtureRequest) -> kit.Run:
    """Every second of the traced steps has a validation pass."""
    return with_validation(2, request.param)


def line_of(text: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{HERE}:{1 + next(i for i, line in enumerate(lines) if line.endswith(text))}"


def test_each_step_is_matched_with_its_own_ops(run: kit.Run) -> None:
    assert len(set(run.sorts)) == 2
    assert run.known_fraction > 0.95
    t, nodes = run.timeline, run.whole.nodes
    validates = line_of("# the pass")
    begun = [s for s in t.spans if s.kind == "device step"]
    found: set[str] = set()
    for span in t.spans:
        if span.kind == "kernel" and span.node >= 0:
            (step,) = {s.name for s in begun if s.start_ns <= span.start_ns < s.stop_ns} or {""}
            if nodes[span.node].site == validates:
                found.add(step)
    # The device may still be at the step before the first traced one.
    of_sort = {f"step {i}" for i, sort in enumerate(run.sorts) if sort != run.sorts[0]}
    same = {f"step {i}" for i, sort in enumerate(run.sorts) if sort == run.sorts[0]}
    assert found - {"the step before"} in (of_sort, same)


def test_the_verdict_names_the_steps_and_the_card_says_how_they_differ(run: kit.Run) -> None:
    found = verdict(run)
    assert found is not None
    assert found.limit.doubt == run.doubt == ""
    assert "the mean of the traced steps, which differ: " in found.said
    assert differ(run) in found.said
    for shown in (summary(run), run.to_markdown(), report_markdown([run]), headline_html(run)):
        assert "the traced steps differ" in shown.replace("The traced", "the traced")
    assert "which differ: " in advice_html(run)


def test_the_sums_hold_to_the_nanosecond(run: kit.Run) -> None:
    t = run.timeline
    parts = breakdown_ns(t)
    steps = union_ns(t.intervals(kind="step"))
    busy = parts["device busy"][1]
    assert sum(exposed for _, exposed in parts.values()) == steps
    assert sum(round(row.total_ms * 1e6) for row in run.idle) + busy == steps
    each = sum(row.kernel.charged_ms for row in kernel_table(run))
    assert each * 1e6 == pytest.approx(busy, abs=0.5)
    lines = line_costs(run)
    assert sum(row.device_ms for row in lines) * 1e6 * t.steps == pytest.approx(busy, abs=0.5)
    recorded = sum(row.total_ms for row in run.breakdown() if "recording" in row.category)
    assert sum(row.recording_ms for row in lines) == pytest.approx(recorded, abs=1e-6)


def test_the_pass_pays_for_its_own_recording_and_its_kernels(run: kit.Run) -> None:
    rows = {row.site: row for row in line_costs(run)}
    row = rows[line_of("# the pass")]
    assert row.recording_ms > 0
    assert row.device_ms > 0
    assert row.nodes
    kernels = [k for k in kernel_table(run) if row.site in k.sites]
    assert kernels
    assert all(k.ops and not np.isnan(k.bytes_read) for k in kernels)


def test_a_prediction_from_such_steps_says_that_nobody_knows_how_sure_it_is(run: kit.Run) -> None:
    made = kit.predict(run)
    assert np.isnan(made.low_ms)
    assert "the traced steps differ" in made.assumptions[-1]


def test_a_run_of_such_steps_opens_as_it_was_saved(run: kit.Run, tmp_path: Path) -> None:
    run.save(tmp_path / "a.kitrun")
    again = kit.Run.load(tmp_path / "a.kitrun")
    assert (again.sorts, again.graphs, again.fused) == (run.sorts, run.graphs, run.fused)
    assert card_of(again) == card_of(run)
    kit.export_trace(again, tmp_path / "a.json")
    with pytest.raises(RunFileError, match="sorts of its traced steps"):
        replace(run, sorts=(7,)).save(tmp_path / "b.kitrun")


def test_steps_that_did_the_same_are_not_said_to_differ() -> None:
    run = with_validation(10**6, "lazy")
    assert run.sorts == (0,) * run.timeline.steps
    assert len(run.graphs) == 1
    assert card_of(run) == differ(run) == ""


def by_hand(sorts: tuple[int, ...], lengths_ms: tuple[float, ...]) -> kit.Run:
    edges = [0, *itertools.accumulate(int(ms * MS) for ms in lengths_ms)]
    spans = [
        Span("host/main", f"step {i}", "step", *ends)
        for i, ends in enumerate(itertools.pairwise(edges))
    ]
    return kit.Run(kit.Settings(), (), (MS,), Timeline.of(spans), sorts=sorts)


@pytest.mark.parametrize(
    ("sorts", "said"),
    [
        ((0, 0), ""),
        ((), ""),
        ((0, 1, 0), "step 1 did other ops, or of other shapes, than steps 0 and 2"),
        ((0, 1, 2), "step 0, step 1 and step 2 did different ops, or shapes"),
        (
            (0, *[1] * 9),
            "steps 1, 2, 3, 4 and 5 others did other ops, or of other shapes, than step 0",
        ),
        ((0, 1, 2, 3, 4), "5 sorts, by their ops and shapes"),
    ],
)
def test_the_steps_are_named(sorts: tuple[int, ...], said: str) -> None:
    assert differ(by_hand(sorts, (1.0,) * max(len(sorts), 2))) == said


def test_the_card_has_what_steps_of_each_sort_took() -> None:
    found = card_of(by_hand((0, 1, 0), (1.0, 4.0, 2.0)))
    assert "(steps 0 and 2 took 1 ms to 2 ms, step 1 took 4 ms)" in found
    assert differ(by_hand((0, 1), (1.0,) * 3)) == ""  # a file of a stranger
