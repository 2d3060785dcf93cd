"""Hooks that raise in backward: their error comes out of `backward()`, and everything lives on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kit.runs.settings import Settings
from kit.torch.device import open_session
from tests.torch.parallel.replicas import batches, loss_of, net_on_one_cpu, perceptron


class Boom(Exception):
    pass


def boom(*_: Any) -> None:
    raise Boom("in a hook")


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


HOOKS: dict[str, Callable[[nn.Sequential], Any]] = {
    "a tensor's": lambda m: m[2].weight.register_hook(boom),
    "after accumulation": lambda m: m[2].weight.register_post_accumulate_grad_hook(boom),
    "a module's": lambda m: m[2].register_full_backward_hook(boom),
    "before a module's": lambda m: m[2].register_full_backward_pre_hook(boom),
    "an interrupt": lambda m: m[2].weight.register_hook(interrupted),
}


@pytest.mark.parametrize("mode", ["lazy", "imperative"])
@pytest.mark.parametrize("kind", HOOKS)
def test_what_a_hook_raises_comes_out_of_backward(kind: str, mode: str) -> None:
    error = KeyboardInterrupt if kind == "an interrupt" else Boom
    x, y = batches(1, 4)[0]
    alone = perceptron()
    with open_session(Settings(mode=mode)):
        model = perceptron().to("kit")
        hook = HOOKS[kind](model)
        with pytest.raises(error):
            loss_of(model, x.to("kit"), y.to("kit")).backward()
        hook.remove()
        model.zero_grad()
        loss_of(model, x.to("kit"), y.to("kit")).backward()
        loss_of(alone, x, y).backward()
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_that_raises_in_one_replica_ends_the_step_and_changes_nothing(kind: str) -> None:
    error = KeyboardInterrupt if kind == "an interrupt" else Boom
    x, y = batches(1, 8)[0]
    with net_on_one_cpu(perceptron(), 2) as net:
        optimizer = net.optimizer(torch.optim.AdamW, lr=0.01)
        before = [p.detach().cpu() for p in net.modules[0].parameters()]
        hook = HOOKS[kind](net.modules[1])
        with pytest.raises(error):
            net.step(loss_of, optimizer, x, y)
        hook.remove()
        for module in net.modules:
            assert all(map(torch.equal, before, [p.detach().cpu() for p in module.parameters()]))
        net.step(loss_of, optimizer, x, y)
        first, second = ([p.detach().cpu() for p in m.parameters()] for m in net.modules)
        assert all(map(torch.equal, first, second))


def test_a_gradient_that_is_asked_for_fails_with_what_a_hook_has_raised() -> None:
    """Torch says only that it has failed, where a pass does not end in `backward`."""
    x, y = batches(1, 4)[0]
    with open_session(Settings(mode="lazy")):
        model = perceptron().to("kit")
        model[2].register_full_backward_hook(boom)
        loss = F.cross_entropy(model(x.to("kit")), y.to("kit"))
        with pytest.raises(Boom):
            torch.autograd.grad(loss, list(model.parameters()))
        assert torch.ones(2, device="kit").sum().item() == 2.0


def test_an_error_whose_own_words_fail_comes_out_of_torchs_own_backward_as_it_is() -> None:
    class Mute(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no words")

    def mute(*_: Any) -> None:
        raise Mute

    with open_session(Settings()):
        weight = torch.ones(2, requires_grad=True)
        weight.register_hook(mute)
        with pytest.raises(Mute):
            weight.sum().backward()


class _OnHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.full(tuple(gradient.shape), 2.0)


def test_a_function_that_gives_its_gradient_on_another_device_is_refused_as_by_torch() -> None:
    with open_session(Settings(mode="lazy")):
        weight = nn.Parameter(torch.ones(3).to("kit"))
        expected = "_OnHostBackward returned an invalid gradient at index 0 - expected device kit"
        with pytest.raises(RuntimeError, match=expected):
            _OnHost.apply(weight).sum().backward()
        assert weight.grad is None
        on_cpu = torch.ones(3, requires_grad=True)
        _OnHost.apply(on_cpu).sum().backward()
        assert on_cpu.grad is not None


def test_a_function_that_moves_to_another_device_and_back_is_none() -> None:
    class Moved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.cpu()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.to("kit")

    with open_session(Settings(mode="lazy")):
        weight = nn.Parameter(torch.ones(3).to("kit"))
        (Moved.apply(weight) * 3).sum().backward()
        assert weight.grad is not None
        assert (weight.grad.device.type, weight.grad.tolist()) == ("kit", [3.0] * 3)


def test_a_gradient_that_nobody_needs_may_be_anywhere_as_with_torch() -> None:
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * 2, torch.ones(3)

    with open_session(Settings(mode="lazy")):
        weight = nn.Parameter(torch.ones(3).to("kit"))
        Two.apply(weight, torch.ones(3)).sum().backward()
        assert weight.grad is not None
        assert weight.grad.tolist() == [2.0] * 3
