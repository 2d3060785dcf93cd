"""A step that waits for the device on known lines: what finds sync points has to find these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kit.measure.base.context import Context, workload

__all__ = ["known_waits", "sites_that_wait"]

WIDTH = 64
_MARK = "# the host waits here"


@workload
def known_waits(ctx: Context) -> Callable[[], Any]:
    """A small network whose step reads a number, looks for positive values, and copies."""
    torch.manual_seed(ctx.seed)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = ctx.part(torch.randn(ctx.settings.batch_size, WIDTH)).to(ctx.device)

    def step() -> Tensor:
        out = model(x)
        loss: Tensor = (out - 1).square().mean()
        loss.backward()
        value = loss.item()  # the host waits here
        positive = out.detach().flatten().gt(0).nonzero()  # the host waits here
        copied = out.detach().cpu()  # the host waits here
        if value >= 0 and len(positive) <= len(copied):  # always: what was read is used
            optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def sites_that_wait() -> frozenset[str]:
    """The lines of this file on which the step waits, as sites are written."""
    file = Path(__file__)
    lines = enumerate(file.read_text("utf-8").splitlines(), start=1)
    return frozenset(f"{file.name}:{n}" for n, line in lines if line.endswith(f"  {_MARK}"))
