"""`nn.LazyLinear(10).to("kit")` is as on CUDA: it learns its sizes in its first forward pass."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kit.runtime.compiling.cache import ExecutableCache
from kit.torch.device import open_session

pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
CACHE = ExecutableCache()


def make() -> nn.Sequential:
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Tanh(), nn.LazyLinear(2))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def before(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make()
    optimizer = adam(model)
    return model.to(device), optimizer


def between(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make().to(device)
    return model, adam(model)


def after(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make().to(device)
    model(torch.zeros(2, 5).to(device))
    return model, adam(model)


def train(device: str, begin: Callable[[str], Any]) -> list[float]:
    torch.manual_seed(0)
    model, optimizer = begin(device)
    x = torch.linspace(-1, 1, 20).reshape(4, 5).to(device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert type(model[0]) is nn.Linear
    assert {t.device.type for t in model.state_dict().values()} == {device}
    assert not model[0]._forward_pre_hooks
    assert not model[3]._load_state_dict_pre_hooks
    return losses


@pytest.mark.parametrize("begin", [before, between, after])
def test_an_optimizer_trains_it_whenever_it_was_made(begin: Callable[[str], Any]) -> None:
    expected = train("cpu", begin)
    with open_session(cache=CACHE):
        assert train("kit", begin) == pytest.approx(expected, rel=1e-4)


MADE: dict[str, Callable[[], nn.Module]] = {
    "moved": lambda: nn.LazyLinear(3).to("kit"),
    "moved and cast": lambda: nn.LazyLinear(3).to("kit", torch.float64).float(),
    "moved twice": lambda: nn.LazyLinear(3).to("kit").cpu().to("kit"),
    "made on the device": lambda: nn.LazyLinear(3, device="kit"),
    "made on the default device": lambda: _made_inside(),
    "copied": lambda: copy.deepcopy(nn.LazyLinear(3).to("kit")),
}


def _made_inside() -> nn.Module:
    with torch.device("kit"):
        return nn.LazyLinear(3)


@pytest.mark.parametrize("name", MADE)
def test_it_is_on_the_device_before_and_after_it_has_a_shape(name: str) -> None:
    with open_session(cache=CACHE):
        model = MADE[name]()
        place = next(model.parameters()).device
        assert place.type == "kit"
        assert model(torch.ones(2, 5, device=place)).shape == (2, 3)
        assert type(model) is nn.Linear
        assert model.weight.device.type == "kit"
        assert model.weight.dtype is torch.float32


def test_it_moves_back_before_it_has_a_shape_and_casts_where_it_is() -> None:
    with open_session(cache=CACHE):
        back = nn.LazyLinear(3).to("kit").cpu()
        assert back(torch.ones(2, 5)).device.type == back.weight.device.type == "cpu"
        wide = nn.LazyBatchNorm1d(device="kit").double()
        assert wide(torch.ones(2, 5, dtype=torch.float64, device="kit")).dtype is torch.float64
        assert wide.running_mean is not None
        assert wide.running_mean.device.type == "kit"


def test_a_checkpoint_gives_it_a_shape() -> None:
    saved = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).state_dict()
    saved["1.running_mean"] += 7
    with open_session(cache=CACHE):
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).to("kit")
        model.load_state_dict(saved)
        assert model[0].weight.device.type == model[1].running_mean.device.type == "kit"
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.cpu(), saved[name])
        assert model(torch.ones(2, 5, device="kit")).shape == (2, 3)


def test_a_file_of_it_opens_anywhere() -> None:
    with open_session(cache=CACHE):
        made = pickle.dumps(nn.LazyLinear(3).to("kit").weight)
    assert type(pickle.loads(made)) is nn.UninitializedParameter
