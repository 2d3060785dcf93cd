"""`DeviceNames`: other devices mean kit in the code of users, and the CPU in torch's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kit
from kit.errors import SettingsError
from kit.torch.mapping import DeviceNames


def trained(kind: type[torch.optim.Optimizer], device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Linear(4, 2).to(device)
    optimizer = kind(net.parameters(), foreach=True)  # type: ignore[call-arg]
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(3, 4).to(device)).square().sum().backward()
        optimizer.step()
    return [p.detach().cpu() for p in net.parameters()]


@pytest.mark.parametrize("kind", [torch.optim.Adadelta, torch.optim.Adam])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_an_optimizers_own_numbers_stay_on_the_cpu(
    kind: type[torch.optim.Optimizer], device: str
) -> None:
    expected = trained(kind, "cpu")
    with kit.Session(), DeviceNames() as names:
        found = trained(kind, device)
    torch.testing.assert_close(found, expected)
    name = device.split(":")[0]
    assert f"device kit stood in for {name} in 4 calls" in names.said  # two weights, two inputs
    assert ("an installed package" in names.said) is (name == "cpu")


def test_what_an_installed_package_places_follows_cuda_and_not_cpu(tmp_path: Path) -> None:
    """As `Data.to(device)` of torch_geometric does: of "cpu" nobody knows what it is there."""
    path = tmp_path / "site-packages" / "package.py"
    code = compile("def place(x, device): return x.to(device)", str(path), "exec")
    package: dict[str, Any] = {}
    exec(code, package)
    with kit.Session(), DeviceNames():
        placed = {
            name: package["place"](torch.ones(2), name).device.type for name in ("cpu", "cuda")
        }
    assert placed == {"cpu": "cpu", "cuda": "kit"}


def test_what_is_placed_is_on_kit_and_what_is_read_is_on_the_cpu() -> None:
    with kit.Session(), DeviceNames():
        made = torch.ones(2, device="cpu")
        assert made.device.type == torch.ones(2).cuda().device.type == "kit"
        assert made.to("cpu").device.type == made.cpu().device.type == "cpu"
        assert torch.ones(2).to(torch.device("mps")).device.type == "kit"
        assert torch.ones(2).to(torch.float64).device.type == "cpu"
        assert torch.ones(2, device="meta").device.type == "meta"
        with pytest.raises(SettingsError, match="asks for cuda:1"):
            torch.ones(2, device="cuda:1")


def test_code_that_names_no_device_is_told_so() -> None:
    with kit.Session(), DeviceNames() as names:
        assert torch.ones(2).device.type == "cpu"
    assert "names no device" in names.said
