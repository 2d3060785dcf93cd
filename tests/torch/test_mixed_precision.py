"""Autocast and GradScaler of code that names other devices, where device kit stands in for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import kit
from kit.torch.mapping import named_devices


def trained(device: str, scaler: Any = None) -> tuple[torch.dtype, list[torch.Tensor]]:
    """The dtype in which a linear layer computes under autocast, and its weights after a step."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2).to(device)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = scaler or torch.amp.GradScaler(device, init_scale=4.0)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = net(x)
    scaler.scale(y.float().square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return y.dtype, [p.detach().cpu() for p in net.parameters()]


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_a_mixed_precision_step_is_one_on_device_kit(device: str) -> None:
    """It was a float32 step, and said to be the script's."""
    _, expected = trained("cpu")
    with kit.Session(), named_devices():
        dtype, found = trained(device)
        assert not torch.is_autocast_enabled("kit")
    assert dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-3)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: torch.autocast("cuda"), torch.float16),
        (lambda: torch.autocast("cpu"), torch.bfloat16),
        (lambda: torch.cuda.amp.autocast(dtype=torch.bfloat16), torch.bfloat16),
        (lambda: torch.cpu.amp.autocast(), torch.bfloat16),
        (lambda: torch.autocast("cuda", enabled=False), torch.float32),
        (lambda: torch.autocast("cpu", enabled=False), torch.float32),
    ],
)
@pytest.mark.filterwarnings("ignore:.*amp.autocast:FutureWarning")
def test_each_way_to_ask_for_autocast_holds(made: Any, expected: torch.dtype) -> None:
    w = torch.ones(2, 2)

    def product(x: torch.Tensor) -> torch.dtype:
        return (x @ x).dtype

    with kit.Session(), named_devices():
        there = w.to("cuda")
        asked = made()
        with asked:
            assert product(there) is expected
        assert product(there) is torch.float32
        assert made()(product)(there) is expected  # as a decorator
        with torch.autocast(asked.device, dtype=torch.bfloat16), made():
            assert product(there) is expected


def test_autocast_of_the_cpu_still_holds_there() -> None:
    w = torch.ones(2, 2)
    with kit.Session(), named_devices(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert (w @ w).dtype is torch.bfloat16
        assert (w.to("cuda") @ w.to("cuda")).dtype is torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_computed_again_is_in_the_same_precision(device: str) -> None:
    """A checkpoint enters autocast of the CPU, too, as it was: of the device it means nothing."""
    seen: list[torch.dtype] = []

    def layer(x: torch.Tensor) -> Any:
        seen.append((y := x @ x).dtype)
        return y.sin()

    with kit.Session(), named_devices():
        x = torch.ones(2, 2).to(device).requires_grad_()
        with torch.autocast(device, dtype=torch.bfloat16):
            y = checkpoint(layer, x, use_reentrant=False)
        y.float().sum().backward()
    assert seen == [torch.bfloat16] * 2


def test_a_function_casts_its_inputs_and_the_old_name_of_the_dtype_is_known() -> None:
    class Exponential(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
            return x.exp() + more[0]

    with kit.Session(), named_devices(), torch.autocast("cuda", dtype=torch.bfloat16):
        x = torch.ones(2, device="cuda", dtype=torch.bfloat16)
        assert Exponential.apply(x, [x]).dtype is torch.float32
        assert torch.get_autocast_gpu_dtype() is torch.bfloat16


def test_a_function_with_casts_of_its_own_goes_back_in_the_same_precision() -> None:
    seen: list[bool] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append(torch.is_autocast_enabled())
            (x,) = ctx.saved_tensors
            return grad @ x.T + x.T @ grad

    with kit.Session(), named_devices():
        x = torch.ones(2, 2).to("cuda").requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = Product.apply(x)  # type: ignore[no-untyped-call]
        y.float().sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert seen == [True]


@pytest.mark.filterwarnings("ignore:.*GradScaler:FutureWarning")
def test_a_scaler_of_cuda_scales() -> None:
    """Where there is no CUDA, torch switches it off."""
    with kit.Session(), named_devices():
        for scaler in (torch.amp.GradScaler(init_scale=8.0), torch.cuda.amp.GradScaler(8.0)):
            assert scaler.is_enabled()
            assert scaler.scale(torch.ones(2).to("cuda")).tolist() == [8.0, 8.0]
        assert not torch.amp.GradScaler("cuda", enabled=False).is_enabled()


def test_what_a_package_says_of_the_cpu_is_of_the_cpu_only(tmp_path: Path) -> None:
    path = tmp_path / "site-packages" / "package.py"
    code = compile("def off(torch): return torch.autocast('cpu', enabled=False)", str(path), "exec")
    package: dict[str, Any] = {}
    exec(code, package)
    with kit.Session(), named_devices(), torch.autocast("cuda", dtype=torch.bfloat16):
        x = torch.ones(2, 2).to("cuda")
        with package["off"](torch):
            assert (x @ x).dtype is torch.bfloat16


def test_afterwards_torchs_own_are_back() -> None:
    kinds = (torch.autocast, torch.amp.GradScaler)
    before = [{**vars(kind)} for kind in kinds]
    functions = torch.is_autocast_enabled, torch.get_autocast_dtype
    with kit.Session(), named_devices():
        assert torch.is_autocast_enabled is not functions[0]
    assert [{**vars(kind)} for kind in kinds] == before
    assert (torch.is_autocast_enabled, torch.get_autocast_dtype) == functions
