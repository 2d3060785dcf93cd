"""Steps of a workload's own on two devices: several passes and modules, random numbers, errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import kit
from kit.errors import SessionError, SettingsError
from kit.torch.parallel.own_step import OwnStepParallel

SETTINGS = kit.Settings(batch_size=8, steps=3, warmup=1)
ON_TWO: dict[str, Any] = {"devices": ["cpu:0", "cpu:0"], "timeout_s": 30.0}


def two_criteria(ctx: kit.Context) -> Callable[[], Any]:
    """Between its backward passes it calls a module for the first time."""
    model = nn.Linear(4, 2).to(ctx.device)
    first, second = nn.MSELoss(), nn.L1Loss()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (ctx.part(t).to(ctx.device) for t in (torch.randn(8, 4), torch.randn(8, 2)))

    def step() -> Any:
        opt.zero_grad()
        losses = []
        for criterion in (first, second):
            losses.append(criterion(model(x), y))
            losses[-1].backward()
        opt.step()
        return (losses[0] + losses[1]).detach()

    return step


def adversarial(ctx: kit.Context) -> Callable[[], Any]:
    """As DCGAN: the generator is called between two passes of the discriminator."""
    made = nn.Linear(3, 4).to(ctx.device)
    judge = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).to(ctx.device)
    of_made = torch.optim.SGD(made.parameters(), lr=0.1)
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
    real, noise = (ctx.part(torch.randn(8, n)).to(ctx.device) for n in (4, 3))

    def judged(x: Any, target: float) -> Any:
        y = judge(x)
        return F.binary_cross_entropy_with_logits(y, torch.full_like(y, target))

    def step() -> Any:
        of_judge.zero_grad()
        right = judged(real, 1.0)
        right.backward()
        false = made(noise)
        wrong = judged(false.detach(), 0.0)
        wrong.backward()
        of_judge.step()
        of_made.zero_grad()
        fooled = judged(false, 1.0)
        fooled.backward()
        of_made.step()
        return (right + wrong + fooled).detach()

    return step


@pytest.mark.parametrize("step_mode", ["retrace", "replay"])
@pytest.mark.parametrize("workload", [two_criteria, adversarial])
def test_a_step_may_call_new_modules_between_its_backward_passes(
    workload: Any, step_mode: str
) -> None:
    settings = SETTINGS.replace(steps=8, step_mode=step_mode)
    expected = kit.run(workload, SETTINGS.replace(steps=8))
    run = kit.run(workload, settings, **ON_TWO)
    assert run.losses == pytest.approx(expected.losses, abs=1e-5)


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    def build(ctx: kit.Context) -> Callable[[], Any]:
        model = nn.Linear(4, 2).to(ctx.device)
        x = ctx.part(torch.randn(8, 4)).to(ctx.device)

        def step() -> Any:
            loss = model(x).square().sum(1)
            loss.backward()
            return loss.mean().detach()

        return step

    with pytest.raises(SessionError, match=r"only for scalar outputs, and one of shape \[4\]"):
        kit.run(build, SETTINGS, **ON_TWO)


def test_what_the_seed_makes_is_equal_in_all_replicas_and_what_a_step_draws_is_not() -> None:
    weights: list[Any] = []
    drawn: list[Any] = []

    def build(ctx: kit.Context) -> Callable[[], Any]:
        weights.append([torch.randn(3).tolist(), torch.randn(3, device=ctx.device).tolist()])

        def step() -> Any:
            drawn.append(tuple(torch.rand(3, device=ctx.device).tolist()))
            return torch.ones((), device=ctx.device)

        return step

    kit.run(build, SETTINGS, **ON_TWO)
    assert weights[0] == weights[1]
    assert len(set(drawn)) == len(drawn) > 4


def test_layers_get_their_first_numbers_while_the_step_is_made() -> None:
    def build(ctx: kit.Context, *, is_called: bool) -> Callable[[], Any]:
        model = nn.Sequential(nn.LazyLinear(2)).to(ctx.device)
        x = ctx.part(torch.randn(8, 4)).to(ctx.device)
        if is_called:
            model(x)

        def step() -> Any:
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        return step

    run = kit.run(partial(build, is_called=True), SETTINGS, **ON_TWO)
    alone = kit.run(partial(build, is_called=True), SETTINGS)
    assert run.losses == pytest.approx(alone.losses, abs=1e-5)
    with pytest.raises(SettingsError, match=r"'0.weight' of Sequential gets its shape and first"):
        kit.run(partial(build, is_called=False), SETTINGS, **ON_TWO)


def test_replicas_open_and_close_within_a_step_of_the_program() -> None:
    """Torch goes through its hooks of optimizers meanwhile."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)

    def other(*_: Any) -> None:
        with OwnStepParallel(["cpu:0", "cpu:0"]):
            pass

    other()
    register = register_optimizer_step_pre_hook
    with register(other), register(lambda *_: None):  # there is one more hook to be called
        torch.optim.SGD([weight], lr=0.5).step()
    assert weight.tolist() == [0.5, 0.5]
