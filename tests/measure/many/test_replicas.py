"""Measured steps of several replicas: lanes, exposed reduction, and the counts behind the model."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kit
from kit.errors import Cancelled, SessionError, SettingsError
from kit.measure.many.replicas import (
    deep_perceptron,
    measure,
    measure_backward,
    measured_curve,
    run,
)
from kit.runs.gradients import predict_parallel

LAYERS, WIDTH = 5, 8


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[kit.DataParallel, Any]]:
    model = deep_perceptron(LAYERS, WIDTH)
    x, y = torch.randn(6, WIDTH), torch.randint(0, 10, (6,))
    with kit.DataParallel(model, ["cpu:0", "cpu:0"], bucket_mb=1e-6) as net:
        optimizer = net.optimizer(torch.optim.SGD, lr=1e-3)
        yield net, lambda: net.step(lambda m, x, y: F.cross_entropy(m(x), y), optimizer, x, y)


def test_a_measured_step_has_compute_and_reduction_of_each_device(
    trained: tuple[kit.DataParallel, Any], tmp_path: Path
) -> None:
    net, step = trained
    net.retune(link=kit.Link(latency_us=1000, gb_per_s=1))
    made = measure(net, step, steps=2, warmup=1, name="two replicas")
    lanes = set(made.timeline.lanes)
    assert {f"device/{r} {what}" for r in (0, 1) for what in ("compute", "reduction")} <= lanes
    assert {"host/replica 0", "host/replica 1"} <= lanes
    assert made.timeline.origin == "recorded"
    assert len(made.losses) == 2
    buckets = [s for s in made.timeline.spans if s.lane == "device/0 reduction"]
    assert {s.kind for s in buckets} == {"reduction"}
    names = {s.name for s in buckets}
    assert names == {f"bucket {i}" for i in range(2 * (LAYERS + 1))}
    whole = [
        s.stop_ns - s.start_ns
        for s in buckets
        if s.start_ns and s.stop_ns < made.timeline.duration_ns
    ]
    assert min(whole) >= 2_000_000  # two hops over the imitated link
    traced_ms = made.timeline.duration_ns / made.timeline.where(kind="step").sum() / 1e6
    assert 0 < made.metrics["exposed.device/0_ms"] <= traced_ms
    path = tmp_path / "two.kitrun"
    made.save(path)
    assert kit.Run.load(path).timeline == made.timeline
    with pytest.raises(SettingsError, match="steps must be a whole number of at least 1"):
        measure(net, step, steps=0)


def test_of_the_buckets_that_wait_for_the_link_the_first_layers_go_first(
    trained: tuple[kit.DataParallel, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next forward pass needs them first: MXNet's `priority=-i`."""
    net, step = trained
    net.retune(cut="bucket", bucket_mb=1e-6)
    collectives, order, free = net._collectives, [], threading.Event()
    combine = collectives._combine

    def after_all_are_there(collective: Any) -> None:
        order.append(collective.name)
        assert free.wait(60)
        combine(collective)

    monkeypatch.setattr(collectives, "_combine", after_all_are_there)
    count = 2 * (LAYERS + 1)
    step()
    while len(collectives._ready) + len(order) < count:
        time.sleep(0.001)
    free.set()
    net.wait_all()
    numbers = [int(name.removeprefix("bucket ")) for name in order]
    assert sorted(numbers) == list(range(count))
    assert numbers[1:] == sorted(numbers[1:], reverse=True)


def test_the_model_knows_the_steps_own_gradients_and_segments(
    trained: tuple[kit.DataParallel, Any],
) -> None:
    net, step = trained
    made = measure_backward(net, step, (1, 4), rounds=1, steps=1)
    sizes = [p.numel() * 4 for p in reversed(list(deep_perceptron(LAYERS, WIDTH).parameters()))]
    assert sorted(size for _, size in made.gradients) == sorted(sizes)
    assert made.gradients[-1][0] <= made.ops
    for bulk in (1, 4):
        before = net.sessions[0].metrics()["segment.count"]
        net.retune(bulk=(1000, bulk), cut="size")
        step()
        net.wait_all()
        counted = net.sessions[0].metrics()["segment.count"] - before
        said = predict_parallel(made, bulk=bulk, link=kit.Link()).segments
        assert abs(counted - said - 2) <= said * 0.4  # forward and update are one each
    cells = [{"cut": "bucket", "bucket_mb": 1e-6}, {"cut": "size"}]
    assert all(0 < ms < 1e4 for ms in measured_curve(net, step, cells, rounds=1, steps=1))
    with pytest.raises(SettingsError, match="cut must be one of"):
        net.retune(cut="never")


@kit.workload
def line(ctx: kit.Context) -> Any:
    """One layer, a loader, a scaler, micro-batches: what a step of the user's own has."""
    model = torch.nn.Linear(4, 1).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ctx.scaler()
    points = torch.randn(32, 4)
    batches = ctx.loader(torch.utils.data.TensorDataset(points, points[:, :1]))

    def step() -> Any:
        total: Any = 0
        for x, y in ctx.micro_batches(batches):
            loss = (model(x) - y).square().mean() / ctx.accumulate
            scaler.scale(loss).backward()
            total = total + loss.detach()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return total

    return step


def test_a_workload_runs_unchanged_on_two_devices_with_the_losses_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each step is told, however long a busy machine takes to tell of the one before.
    monkeypatch.setattr("kit.measure.base.loop._REPORTING", math.inf)
    settings = kit.Settings(
        batch_size=9,
        steps=3,
        warmup=1,
        loss_scaling="dynamic, host check",
        accumulate=2,
        prefetch=1,
    )
    alone = kit.run(line, settings)
    told: list[str] = []

    def note(text: str, _: float) -> None:
        told.append(text.partition(";")[0])  # without how long a step took, if over a second

    both = kit.run(line, settings, devices=["cpu:0", "cpu:0"], progress=note)
    assert told == [
        "running the first step (may compile)",
        "warming up (may compile)",
        *["warming up"] * 4,
        *["measuring"] * 3,
    ]
    assert both.losses == pytest.approx(alone.losses, abs=1e-6)
    assert both.name == "line, 2 devices"
    with pytest.raises(Cancelled, match="before step 1"):
        kit.run(line, settings, devices=["cpu:0", "cpu:0"], cancelled=lambda: True)
    with pytest.raises(SettingsError, match="devices must be at least 1, not 0"):
        kit.run(line, settings, devices=0)
    with pytest.raises(SettingsError, match="a batch of 1 cannot be split over 2 devices"):
        run(line, settings.replace(batch_size=1), devices=["cpu:0", "cpu:0"])


class Lengths(torch.utils.data.IterableDataset[Any]):
    """Batches of 9 and 4 in turn: what a loader gives that keeps the end of an epoch."""

    def __iter__(self) -> Iterator[Any]:
        made = torch.Generator().manual_seed(1)
        for length in (9, 4):
            points = torch.randn(length, 4, generator=made)
            yield points, points[:, :1] + torch.randn(length, 1, generator=made)


def uneven(ctx: kit.Context, *, gives_loss: bool) -> Any:
    """A step that gives its loss, or what the weights then are."""
    model = torch.nn.Linear(4, 1).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = ctx.loader(torch.utils.data.DataLoader(Lengths(), batch_size=None))

    def step() -> Any:
        optimizer.zero_grad()
        for x, y in ctx.micro_batches(batches):
            loss = (model(x) - y).square().mean()
            loss.backward()
        optimizer.step()
        return loss if gives_loss else model.weight.square().sum()

    return step


@pytest.mark.parametrize("gives_loss", [True, False], ids=["loss", "weights"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"prefetch": 2}, {"accumulate": 2}, {"step_mode": "replay", "accumulate": 2}],
    ids=["in turn", "ahead", "both in a step", "replayed"],
)
def test_parts_count_by_the_sizes_that_they_had_in_their_own_step(
    changes: Any, gives_loss: bool
) -> None:
    workload = kit.workload(partial(uneven, gives_loss=gives_loss))
    settings = kit.Settings(batch_size=9, steps=7, warmup=5, **changes)
    both = kit.run(workload, settings, devices=["cpu:0", "cpu:0"])
    assert both.losses == pytest.approx(kit.run(workload, settings).losses, abs=1e-6)
    assert (both.metrics.get("replay.steps", 0) > 0) == (settings.step_mode == "replay")


@pytest.mark.parametrize("step_mode", ["retrace", "replay"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulate": 2, "prefetch": 2}, {"loss_scaling": "dynamic, on device"}],
    ids=["plain", "micro-batches", "scaled"],
)
def test_a_replayed_workload_has_the_losses_of_one_device(changes: Any, step_mode: str) -> None:
    settings = kit.Settings(batch_size=9, steps=8, warmup=5, step_mode=step_mode, **changes)
    alone = kit.run(line, settings)
    both = kit.run(line, settings, devices=["cpu:0", "cpu:0"], bucket_mb=1e-6)
    assert both.losses == pytest.approx(alone.losses, abs=1e-6)
    assert (both.metrics.get("replay.steps", 0) > 5) == (step_mode == "replay")


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (torch.Tensor.backward, r"shape \[3\] that is in no module whose forward was called"),
        (torch.autograd.backward, "have not been reduced, so the replicas would part"),
    ],
    ids=["a parameter in no module", "a backward that nobody sums"],
)
def test_an_update_that_would_let_replicas_part_is_refused(backward: Any, words: str) -> None:
    @kit.workload
    def loose(ctx: kit.Context) -> Any:
        weight = torch.ones(3).to(ctx.device).requires_grad_()
        model = torch.nn.Linear(3, 1).to(ctx.device)
        optimizer = torch.optim.SGD([weight, *model.parameters()], lr=0.1)

        def step() -> Any:
            loss = model(weight).sum()
            model(weight.detach()).sum().backward()  # from now on its parameters are known
            if backward is torch.autograd.backward:
                backward([loss])
            else:
                loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    with pytest.raises(SessionError, match=words):
        run(loose, kit.Settings(batch_size=2), devices=["cpu:0", "cpu:0"])
