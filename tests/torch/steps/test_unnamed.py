"""What a step reads or asks by code that names it nowhere, or in a way of its own."""

from __future__ import annotations

import glob
import itertools
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kit
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.steps.functions import KnownFunction
from kit.runtime.steps.look import Look
from kit.runtime.steps.names import called_by_libraries
from kit.runtime.steps.outside import asked
from kit.torch.constants import of_module
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


class OnDisk(type(FLAG)):  # type: ignore[misc]
    def value(self) -> float:
        return float(super().read_text())

    def is_there(self) -> bool:
        return bool(super().exists())


ON_DISK = OnDisk("flag")
CLOCKS = [SimpleNamespace(ask=time.perf_counter)]
READ, VALUE, LATER = FLAG.read_text, ON_DISK.value, [partial(FLAG.open)]


class Holds:
    def __init__(self) -> None:
        self.read, self.ask, self.unnamed = FLAG.read_bytes, Files(FLAG).step, FLAG.stat

    def of_python(self) -> Any:
        return self.read()

    def of_the_programs(self) -> Any:
        return self.ask()

    def of_none(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("step", "said"),
    [(lambda: ON_DISK.value(), "read_text"), (lambda: ON_DISK.is_there(), "exists"),
     (lambda: READ(), "Path.read_text"), (lambda: VALUE(), "read_text"),
     (lambda: partial(VALUE)(), "read_text"), (lambda: LATER[0](), "Path.open"),
     (lambda ask={"now": time.monotonic}: ask["now"](), "time.monotonic"),
     (Holds().of_python, "Path.read_bytes"), (Holds().of_the_programs, "exists"),
     (lambda read=FLAG.read_text: read(), "Path.read_text"),
     (lambda *, read=FLAG.read_text: read(), "Path.read_text"),
     (Holds().of_none, ""), (lambda: time.strftime("%H"), "time.strftime"),
     (lambda: time.sleep(0), ""), (lambda: glob.escape("a"), ""),  # named as a function in them
     (lambda: time.time(), "time.time"), (lambda: glob.glob("a"), "glob.glob"),
     (lambda: CLOCKS[0].ask(), "time.perf_counter")],
)  # fmt: skip
def test_a_method_in_a_variable_asks_what_it_asks_by_its_name(step: Any, said: str) -> None:
    found = Look("self", step)
    asks = asked(found.functions, found.by_libraries, found.paths, found.held)
    assert asks.partition(" at ")[0] == said


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


class Lit(nn.Module):
    """Has a method that the step calls, and is not called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.heads = nn.Linear(2, 2), nn.ModuleDict({"a": nn.Linear(2, 2)})
        self.layers = nn.ModuleList([nn.Identity()])
        self.scale = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("mask", torch.ones(2))

    def loss(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.teacher(self.heads["a"](x * self.scale * self.mask))


@pytest.mark.parametrize(
    "change",
    [lambda lit: setattr(lit, "teacher", nn.Linear(2, 2).to("kit")),
     lambda lit: setattr(lit, "scale", nn.Parameter(lit.scale.clone(), requires_grad=False)),
     lambda lit: setattr(lit, "mask", lit.mask.clone()),
     lambda lit: lit.heads.update({"a": nn.Linear(2, 2).to("kit")}),
     lambda lit: lit.layers.append(nn.Identity())],
    ids=["layer", "parameter", "buffer", "in a dict", "in a list"],
)  # fmt: skip
def test_a_part_of_a_layer_that_is_not_called_counts_whoever_holds_the_one_before(
    change: Any,
) -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        lit, x = Lit().to("kit"), torch.ones(1, 2, device="kit")
        held = [*lit.modules(), *lit.parameters(), *lit.buffers()]
        for i in range(9):
            if i == 8:
                change(lit)
            session.run_step(lambda: lit.loss(x).detach())
        assert held
        assert session.stepper.counts["replay.steps"] == 3
        assert any("between two steps: lit" in why for why in session.stepper.reasons)


def test_a_rate_that_an_optimizer_keeps_for_the_steps_own_code_counts() -> None:
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)

    def step() -> Any:
        return optimizer.param_groups[0]["lr"]

    alone, watched = KnownFunction(step), KnownFunction(step, watched=[id(optimizer)])
    assert not alone.change(step)
    optimizer.param_groups[0]["lr"] = 0.5
    assert alone.change(step).endswith("optimizer.param_groups[0]['lr']")
    assert not watched.change(step)  # one that steps is compared in another way


class Updates:
    rate = 2.0

    def __init__(self) -> None:
        self.update = kit.hybridize(self.scale)

    def scale(self, x: torch.Tensor) -> None:
        BY["calls"] = BY.get("calls", 0) + self.rate
        x.mul_(BY["of"])


@kit.hybridize
def update(x: torch.Tensor) -> None:
    x.mul_(BY["of"])


@pytest.mark.parametrize("update", [update, Updates().update, kit.hybridize(update)])
def test_what_a_hybridized_function_names_counts(update: Any) -> None:
    known = KnownFunction(step := lambda: update(1))
    assert not known.change(step)
    try:
        BY["of"] = 5.0
        assert "has changed" in known.change(step)
    finally:
        BY["of"] = 2.0


def test_what_a_hybridized_function_changes_is_seen() -> None:
    updates = Updates()
    step = lambda: updates.update(1)  # noqa: E731
    before = Look("step", step)
    BY["calls"] = 3.0
    assert "BY" in before.change(Look("step", step))


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [(nn.Embedding(3, 2), "max_norm", 0.5), (nn.Embedding(3, 2), "padding_idx", 0),
     (nn.AdaptiveAvgPool2d((None, 7)), "output_size", (None, 5)),
     (nn.TransformerEncoderLayer(4, 1), "activation", torch.tanh),
     (nn.Dropout(0.5), "p", torch.ones(2))],
)  # fmt: skip
def test_an_attribute_of_a_layer_counts_whatever_it_was(layer: Any, name: str, value: Any) -> None:
    model = nn.Sequential(layer)
    look = of_module(model).constants
    before = look()
    assert look() == before
    setattr(layer, name, value)
    assert look() != before


@dataclass(order=True)
class Level:
    n: int = 1


class Budget:
    left, name = 5, "warmup"

    def __gt__(self, n: int) -> bool:
        return self.left > n

    def __eq__(self, name: object) -> bool:
        return self.name == name

    def __hash__(self) -> int:
        return self.left


class Stopping(torch.optim.SGD):
    frozen = False

    def step(self, closure: Any = None) -> Any:
        return None if self.frozen else super().step(closure)


@pytest.mark.parametrize("asks", ["<", "sorted", ">", "==", "hash", "frozen", "group", "defaults"])
def test_what_a_comparison_or_an_optimizer_reads_counts_in_the_next_step(asks: str) -> None:
    """Replay went on with what it had been."""

    def losses(step_mode: str) -> list[float]:
        now, high, budget = Level(1), Level(5), Budget()
        with open_session(Settings(mode="lazy", step_mode=step_mode), cache=CACHE) as session:
            w = torch.ones(3).to("kit").requires_grad_()
            optimizer = Stopping([w], 0.1)
            optimizer.frozen = False
            group = optimizer.param_groups[0]
            group["name"] = "trained"
            factor: Callable[[], float] = {
                "<": lambda: 2.0 if now < high else 1.0,
                "sorted": lambda: 2.0 if sorted([now, high])[0] is now else 1.0,
                ">": lambda: 2.0 if budget > 0 else 1.0,
                "==": lambda: 2.0 if budget == "main" else 1.0,
                "hash": lambda: 2.0 if hash(budget) == 5 else 1.0,
                "frozen": lambda: 1.0,
                "group": lambda: 2.0 if group["name"] == "frozen" else 1.0,
                "defaults": lambda: optimizer.defaults["lr"] * 10,
            }[asks]

            def step() -> torch.Tensor:
                optimizer.zero_grad()
                loss = (w * w).sum() * factor()
                loss.backward()
                optimizer.step()
                return loss.detach()

            found = []
            for i in range(9):
                if i == 6:
                    now.n, budget.name, budget.left = 9, "main", 0
                    optimizer.frozen, group["name"] = asks == "frozen", "frozen"
                    optimizer.defaults["lr"] = 0.2
                found.append(session.run_step(step).item())
            assert step_mode == "retrace" or session.stepper.counts["replay.steps"] > 0
            return found

    assert losses("replay") == losses("retrace")
