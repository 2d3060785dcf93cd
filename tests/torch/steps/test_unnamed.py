"""What a step reads or asks by code that names it nowhere, or in a way of its own."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kit.runs.settings import Settings
from kit.runtime.session.executor import ExecutableCache
from kit.runtime.steps.functions import KnownFunction
from kit.runtime.steps.look import Look
from kit.runtime.steps.names import called_by_libraries
from kit.runtime.steps.outside import asked
from kit.torch.device import open_session

CACHE = ExecutableCache()
BY, SEED, FLAG, TURNS = {"of": 2.0}, 3, Path("flag"), itertools.cycle([1, 2])


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = BY["of"]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.by


class Block(nn.TransformerEncoderLayer):
    def _ff_block(self, x: torch.Tensor) -> torch.Tensor:
        return x * BY["of"]


class Plain(torch.optim.SGD):
    def _init_group(self, *args: Any) -> Any:
        return super()._init_group(*args) if BY["of"] else None


class Box:
    def exists(self) -> bool:
        return True


class Trainer:
    kind = "mean"

    def loss_mean(self) -> float:
        return BY["of"]

    def step(self) -> float:
        return float(getattr(self, f"loss_{self.kind}")())


block, trainer = Block(4, 1), Trainer()
plain = Plain(block.parameters())


@pytest.mark.parametrize(
    "step", [lambda: Scale.apply(1), lambda: block(1), lambda: plain.step(), trainer.step]
)
def test_a_method_that_only_a_library_or_a_text_names_is_followed(step: Any) -> None:
    known = KnownFunction(step)
    assert not known.change(step)
    try:
        BY["of"] = 5.0
        assert "has changed" in known.change(step)
    finally:
        BY["of"] = 2.0


def test_the_method_eval_of_a_model_is_no_call_of_pythons() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        model, x = nn.Linear(2, 2).to("kit"), torch.ones(1, 2, device="kit")

        def step() -> torch.Tensor:
            model.eval()
            return model(x).detach()

        for _ in range(7):
            session.run_step(step)
        assert session.stepper.counts["replay.steps"] > 0


def bound_to_another_name() -> Any:
    make = np.random.default_rng
    return make()


def imported_itself(module: Any = random) -> Any:
    from random import Random

    return Random(3)


def made_without_a_seed(module: Any = random) -> Any:
    from random import Random

    return Random()


def looked_for() -> bool:
    import pathlib

    return pathlib.Path("flag").exists()


ASKS: list[Callable[..., Any]] = [
    lambda: FLAG.exists(), lambda: FLAG.open("rb"), lambda: np.random.default_rng(),
    lambda: np.random.default_rng(None), lambda: random.Random(), lambda: random.SystemRandom(),
    lambda: np.random.default_rng(seed=None), lambda make=np.random.default_rng: make(),
    lambda: (random.Random(3), random.Random()), bound_to_another_name, made_without_a_seed,
    looked_for,
]  # fmt: skip
TELLS: list[Callable[..., Any]] = [
    lambda: np.random.default_rng(SEED), lambda: random.Random(3), lambda: FLAG.name,
    lambda x: isinstance(x, np.random.RandomState), imported_itself, lambda x: x.open(x.stat()),
    lambda x: isinstance(x, (np.random.Generator, np.random.RandomState)), lambda x, k=0: x + k,
]  # fmt: skip


@pytest.mark.parametrize(("step", "is_asking"), [*((x, True) for x in ASKS),
                                                 *((x, False) for x in TELLS)])  # fmt: skip
def test_a_path_is_a_file_and_a_generator_without_a_seed_is_another_each_time(
    step: Any, is_asking: bool
) -> None:
    assert bool(asked([step])) is is_asking


def test_a_number_that_equals_the_time_zones_is_no_clock() -> None:
    assert asked([lambda zone=time.timezone: zone]) == ""  # 0 in UTC


class Files:
    def __init__(self, path: Any) -> None:
        self.path = path

    def step(self) -> Any:
        return self.path.exists()


@pytest.mark.parametrize(("path", "said"), [(FLAG, "exists"), (Box(), "")])
def test_a_file_is_asked_where_an_attribute_is_a_path(path: Any, said: str) -> None:
    found = Look("self", Files(path).step)
    assert asked(found.functions, found.by_libraries, found.paths).partition(" at ")[0] == said


class Prepares(nn.Linear):
    """With methods that no step calls; one calls another of torch's."""

    def extra_repr(self) -> str:
        return f"{time.time()}"

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs) if os.path.exists("flag") else {}


class Refuses(nn.TransformerEncoderLayer):
    def _sa_block(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return x * time.time()


def test_a_method_of_a_librarys_class_counts_if_the_librarys_steps_call_it() -> None:
    for layer, said in ((Prepares(2, 2), ""), (Refuses(4, 1), "time.time")):
        found = Look("step", lambda layer=layer: layer(1))
        assert asked(found.functions, found.by_libraries).partition(" at ")[0] == said
    assert called_by_libraries(Scale) == {"forward", "setup_context", "backward"}
    assert "_init_group" in called_by_libraries(Plain)


@pytest.mark.parametrize("which", ["anomalies", "saved tensors"])
def test_a_switch_of_autograd_counts_in_the_next_step(which: str) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        w = torch.ones(2, device="kit", requires_grad=True)

        def step() -> torch.Tensor:
            w.grad = None
            loss = (w * w).sum()
            loss.backward()
            return loss.detach()

        for _ in range(6):
            session.run_step(step)
        assert session.stepper.counts["replay.steps"] > 0
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x * 0.5, lambda x: x)
        switch = torch.autograd.set_detect_anomaly(True) if which == "anomalies" else hooks
        with switch:
            session.run_step(step)
            assert any("has changed torch.autograd." in why for why in session.stepper.reasons)
            before = session.stepper.counts["replay.steps"]
            for _ in range(6):
                session.run_step(step)
            assert session.stepper.counts["replay.steps"] == before
            said = "waits for the device" if which == "anomalies" else "see what the step saves"
            assert any(said in why for why in session.stepper.reasons)


def test_only_a_session_that_guesses_says_that_guessing_did_not_pay() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        x = torch.ones(2, device="kit")
        for _ in range(40):
            session.run_step(lambda: (x * 2).sum().item())
        assert "speculate.stopped" not in session.stepper.counts
