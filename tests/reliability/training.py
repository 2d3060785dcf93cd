"""A small training in each mode of the kit, and the question whether its next step is torch's."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import kit
from kit.errors import SessionError
from kit.torch.device import open_session
from kit.torch.scaling.choose import make_scaler

MODES = {
    "bulked": kit.Settings(bulk_forward=4, bulk_backward=5),
    "op by op": kit.Settings(mode="imperative", segment_mode="launch"),
    "lazy": kit.Settings(mode="lazy"),
    "replay": kit.Settings(mode="lazy", step_mode="replay"),
    "speculate": kit.Settings(bulk_forward=6, bulk_backward=6, step_mode="speculate"),
    "host check": kit.Settings(bulk_forward=4, loss_scaling="dynamic, host check"),
    "on device": kit.Settings(mode="lazy", step_mode="replay", loss_scaling="dynamic, on device"),
    "taken back": kit.Settings(mode="lazy", loss_scaling="dynamic, deferred"),
}
OVERFLOWS_EVERY = 4  # steps, where the scale of the loss may change


class TimeLimit(Exception):
    """What a handler of the program's own raises."""


class Training:
    """A network, its optimizer and a batch on device "kit", in a session of its own.

    It is a context: the session is open in the block.
    """

    alike_after = 5

    def __init__(self, mode: str) -> None:
        self._session = open_session(MODES[mode])
        self.mode = mode

    def __enter__(self) -> Training:
        self._session.__enter__()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
        self.net = net.to("kit")
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.x, self.y = torch.randn(5, 6), torch.randn(5, 3)
        self.x_kit, self.y_kit = self.x.to("kit"), self.y.to("kit")
        self.infinite = torch.full_like(self.y_kit, float("inf"))
        self.work = self._work  # one object: a replay knows a step by its function
        self.steps, self.overflows = 0, False
        settings = MODES[self.mode]  # a replay would be recorded again at each overflow
        self._may_overflow = settings.scaling.is_dynamic and settings.step_mode == "retrace"
        self.recover()
        return self

    def __exit__(self, *error: Any) -> None:
        self._session.__exit__(*error)

    @property
    def session(self) -> kit.Session:
        return self._session

    def recover(self) -> None:
        """After an interrupt, a gradient scaler may be between its two calls, in torch too."""
        scaling = MODES[self.mode].scaling
        options = {"growth_interval": OVERFLOWS_EVERY - 1} if scaling.is_dynamic else {}
        self.scaler = make_scaler(scaling.name, "kit", **options)

    def _work(self) -> Any:
        y = self.infinite if self.overflows else self.y_kit
        return one_step(self.net, self.optimizer, self.x_kit, y, self.scaler)

    def step(self) -> Any:
        """One step, as the mode runs it; gives the loss. Some overflow, where that is looked at."""
        self.steps += 1
        self.overflows = self._may_overflow and not self.steps % OVERFLOWS_EVERY
        return self._session.run_step(self.work)

    def check_next_step(self) -> None:
        """Run one step here, and one in plain torch from the same numbers.

        Raises:
            AssertionError: the loss, a weight or a number of the optimizer differs.
        """
        twin = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
        twin.load_state_dict({name: x.cpu() for name, x in self.net.state_dict().items()})
        adam = torch.optim.Adam(twin.parameters(), lr=0.01)
        adam.load_state_dict(on_cpu(copy.copy(self.optimizer.state_dict())))
        expected = one_step(twin, adam, self.x, self.y)
        self.steps -= self.steps % OVERFLOWS_EVERY  # the next one does not overflow
        got = self.step()
        torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(self.net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


def one_step(net: Any, optimizer: Any, x: Any, y: Any, scaler: Any = None) -> Any:
    """Forward, backward, update."""
    optimizer.zero_grad()
    loss = ((net(x) - y) ** 2).mean()
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss


def on_cpu(item: Any) -> Any:
    """Lists and dicts with copies of their tensors on the CPU."""
    if isinstance(item, torch.Tensor):
        return item.detach().cpu().clone()
    if isinstance(item, dict):
        return {key: on_cpu(value) for key, value in item.items()}
    if isinstance(item, list):
        return [on_cpu(value) for value in item]
    return item


def is_clear(error: BaseException) -> bool:
    """Does the error say that the session cannot go on, and what to do?"""
    return isinstance(error, SessionError) and "kit.Session" in str(error)
