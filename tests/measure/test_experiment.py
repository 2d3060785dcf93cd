"""`kit.run` on BERT: every mode gives native torch's losses, and a run that adds up."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import kit
from kit.errors import Cancelled, SettingsError
from kit.measure.base.context import Workload
from kit.measure.experiment import run
from kit.measure.search.sweeps import sweep
from kit.runs.loss_scaling import LOSS_SCALING
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.workloads import bert, bert_of
from tests.smaller import smaller_bert

LEAST = smaller_bert()
QUICK = Settings(steps=3, warmup=2, batch_size=2)
CACHE = ExecutableCache()  # programs that several runs of BERT have in common


def tiny(ctx: Any) -> Any:
    """A step small enough for tests that need many runs."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = model.to(ctx.device)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ctx.scaler()
    x = torch.arange(8.0).reshape(2, 4).to(ctx.device)

    def step() -> Any:
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        return loss

    return step


@cache
def bert_run(settings: Settings, workload: Workload = LEAST) -> Run:
    """One run for all tests that look at the same settings: a run is frozen, and its seed given."""
    return run(workload, settings, cache=CACHE)


def test_fifty_bert_losses_equal_native_torch_and_fall() -> None:
    settings = QUICK.replace(steps=47, warmup=3)
    native = run(LEAST, settings.replace(mode="torch"))
    got = bert_run(settings.replace(mode="lazy", loss_scaling="dynamic, on device"))
    assert len(native.losses) == 47
    torch.testing.assert_close(got.losses, native.losses, rtol=1e-3, atol=1e-3)
    assert got.losses[-1] < got.losses[0] - 0.5
    assert got.unlowered == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "imperative"},
        {"bulk_forward": 5, "bulk_backward": 30},
        {"mode": "lazy", "accumulate": 2},
        {"mode": "lazy", "dtype": "bfloat16"},
        {"segment_mode": "launch"},
        {"loss_scaling": "static", "prefetch": 2},
        *({"mode": "lazy", "loss_scaling": s} for s in LOSS_SCALING),
    ],
    ids=str,
)
def test_every_setting_gives_native_torchs_losses(changes: dict[str, Any]) -> None:
    native_changes = {k: v for k, v in changes.items() if k in ("accumulate", "dtype")}
    expected = bert_run(QUICK.replace(mode="torch", **native_changes)).losses
    got = bert_run(QUICK.replace(**changes)).losses
    tolerance = 2e-2 if "dtype" in changes else 2e-4
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_the_shipped_bert_gives_native_torchs_losses() -> None:
    native, got = (bert_run(QUICK.replace(mode=m), bert).losses for m in ("torch", "lazy"))
    torch.testing.assert_close(got, native, rtol=2e-4, atol=2e-4)


def test_a_run_knows_its_sync_points_and_the_device_mode_has_none() -> None:
    check = bert_run(QUICK.replace(mode="lazy", loss_scaling="dynamic, host check"))
    device = bert_run(QUICK.replace(mode="lazy", loss_scaling="dynamic, on device"))
    assert len(check.sync_points) == QUICK.steps
    assert {s.via.split(":")[0] for s in check.sync_points} == {"torch/amp/grad_scaler.py"}
    assert {s.site.split(":")[0] for s in check.sync_points} == {"masked_lm.py"}
    assert device.sync_points == ()
    assert check.headline().sync_wait_ms > 0


@pytest.mark.alone
@pytest.mark.parametrize("mode", ["torch", "bulked", "lazy"])
def test_the_breakdown_adds_up_to_the_step_and_nothing_compiles_in_it(mode: str) -> None:
    def unknown(one: Run) -> float:
        return next(r.share for r in one.breakdown() if r.category == "unknown")

    # other programs may take a core in any one traced step, and nobody knows what passed then
    tries = (run(bert, QUICK.replace(mode=mode)) for _ in range(12))
    made = next(one for one in tries if unknown(one) < 0.05)
    rows = made.breakdown()
    steps = made.timeline.intervals(kind="step")
    mean_ms = float((steps[:, 1] - steps[:, 0]).mean()) / 1e6
    assert sum(r.exposed_ms for r in rows) == pytest.approx(mean_ms, rel=0.02)
    by_name = {r.category: r for r in rows}
    assert by_name["compile"].total_ms == 0
    assert by_name["device busy"].total_ms > 0


def test_kernels_are_joined_to_segments_and_nodes() -> None:
    made = bert_run(QUICK.replace(mode="lazy"), bert)
    kernels = [s for s in made.timeline.spans if s.kind == "kernel"]
    total = sum(k.stop_ns - k.start_ns for k in kernels)
    joined = sum(k.stop_ns - k.start_ns for k in kernels if k.node >= 0)
    assert joined / total > 0.95
    (graph,) = made.graphs
    assert {n.phase for n in graph} == {"forward", "backward", "update"}
    assert any(n.scope == "Bert.layers.1.attention.qkv" for n in graph)


def test_cancelling_ends_a_run_between_two_steps_and_the_next_one_is_right() -> None:
    asked = iter([False, False, True])
    with pytest.raises(Cancelled, match="before step 3"):
        run(tiny, QUICK, cancelled=lambda: next(asked))
    assert len(run(tiny, QUICK).losses) == 3


@pytest.mark.parametrize("mode", ["torch", "bulked"])
def test_a_step_that_raises_says_which_step_and_the_next_run_is_right(mode: str) -> None:
    count = 0

    def moody(ctx: Any) -> Any:
        step = tiny(ctx)

        def sometimes() -> Any:
            nonlocal count
            count += 1
            if count == 4:
                raise ValueError("bad batch")
            return step()

        return sometimes

    with pytest.raises(ValueError, match="bad batch") as caught:
        run(moody, QUICK.replace(mode=mode))
    said = f"kit: this was step 1, with {QUICK.replace(mode=mode).to_string()}"
    assert said in caught.value.__notes__  # without the insides of the builder's knobs
    assert len(run(moody, QUICK.replace(mode=mode)).losses) == 3


def test_an_interrupt_comes_through_and_the_next_run_is_right() -> None:
    def interrupted(ctx: Any) -> Any:
        tiny(ctx)

        def step() -> Any:
            raise KeyboardInterrupt

        return step

    with pytest.raises(KeyboardInterrupt):
        run(interrupted, QUICK)
    assert kit.run(tiny, QUICK).losses == run(tiny, QUICK).losses


def test_a_step_without_a_loss_is_told_so() -> None:
    with pytest.raises(SettingsError, match="end it with `return loss`"):
        run(lambda ctx: lambda: None, QUICK.replace(warmup=0))


def test_bad_settings_are_refused_before_anything_runs() -> None:
    for bad in ({"batch_size": 0}, {"mode": "magic"}, {"steps": 1.5}, {"bulk_forward": -1}):
        with pytest.raises(SettingsError, match=next(iter(bad))):
            QUICK.replace(**bad)
    with pytest.raises(SettingsError, match="no BERT is called 'huge'"):
        bert_of("huge")


def test_a_sweep_is_the_product_of_its_grid_and_checks_it_first() -> None:
    texts: list[str] = []
    runs = sweep(
        tiny,
        {"bulk_forward": [1, 2], "batch_size": [1, 3]},
        QUICK,
        progress=lambda text, fraction: texts.append(text),
    )
    assert [(r.settings.bulk_forward, r.settings.batch_size) for r in runs] == [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
    ]
    assert texts[-1].startswith("run 4 of 4")
    with pytest.raises(SettingsError, match="no setting is called 'bulk'"):
        sweep(tiny, {"bulk": [1]}, QUICK)


def test_a_function_without_modules_runs_too() -> None:
    def functional(ctx: Any) -> Any:
        w = torch.ones(3, device=ctx.device, requires_grad=True)

        def step() -> Any:
            loss = (w * 2).sum()
            (grad,) = torch.autograd.grad(loss, w)
            with torch.no_grad():
                w.sub_(0.1 * grad)
            return loss

        return step

    assert kit.run(functional, QUICK, progress=False).losses == pytest.approx(
        kit.run(functional, QUICK.replace(mode="torch"), progress=True).losses
    )


def test_runs_that_share_a_cache_compile_only_what_is_new():
    cache = ExecutableCache()
    first = run(tiny, QUICK, cache=cache)
    again = run(tiny, QUICK.replace(seed=3), cache=cache)
    other = run(tiny, QUICK.replace(bulk_backward=1), cache=cache)
    assert first.metrics["compile.count"] > 0
    assert "compile.count" not in again.metrics
    assert other.metrics["compile.count"] > 0
    assert run(tiny, QUICK, cache=cache).losses == first.losses
