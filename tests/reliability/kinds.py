"""All kinds of steps that can be interrupted: a session's modes, replicas, jax, loops and runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

import kit
from kit.torch.parallel.data_parallel import DataParallel
from tests.reliability.loops import Program, Watched
from tests.reliability.training import MODES, Training

__all__ = ["KINDS", "Steps"]


class Steps(Protocol):
    """A context in whose block steps can be run, and one be held against torch or jax.

    Attributes:
        alike_after: steps after which each runs the lines of the one before.
    """

    alike_after: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: Any) -> None: ...

    def step(self) -> Any:
        """Run one step."""

    def recover(self) -> None:
        """Do what a program must do after an interrupt without the kit, too."""

    def check_next_step(self) -> None:
        """Run one step here, and one without the kit from the same numbers.

        Raises:
            AssertionError: they differ.
        """


class Replicas:
    """Two replicas of a small network on one CPU."""

    alike_after = 5

    def __enter__(self) -> Self:
        torch.manual_seed(0)
        self._net = DataParallel(_perceptron(), ["cpu:0"] * 2, bucket_mb=2e-4).open()
        self._optimizer = self._net.optimizer(torch.optim.SGD, lr=0.01)
        self._x, self._y = torch.randn(6, 6), torch.randn(6, 3)
        return self

    def __exit__(self, *error: Any) -> None:
        self._net.close()

    def recover(self) -> None:
        """Nothing is left half done."""

    def step(self) -> Any:
        return self._net.step(_loss, self._optimizer, self._x, self._y)

    def check_next_step(self) -> None:
        twin = _perceptron()
        state = self._net.modules[0].state_dict()
        twin.load_state_dict({name: x.detach().cpu() for name, x in state.items()})
        plain = torch.optim.SGD(twin.parameters(), lr=0.01)
        _loss(twin, self._x, self._y).backward()
        plain.step()
        self.step()
        for module in self._net.modules:
            for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


class Jax:
    """A step of jax in a session."""

    alike_after = 5

    def __enter__(self) -> Self:
        self._session = kit.Session(kit.Settings(bulk_forward=4, bulk_backward=4)).__enter__()
        chance = np.random.default_rng(0)
        self._weights = {n: chance.normal(size=(4, 4)).astype(np.float32) for n in ("up", "down")}
        self._x = chance.normal(size=(6, 4)).astype(np.float32)
        self._ours, self._theirs = kit.jax.step(_jax_step), jax.jit(_jax_step)
        return self

    def __exit__(self, *error: Any) -> None:
        self._session.__exit__(*error)

    def recover(self) -> None:
        """The weights are those of before the step, or of after it."""

    def step(self) -> Any:
        self._weights = self._ours(self._weights, self._x)
        self._session.mark_step()

    def check_next_step(self) -> None:
        before = jax.tree.map(np.asarray, self._weights)
        self.step()
        after = jax.tree.map(np.asarray, self._weights)
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
            after,
            jax.tree.map(np.asarray, self._theirs(before, self._x)),
        )


class Measured:
    """Whole runs: the measured loop, torch's profiler or XLA's, and a session but in "torch"."""

    alike_after = 1

    def __init__(self, mode: str) -> None:
        self._settings = kit.Settings(mode=mode, steps=2, warmup=1)

    def __enter__(self) -> Self:
        step = _workload(None)
        self._losses = [float(step()) for _ in range(3)]
        return self

    def __exit__(self, *error: Any) -> None:
        """Nothing is open."""

    def recover(self) -> None:
        """The next run begins from the start."""

    def step(self) -> kit.Run:
        return kit.run(kit.workload(_workload), self._settings)

    def check_next_step(self) -> None:
        run = self.step()
        np.testing.assert_allclose(run.losses, self._losses[1:], rtol=1e-4)
        assert len(run.timeline) > 0


def _perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _loss(model: nn.Module, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


def _workload(ctx: Any) -> Callable[[], Any]:
    torch.manual_seed(0)
    net, x, y = _perceptron(), torch.randn(6, 6), torch.randn(6, 3)
    if ctx is not None:
        net, x, y = net.to(ctx.device), x.to(ctx.device), y.to(ctx.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step() -> Any:
        optimizer.zero_grad()
        loss = _loss(net, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _jax_step(weights: Any, x: Any) -> Any:
    def loss_of(weights: Any) -> Any:
        return (jnp.tanh(x @ weights["up"]) @ weights["down"]).var()

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss_of)(weights))


KINDS: dict[str, Callable[[], Steps]] = {
    **{mode: partial(Training, mode) for mode in MODES},
    "replicas": Replicas,
    "jax": Jax,
    "native": partial(Measured, "torch"),
    "measured": partial(Measured, "bulked"),
    "watched": Watched,
    "watched on kit": partial(Watched, on_kit=True),
    "kit run": Program,
}
