"""A step of many small ops: what the host does is nearly all of it. Quick enough for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kit.measure.base.context import Context, workload

__all__ = ["flips", "mlp"]

WIDTH = 16
LAYERS = 8
FLIPS = 1000


@workload
def flips(ctx: Context) -> Callable[[], Any]:
    """MXNet's own test of bulking: 1000 flips of an array of 10, forward and backward."""
    array = torch.arange(10.0).to(ctx.device).requires_grad_()

    def step() -> Tensor:
        x: Tensor = array
        for _ in range(FLIPS):
            x = x.flip(0)
        loss = x.sum()
        loss.backward()
        array.grad = None
        return loss.detach()

    return step


@workload
def mlp(ctx: Context) -> Callable[[], Any]:
    """Eight narrow layers learn a fixed function of random points, with AdamW."""
    torch.manual_seed(ctx.seed)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 1)).to(ctx.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = ctx.scaler()
    points = torch.randn(max(256, ctx.settings.batch_size), WIDTH)
    data: Any = torch.utils.data.TensorDataset(points, points[:, :1].tanh())
    batches = ctx.loader(data)

    def step() -> Tensor:
        total: Any = 0
        for x, y in ctx.micro_batches(batches):
            with ctx.autocast():
                loss = (model(x) - y).square().mean() / ctx.accumulate
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return total  # type: ignore[no-any-return]

    return step
