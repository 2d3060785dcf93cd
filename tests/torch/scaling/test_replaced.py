"""Tensors that an optimizer's step, or a hook of it, puts in the place of others, in a bad step."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch

from kit.errors import SettingsError
from kit.torch.device import open_session
from tests.torch.scaling.task import CACHE, DYNAMIC, WAYS, Task


class Replacing(torch.optim.Optimizer):
    """Puts new tensors in the places of its averages: in a list, a group and an attribute."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})
        group = self.param_groups[0]
        self.means = [torch.zeros_like(p) for p in group["params"]]
        group["means"] = [torch.zeros_like(p) for p in group["params"]]
        self.norm = torch.ones_like(group["params"][0]).sum()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        self.norm = 0.9 * self.norm + sum(p.grad.norm() for p in group["params"])
        group["means"] = [0.9 * group["means"][i] + p.grad for i, p in enumerate(group["params"])]
        for i, p in enumerate(group["params"]):
            self.means[i] = 0.9 * self.means[i] + p.grad / self.norm
            p.sub_(0.05 * self.means[i] + 0.01 * group["means"][i])


class Keeps:
    """A hook that keeps averages of the weights, and clips these."""

    def __init__(self, model: Any) -> None:
        self.model, self.shadow = model, {n: p.data.clone() for n, p in model.named_parameters()}

    def __call__(self, *_: Any) -> None:
        for name, p in self.model.named_parameters():
            p.data = p.data.clamp(-0.4, 0.4)
            self.shadow[name] = (0.9 * self.shadow[name] + 0.1 * p.data).clone()


@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_what_a_step_puts_in_the_place_of_a_tensor_is_taken_back(mode: str) -> None:
    def run(mode: str, device: str) -> Any:
        task = Task(mode, device, Replacing, {})
        hook = Keeps(task.model)
        task.optimizer.register_step_post_hook(hook)
        for i in range(8):
            task.step(i in (2, 3, 5))
        return [*task.weights(), *(x.cpu() for x in hook.shadow.values())]

    expected = run("dynamic, host check", "cpu")
    with open_session(WAYS["lazy"], cache=CACHE):
        torch.testing.assert_close(run(mode, "kit"), expected, rtol=1e-4, atol=1e-5)


class Swapping(torch.optim.Adam):
    """Its two averages change places at each step."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        self.means = [torch.zeros(5, 4).to("kit"), torch.ones(5, 4).to("kit")]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.means.reverse()
        super().step()


@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_what_cannot_be_taken_back_from_its_new_place_is_refused(mode: str) -> None:
    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task(mode, "kit", Swapping, {"lr": 0.1})
        if mode == DYNAMIC[2]:  # which checks at once while there is no state yet
            task.step(False)
        with pytest.raises(SettingsError, match=r"step\(\) replaces a tensor, .*means"):
            task.step(False)


@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_a_hook_that_logs_may_let_its_tensors_change_places(mode: str) -> None:
    last, now = deque[Any](maxlen=2), {"this": None, "other": None}

    def log(optimizer: Any, *_: Any) -> None:
        norm = optimizer.param_groups[0]["params"][0].grad.norm()
        last.append(norm)
        now["this"], now["other"] = now["other"], norm[None].repeat(len(last))

    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task(mode, "kit", torch.optim.SGD, {"lr": 0.1})
        task.optimizer.register_step_pre_hook(log)
        for i in range(5):
            task.step(i == 3)
        assert all(map(torch.isfinite, task.weights()[0].flatten()))


@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_what_a_hook_reaches_far_away_is_not_gone_through(mode: str) -> None:
    class Seen:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            count[0] += 1
            return {}

    count = [0]
    history = [Seen() for _ in range(20_000)]

    def look(*_: Any) -> None:
        assert history

    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task(mode, "kit", torch.optim.SGD, {"lr": 0.1})
        task.optimizer.register_step_pre_hook(look)
        task.step(False)
    assert 0 < count[0] <= 4_000


class Nameless:
    def __repr__(self) -> str:
        raise ValueError("a key without a text")


@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_the_keys_of_tables_that_a_hook_reaches_are_not_put_in_words(mode: str) -> None:
    kept = {Nameless(): 1}

    def look(*_: Any) -> None:
        assert kept

    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task(mode, "kit", torch.optim.Adam, {"lr": 0.1})
        task.optimizer.register_step_pre_hook(look)
        for _ in range(2):
            task.step(False)


AVERAGE: dict[str, Any] = {}  # as of a notebook's cell


@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_an_average_that_a_hook_replaces_in_a_global_is_taken_back(mode: str) -> None:
    @torch.no_grad()
    def average(optimizer: Any, *_: Any) -> None:
        weight = optimizer.param_groups[0]["params"][0]
        AVERAGE["weight"] = 0.9 * AVERAGE["weight"] + 0.1 * weight

    with open_session(WAYS["lazy"], cache=CACHE):
        task = Task(mode, "kit", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
        AVERAGE["weight"] = task.optimizer.param_groups[0]["params"][0].detach().clone()
        task.optimizer.register_step_post_hook(average)
        for i in range(6):
            task.step(i == 3)
        assert torch.isfinite(AVERAGE.pop("weight").cpu()).all()


@pytest.mark.parametrize("way", ["lazy", "replay"])
@pytest.mark.parametrize("mode", DYNAMIC[1:])
def test_an_average_that_a_hook_makes_first_in_a_bad_step_is_that_of_the_first_good_one(
    mode: str, way: str
) -> None:
    """It was made of infinite weights, and stayed nan. The first steps of a run overflow often."""

    def run(mode: str, device: str) -> Any:
        task, averages = Task(mode, device, torch.optim.SGD, {"lr": 0.1}), dict[str, Any]()

        @torch.no_grad()
        def average(*_: Any) -> None:
            for name, p in task.model.named_parameters():
                if name in averages:
                    averages[name].mul_(0.9).add_(p, alpha=0.1)
                else:
                    averages[name] = p.detach().clone()

        for i in range(8):
            if i == 3:  # as where averages begin after some epochs
                task.optimizer.register_step_post_hook(average)
            task.step(i in (3, 4, 6))
        return [*task.weights(), *(x.cpu() for x in averages.values())]

    expected = run("dynamic, host check", "cpu")
    with open_session(WAYS[way], cache=CACHE):
        torch.testing.assert_close(run(mode, "kit"), expected, rtol=1e-4, atol=1e-5)
