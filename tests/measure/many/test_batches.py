"""What replicas have in common: batches that are drawn once, and a loss to decide by."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kit
from kit.errors import SessionError, SettingsError
from kit.runs.gradients import exposed_ms
from kit.runs.run import Run

SETTINGS = kit.Settings(batch_size=8, steps=9, warmup=2)
TWO = ["cpu:0", "cpu:0"]
APART = SETTINGS.replace(batch_size=7, steps=4)  # over two processes
ITEMS = 40  # an epoch is five batches


def data() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(4)
    return torch.randn(ITEMS, 6, generator=made), torch.arange(ITEMS)


class Noisy(Dataset[Any]):
    """Augments as it likes, by the random numbers of the process."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, i: int) -> Any:
        x, y = data()
        return x[i] + 0.1 * torch.randn(6) + float(np.random.rand()) + random.random(), y[i]


def shuffled() -> Any:
    return DataLoader(TensorDataset(*data()), batch_size=8, shuffle=True)


class ByPython:
    """An iterable of batches in an order of `random`."""

    def __iter__(self) -> Iterator[Any]:
        x, y = data()
        order = list(range(ITEMS))
        random.shuffle(order)
        for i in range(0, ITEMS, 8):
            yield x[order[i : i + 8]], y[order[i : i + 8]]


def updated(optimizer: Any, loss: Any) -> Any:
    """The loss, after its step."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def workload_of(source: Callable[[], Any], seen: list[Any] | None = None) -> kit.Workload:
    @kit.workload
    def trained(ctx: kit.Context) -> Callable[[], Any]:
        random.seed(ctx.seed)
        np.random.seed(ctx.seed)
        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(ctx.device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        batches = ctx.loader(source())

        def step() -> Any:
            x, i = next(batches)
            if seen is not None:
                seen.append(i.tolist())
            return updated(optimizer, F.cross_entropy(net(x), i % 4))

        return step

    return trained


def losses(run: Run) -> Any:
    return pytest.approx(list(run.losses), abs=1e-5)


@pytest.mark.parametrize("source", [shuffled, ByPython, Noisy])
@pytest.mark.parametrize(
    "change", [{}, {"prefetch": 2}, {"step_mode": "replay"}, {"batch_size": 9}], ids=str
)
def test_a_random_order_is_that_of_one_device(
    source: Callable[[], Any], change: dict[str, Any]
) -> None:
    settings = SETTINGS.replace(**change)
    one = kit.run(workload_of(source), settings)
    assert list(kit.run(workload_of(source), settings, devices=TWO).losses) == losses(one)


def test_an_epoch_has_each_item_once() -> None:
    seen: list[Any] = []
    kit.run(workload_of(shuffled, seen), SETTINGS.replace(steps=3, warmup=2), devices=TWO)
    # five steps of two replicas
    assert sorted(i for part in seen[:10] for i in part) == list(range(ITEMS))


def test_a_source_that_fails_fails_for_all() -> None:
    def broken() -> Iterator[Any]:
        x, y = data()
        yield x[:8], y[:8]
        raise ValueError("the file is cut off")

    with pytest.raises(ValueError, match="the file is cut off"):
        kit.run(workload_of(broken), SETTINGS, devices=TWO)


@dataclass(frozen=True)
class Pair:
    """A batch as a program's own class."""

    x: torch.Tensor
    y: torch.Tensor
    name: str = "pair"


class Encoding(UserDict[str, Any]):
    """As tokenizers give it."""

    def to(self, device: str) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


def pairs() -> list[Pair]:
    x, y = data()
    return [Pair(x[i : i + 7], y[i : i + 7]) for i in range(0, 35, 7)]


def encodings() -> list[Encoding]:
    return [Encoding(x=pair.x, y=pair.y) for pair in pairs()]


@pytest.mark.parametrize("source", [pairs, encodings])
def test_the_tensors_of_a_programs_own_batches_are_split(source: Callable[[], Any]) -> None:
    sizes: list[int] = []

    @kit.workload
    def own(ctx: kit.Context) -> Callable[[], Any]:
        net = nn.Linear(6, 4).to(ctx.device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        batches = ctx.loader(Again(source))

        def step() -> Any:
            batch = next(batches)
            x, y = (batch["x"], batch["y"]) if isinstance(batch, Encoding) else (batch.x, batch.y)
            sizes.append(len(x))
            return updated(optimizer, F.cross_entropy(net(x), y % 4))

        return step

    one = kit.run(own, SETTINGS)
    assert set(sizes) == {7}
    sizes.clear()
    assert list(kit.run(own, SETTINGS, devices=TWO).losses) == losses(one)
    assert set(sizes) == {3, 4}


class Again:
    """An iterable that makes its batches anew each time."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


@pytest.mark.parametrize(
    "batch", [np.ones((8, 6)), [{"x": np.ones((8, 6))}]], ids=["array", "list"]
)
def test_a_batch_without_a_tensor_to_split_is_refused(batch: Any) -> None:
    with pytest.raises(SettingsError, match=r"no tensor to split.*torch\.from_numpy"):
        kit.run(workload_of(lambda: Again(lambda: [batch])), SETTINGS, devices=TWO)


def deciding(whole: bool) -> kit.Workload:
    @kit.workload
    def decides(ctx: kit.Context) -> Callable[[], Any]:
        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).to(ctx.device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3)
        batches = ctx.loader(TensorDataset(*data()))

        def step() -> Any:
            x, i = next(batches)
            loss = updated(optimizer, F.cross_entropy(net(x), i % 4))
            rates.step((ctx.mean(loss) if whole else loss).item())
            return loss

        return step

    return decides


@pytest.mark.parametrize("step_mode", ["retrace", "replay"])
@pytest.mark.parametrize("batch_size", [8, 7])
def test_a_rate_that_follows_the_mean_loss_is_that_of_one_device(
    step_mode: str, batch_size: int
) -> None:
    settings = SETTINGS.replace(step_mode=step_mode, batch_size=batch_size)
    one = kit.run(deciding(whole=True), settings)
    assert list(kit.run(deciding(whole=True), settings, devices=TWO).losses) == losses(one)
    assert list(kit.run(deciding(whole=False), settings).losses) == losses(one)


@pytest.mark.parametrize("step_mode", ["retrace", "replay"])
def test_replicas_that_decide_by_their_own_losses_are_told(step_mode: str) -> None:
    with pytest.raises(SessionError, match=r"have parted: the optimizer's lr is 0\..*ctx\.mean"):
        kit.run(deciding(whole=False), SETTINGS.replace(step_mode=step_mode), devices=TWO)


def test_replicas_whose_rates_differ_are_told_in_a_loop_of_ones_own() -> None:
    with kit.DataParallel(nn.Linear(6, 4), TWO) as net:
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        x, y = data()

        def step() -> None:
            net.step(lambda m, x, y: F.cross_entropy(m(x), y % 4), optimizer, x[:8], y[:8])

        step()
        for rank, one in enumerate(optimizer.replicas):
            one.param_groups[0]["lr"] = 0.05 * (1 + rank)
        step()
        with pytest.raises(SessionError, match=r"the optimizer's lr is 0\.[01]"):
            step()


def test_the_traced_steps_hold_the_reductions_of_their_own_and_no_more() -> None:
    link = kit.Link(latency_us=20_000, gb_per_s=100)  # as good as all of it is latency: 40 ms
    source: Any = lambda: TensorDataset(*data())  # noqa: E731
    run = kit.run(workload_of(source), SETTINGS, devices=TWO, bucket_mb=1, link=link)
    steps = len(run.timeline.intervals(kind="step"))
    spans = [s for s in run.timeline.spans if s.kind == "reduction"]
    assert len(spans) == 2 * steps  # one bucket, on two lanes
    for ms in exposed_ms(run.timeline).values():
        assert ms <= sum(s.stop_ns - s.start_ns for s in spans) / 2 / steps / 1e6 + 1e-6


@kit.workload
def decides(ctx: kit.Context) -> Callable[[], Any]:
    """By the loss of its own part."""
    net = nn.Linear(6, 4).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = ctx.loader(torch.utils.data.TensorDataset(torch.randn(21, 6)))

    def step() -> Any:
        (x,) = next(batches)
        loss = updated(optimizer, net(x).square().mean())
        optimizer.param_groups[0]["lr"] = 0.1 * loss.item()
        return loss

    return step


@kit.workload
def drawn(ctx: kit.Context) -> Callable[[], Any]:
    """In an order of random numbers that nobody has seeded."""
    net = nn.Linear(6, 4).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(21, 6)
    batches = ctx.loader(
        x[[random.randrange(21) for _ in range(7)]] * np.random.rand() for _ in iter(int, 1)
    )

    def step() -> Any:
        return updated(optimizer, net(next(batches)).square().mean())

    return step


def test_processes_draw_the_same_batches() -> None:
    apart = kit.run(drawn, APART, processes=2)
    random.seed(APART.seed)
    np.random.seed(APART.seed)
    assert list(apart.losses) == pytest.approx(list(kit.run(drawn, APART).losses), rel=1e-5)


def test_processes_that_decide_by_their_own_losses_are_told() -> None:
    with pytest.raises(SessionError, match=r"the optimizer's lr is 0\.\d+ in replica 1"):
        kit.run(decides, APART, processes=2)
