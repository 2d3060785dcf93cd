"""Small training steps on which no constant of the what-if model was chosen: it is judged on them.

A loader that takes its time, a host that sleeps, an LSTM, an encoder and a conv net.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import kit

__all__ = ["UNFITTED"]

WIDTH, LENGTH = 32, 12
Step = Callable[[], Any]


class Points(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Random inputs of a shape and their sums; each item takes its time."""

    def __init__(self, shape: tuple[int, ...], delay_s: float = 0.0) -> None:
        self.x, self.delay_s = torch.randn(256, *shape), delay_s

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if self.delay_s:
            time.sleep(self.delay_s)
        return self.x[i], self.x[i].mean()


def trained(
    name: str, make: Callable[[], nn.Module], shape: tuple[int, ...], *,
    delay_s: float = 0.0, sleep_s: float = 0.0,
) -> kit.Workload:  # fmt: skip
    """A step that trains a model with AdamW; the host may sleep in it."""

    def build(ctx: kit.Context) -> Step:
        torch.manual_seed(ctx.seed)
        model = make().to(ctx.device)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler, batches = ctx.scaler(), ctx.loader(Points(shape, delay_s))

        def step() -> Tensor:
            total: Any = 0
            for x, y in ctx.micro_batches(batches):
                if sleep_s:
                    time.sleep(sleep_s)
                loss = (model(x).flatten(1).mean(dim=1) - y).square().mean()
                scaler.scale(loss / ctx.accumulate).backward()
                total = total + loss.detach()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return total  # type: ignore[no-any-return]

        return step

    return kit.Workload(name, build)


class Recurrent(nn.Module):
    """The output of an LSTM, without its state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                         nn.Linear(64, 8))  # fmt: skip


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)


def _convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(),
                         nn.Linear(16 * 8 * 8, 8))  # fmt: skip


UNFITTED = {
    "slow loader": trained("slow loader", _perceptron, (WIDTH,), delay_s=0.0005),
    "sleeping host": trained("sleeping host", _perceptron, (WIDTH,), sleep_s=0.003),
    "lstm": trained("lstm", Recurrent, (LENGTH, WIDTH)),
    "encoder": trained("encoder", _encoder, (LENGTH, WIDTH)),
    "conv net": trained("conv net", _convolutions, (3, 16, 16)),
}
