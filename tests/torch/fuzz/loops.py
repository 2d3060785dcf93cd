"""Random training loops: a step made of common idioms, and what a program does between two steps.

`run(number, device, runs)` gives every number that the loop has shown. All modes of a step, and
torch on a CPU, must show the same but for rounding: what is done between two steps may share a
program with the next one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["STEPS", "Loop", "run"]

STEPS = 14
_WIDTH = 4


class _Block(nn.Module):
    """A layer that is called by a method, a buffer, a number and a frozen layer that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, _WIDTH)
        self.teacher = nn.Linear(_WIDTH, _WIDTH).requires_grad_(False)
        self.register_buffer("mask", torch.ones(_WIDTH))
        self.gain, self.limit = 0.5, None

    def mixed(self, x: Tensor) -> Tensor:
        found = self.inner(x) * self.mask * self.gain + self.teacher(x)
        return found if self.limit is None else found.clamp(max=self.limit)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.mixed(x))


class Loop:
    """One task on one device. What is random is drawn from its number, on the host."""

    def __init__(self, number: int, device: str) -> None:
        self.draw, self.device = Random(number), device
        torch.manual_seed(number)
        self.net: Any = nn.Sequential(
            nn.Linear(_WIDTH, _WIDTH),
            self.draw.choice([nn.ReLU, nn.GELU, nn.Identity])(),
            _Block(),
            # not behind a linear layer, whose bias would have no gradient but rounding
            self.draw.choice([nn.Identity, lambda: nn.BatchNorm1d(_WIDTH)])(),
            nn.Linear(_WIDTH, 2),
        ).to(device)
        self.spare = [nn.Linear(_WIDTH, _WIDTH).to(device) for _ in range(2)]
        self.kind = self.draw.choice(_OPTIMIZERS)
        self.optimizer = self.kind(self.net.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.parts = self.draw.sample(_PARTS, 3)
        self.is_clipped = self.draw.random() < 0.5
        self.gives = self.draw.choice(_GIVEN)
        self.batch, self.count, self.weight = 6, 0, 1.0
        self.average = [p.detach().clone() for p in self.net.parameters()]
        self.shown: list[Any] = []  # what the program keeps, to read it at the end
        self.hooks: list[Any] = []
        self.saved = copy.deepcopy(self.net.state_dict())

    def data(self) -> tuple[Tensor, Tensor]:
        made = torch.Generator().manual_seed(self.count)
        x = torch.randn(self.batch, _WIDTH, generator=made)
        return x.to(self.device), torch.randint(2, (self.batch,), generator=made).to(self.device)

    def loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.net(x)
        return F.cross_entropy(logits, y) * self.weight, logits

    def step(self) -> Any:
        x, y = self.data()
        loss, logits = self.loss(x, y)
        for part in self.parts:
            loss = part(self, loss)
        loss.backward()
        if self.is_clipped:
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(self.average, self.net.parameters(), strict=False):
                mean.lerp_(p.detach(), 0.5)
        return self.gives(loss, logits)

    def between(self) -> None:
        """What a program does after a step: mostly nothing but going on."""
        self.count += 1
        if self.draw.random() < 0.25:
            self.draw.choice(_ACTS)(self)

    @torch.no_grad()
    def end(self) -> list[Tensor]:
        state = [*self.net.state_dict().values(), *self.average]
        for one in self.optimizer.state.values():
            state += [value for value in one.values() if isinstance(value, Tensor)]
        shown = [x for one in self.shown for x in (one if isinstance(one, tuple) else (one,))]
        return [x.detach().cpu().clone() for x in (*state, *shown) if isinstance(x, Tensor)]


_OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda params: torch.optim.SGD(params, lr=0.1),
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    lambda params: torch.optim.AdamW(params, lr=0.02),
    lambda params: torch.optim.RMSprop(params, lr=0.01),
]
_GIVEN: list[Callable[[Tensor, Tensor], Any]] = [
    lambda loss, logits: loss,
    lambda loss, logits: loss.detach(),
    lambda loss, logits: (loss, logits.detach().mean()),
]


# -- parts of a step: each gives the loss anew


def _penalty(loop: Loop, loss: Tensor) -> Tensor:
    return loss + 0.01 * sum((p**2).sum() for p in loop.net.parameters() if p.requires_grad)


def _by_its_rate(loop: Loop, loss: Tensor) -> Tensor:
    return loss * (1 + loop.optimizer.param_groups[0]["lr"])


def _beside(loop: Loop, loss: Tensor) -> Tensor:
    return loss + loop.net[2].mixed(loop.net[0].weight).mean() * 0.1


def _second_order(loop: Loop, loss: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(loss, loop.net[4].weight, create_graph=True)
    return loss + 0.1 * (grad**2).sum()


def _spared(loop: Loop, loss: Tensor) -> Tensor:
    return loss + loop.spare[0](loop.net[0].weight).pow(2).mean() * 0.01


def _seldom(loop: Loop, loss: Tensor) -> Tensor:
    return loss * 2 if loop.count % 5 == 4 else loss


_PARTS: list[Callable[[Loop, Tensor], Tensor]] = [
    _penalty, _by_its_rate, _beside, _second_order, _spared, _seldom,
]  # fmt: skip


# -- acts between two steps


def _rate(loop: Loop) -> None:
    loop.optimizer.param_groups[0]["lr"] *= 0.5


def _scheduled(loop: Loop) -> None:
    loop.scheduler.step()


def _evaluated(loop: Loop) -> None:
    loop.net.eval()
    with torch.no_grad():
        loop.shown.append(loop.net(loop.data()[0]).mean())
    loop.net.train()


def _left_in_evaluation(loop: Loop) -> None:
    loop.net.train(not loop.net.training)


def _frozen(loop: Loop) -> None:
    weight = loop.net[0].weight
    weight.requires_grad_(not weight.requires_grad)


def _loaded(loop: Loop) -> None:
    loop.net.load_state_dict(loop.saved)


def _saved(loop: Loop) -> None:
    loop.saved = copy.deepcopy(loop.net.state_dict())


def _accumulated(loop: Loop) -> None:
    loop.loss(*loop.data())[0].backward()


def _zeroed(loop: Loop) -> None:
    loop.optimizer.zero_grad(set_to_none=False)


def _written(loop: Loop) -> None:
    with torch.no_grad():
        loop.net[4].weight.mul_(0.5)
        loop.net[2].mask[0] = 0.5


def _bound(loop: Loop) -> None:
    loop.net[4].bias.data = torch.full((2,), 0.25, device=loop.device)


def _masked(loop: Loop) -> None:
    loop.net[2].mask = torch.linspace(0, 1, _WIDTH).to(loop.device)


def _gained(loop: Loop) -> None:
    loop.net[2].gain = loop.draw.random()


def _limited(loop: Loop) -> None:
    loop.net[2].limit = None if loop.net[2].limit else 0.25


def _taught(loop: Loop) -> None:
    loop.spare.append(loop.net[2].teacher)
    loop.net[2].teacher = loop.spare.pop(1).requires_grad_(False)


def _swapped(loop: Loop) -> None:
    loop.spare.append(loop.net[0])  # the old one stays alive, as an optimizer's does
    loop.net[0] = nn.Linear(_WIDTH, _WIDTH).to(loop.device)


def _another_spare(loop: Loop) -> None:
    loop.spare[0], loop.spare[1] = loop.spare[1], loop.spare[0]


def _another_activation(loop: Loop) -> None:
    loop.net[1] = nn.Tanh()


def _optimizer_anew(loop: Loop) -> None:
    loop.optimizer = loop.kind(loop.net.parameters())


def _state_loaded(loop: Loop) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))


def _hooked(loop: Loop) -> None:
    if loop.hooks:
        loop.hooks.pop().remove()
    else:
        loop.hooks.append(loop.net[4].register_forward_hook(lambda m, a, out: out * 1.5))


def _hooked_gradient(loop: Loop) -> None:
    if loop.net[4].weight.requires_grad:
        loop.net[4].weight.register_hook(lambda grad: grad * 0.5)


def _weighed(loop: Loop) -> None:
    loop.weight = loop.draw.random()


def _other_batch(loop: Loop) -> None:
    loop.batch = 9 - loop.batch


def _looked(loop: Loop) -> None:
    loop.shown += [loop.net[4].weight.sum(), loop.net[0].weight.detach().clone()]


def _read(loop: Loop) -> None:
    loop.shown.append(torch.tensor(loop.net[4].weight.sum().item()))


def _kept_view(loop: Loop) -> None:
    loop.shown.append(loop.net[4].weight.detach()[0])


_ACTS: list[Callable[[Loop], None]] = [
    _rate, _scheduled, _evaluated, _left_in_evaluation, _frozen, _loaded, _saved, _accumulated,
    _zeroed, _written, _bound, _masked, _gained, _limited, _taught, _swapped, _another_spare,
    _another_activation, _optimizer_anew, _state_loaded, _hooked, _hooked_gradient, _weighed,
    _other_batch, _looked, _read, _kept_view,
]  # fmt: skip


def run(number: int, device: str, runs: Callable[[Callable[[], Any]], Any]) -> list[Tensor]:
    """All that the loop with this number shows; `runs` runs a step, as a session does."""
    loop = Loop(number, device)
    for _ in range(STEPS):
        loop.shown.append(runs(loop.step))
        loop.between()
    return loop.end()
