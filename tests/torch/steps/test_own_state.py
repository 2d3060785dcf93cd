"""A step that changes Python state itself, and reads it each n-th time, is not replayed."""

from __future__ import annotations

import csv
import datetime
import logging
import os
import random
import re
import threading
import time
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.steps import look
from kit.runtime.steps.outside import asked
from kit.runtime.steps.own_state import OwnState
from kit.torch.device import open_session
from tests.torch.steps.counted import COUNTED, environment, module_in_a_package, variable
from tests.torch.steps.drawn import DRAWN, mapped, scanned

STEPS = 14
CACHE = ExecutableCache()


UNNAMED = (mapped, environment, module_in_a_package, scanned)  # the reason has no line


def values(way: Any, device: str, session: Any = None) -> list[float]:
    count = way()
    x = torch.ones(2).to(device)

    def step() -> None:
        x.mul_(3 if count() % 7 == 0 else 1)

    made = []
    for _ in range(STEPS):
        step() if session is None else session.run_step(step)
        made.append(x.sum().item())
    return made


@pytest.mark.parametrize("way", [*COUNTED, *DRAWN], ids=lambda f: f.__name__)
def test_what_a_step_counts_itself_counts_in_each_step(way: Any) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        assert values(way, "kit", session) == values(way, "cpu")
        assert session.stepper.counts["replay.steps"] == 0
        said = [why for why in session.stepper.reasons if "would not" in why or "be seen" in why]
        assert said
        assert f"{Path(way.__code__.co_filename).name}:" in said[0] or way in UNNAMED


def test_more_than_can_be_compared_in_time_is_not_compared_in_part(monkeypatch: Any) -> None:
    monkeypatch.setattr(look, "_THINGS", 100)
    assert look.Look("few", [[] for _ in range(90)]).unseen == ""
    assert "more than 100 things" in look.Look("many", [[] for _ in range(110)]).unseen
    assert "more than 100 things" in look.Look("words", ["word"] * 10_000).unseen


def test_the_reason_names_the_variable_and_its_line() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        values(variable, "kit", session)
        line = variable.__code__.co_firstlineno + 5
        said = f"the step changes n at counted.py:{line}, and a replay would not"
        assert said in session.explain()


@pytest.mark.parametrize("before", [0, 1])
def test_numpy_draws_two_normal_numbers_at_once(before: int) -> None:
    """The second one comes from no generator."""

    def made(device: str, session: Any = None) -> list[float]:
        np.random.seed(0), np.random.randn(before)
        x = torch.ones(2).to(device)

        def step() -> None:
            x.mul_(3 if np.random.randn() > 1 else 1)

        for _ in range(STEPS):
            step() if session is None else session.run_step(step)
        return x.tolist()

    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        assert made("kit", session) == made("cpu")
        assert session.stepper.counts["replay.steps"] == 0


def test_a_hook_of_a_tensor_may_count_and_so_may_an_attribute_of_it() -> None:
    def made(device: str, session: Any = None) -> list[float]:
        w, n = torch.ones(2).to(device).requires_grad_(), [0]
        w.calls = 0

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            n[0] += 1
            return gradient * (3 if n[0] % 7 == 0 else 1)

        def step() -> None:
            w.sum().backward()

        w.register_hook(hook)
        for _ in range(STEPS):
            step() if session is None else session.run_step(step)
        return w.grad.tolist()  # type: ignore[union-attr]

    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        assert made("kit", session) == made("cpu")


class Spoiled:
    """Says nothing about itself without an error."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __reduce_ex__(self, version: Any) -> Any:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        return 0


class Unequal(int):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = int.__hash__


THINGS = {"object": Spoiled(), "key": {Spoiled(): 1}, "number": Unequal(3),
          "sparse": torch.zeros(2, 2).to_sparse()}  # fmt: skip


@pytest.mark.parametrize("which", THINGS)
def test_no_object_of_the_program_ends_a_step(which: str) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        x = torch.ones(2, device="kit")

        def step(held: Any = THINGS[which]) -> None:
            x.mul_(2)

        for _ in range(6):
            session.run_step(step)
        assert x.tolist() == [64.0] * 2


def test_a_step_that_sleeps_asks_no_clock_and_the_reason_names_the_clock_that_is_asked() -> None:
    def asking() -> float:
        return time.monotonic() + datetime.datetime.now().timestamp()

    assert asked([lambda: time.sleep(0)]) == ""
    assert asked([asking]).partition(" at ")[0] in ("time.monotonic", "datetime.now")
    assert asked([lambda: asked_elsewhere(0), asked_elsewhere]).startswith("time.perf_counter at")


def asked_elsewhere(start: float, now: Callable[[], float] = time.perf_counter) -> float:
    return now() - start


def test_what_is_only_written_to_keeps_a_step_replayed() -> None:
    log, rows = open(os.devnull, "w"), logging.getLogger("kit.test")  # noqa: SIM115
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session, log:
        x, kept = torch.ones(2, device="kit"), (csv.writer(log), threading.Lock(), re.compile("."))

        def step(held: Any = (log, rows, kept)) -> None:
            x.mul_(2)

        for _ in range(6):
            session.run_step(step)
        assert session.stepper.counts["replay.steps"] == 2


def test_what_a_step_binds_anew_is_noted_at_its_end_and_not_where_it_fetches() -> None:
    with open_session(Settings(mode="lazy"), cache=CACHE):
        held = {"state": {"x": torch.ones(2, device="kit")}}
        own = OwnState(lambda: held, without=(), frontends=())
        held["state"] = {"x": torch.ones(2, device="kit")}
        own.fetch(lambda: None)
        assert own.anew == ([], [])
        assert own.change(lambda array: "") == ""
        (bound,), (box,) = own.anew
        assert bound[1]() is held["state"]["x"]
        assert box[1] is held["state"]  # the one around it is as it was


class Trains:
    """A trainer as people write it: with a log that it opens, and a loader that it asks."""

    def __init__(self, session: Any) -> None:
        self.log, self.session = open(os.devnull, "w"), session  # noqa: SIM115
        self.batches = iter(torch.utils.data.DataLoader(range(STEPS)))  # type: ignore[arg-type]
        self.started = time.time()

    def load(self) -> torch.Tensor:
        return next(self.batches).to("kit")  # type: ignore[no-any-return]

    def step(self) -> torch.Tensor:
        return self.session.fetch(self.load) * 2  # type: ignore[no-any-return]


def test_a_trainer_that_only_its_loader_changes_is_replayed() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        trainer = Trains(session)
        with trainer.log:
            made = [session.run_step(trainer.step).item() for _ in range(STEPS)]
        assert made == [2 * i for i in range(STEPS)]
        assert session.stepper.counts["replay.steps"] > 0


class Loaded:
    """A batch with something beside its tensors."""

    def __init__(self, more: Any) -> None:
        self.inner = {"more": more}


@pytest.mark.parametrize(
    ("most", "seventh"),
    [("other", "seventh"), (None, 7), (Loaded(1.0), Loaded(7.0)), (UserDict(n=1), UserDict(n=7)),
     (np.ones(1), np.full(1, 7)), (torch.ones(1), torch.full((1,), 7.0))],
    ids=["text", "none", "object", "dict", "array", "tensor"],
)  # fmt: skip
def test_what_a_loader_brings_beside_tensors_of_the_device_counts(most: Any, seventh: Any) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        numbers = iter(range(1, 100))

        def load() -> Any:
            return torch.ones(2).to("kit"), seventh if next(numbers) % 7 == 0 else most

        def step() -> torch.Tensor:
            x, beside = session.fetch(load)
            return x * (3 if beside is seventh else 1)

        made = [session.run_step(step).tolist()[0] for _ in range(STEPS)]
        assert made == [3.0 if i % 7 == 6 else 1.0 for i in range(STEPS)]
        assert session.stepper.counts["replay.steps"] > 0
        assert any("brings another batch[1]" in why for why in session.stepper.reasons)
        assert not any("noticed" in why for why in session.stepper.reasons)  # it was in time


class Counted:
    """A loader that counts its batches."""

    def __init__(self) -> None:
        self.epoch = SimpleNamespace(number=0)

    def load(self) -> torch.Tensor:
        self.epoch.number += 1
        return torch.ones(2).to("kit")


@pytest.mark.parametrize("is_asked", [True, False])
def test_what_a_loader_changes_counts_in_the_step_that_asks_for_it(is_asked: bool) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        loader = Counted()

        def asking() -> torch.Tensor:
            return session.fetch(loader.load) * (1 if loader.epoch.number < 9 else 3)

        def plain() -> torch.Tensor:
            return session.fetch(loader.load) * 1

        step = asking if is_asked else plain
        made = [session.run_step(step).tolist()[0] for _ in range(STEPS)]
        assert made == [3.0 if is_asked and i >= 8 else 1.0 for i in range(STEPS)]
        assert (session.stepper.counts["replay.steps"] > 0) is not is_asked


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


def test_a_session_that_no_step_was_given_to_says_so() -> None:
    """As a library's trainer does, which ends its steps itself."""
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        (torch.ones(2, device="kit") * 2).sum()
        session.mark_step()
        assert "no step was given to session.run_step(step)" in session.explain()
        assert "those of a @kit.workload are not" in session.explain()
        session.run_step(lambda: None)
        assert "no step was given" not in session.explain()
