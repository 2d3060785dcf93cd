"""What a program changes between two steps of its own counts in the next, replayed or not."""

from __future__ import annotations

import os
import sys
from collections import ChainMap, UserDict, deque
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from functools import lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from kit.runs.settings import Settings
from kit.runtime.session.executor import ExecutableCache
from kit.runtime.steps.functions import KnownFunction
from kit.torch.device import open_session

STEPS, CHANGED = 20, 9
CACHE = ExecutableCache()  # most steps are the same: each is compiled once


def learning_rate(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def betas(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["betas"] = (0.5, 0.9)


def evaluation(model: Any, optimizer: Any) -> None:
    model.eval()


def frozen(model: Any, optimizer: Any) -> None:
    model[0].weight.requires_grad_(False)


def accumulated(model: Any, optimizer: Any) -> None:
    F.cross_entropy(
        model(torch.ones(4, 8, device="kit")), torch.ones(4).long().to("kit")
    ).backward()


def forgotten(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()


def masked(model: Any, optimizer: Any) -> None:
    model.mask.copy_(torch.tensor([0.0, 1.0, 2.0]))


def masked_anew(model: Any, optimizer: Any) -> None:
    model.mask = torch.tensor([0.0, 1.0, 2.0], device="kit")


def loaded(model: Any, optimizer: Any) -> None:
    model.load_state_dict({"still": torch.full((8,), 0.5)}, strict=False)


def assigned(model: Any, optimizer: Any) -> None:
    model.still.data = torch.full((8,), 0.5, device="kit")


def seeded(model: Any, optimizer: Any) -> None:
    torch.manual_seed(11)


def scaled(model: Any, optimizer: Any) -> None:
    model.given.mul_(0.5)
    model.given.sum().item()  # it is no more pending


def rate_on_the_host(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"].mul_(0.5)


def rate_on_the_device(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"].fill_(0.005)


def rate_replaced(model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] = torch.tensor(0.005)


def hooked(model: Any, optimizer: Any) -> None:
    model[0].weight.register_hook(lambda grad: grad * 2)


def hooked_module(model: Any, optimizer: Any) -> None:
    model[0].register_forward_hook(lambda module, args, out: out * 2)


def shortened(model: Any, optimizer: Any) -> None:
    del model[1]


def patched(model: Any, optimizer: Any) -> None:
    model[0].forward = lambda x: F.linear(x, model[0].weight * 2)


def added(model: Any, optimizer: Any) -> None:
    bias = nn.Parameter(torch.ones(1, device="kit"))
    optimizer.add_param_group({"params": [bias], "lr": 0.5})
    bias.grad = torch.ones(1, device="kit")


def dropped_less(model: Any, optimizer: Any) -> None:
    model[1].p = 0.25


def momentum(model: Any, optimizer: Any) -> None:
    model[2].momentum = 0.5


RATES = (rate_on_the_host, rate_on_the_device, rate_replaced)


def train(
    change: Callable[[Any, Any], None], step_mode: str, *, zeroes: bool = True
) -> tuple[list[float], list[float], Any]:
    """Losses, and the first weights; `change` is called once, between two steps."""
    with open_session(Settings(mode="lazy", step_mode=step_mode), cache=CACHE) as session:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))
        model.register_buffer("mask", torch.ones(3))
        model.still = nn.Parameter(torch.ones(8), requires_grad=False)
        model.to("kit")
        model.given = torch.ones(8, device="kit")
        device = "kit" if change is rate_on_the_device else "cpu"
        lr: Any = torch.tensor(0.01, device=device) if change in RATES else 0.01
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, capturable=change in RATES)
        batches = iter(torch.randn(STEPS, 4, 8))
        target = torch.tensor([0, 1, 2, 1]).to("kit")

        def step() -> Any:
            x = session.fetch(load)
            scores = model(x * model.still * model.given) * model.mask
            loss = nn.CrossEntropyLoss()(scores, target) * factor  # a module that lives for a step
            loss.backward()
            optimizer.step()
            if zeroes:
                optimizer.zero_grad()
            return loss.detach()

        def load() -> Any:
            return next(batches).to("kit")

        losses, factor = [], 1.0
        for i in range(STEPS):
            if i == CHANGED and change is weighed:
                factor = 0.25
            if i == CHANGED:
                if step_mode == "replay":
                    assert session.metrics()["replay.steps"] >= CHANGED - 5
                change(model, optimizer)
            losses.append(session.run_step(step))
            if not zeroes:
                optimizer.zero_grad()
        return [x.item() for x in losses], model[0].weight.flatten().tolist(), session


def weighed(model: Any, optimizer: Any) -> None:
    """A number that the step's function holds is another one."""


CHANGES = [learning_rate, betas, evaluation, frozen, accumulated, forgotten, shortened, added,
           hooked_module, masked, masked_anew, loaded, assigned, seeded, scaled, weighed,
           dropped_less, momentum, patched,
           *RATES]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_between_two_steps_counts_in_the_next_one(change: Any) -> None:
    *recorded, _ = train(change, "retrace")
    *replayed, session = train(change, "replay")
    assert replayed == recorded
    if change is not forgotten:
        said = " ".join(session.stepper.reasons)
        assert "between two steps" in said
    assert session.stepper.counts["replay.steps"] > CHANGED


def test_gradients_may_be_zeroed_between_the_steps() -> None:
    *recorded, _ = train(forgotten, "retrace", zeroes=False)
    *replayed, session = train(forgotten, "replay", zeroes=False)
    assert replayed == recorded
    assert session.stepper.counts["replay.steps"] == STEPS - 5


def frozen_leaf(w: torch.Tensor) -> Any:
    return w.requires_grad_(False)


def frozen_by_its_flag(w: torch.Tensor) -> Any:
    w.requires_grad = False


def cut_off(w: torch.Tensor) -> Any:
    return w.detach_()


def hooked_leaf(w: torch.Tensor) -> Any:
    return w.register_hook(lambda grad: grad * 2)


def doubled(w: torch.Tensor) -> None:
    if w.grad is not None:
        w.grad.mul_(2)


def hooked_after(w: torch.Tensor) -> Any:
    return w.register_post_accumulate_grad_hook(doubled)


@pytest.mark.parametrize("change", [frozen_leaf, frozen_by_its_flag, cut_off, hooked_leaf,
                                    hooked_after], ids=lambda f: f.__name__)  # fmt: skip
def test_a_tensor_of_no_module_learns_as_the_program_says_between_two_steps(change: Any) -> None:
    def gradients(device: str, session: Any = None) -> Any:
        w, v = (torch.ones(3).to(device).requires_grad_() for _ in range(2))
        for i in range(9):
            if i == 6:
                change(w)
            step = lambda: (w * v * 2).sum().backward()  # noqa: E731
            step() if session is None else session.run_step(step)
        return w.grad.tolist(), v.grad.tolist(), w.requires_grad

    with open_session(Settings(step_mode="replay")) as session:
        assert gradients("kit", session) == gradients("cpu")
        assert session.stepper.counts["replay.steps"] > 0
        assert any("how a tensor learns" in why for why in session.stepper.reasons)


@pytest.mark.parametrize("hook", [hooked_leaf, hooked_after], ids=lambda f: f.__name__)
def test_a_hook_that_is_removed_between_two_steps_is_gone_in_the_next(hook: Any) -> None:
    def gradient(device: str, session: Any = None) -> Any:
        w = torch.ones(3).to(device).requires_grad_()
        handle = hook(w)
        for i in range(9):
            if i == 6:
                handle.remove()
            step = lambda: (w * 2).sum().backward()  # noqa: E731
            step() if session is None else session.run_step(step)
        return w.grad.tolist()

    with open_session(Settings(step_mode="replay")) as session:
        assert gradient("kit", session) == gradient("cpu")
        assert session.stepper.counts["replay.steps"] > 0
        assert any("how a tensor learns" in why for why in session.stepper.reasons)


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("kit", torch.bfloat16),
     lambda: register_module_forward_hook(lambda layer, given, made: made * 2)],
    ids=["gradients", "inference", "autocast", "hook"],
)  # fmt: skip
def test_a_mode_of_torch_counts_in_the_next_step(mode: Any) -> None:
    def made(step_mode: str) -> Any:
        with open_session(Settings(mode="lazy", step_mode=step_mode), cache=CACHE) as session:
            torch.manual_seed(0)
            layer, x = nn.Linear(3, 3).to("kit"), torch.ones(2, 3, device="kit")

            def step() -> torch.Tensor:
                y = layer(x).square().sum()
                return y.detach() * (1 if y.requires_grad else 2)

            found = []
            for i in range(9):
                now = mode() if i == 7 else nullcontext()
                with now if hasattr(now, "__enter__") else nullcontext():
                    found.append(session.run_step(step).item())
                if hasattr(now, "remove"):
                    now.remove()
            return found, session.stepper

    assert made("replay")[0] == made("retrace")[0]
    stepper = made("replay")[1]
    assert stepper.counts["replay.steps"] > 0
    assert any("the program has changed" in why for why in stepper.reasons)


def test_a_tensor_that_the_steps_do_not_read_may_change_as_it_likes() -> None:
    with open_session(Settings(step_mode="replay")) as session:
        w, other = torch.ones(3, device="kit"), torch.ones(3, device="kit")
        for _ in range(8):
            session.run_step(lambda: w * 2)
            other.requires_grad_(not other.requires_grad)
        assert session.stepper.counts["replay.steps"] == 3  # all after the fifth


@pytest.mark.parametrize("kind", ["written", "copied", "made and copied", "cloned", "returned"])
def test_a_write_between_two_steps_counts_whoever_holds_what_was_there(kind: str) -> None:
    """A read issues the write, so that nothing is pending when the next step begins."""

    def run(mode: str) -> tuple[Any, float]:
        with open_session(Settings(mode="lazy", step_mode=mode), cache=CACHE) as session:
            w, online, target = (torch.full((3,), i, device="kit") for i in (1.0, 2.0, 3.0))

            def step() -> Any:
                w.add_(1)
                if kind == "made and copied":
                    online.add_(1)
                if "copied" in kind:
                    target.copy_(online)
                if kind == "written":
                    target.copy_(w * 2)
                return {"cloned": online.clone, "returned": lambda: online}.get(kind, w.sum)()

            for i in range(14):
                result = session.run_step(step)
                if i == 7:
                    (target if kind == "written" else online).mul_(10)
                    assert online.sum().item() + target.sum().item() > 0
            counts = session.stepper.counts["replay.steps"]
            return [x.tolist() for x in (w, online, target, result)], counts

    (expected, _), (found, replayed) = run("retrace"), run("replay")
    assert found == expected
    assert replayed >= 3


class Trainer:
    """A step as a method: what it reads are attributes."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def step(self) -> torch.Tensor:
        return self.x * 2


GLOBAL = torch.zeros(1)


def of_variable(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    def step() -> torch.Tensor:
        return now * 2

    made = []
    for now in [x] * 8 + [y] * 8:  # noqa: B007 - the step reads it
        made.append(run(step))
    return made


def of_lambdas(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    made = []
    for now in [x] * 8 + [y] * 8:
        made.append(run(lambda: now * 2))  # noqa: B023 - it is called at once
    return made


def of_default(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    return [run(lambda now=now: now * 2) for now in [x] * 8 + [y] * 8]


def of_global(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    global GLOBAL
    made = []
    for GLOBAL in [x] * 8 + [y] * 8:  # noqa: B007 - the step reads it
        made.append(run(step_of_global))
    return made


class Weights:
    """What a program keeps the numbers of its loss in."""

    def __init__(self, by: float) -> None:
        self.by = by


BY_OBJECT, BY_DICT, BY_NUMBER = Weights(2.0), {"loss": {"by": 2.0}}, 2.0


def in_a_function(x: torch.Tensor) -> torch.Tensor:
    return x * BY_NUMBER


def of_an_object(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        BY_OBJECT.by = by

    return change, lambda: x * BY_OBJECT.by


def of_a_dict_in_a_dict(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        BY_DICT["loss"]["by"] = by

    return change, lambda: x * BY_DICT["loss"]["by"]


def of_a_function_that_is_called(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        global BY_NUMBER
        BY_NUMBER = by

    return change, lambda: in_a_function(x)


def of_a_list_of_tensors(x: torch.Tensor) -> Any:
    weights = [torch.full((), 2.0, device="kit"), torch.zeros((), device="kit")]

    def change(by: float) -> None:
        weights[0] = torch.full((), by, device="kit")

    return change, lambda: x * weights[0] + weights[1]


def of_a_list_that_grows(x: torch.Tensor) -> Any:
    weights = [2.0]

    def change(by: float) -> None:
        weights[:] = [2.0, by - 2.0] if by != 2.0 else [2.0]

    return change, lambda: x * sum(weights)


def of_an_array(x: torch.Tensor) -> Any:
    weights = np.full(1, 2.0)

    def change(by: float) -> None:
        weights[0] = by

    return change, lambda: x * float(weights[0])


def of_a_tensor_of_the_host(x: torch.Tensor) -> Any:
    weights = torch.full((2,), 2.0)

    def change(by: float) -> None:
        weights.fill_(by)

    return change, lambda: x * weights.to("kit")


def of_a_set(x: torch.Tensor) -> Any:
    words = {"2"}

    def change(by: float) -> None:
        words.clear(), words.add(f"{by:g}")

    return change, lambda: x * (5.0 if "5" in words else 2.0)


def of_a_key(x: torch.Tensor) -> Any:
    words = {"2": 0}

    def change(by: float) -> None:
        words[f"{by:g}"] = words.popitem()[1]

    return change, lambda: x * (5.0 if "5" in words else 2.0)


def of_a_queue(x: torch.Tensor) -> Any:
    weights = deque([2.0, 5.0])

    def change(by: float) -> None:
        weights.rotate(by != weights[0])

    return change, lambda: x * weights[0]


def of_the_environment(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        os.environ["KIT_TEST_WEIGHT"] = f"{by}"

    return change, lambda: x * float(os.environ["KIT_TEST_WEIGHT"])


def of_a_cached_function(x: torch.Tensor) -> Any:
    @lru_cache
    def weight() -> float:
        return BY_OBJECT.by

    def change(by: float) -> None:
        BY_OBJECT.by = by
        weight.cache_clear()

    return change, lambda: x * weight()


def of_a_context(x: torch.Tensor) -> Any:
    weight: ContextVar[float] = ContextVar("weight")
    return weight.set, lambda: x * weight.get()


def of_arguments(x: torch.Tensor) -> Any:
    weights = [2.0]

    def change(by: float) -> None:
        weights[0] = by

    return change, partial(lambda by: x * by[0], weights)


def of_a_function_of_torchs(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        F.kit_test = lambda y: y * by  # type: ignore[attr-defined]

    change(2.0)
    return change, lambda: F.kit_test(x)  # type: ignore[attr-defined]


class Base:
    """Attributes of a class, and what its methods ask."""

    weight = 2.0
    __slots__ = ("inner", "n")

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def of_a_global(self, x: torch.Tensor) -> torch.Tensor:
        return x * BY_NUMBER

    @property
    def twice(self) -> torch.Tensor:
        return self.inner[0]


class Derived(Base):
    pass


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * BY_NUMBER


def of_a_class(x: torch.Tensor) -> Any:
    def change(by: float) -> None:
        Base.weight = by

    return change, lambda: x * Base.weight


def of_a_base_class(x: torch.Tensor) -> Any:
    made = Derived()

    def change(by: float) -> None:
        Base.weight = by

    return change, lambda: made.loss(x)


def of_a_method_that_is_called(x: torch.Tensor) -> Any:
    made = Derived()

    def change(by: float) -> None:
        global BY_NUMBER
        BY_NUMBER = by

    return change, lambda: made.of_a_global(x)


def of_a_layer(x: torch.Tensor) -> Any:
    made = nn.Sequential(Scaled())

    def change(by: float) -> None:
        global BY_NUMBER
        BY_NUMBER = by

    return change, lambda: made(x)


def far_away(x: torch.Tensor) -> Any:
    settings = SimpleNamespace(loss=[SimpleNamespace(of={"by": SimpleNamespace(weight=2.0)})])

    def change(by: float) -> None:
        settings.loss[0].of["by"].weight = by

    return change, lambda: x * settings.loss[0].of["by"].weight


def of_a_slot(x: torch.Tensor) -> Any:
    made = Derived()

    def change(by: float) -> None:
        made.inner = [by]

    change(2.0)
    return change, lambda: x * made.twice


def by_its_name(x: torch.Tensor) -> Any:
    made = Weights(2.0)

    def change(by: float) -> None:
        made.by = by

    return change, lambda: x * getattr(made, "b" + "y")


def of_a_box_of_pythons(x: torch.Tensor) -> Any:
    weights = ChainMap({}, UserDict(by=2.0))

    def change(by: float) -> None:
        weights.maps[1]["by"] = by

    return change, lambda: x * weights["by"]


def of_an_object_in_a_set(x: torch.Tensor) -> Any:
    weights = {Weights(2.0)}

    def change(by: float) -> None:
        next(iter(weights)).by = by

    return change, lambda: x * next(iter(weights)).by


def of_raw_bytes(x: torch.Tensor) -> Any:
    weights = bytearray(1)

    def change(by: float) -> None:
        weights[0] = int(by)

    return change, lambda: x * weights[0]


def of_an_operator(x: torch.Tensor) -> Any:
    class Number:
        hidden = 2.0

        def __float__(self) -> float:
            return self.hidden

    made = Number()

    def change(by: float) -> None:
        made.hidden = by

    return change, lambda: x * float(made)


def of_an_attribute_that_comes(x: torch.Tensor) -> Any:
    class Number: ...

    made: Any = Number()

    def change(by: float) -> None:
        if by != 2.0:
            made.by = by

    return change, lambda: x * (made.by if hasattr(made, "by") else 2.0)


def of_a_method_that_comes(x: torch.Tensor) -> Any:
    class Base:
        def by(self) -> float:
            return 2.0

    class Number(Base): ...

    made = Number()

    def change(by: float) -> None:
        Number.by = lambda self: by  # type: ignore[method-assign]

    return change, lambda: x * made.by()


def of_another_class(x: torch.Tensor) -> Any:
    class Number:
        def by(self) -> float:
            return 2.0

    class Other:
        def by(self) -> float:
            return 5.0

    made: Any = Number()

    def change(by: float) -> None:
        made.__class__ = Number if by == 2.0 else Other

    return change, lambda: x * made.by()


def of_other_code(x: torch.Tensor) -> Any:
    """As IPython's autoreload changes it."""

    def weight() -> float:
        return 2.0

    def other() -> float:
        return 5.0

    def change(by: float) -> None:
        weight.__code__ = (lambda: 2.0).__code__ if by == 2.0 else other.__code__

    return change, lambda: x * weight()


def of_a_function_that_has_it(x: torch.Tensor) -> Any:
    def weight() -> Any:
        return weight.by  # type: ignore[attr-defined]

    def change(by: float) -> None:
        weight.by = by  # type: ignore[attr-defined]

    change(2.0)
    return change, lambda: x * weight()


def of_an_object_that_is_made(x: torch.Tensor) -> Any:
    weights = {"by": 2.0}

    class Number:
        def __init__(self) -> None:
            self.by = weights["by"]

    def change(by: float) -> None:
        weights["by"] = by

    return change, lambda: x * Number().by


def of_a_module_that_it_imports(x: torch.Tensor) -> Any:
    sys.modules["settings_of_a_step"] = settings = ModuleType("settings_of_a_step")

    def change(by: float) -> None:
        settings.by = by  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        from settings_of_a_step import by  # type: ignore[import-not-found]

        return x * by  # type: ignore[no-any-return]

    return change, step


def in_a_function_decorated_by_torch(x: torch.Tensor) -> Any:
    weights = {"by": 2.0}

    def change(by: float) -> None:
        weights["by"] = by

    @torch.no_grad()
    def step() -> torch.Tensor:
        return x * weights["by"]

    return change, step


@pytest.mark.parametrize(
    "made",
    [in_a_function_decorated_by_torch, of_a_box_of_pythons, of_an_object_in_a_set, of_raw_bytes,
     of_an_operator, of_an_attribute_that_comes, of_a_method_that_comes, of_another_class,
     of_other_code, of_a_function_that_has_it, of_an_object_that_is_made,
     of_a_module_that_it_imports,
     of_an_array, of_a_tensor_of_the_host, of_a_set, of_a_key, of_a_queue, of_the_environment,
     of_a_cached_function, of_a_context, of_arguments, of_a_function_of_torchs,
     of_a_class, of_a_base_class, of_a_method_that_is_called, of_a_layer, far_away, of_a_slot,
     by_its_name, of_an_object, of_a_dict_in_a_dict, of_a_function_that_is_called,
     of_a_list_of_tensors, of_a_list_that_grows],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_what_is_in_a_variable_counts_in_the_next_step(made: Any) -> None:
    with open_session(Settings(step_mode="replay")) as session:
        change, step = made(torch.ones(2, device="kit"))
        found = []
        try:
            for by in [2.0] * 8 + [5.0] * 8:
                if len(found) == 8:
                    assert session.stepper.counts["replay.steps"] > 2
                if len(found) in (0, 8):
                    change(by)
                found.append(session.run_step(step).tolist())
        finally:
            change(2.0)
        assert found == [[2.0] * 2] * 8 + [[5.0] * 2] * 8
        assert session.stepper.counts["replay.steps"] > 5
        assert any("between two steps" in why for why in session.stepper.reasons)


def test_a_number_that_the_step_does_not_name_keeps_it_replayed() -> None:
    """A trainer counts its steps beside the method that is the step."""
    with open_session(Settings(step_mode="replay")) as session:
        trainer = Trainer(torch.ones(2, device="kit"))
        for trainer.count in range(8):  # type: ignore[attr-defined]
            session.run_step(trainer.step)
        assert session.stepper.counts["replay.steps"] == 3  # all after the fifth


def test_a_large_list_is_compared_as_far_as_that_is_quick() -> None:
    many: list[Any] = [0.0] * 100_000
    many.append(many)

    def step() -> Any:
        return many

    known = KnownFunction(step)
    assert known.change(step) == ""
    many[5] = 1.0
    assert "many" in known.change(step)
    known = KnownFunction(step)
    many.append(0.0)
    assert "many" in known.change(step)
    many[0] = many
    assert KnownFunction(step).change(step) == ""


def step_of_global() -> torch.Tensor:
    return sum(GLOBAL * k for k in (1, 1))  # type: ignore[return-value]


def of_attribute(x: torch.Tensor, y: torch.Tensor, run: Callable[[Any], Any]) -> list[Any]:
    trainer, made = Trainer(x), []
    for now in [x] * 8 + [y] * 8:
        trainer.x = now
        made.append(run(trainer.step))
    return made


@pytest.mark.parametrize("steps", [of_variable, of_lambdas, of_default, of_global, of_attribute],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_another_tensor_in_a_variable_is_read_though_the_one_before_is_alive(steps: Any) -> None:
    with open_session(Settings(step_mode="replay")) as session:
        x, y = torch.ones(3, device="kit"), torch.full((3,), 5.0, device="kit")
        made = steps(x, y, session.run_step)
        assert [one.tolist() for one in made] == [[2.0] * 3] * 8 + [[10.0] * 3] * 8
        assert session.stepper.counts["replay.steps"] >= 6
        name = {of_global: "global GLOBAL", of_attribute: "self.x", of_default: "default 1"}
        said = f"what it holds has changed, between two steps: {name.get(steps, 'now')}"
        assert session.stepper.reasons[said] == 1


@pytest.mark.parametrize("holder", [list, dict])
def test_a_variable_that_the_step_sets_itself_keeps_it_replayed(holder: Any) -> None:
    """Also where it holds the state, as a step in jax's style gives it back."""
    with open_session(Settings(step_mode="replay")) as session:
        start = torch.ones(3, device="kit")
        alone, state = start, holder([(0, start)])

        def step() -> None:
            nonlocal alone, state
            alone = alone * 2
            state = holder([(0, dict(state)[0] * 2)])

        del start
        for _ in range(12):
            session.run_step(step)
        assert alone.tolist() == dict(state)[0].tolist() == [2.0**12] * 3
        assert session.stepper.counts["replay.steps"] > 0


def test_a_number_that_changes_in_each_step_is_one_reason() -> None:
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        x = torch.ones(2, device="kit")
        for i in range(7):
            session.run_step(lambda i=i: x.mul_(1 + i / 8))
        (said,) = (why for why in session.stepper.reasons if "number changes" in why)
        assert "test_replay.py:" in said
        assert said.endswith("such as from 1.125 to 1.25")
        assert session.stepper.reasons[said] == 5
