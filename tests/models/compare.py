"""Run one module on the CPU in torch and on device kit, and compare everything it gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kit.runs.settings import Settings
from kit.runtime.session.session import Session, current_session
from kit.torch.device import open_session

Loss = Callable[[nn.Module, Sequence[Any]], torch.Tensor]


def lazy(**options: Any) -> Session:
    """A session that runs each step as one program."""
    return open_session(Settings(mode="lazy"), **options)


def on(device: str, value: Any) -> Any:
    """`value` with its tensors on a device; None and numbers stay."""
    return value.to(device) if isinstance(value, torch.Tensor) else value


def mean_square(module: nn.Module, inputs: Sequence[Any]) -> torch.Tensor:
    """A loss of everything that a module returns."""
    leaves = [x for x in flat(module(*inputs)) if x.is_floating_point()]
    return sum((x.square().mean() for x in leaves), torch.zeros(()).to(leaves[0].device))


def flat(output: Any) -> list[torch.Tensor]:
    """The tensors of an output, PackedSequence and tuples included."""
    if isinstance(output, torch.Tensor):
        return [output]
    return [x for item in output if item is not None for x in flat(item)]


def train(
    module: nn.Module, device: str, inputs: Sequence[Any], loss: Loss = mean_square, steps: int = 10
) -> list[torch.Tensor]:
    """Losses of some steps of plain SGD, unread: each step is the same one program."""
    inputs = [on(device, x) for x in inputs]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        value = loss(module, inputs)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.detach())
        session = current_session() if device == "kit" else None
        if session is not None:
            session.mark_step()
    return losses


def assert_trains_alike(module: nn.Module, inputs: Sequence[Any], loss: Loss = mean_square) -> None:
    """Ten losses and the parameters then: as native torch; nothing on the host, no sync point."""
    native = copy.deepcopy(module)
    expected = train(native, "cpu", inputs, loss)
    with lazy(strict=True) as session:
        module = module.to("kit")
        losses = train(module, "kit", inputs, loss)
        assert session.syncs == []
        assert_close([x.cpu() for x in losses], expected)
        parameters = [p.detach().cpu() for p in module.parameters()]
        assert_close(parameters, [p.detach() for p in native.parameters()])


def assert_close(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], rtol: float = 1e-4
) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-5)
