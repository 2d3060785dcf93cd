"""Convolutional nets with batch norm, pooling and resizing train as in native torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from kit.runs.settings import Settings
from kit.torch.device import open_session


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        Residual(8), nn.Conv2d(8, 16, 1), Residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip


def unet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2),
        nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(8, 4, 3, stride=4, dilation=2), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip


def train(
    build: Callable[[], nn.Module], device: str
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(5, (8,))
    model = build()
    model(images)  # lazy layers find their shapes; batch norm sees one batch more
    model, images, labels = model.to(device), images.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(10):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [x.item() for x in losses], {k: v.cpu() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("build", [resnet, unet])
def test_a_convolutional_net_trains_as_in_native_torch(build: Callable[[], nn.Module]) -> None:
    losses, weights = train(build, "cpu")
    with open_session(Settings(mode="lazy"), strict=True) as session:
        got, state = train(build, "kit")
        assert not session.unlowered
    torch.testing.assert_close(got, losses, rtol=1e-4, atol=1e-4)
    assert losses[-1] < losses[0]
    for name, expected in weights.items():  # running statistics too
        torch.testing.assert_close(state[name], expected, rtol=1e-3, atol=1e-4, msg=name)
