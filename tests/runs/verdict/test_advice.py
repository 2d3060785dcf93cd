"""Each rule of the advice: a run that provokes it, and the same run without the cause."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import kit
from kit.runs.verdict import advice
from kit.runs.verdict.advice import RULES
from kit.runs.verdict.cures import Advice, sync_cure
from kit.trace import Span, SyncPoint, SyncRow, Timeline
from kit.workloads.masked_lm import Size, bert_of
from tests.factories import make_run
from tests.runs.verdict.advised import LAZY, MS, busy, host, rules, run_of, synthetic

# What a small step may be told where other programs take the processor from it for a while.
OF_A_BUSY_MACHINE = {"recording", "own code", "cores", "host waits elsewhere", "small segments"}


def test_a_step_that_does_nothing_wrong_gets_no_advice_about_reading() -> None:
    assert not rules(run_of()) & (set(RULES) - OF_A_BUSY_MACHINE)


LOG = logging.getLogger("kit advice")
LOG.propagate = False
LOG.addHandler(logging.StreamHandler(io.StringIO()))
LOG.setLevel(logging.INFO)
READS: dict[str, Callable[[Any, Any], None]] = {
    "read": lambda loss, out: loss.item(),
    "logging": lambda loss, out: print(loss, file=io.StringIO()),
    "data-dependent shape": lambda loss, out: out[out > 0],
    "op on the host": lambda loss, out: torch.linalg.eigvals(out[:3, :3]),
    "library read": lambda loss, out: torch.testing.assert_close(loss, loss),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", READS)
def test_what_a_step_reads_is_named_with_its_line_its_cost_and_a_cure(rule: str) -> None:
    found = [a for a in run_of(READS[rule]).advice() if a.rule == rule]
    assert found, rule
    assert found[0].site.startswith("test_advice.py:")
    assert found[0].text.startswith(found[0].site + " waits ")
    assert found[0].ms > 0


def test_a_logger_that_reads_is_logging_too() -> None:
    assert "logging" in rules(run_of(lambda loss, out: LOG.info("loss %s", loss)))
    assert "logging" not in rules(run_of(lambda loss, out: LOG.info("a step")))


@pytest.mark.slow
def test_the_loss_scale_check_names_its_cures() -> None:
    checked = run_of(settings=LAZY.replace(loss_scaling="dynamic, host check"))
    (advice,) = [a for a in checked.advice() if a.rule == "loss scale check"]
    assert advice.change == {"loss_scaling": "dynamic, on device"}
    for cure in ("'dynamic, deferred'", "fused=True", "step_mode='speculate'", "accumulate"):
        assert cure in advice.text
    for mode in ("dynamic, on device", "dynamic, deferred", "static"):
        assert "loss scale check" not in rules(run_of(settings=LAZY.replace(loss_scaling=mode)))


def of_one_weight(
    kind: Callable[..., Any], after: Callable[[Any], object] = id, **options: Any
) -> kit.Run:
    """A step that trains one weight; `after(weight)` is what it does after the backward pass."""

    @kit.workload
    def one(ctx: kit.Context) -> Callable[[], Any]:
        weight = torch.nn.Parameter(torch.ones(64, 64).to(ctx.device))
        opt = kind([weight], **options)

        def step() -> Any:
            loss = (weight @ weight).sum()
            loss.backward()
            after(weight)
            opt.step()
            opt.zero_grad()
            return loss

        return step

    return kit.run(one, LAZY)


def test_an_optimizer_that_reads_its_state_is_named() -> None:
    class Counting(torch.optim.AdamW):
        """Its step count is on the device, as after loading a state of `fused=True`."""

        def step(self, closure: Any = None) -> Any:
            for state in self.state.values():
                state["step"] = state["step"].to("kit")
            return super().step(closure)

    assert "optimizer state read" in rules(of_one_weight(Counting, foreach=False))
    assert "optimizer state read" not in rules(of_one_weight(torch.optim.AdamW, foreach=False))


def test_a_gradient_norm_that_is_read_is_named() -> None:
    def clipping(strict: bool) -> kit.Run:
        def clip(weight: Any) -> None:
            torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=strict)

        return of_one_weight(torch.optim.SGD, after=clip, lr=0.1)

    assert "gradient norm read" in rules(clipping(True))
    assert "gradient norm read" not in rules(clipping(False))


def test_a_shape_that_changes_is_a_compile_in_the_measured_steps() -> None:
    class Growing(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return (torch.ones(4 + i, 3) for i in range(100))

    def reading(data: Any) -> kit.Workload:
        @kit.workload
        def growing(ctx: kit.Context) -> Callable[[], Any]:
            batches = ctx.loader(torch.utils.data.DataLoader(data, batch_size=None))
            return lambda: next(batches).sum()

        return growing

    (advice,) = [a for a in kit.run(reading(Growing()), LAZY).advice() if a.rule == "compile"]
    assert "4 programs were compiled in the 4 measured steps" in advice.text
    assert "compile" not in rules(kit.run(reading([torch.ones(3)] * 9), LAZY.replace(batch_size=3)))


@pytest.mark.slow
def test_a_bert_with_the_check_is_advised_and_better_for_following_it() -> None:
    bert = bert_of(Size(layers=1, width=128, heads=2, length=64, vocabulary=1000))  # `kit demo` has
    settings = kit.Settings(mode="lazy", batch_size=8, steps=6, loss_scaling="dynamic, host check")
    checked = kit.run(bert, settings)
    (advice,) = [a for a in checked.advice() if a.rule == "loss scale check"]
    followed = kit.run(bert, settings.replace(**advice.change))
    assert followed.sync_points == ()
    assert followed.headline().overlap_fraction > checked.headline().overlap_fraction


@pytest.mark.parametrize(
    ("measured_ms", "said", "most_ms"),
    [
        ([10] * 10, "(in 1 of the 3 traced steps, and in none of the measured ones)", math.nan),
        ([10] * 9 + [50], "(in 1 of the 3 traced steps)", 4),
    ],
)
def test_a_line_of_an_odd_traced_step_promises_no_more_than_the_measured_ones_show(
    measured_ms: list[int], said: str, most_ms: float
) -> None:
    """A validation pass: "up to 6.67 ms" was said of a step of 6.99 ms that never had it."""
    spans = [
        Span("host/main", f"step {k}", "step", start * MS, stop * MS)
        for k, (start, stop) in enumerate([(0, 10), (10, 60), (60, 70)])
    ]
    for start in (0, 50, 60):
        spans += [busy(start, start + 4), host("elsewhere", start + 4, start + 10, "a.py:1")]
    spans.append(host("elsewhere", 10, 50, "valid.py:2"))
    run = replace(
        synthetic([], LAZY),
        timeline=Timeline.of(spans, (), "profiled"),
        step_times_ns=tuple(ms * MS for ms in measured_ms),
    )
    each, seldom = run.advice()
    assert (each.site, each.ms) == ("a.py:1", pytest.approx(6))
    assert seldom.site == "valid.py:2"
    assert said in seldom.text
    assert seldom.ms == pytest.approx(most_ms, nan_ok=True)


def test_only_waits_that_are_told_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cure goes through all waits: one for each place of a job's 8,000 took 18 s."""
    asked: list[str] = []

    def cure_of(row: SyncRow, run: kit.Run) -> Advice:
        asked.append(row.site)
        return sync_cure(row, run)

    monkeypatch.setattr(advice, "sync_cure", cure_of)
    made = make_run(syncs=0)
    begin, end = made.timeline.intervals(kind="step")[0].tolist()
    short = [SyncPoint(begin + i, 1, "item", f"a.py:{i}") for i in range(200)]
    syncs = (*short, SyncPoint(begin + 300, (end - begin) // 2, "item", "a.py:900"))
    timeline = replace(made.timeline, syncs=syncs)
    made = replace(made, timeline=timeline, sync_points=100 * syncs)  # of 200 measured steps
    found = [told.site for told in made.advice() if told.site]
    assert found == asked == ["a.py:900"]
