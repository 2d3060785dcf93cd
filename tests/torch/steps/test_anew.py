"""What a replay gives to the program is the program's own, and what it kept stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session

CACHE = ExecutableCache()
STEPS, TAKEN = 10, 6


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.hidden: Any = None
        self.both: Any = ()
        self.sums = {"of": torch.zeros(())}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tanh(self.layer(x))
        self.hidden = made.detach()
        self.both = (self.hidden.abs(), self.hidden.sin())
        self.sums = {"of": self.sums["of"].to(x.device) + made.detach().sum()}
        return made


def train(device: str, run: Callable[[Any], Any], between: Callable[[int, Any, Any], Any]) -> Any:
    torch.manual_seed(0)
    model = Model()
    x = torch.linspace(-1, 1, 12).reshape(4, 3).to(device)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def step() -> Any:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :2])
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "twice": loss.detach() * 2}

    return [between(i, run(step), model) for i in range(STEPS)]


def gradients(model: Any) -> Any:
    return [p.grad for p in model.parameters()]


TAKES: dict[str, Callable[[Any], Any]] = {
    "gradients": gradients,
    "part of a gradient": lambda model: [model.layer.weight.grad[0]],
    "attribute": lambda model: [model.hidden],
    "what shares its memory": lambda model: [model.hidden.detach()],
    "tuple": lambda model: model.both,
    "dict": lambda model: model.sums,
}


@pytest.mark.parametrize("kind", TAKES)
def test_a_tensor_kept_between_two_steps_is_not_that_of_a_later_step(kind: str) -> None:
    def kept_in(device: str, run: Any) -> Any:
        kept: dict[int, Any] = {}

        def between(i: int, result: Any, model: Any) -> Any:
            if i == TAKEN:
                kept[0] = TAKES[kind](model)
            held = kept.get(0, [])
            values = held.values() if isinstance(held, dict) else held
            return [x.tolist() for x in values] if i == STEPS - 1 else None

        return train(device, run, between)[-1]

    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        found = kept_in("kit", session.run_step)
        assert session.stepper.counts["replay.steps"] > 0
        assert any("the program keeps" in why for why in session.stepper.reasons)
    for a, b in zip(found, kept_in("cpu", lambda step: step()), strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b))


def test_a_loop_that_only_looks_at_what_the_step_makes_is_replayed() -> None:
    def between(i: int, result: Any, model: Any) -> float:
        norm = sum(float(p.grad.square().sum()) for p in model.parameters())
        return norm + float(model.hidden.sum()) + float(result["loss"])

    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        found = train("kit", session.run_step, between)
        assert session.stepper.counts["replay.steps"] == STEPS - 4
    assert found == pytest.approx(train("cpu", lambda step: step(), between), rel=1e-5)


def test_a_result_is_the_programs_own_to_change() -> None:
    def between(i: int, result: Any, model: Any) -> float:
        result["loss"] /= 4
        twice = result.pop("twice")
        result["i"] = i
        return float(result["loss"]) + float(twice) + len(result)

    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        found = train("kit", session.run_step, between)
        assert session.stepper.counts["replay.steps"] > 3
    assert found == pytest.approx(train("cpu", lambda step: step(), between), rel=1e-5)


@pytest.mark.parametrize("mode", ["replay", "speculate"])
def test_a_step_within_a_step_is_a_part_of_that_one(mode: str) -> None:
    with open_session(Settings(mode="lazy", step_mode=mode), cache=CACHE) as session:
        x = torch.ones(2, device="kit")

        def inner() -> torch.Tensor:
            return x.mul_(2).sum()

        def outer() -> torch.Tensor:
            return session.run_step(inner) + session.run_step(inner)

        found = [float(session.run_step(outer)) for _ in range(6)]
    assert found == [4.0**i * 12 for i in range(6)]


def test_a_batch_that_waits_is_given_to_its_own_loader_only() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:

        class Loader:
            def __init__(self, first: int, count: int) -> None:
                self.numbers = iter(range(first, first + count))

            def load(self) -> torch.Tensor:
                return torch.full((1,), float(next(self.numbers))).to("kit")

        loader = Loader(0, 11)

        def step() -> torch.Tensor:
            return session.fetch(loader.load) * 1000 + session.fetch(loader.load)

        assert [float(session.run_step(step)) for _ in range(5)] == [1, 2003, 4005, 6007, 8009]
        assert session.stepper.counts["replay.steps"] > 0
        with pytest.raises(StopIteration):
            session.run_step(step)
        loader = Loader(100, 20)
        found = [float(session.run_step(step)) for _ in range(6)]
    assert found == [(100 + 2 * i) * 1000 + 101 + 2 * i for i in range(6)]


def test_a_loader_that_ends_loses_the_others_batch_as_in_a_recorded_step() -> None:
    def made(mode: str) -> list[float]:
        with open_session(Settings(mode="lazy", step_mode=mode), cache=CACHE) as session:
            numbers, few = iter(range(100)), iter(range(7))

            def load() -> torch.Tensor:
                return torch.full((1,), float(next(numbers))).to("kit")

            def load_few() -> torch.Tensor:
                return torch.full((1,), float(next(few))).to("kit")

            def step() -> torch.Tensor:
                return session.fetch(load) * 1000 + session.fetch(load_few)

            found = [float(session.run_step(step)) for _ in range(7)]
            with pytest.raises(StopIteration):
                session.run_step(step)
            few = iter(range(7))
            assert (session.stepper.counts["replay.steps"] > 0) is (mode == "replay")
            return found + [float(session.run_step(step)) for _ in range(7)]

    assert made("replay") == made("retrace")


def test_what_is_kept_of_a_step_that_returns_its_graph_stays_as_it_was() -> None:
    """The graph holds the array as the step ends, and lets go of it before the next one."""

    def hidden(device: str, run: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        model, x = Model().to(device), torch.linspace(-1, 1, 12).reshape(4, 3).to(device)
        optimizer, kept = torch.optim.SGD(model.parameters(), lr=0.5), list[Any]()

        def step() -> Any:
            optimizer.zero_grad()
            loss = torch.sigmoid(model(x)).mean()
            loss.backward(retain_graph=True)
            optimizer.step()
            return loss

        for i in range(STEPS):
            run(step).item()
            if i == TAKEN:
                kept += [model.hidden, model.hidden]
        return kept[0].tolist()

    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        found = hidden("kit", session.run_step)
        assert any("the program keeps model.hidden" in why for why in session.stepper.reasons)
    torch.testing.assert_close(found, hidden("cpu", lambda step: step()), rtol=1e-4, atol=1e-5)
