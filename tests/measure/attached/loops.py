"""A training loop that knows nothing of kit, and what a stretch of Python costs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


class Loop:
    """A small training loop, as somebody else has written it."""

    def __init__(self, workers: int = 0) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        points = torch.randn(256, 8)
        data = torch.utils.data.TensorDataset(points, (points.sum(1) > 0).long())
        self.loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers)
        self.losses: list[float] = []

    def steps(self, count: int) -> Iterator[torch.Tensor]:
        for _, (x, y) in zip(range(count), self.loader, strict=False):
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            yield loss

    def train(self, count: int) -> None:
        for _ in self.steps(count):
            pass

    def weights(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()


def python_calls(work: Callable[[], object]) -> int:
    """How many functions of Python run in it."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    gc.collect()  # a collection in between calls the functions that ends of other objects have
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls
