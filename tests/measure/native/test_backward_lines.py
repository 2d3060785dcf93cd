"""The lines, modules and arrays of what native backward passes compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.measure.native.looked_at import profiled

pytestmark = pytest.mark.usefixtures("one_torch_thread")
HERE = Path(__file__).name


def test_a_gradient_has_the_line_of_its_op_and_the_arrays_of_its_own() -> None:
    weight = nn.Parameter(torch.ones(4, 3))
    x = torch.ones(5, 4)

    def step() -> torch.Tensor:
        hidden = x @ weight
        loss = hidden.sigmoid().sum()
        loss.backward()
        return loss

    first = step.__code__.co_firstlineno
    _, found = profiled(step)
    backward = {c.op: c for c in found.callers if c.is_backward}
    assert backward["aten::sigmoid_backward"].site == f"{HERE}:{first + 2}"
    product = backward["aten::mm"]
    assert product.site == f"{HERE}:{first + 1}"
    assert product.shapes == "float32[4,5], float32[5,3]"
    assert (product.calls, product.kernels) == (2, 2)


def test_gradients_of_gradients_have_the_line_of_the_first_op() -> None:
    weight = nn.Parameter(torch.ones(4, 3))
    x = torch.ones(5, 4, requires_grad=True)

    def step() -> torch.Tensor:
        out = torch.sigmoid(x @ weight)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = grad.square().sum()
        loss.backward()
        return loss

    first = step.__code__.co_firstlineno
    _, found = profiled(step)
    products = {c.site for c in found.callers if c.op == "aten::mm" and c.is_backward}
    assert products == {f"{HERE}:{first + 1}"}


def test_python_that_a_backward_pass_calls_has_its_own_lines() -> None:
    """A function of the user's and a hook; beside it is an op without gradient."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return grads[0].exp()

    def hook(grad: torch.Tensor) -> torch.Tensor:
        return grad.clamp(-1, 1)

    weight = nn.Parameter(torch.ones(4, 4))
    x = torch.ones(4, 4)

    def step() -> torch.Tensor:
        hidden = x @ weight
        mask = torch.sin(x)
        hidden = Double.apply(hidden)
        hidden.register_hook(hook)
        loss = (hidden * mask).sum()
        loss.backward()
        return loss

    _, found = profiled(step)
    sites = {c.op: c.site for c in found.callers if c.is_backward}
    assert sites["aten::exp"] == f"{HERE}:{Double.backward.__code__.co_firstlineno + 2}"
    assert sites["aten::clamp"] == f"{HERE}:{hook.__code__.co_firstlineno + 1}"
    assert sites["aten::mm"] == f"{HERE}:{step.__code__.co_firstlineno + 1}"
    assert f"{HERE}:{step.__code__.co_firstlineno + 2}" not in sites.values()


def test_a_librarys_function_has_the_line_that_called_it() -> None:
    function = torch.utils.checkpoint.CheckpointFunction  # that calls none of the user's code here
    x = torch.ones(4, 4)

    def step() -> torch.Tensor:
        weight = torch.ones(4, 4, requires_grad=True)
        mask = torch.sin(x)
        out = function.apply(torch.Tensor.exp, True, weight)
        loss = (out * mask).sum()
        loss.backward()
        return loss

    first = step.__code__.co_firstlineno
    _, found = profiled(step)
    again = next(c for c in found.callers if c.op == "aten::exp" and c.is_backward)
    assert again.site == f"{HERE}:{first + 3}"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_a_checkpoint_computes_again_has_its_own_line_and_modules(use_reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(self.block, x.tanh(), use_reentrant=use_reentrant)
            return torch.as_tensor(hidden) * 2

        def block(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layers(x)
            return x.exp()

    net, x = Net(), torch.ones(2, 4, requires_grad=True)

    def step() -> torch.Tensor:
        loss = net(x).sum()
        loss.backward()
        return torch.as_tensor(loss)

    first = Net.block.__code__.co_firstlineno
    _, found = profiled(step)
    again = {(c.op, c.site, c.module) for c in found.callers if c.is_backward}
    inner = ("Net_0", "Sequential_0")
    assert {
        ("aten::addmm", f"{HERE}:{first + 1}", (*inner, "Linear_0")),
        ("aten::addmm", f"{HERE}:{first + 1}", (*inner, "Linear_1")),
        ("aten::exp", f"{HERE}:{first + 2}", ("Net_0",)),
        ("aten::tanh_backward", f"{HERE}:{first + 1}", (*inner, "Tanh_0")),
        ("aten::mm", f"{HERE}:{first + 1}", (*inner, "Linear_1")),
    } <= again
