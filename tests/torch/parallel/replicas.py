"""Small networks, and replicas of them that share the process's one CPU device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kit.torch.parallel.data_parallel import DataParallel

CLASSES = 4


def net_on_one_cpu(model: nn.Module, count: int, **options: Any) -> DataParallel:
    return DataParallel(model, ["cpu:0"] * count, **options)


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def batches(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 6, generator=made), torch.randint(0, CLASSES, (size,), generator=made))
        for _ in range(count)
    ]


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=tolerance, atol=tolerance)


def loss_of(model: nn.Module, x: Any, y: Any) -> Tensor:
    return F.cross_entropy(model(x), y)


class TwoHeads(nn.Module):
    """Two outputs, of a shared layer; the second head is used only where x begins above 0."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 5)
        self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 2)
        self.never = nn.Linear(5, 1)

    def forward(self, x: Any, use: Any = None) -> tuple[Any, Any]:
        h = self.trunk(x).tanh()
        return self.first(h), (self.second(h) if use is None or use.shape[0] > 3 else h[:, :2])
