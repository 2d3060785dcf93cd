"""What a program changes of its model between two steps of its own counts in the next."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.session.session import current_session
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
    change: Callable[[Any, Any], None], step_mode: str
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


def test_gradients_that_are_zeroed_between_the_steps_are_there_before() -> None:
    """A replay sets no name to a tensor, and the program reads the gradients by `p.grad`."""

    def norms(step_mode: str) -> Any:
        with open_session(Settings(step_mode=step_mode), cache=CACHE) as session:
            torch.manual_seed(0)
            model, x = nn.Linear(3, 1).to("kit"), torch.ones(4, 3, device="kit")
            optimizer = torch.optim.SGD(model.parameters(), 0.01)

            def step() -> None:
                model(x).square().sum().backward()
                optimizer.step()

            found = []
            for _ in range(9):
                session.run_step(step)
                found.append(model.weight.grad.norm().item())
                optimizer.zero_grad()
            return found, session.stepper.reasons

    assert norms("replay")[0] == norms("retrace")[0]
    assert any("zero the gradients within the step" in why for why in norms("replay")[1])


def other_buffer(model: Any, optimizer: Any, other: torch.Tensor) -> Any:
    old, model.shift = model.shift, other
    return old


def other_attribute(model: Any, optimizer: Any, other: torch.Tensor) -> Any:
    old, model.plain = model.plain, other
    return old


def other_gradient(model: Any, optimizer: Any, other: torch.Tensor) -> Any:
    old, model.weight.grad = model.weight.grad, other
    return old


def other_state(model: Any, optimizer: Any, other: torch.Tensor) -> Any:
    state = optimizer.state[model.weight]
    old, state["momentum_buffer"] = state["momentum_buffer"], other
    return old


@pytest.mark.parametrize("change", [other_buffer, other_attribute, other_gradient, other_state],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_another_tensor_counts_in_the_next_step_whoever_holds_the_one_before(change: Any) -> None:
    def losses(step_mode: str) -> Any:
        with open_session(Settings(mode="lazy", step_mode=step_mode), cache=CACHE) as session:
            torch.manual_seed(0)
            model = nn.Linear(3, 3)
            model.register_buffer("shift", torch.ones(3))
            model.to("kit")
            model.plain = torch.ones(3, device="kit")
            optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
            x, other, held = torch.ones(3, 3).to("kit"), torch.full((3, 3), 2.0).to("kit"), None
            found = []

            def step() -> Any:
                loss = (model(x) * model.shift + model.plain).square().sum()
                loss.backward()  # the gradients of all steps together
                optimizer.step()
                return loss.detach()

            for i in range(STEPS):
                if i == CHANGED:
                    held = change(model, optimizer, other)
                found.append(session.run_step(step).item())
            return found, held is not None and held.tolist(), session

    *recorded, _ = losses("retrace")
    *replayed, session = losses("replay")
    assert replayed == recorded
    assert session.stepper.counts["replay.steps"] > CHANGED
    assert any("between two steps" in why for why in session.stepper.reasons)


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


def test_a_step_that_swaps_a_part_of_its_model_and_one_with_odd_state_go_on() -> None:
    """Layers that are dropped are freed within the step; torch lets `state` hold anything."""

    class Odd(torch.optim.SGD):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.state["count"] = torch.tensor([0])  # type: ignore[index]

    def losses(step_mode: str) -> Any:
        with open_session(Settings(mode="lazy", step_mode=step_mode), cache=CACHE):
            torch.manual_seed(0)
            model = nn.Module()
            model.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
            model.forward = lambda x: nn.Sequential(*model.layers)(x)  # type: ignore[assignment]
            model.to("kit")
            optimizer = Odd(model.parameters(), 0.01, foreach=True)
            session, x = current_session(), torch.ones(2, 3, device="kit")

            def step() -> Any:
                whole = model.layers
                model.layers = nn.ModuleList([whole[0], whole[2]])
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                model.layers = whole
                return loss.detach()

            return [session.run_step(step).item() for _ in range(9)]

    assert losses("replay") == losses("retrace")


@pytest.mark.filterwarnings("error")
def test_a_tensor_within_the_graph_is_not_asked_for_its_gradient() -> None:
    """Torch warns who asks."""
    with open_session(Settings(mode="lazy", step_mode="replay"), cache=CACHE) as session:
        w = torch.ones(3, device="kit", requires_grad=True)

        def step() -> Any:
            out = w * 2
            out.register_hook(lambda grad: grad * 2)
            out.sum().backward()
            w.grad = None
            return {"out": out}

        for _ in range(6):
            assert session.run_step(step)["out"].tolist() == [2.0] * 3
