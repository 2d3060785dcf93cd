"""A small task under each mode of loss scaling, some of whose losses are infinite."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import kit
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.session.session import current_session
from kit.torch.scaling.choose import make_scaler

DYNAMIC = ("dynamic, host check", "dynamic, on device", "dynamic, deferred")
CACHE = ExecutableCache()  # one small task, many times
GROWTH = {"init_scale": 2.0**8, "growth_interval": 3}
WAYS = {
    "lazy": kit.Settings(mode="lazy"),
    "bulked": kit.Settings(bulk_forward=3, bulk_backward=4),
    "op by op": kit.Settings(mode="imperative", segment_mode="launch"),
    "speculate": kit.Settings(mode="lazy", step_mode="speculate"),
    "replay": kit.Settings(mode="lazy", step_mode="replay"),
}


class Task:
    """A small regression whose loss is infinite where `bad` says so."""

    def __init__(self, mode: str, device: str, optimizer: Any, options: dict[str, Any]) -> None:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.model = model.to(device)
        self.x, self.y = torch.randn(8, 4).to(device), torch.randn(8, 1).to(device)
        self.ones = {b: torch.tensor(float("inf") if b else 1.0).to(device) for b in (False, True)}
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.scaler = make_scaler(mode, device, **GROWTH)
        self.device = device

    def step(self, bad: bool, *, clip: bool = False) -> torch.Tensor:
        loss = ((self.model(self.x) - self.y) ** 2).mean() * self.ones[bad]
        self.scaler.scale(loss).backward()
        if clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if (session := current_session()) is not None and self.device == "kit":
            session.mark_step()
        return loss.detach()

    def weights(self) -> list[torch.Tensor]:
        return [p.detach().cpu() for p in self.model.parameters()]


def train(
    mode: str, device: str, bad: list[bool], *, clip: bool = False, optimizer: Any = None,
    options: dict[str, Any] | None = None, read_scale: bool = True,
) -> tuple[list[torch.Tensor], list[float]]:  # fmt: skip
    chosen = optimizer or torch.optim.AdamW
    task = Task(mode, device, chosen, {"lr": 0.02} if options is None else options)
    scales = []
    for b in bad:
        task.step(b, clip=clip)
        if read_scale:
            scales.append(task.scaler.get_scale())
    return task.weights(), [*scales, task.scaler.get_scale()]


def assert_equal(got: Any, expected: Any) -> None:
    assert got[1] == expected[1]
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)


class Averaged(torch.optim.Optimizer):
    """Replaces its state in each step, as many optimizers from outside torch do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["mean"] = 0.9 * state.get("mean", torch.ones_like(p)) + 0.1 * p.grad
            p.sub_(0.05 * state["mean"])
