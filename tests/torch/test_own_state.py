"""A step that changes Python state itself, and reads it each n-th time, is not replayed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kit.runs.settings import Settings
from kit.runtime.session.executor import ExecutableCache
from kit.torch.device import open_session

STEPS = 14
CACHE = ExecutableCache()
COUNT = 0


class Names:
    """What a program keeps its numbers in."""

    n = 0

    def __init__(self) -> None:
        self.inner = {"of": [0, (0,)]}


class Slots:
    __slots__ = ("n",)


def variable() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


def of_global() -> int:
    global COUNT
    COUNT += 1
    return COUNT


def attribute() -> Callable[[], int]:
    names = Names()
    names.n = 0

    def count() -> int:
        names.n += 1
        return names.n

    return count


def of_class() -> int:
    Names.n += 1
    return Names.n


def far_away() -> Callable[[], int]:
    names = [{"all": Names()}]

    def count() -> int:
        names[0]["all"].inner["of"][0] += 1
        return names[0]["all"].inner["of"][0]

    return count


def slots() -> Callable[[], int]:
    names = Slots()
    names.n = 0

    def count() -> int:
        names.n += 1
        return names.n

    return count


def length() -> Callable[[], int]:
    seen: list[float] = []

    def count() -> int:
        seen.append(0.0)
        return len(seen)

    return count


def iterator() -> Callable[[], int]:
    numbers = itertools.count(1)
    return lambda: next(numbers)


def mapped() -> Callable[[], int]:
    numbers = map(int, iter(range(1, 100)))
    return lambda: next(numbers)


def generator() -> Callable[[], int]:
    def numbers() -> Iterator[int]:
        for i in range(100):
            yield i + 1

    made = numbers()
    return lambda: next(made)


def array() -> Callable[[], int]:
    n = np.zeros(1, int)

    def count() -> int:
        n[0] += 1
        return int(n[0])

    return count


def host_tensor() -> Callable[[], int]:
    n = torch.zeros((), dtype=torch.int64)

    def count() -> int:
        n.add_(1)
        return int(n)

    return count


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self) -> int:
        self.calls += 1
        return self.calls


def module() -> Callable[[], int]:
    return nn.Sequential(nn.Sequential(Counting()))[0][0]


def python_random() -> Callable[[], int]:
    made = random.Random(0)
    return lambda: 7 if made.random() < 0.15 else 0


WAYS = [variable, of_global, attribute, of_class, far_away, slots, length, iterator, mapped,
        generator, array, host_tensor, module, python_random]  # fmt: skip


def values(way: Any, device: str, session: Any = None) -> list[float]:
    global COUNT
    COUNT = Names.n = 0
    count = way if way in (of_global, of_class) else way()
    x = torch.ones(2).to(device)

    def step() -> None:
        x.mul_(3 if count() % 7 == 0 else 1)

    made = []
    for _ in range(STEPS):
        step() if session is None else session.run_step(step)
        made.append(x.sum().item())
    return made


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_what_a_step_counts_itself_counts_in_each_step(way: Any) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        assert values(way, "kit", session) == values(way, "cpu")
        (said,) = (why for why in session.stepper.reasons if "replay would not" in why)
        assert "test_own_state.py:" in said or way is mapped


def test_the_reason_names_the_variable_and_its_line() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        values(variable, "kit", session)
        line = variable.__code__.co_firstlineno + 5
        said = f"the step changes n at test_own_state.py:{line}, and a replay would not"
        assert said in session.explain()


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(1).item()])
def test_a_step_that_draws_on_the_host_is_not_replayed(draw: Callable[[], float]) -> None:
    def made(device: str, session: Any = None) -> list[float]:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        x = torch.ones(2).to(device)

        def step() -> None:
            x.mul_(3 if draw() < 0.15 else 1)

        for _ in range(STEPS):
            step() if session is None else session.run_step(step)
        return x.tolist()

    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        assert made("kit", session) == made("cpu")


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(1).item()])
def test_a_loader_may_draw_and_count(draw: Callable[[], float]) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        numbers = iter(range(1, 100))

        def load() -> torch.Tensor:
            draw()
            return (torch.ones(2) * next(numbers)).to("kit")

        def step(load_it: Any = lambda: load()) -> torch.Tensor:
            return session.fetch(load_it) * 2

        for i in range(STEPS):
            assert session.run_step(step).tolist() == [2.0 * (i + 1)] * 2
        assert session.stepper.counts["replay.steps"] > 0
