"""Replayed steps that return, keep or are given tensors: each has the numbers of its own step."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session

STEPS = 12
CACHE = ExecutableCache()


class Pair(NamedTuple):
    double: torch.Tensor
    given: torch.Tensor


class Output(OrderedDict[str, Any]):
    """As the outputs of transformers' models are: a dict with attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Both(list[Any]):
    """It takes its items one by one."""

    def __init__(self, double: torch.Tensor, given: torch.Tensor) -> None:
        self.extend((double, given))


class Holder:
    def __init__(self, double: torch.Tensor) -> None:
        self.double = double


class Trainer:
    """A step that keeps on itself what a test says."""

    def __init__(self, session: Any, keeps: str = "") -> None:
        self.session, self.keeps = session, keeps
        self.numbers = iter(range(1, 100))
        self.w = torch.ones(3, device="kit")
        self.kept: Any = None

    def load(self) -> torch.Tensor:
        return torch.full((3,), float(next(self.numbers))).to("kit")

    def step(self) -> Any:
        x = self.session.fetch(self.load)
        y = x * self.w * 2
        if self.keeps:
            self.kept = {"batch": x, "part of the batch": x[1:], "result": y}[self.keeps]
        return y, x


def replayed_and_recorded(run: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """What it gives in both step modes, and the stepper that replays."""
    found, steppers = [], []
    for mode in ("replay", "retrace"):
        with open_session(Settings(mode="lazy", step_mode=mode), cache=CACHE) as session:
            found.append(run(session))
            steppers.append(session.stepper)
    return (*found, steppers[0])


def test_a_batch_that_is_returned_is_that_of_the_step() -> None:
    def run(session: Any) -> Any:
        trainer = Trainer(session)
        return [[x.tolist() for x in session.run_step(trainer.step)] for _ in range(STEPS)]

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded
    assert stepper.counts["replay.steps"] > 3


@pytest.mark.parametrize("what", ["batch", "part of the batch", "result"])
def test_what_a_step_keeps_is_of_that_step_and_the_reason_names_it(what: str) -> None:
    def run(session: Any) -> Any:
        trainer, found = Trainer(session, what), []
        for _ in range(STEPS):
            session.run_step(trainer.step)
            found.append(trainer.kept.tolist())
        return found

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded
    said = "what it returns" if what == "result" else "a batch"
    assert any(f"the step keeps {said} as self.kept" in why for why in stepper.reasons)


@pytest.mark.parametrize("kind", [Pair, Output, Both])
def test_a_result_keeps_its_class(kind: Any) -> None:
    def run(session: Any) -> Any:
        trainer, found = Trainer(session), []

        def step() -> Any:
            y, x = trainer.step()
            return Output(double=y, given=x) if kind is Output else kind(y, x)

        for _ in range(STEPS):
            made = session.run_step(step)
            assert type(made) is kind
            found.append(made)
        return [[x.tolist() for x in (made.values() if kind is Output else made)] for made in found]

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded
    assert stepper.counts["replay.steps"] > 3


def test_a_tensor_in_an_object_that_is_returned_is_of_its_own_step() -> None:
    def run(session: Any) -> Any:
        trainer = Trainer(session)
        step = lambda: Holder(trainer.step()[0])  # noqa: E731
        return [session.run_step(step).double.tolist() for _ in range(STEPS)]

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded
    assert any("returns in an object" in why for why in stepper.reasons)


def test_a_tensor_of_the_device_that_a_loader_brings_is_the_next_one() -> None:
    def run(session: Any) -> Any:
        tasks = [torch.full((3,), float(i), device="kit") for i in range(3)]
        order = iter([0] * 8 + [1] * 8 + [2] * 8)
        w = torch.ones(3, device="kit")

        def load() -> Any:
            return torch.ones(3).to("kit"), tasks[next(order)]

        def step() -> Any:
            x, task = session.fetch(load)
            return (x * w * task).sum()

        return [session.run_step(step).item() for _ in range(24)]

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded
    assert stepper.counts["replay.steps"] > 3


def test_a_number_that_is_copied_counts_anew_when_it_changes() -> None:
    """A tensor made of one number is that number for `copy_`, and a replay reads no tensor then."""

    def run(session: Any) -> Any:
        level, buffer = torch.full((), 0.5, device="kit"), torch.zeros(2, 2, device="kit")
        level.item()

        def step() -> Any:
            buffer[:, 0] = level
            return (buffer * 2).sum()

        found = []
        for i in range(STEPS):
            if i == 8:
                level.fill_(0.25)
                assert level.item() == 0.25
            found.append(session.run_step(step).item())
        return found

    replayed, recorded, _ = replayed_and_recorded(run)
    assert replayed == recorded


def test_what_another_thread_has_recorded_reads_the_weights_of_then() -> None:
    def run(session: Any) -> Any:
        w, taken = torch.ones(3, device="kit"), []

        def step() -> None:
            w.add_(1)

        for i in range(STEPS):
            if i == 9:
                take = threading.Thread(
                    target=copy_context().run, args=(lambda: taken.append(w.half()),)
                )
                take.start()
                take.join()
            session.run_step(step)
        return taken[0].tolist()

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded == [10.0] * 3
    assert stepper.counts["replay.steps"] > 3


def test_a_view_that_another_thread_has_read_shows_the_weights_of_now() -> None:
    def run(session: Any) -> Any:
        w = torch.ones(3, device="kit")
        row, taken = w.detach()[:2], list[Any]()

        def step() -> None:
            w.add_(1)

        for i in range(STEPS):
            if i == 9:
                take = threading.Thread(
                    target=copy_context().run, args=(lambda: taken.append(row * 2),)
                )
                take.start()
                take.join()
            session.run_step(step)
        return taken[0].tolist(), row.tolist(), (row + 0).tolist()

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded == ([20.0] * 2, [STEPS + 1.0] * 2, [STEPS + 1.0] * 2)
    assert stepper.counts["replay.steps"] > 3


def test_a_hook_of_all_optimizers_is_called_from_the_next_step_on() -> None:
    def run(session: Any) -> Any:
        layer = nn.Linear(3, 1, bias=False)
        nn.init.ones_(layer.weight)
        layer.to("kit")
        optimizer = torch.optim.SGD(layer.parameters(), 0.01, foreach=True)
        x = torch.ones(2, 3, device="kit")

        def step() -> Any:
            optimizer.zero_grad()
            loss = layer(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def clamp(*_: Any) -> None:
            with torch.no_grad():
                layer.weight.clamp_(max=0.5)

        found, hook = [], None
        for i in range(STEPS):
            if i == 8:
                hook = register_optimizer_step_post_hook(clamp)
            found.append(session.run_step(step).item())
        assert hook is not None
        hook.remove()
        return found

    replayed, recorded, stepper = replayed_and_recorded(run)
    assert replayed == recorded
    assert stepper.counts["replay.steps"] >= 3
