"""`kit.Explorer` on real steps: what goes wrong is shown, and the next run is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kit
from kit.errors import SettingsError

QUICK = kit.Settings(steps=2, warmup=1, batch_size=2)


def moody(ctx: Any) -> Any:
    """Fails half-way at batch size 4; runs an op without a rule at batch size 8."""
    weight = torch.ones(3, device=ctx.device, requires_grad=True)
    opt = torch.optim.SGD([weight], lr=0.1)

    def step() -> Any:
        loss = (weight * ctx.batch_size).sum()
        if ctx.batch_size == 4:
            raise ValueError("<b>half-way</b>")
        if ctx.batch_size == 8:
            loss = loss + torch.special.bessel_j0(loss.detach())
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    return step


@pytest.fixture
def explorer() -> Iterator[Any]:
    made = kit.Explorer(moody, QUICK)
    yield made
    made.close()


def test_a_control_reruns_the_step_for_real(explorer: Any):
    first = explorer.wait(60)
    explorer.set(mode="lazy")
    second = explorer.wait(60)
    assert (first.settings.mode, second.settings.mode) == ("bulked", "lazy")
    assert second.losses == pytest.approx(first.losses)
    assert explorer.runs == [first, second]


def test_a_step_that_raises_is_shown_escaped_and_the_next_run_is_right(explorer: Any):
    first = explorer.wait(60)
    explorer.set(batch_size=4)
    with pytest.raises(ValueError, match="half-way"):
        explorer.wait(60)
    assert "&lt;b&gt;half-way" in explorer.failure.value
    assert explorer.run is first
    explorer.set(batch_size=2)
    assert explorer.wait(60).losses == first.losses
    assert explorer.failure.value == ""


def test_an_op_without_a_rule_is_named_with_its_line(explorer: Any):
    explorer.wait(60)
    explorer.set(batch_size=8)
    run = explorer.wait(60)
    ((op, count),) = run.unlowered.items()
    assert op.startswith("aten.special_bessel_j0.default at test_explorer.py:")
    assert count > 0
    assert "special_bessel_j0" in explorer.views["unlowered"].value


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"mode": "magic"}, {"bulk": 3}])
def test_bad_settings_are_refused_and_nothing_runs(explorer: Any, bad: dict[str, Any]):
    first = explorer.wait(60)
    with pytest.raises(SettingsError):
        explorer.set(**bad)
    assert explorer.runs == [first]


def test_the_explorer_saves_a_report_of_its_runs(explorer: Any, tmp_path: Path):
    explorer.wait(60)
    explorer.set(bulk_forward=2)
    explorer.wait(60)
    explorer.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count('id="run-') == 2


def small(ctx: Any) -> Any:
    """Loads its batches, so that several devices can share them."""
    torch.manual_seed(ctx.seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model.to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(96.0).reshape(16, 6) / 96
    batches = ctx.loader(torch.utils.data.TensorDataset(x, x[:, :1]))

    def step() -> Any:
        x, y = next(batches)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def test_an_explorer_of_two_devices_reruns_on_both_and_keeps_what_was_compiled() -> None:
    settings = kit.Settings(steps=2, warmup=2, batch_size=4)
    explorer = kit.Explorer(small, settings, devices=["cpu:0", "cpu:0"], bucket_mb=1e-4)
    try:
        first = explorer.wait(120)
        assert explorer.title == "small, 2 devices, bucket_mb=0.0001"
        assert first.devices == 2
        assert first.losses == pytest.approx(kit.run(small, settings).losses, rel=1e-5)
        assert first.metrics["compile.count"] > 0
        explorer.set(bulk_backward=2)
        cut = explorer.wait(120)
        assert len(cut.segments) > len(first.segments)
        explorer.set(bulk_backward=settings.bulk_backward)
        again = explorer.wait(120)
        assert again.metrics.get("compile.count", 0) == 0
        assert again.graphs[0].hash == first.graphs[0].hash
        assert "every program was in the cache" in explorer.actions.status.value
        explorer.set(step_mode="speculate")
        with pytest.raises(SettingsError, match="step_mode='retrace' or 'replay'"):
            explorer.wait(120)
        assert "records its steps, or replays them" in explorer.failure.value
        assert explorer.run is again
        explorer.set(step_mode="retrace", mode="lazy")
        assert explorer.wait(120).losses == pytest.approx(first.losses, rel=1e-5)
    finally:
        explorer.close()


def test_options_of_several_devices_are_refused_for_one() -> None:
    with pytest.raises(SettingsError, match="bucket_mb: only with several devices"):
        kit.Explorer(small, QUICK, bucket_mb=1.0)
