"""Steps of several replicas that are issued again without their Python: same bits and failures."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kit
from kit.runtime.session.session import current_session
from kit.runtime.steps.stepper import CONFIRM, VERIFY_EVERY
from kit.torch.parallel.barrier import Barrier, all_sum, replica_here
from kit.torch.parallel.data_parallel import DataParallel
from tests.torch.parallel.replicas import batches, close, loss_of, net_on_one_cpu, perceptron

REPLAY = kit.Settings(step_mode="replay")


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4)
    )


def fused(net: DataParallel) -> Any:
    return net.optimizer(torch.optim.AdamW, lr=0.01, capturable=True)


def replays(net: DataParallel) -> list[float]:
    return [session.metrics().get("replay.steps", 0) for session in net.sessions]


def reasons(net: DataParallel) -> str:
    return " ".join(net.sessions[0].stepper.reasons)


def trained(
    settings: kit.Settings, data: list[tuple[Tensor, Tensor]], count: int = 2
) -> tuple[list[float], list[Tensor], list[float]]:
    """Losses, weights and statistics of all replicas, and how many steps each has replayed."""
    with net_on_one_cpu(
        normalised(), count, settings=settings, bucket_mb=2e-4, sync_batch_norm=True
    ) as net:
        optimizer = fused(net)
        losses = []
        for x, y in data:
            made = net.step(lambda m, x, y: F.cross_entropy(m(x), y), optimizer, x, y)
            losses.append((made, net.weights))
        state = [t.detach().cpu() for m in net.modules for t in m.state_dict().values()]
        return [net.mean(*loss) for loss in losses], state, replays(net)


@pytest.mark.parametrize("count", [1, 3])
def test_replayed_steps_have_the_bits_of_recorded_ones(count: int) -> None:
    """Buckets, a batch norm over all replicas, dropout: and one step in the middle is recorded."""
    data = batches(VERIFY_EVERY + 10, 8)
    expected, state, _ = trained(kit.Settings(), data, count)
    losses, again, replayed = trained(REPLAY, data, count)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(again, state, strict=True))
    assert VERIFY_EVERY < replayed[0] < len(data) - CONFIRM
    assert replayed == [replayed[0]] * count


def test_a_batch_of_another_size_weighs_as_in_a_recorded_step() -> None:
    """9 is 5 and 4, 10 is 5 and 5: the first replica's part has the same shape, not the weight."""
    sizes = [9] * 7 + [10, 9] + [10] * 6
    data = [batches(1, size)[0] for size in sizes]
    expected, state, _ = trained(kit.Settings(), data)
    losses, again, replayed = trained(REPLAY, data)
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(again, state, strict=True))
    assert min(replayed) >= 4


def test_a_replica_that_fails_while_others_replay_ends_the_step_which_then_has_never_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = kit.torch.parallel.data_parallel.to_kit
    with net_on_one_cpu(perceptron(), 2, settings=REPLAY, timeout_s=30) as net:
        optimizer = fused(net)
        data = batches(20, 8)
        for x, y in data[:8]:
            net.step(loss_of, optimizer, x, y)
        assert min(replays(net)) > 2
        before = [p.detach().cpu() for m in net.modules for p in m.parameters()]
        second = net.sessions[1]

        def failing(part: Any) -> Any:
            if current_session() is second:
                raise OSError("the disk is gone")
            return real(part)

        monkeypatch.setattr("kit.torch.parallel.data_parallel.to_kit", failing)
        with pytest.raises(OSError, match="the disk is gone") as caught:
            net.step(loss_of, optimizer, *data[8])
        assert any("replica 1 of 2" in note for note in caught.value.__notes__)
        monkeypatch.setattr("kit.torch.parallel.data_parallel.to_kit", real)
        close([p for m in net.modules for p in m.parameters()], before, 0)
        for x, y in data[9:]:
            net.step(loss_of, optimizer, x, y)
        net.wait_all()
        first, other = (list(m.parameters()) for m in net.modules)
        close(first, [p.cpu() for p in other], 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda net: net.retune(bulk=3), "net.retune has changed"),
        (lambda net: net.retune(bucket_mb=1e-6), "net.retune has changed"),
        (lambda net: fused(net), "got another optimizer"),
    ],
    ids=["other segments", "other buckets", "another optimizer"],
)
def test_what_makes_another_step_is_recorded(
    change: Callable[[DataParallel], Any], words: str
) -> None:
    with net_on_one_cpu(perceptron(), 2, settings=REPLAY) as net:
        optimizer = fused(net)
        data = batches(CONFIRM + 3, 8)
        for x, y in data:
            net.step(loss_of, optimizer, x, y)
        before = replays(net)
        assert min(before) > 0
        segments = net.sessions[0].metrics()["segment.count"]
        optimizer = change(net) or optimizer
        net.step(loss_of, optimizer, *data[0])
        assert replays(net) == before
        assert words in reasons(net)
        assert net.sessions[0].metrics()["segment.count"] > segments


def test_a_step_with_a_barrier_is_recorded_and_the_barrier_is_named() -> None:
    barrier = Barrier(2)
    with net_on_one_cpu(perceptron(), 2, settings=REPLAY) as net:
        optimizer = fused(net)

        def loss(model: nn.Module, x: Any, y: Any) -> Any:
            return F.cross_entropy(model(x), y) * (1.0 / barrier.wait(1))

        for x, y in batches(CONFIRM + 4, 8):
            net.step(loss, optimizer, x, y)
        assert replays(net) == [0, 0]
        assert "replicas meet at Barrier(2)" in reasons(net)


def test_replicas_are_not_drawn_as_recording_while_they_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kit.runtime.replicas.turns.STANDSTILL_S", 3600.0)
    with net_on_one_cpu(perceptron(), 2) as net:
        optimizer = fused(net)
        data = batches(4, 8)
        net.step(loss_of, optimizer, *data[0])
        with net.watched():
            for x, y in data[1:]:
                net.step(loss_of, optimizer, x, y)
        spans = net.capture.spans
    lanes = [
        [s for s in spans if s.lane == f"host/replica {r}" and s.kind == "record"] for r in (0, 1)
    ]
    assert all({s.name for s in lane} == {"forward", "backward", "update"} for lane in lanes)
    both = [
        (a, b)
        for a in lanes[0]
        for b in lanes[1]
        if min(a.stop_ns, b.stop_ns) > max(a.start_ns, b.start_ns)
    ]
    assert both == []


def changed(name: str, net: DataParallel, optimizer: Any, kept: list[Any]) -> None:
    """What a program does between two steps."""
    if name == "learning rate":
        for one in optimizer.replicas:
            one.param_groups[0]["lr"] *= 0.5
    elif name == "evaluation":
        net.map(lambda m: m.eval(), net.modules)
    elif name == "frozen":
        net.map(lambda m: m[0].weight.requires_grad_(False), net.modules)
    elif name == "accumulated":
        (x, y) = batches(1, 8)[0]
        with net.no_sync():
            net.backward(net.map(F.cross_entropy, net(x), net.split(y)))
    elif name == "scaled":
        net.map(torch.no_grad()(lambda m: m[0].weight.mul_(0.5)), net.modules)
        net.wait_all()
    elif name == "loaded, the old ones kept":
        kept += net.map(lambda m: [p.detach().clone() for p in m.parameters()], net.modules)
        state = {k: v * 0.5 for k, v in perceptron().state_dict().items()}
        net.map(lambda m: m.load_state_dict(state), net.modules)
        net.wait_all()


@pytest.mark.parametrize(
    "name",
    ["learning rate", "evaluation", "frozen", "accumulated", "scaled", "loaded, the old ones kept"],
)
def test_what_a_program_changes_between_two_steps_counts_in_the_next_one(name: str) -> None:
    def weights(settings: kit.Settings) -> tuple[list[Tensor], list[float]]:
        model = perceptron()
        model.insert(2, nn.Dropout(0.5))
        kept: list[Any] = []
        with net_on_one_cpu(model, 2, settings=settings) as net:
            net.map(lambda m: m[2].train(), net.modules)
            optimizer = fused(net)
            data = batches(20, 8)
            for x, y in data[:9]:
                net.step(loss_of, optimizer, x, y)
            if name.startswith("loaded"):
                for module in net.modules:
                    del module[2]
                for x, y in data[9:18]:
                    net.step(loss_of, optimizer, x, y)
            before = replays(net)
            changed(name, net, optimizer, kept)
            for x, y in data[18:]:
                net.step(loss_of, optimizer, x, y)
            found = [p.detach().cpu() for m in net.modules for p in m.parameters()]
            return found + [p.cpu() for part in kept for p in part], before

    expected, _ = weights(kit.Settings())
    got, before = weights(REPLAY)
    assert min(before) > 2
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_loss_that_puts_another_dict_of_state_in_a_variable_is_replayed() -> None:
    def mean_loss(settings: kit.Settings) -> tuple[Tensor, list[float]]:
        state: dict[str, Tensor] = {}

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            nonlocal state
            now = F.cross_entropy(model(x), y)
            before = state.get("mean", now.detach())
            state = {"mean": before * 0.5 + now.detach()}
            return now

        with net_on_one_cpu(perceptron(), 1, settings=settings) as net:
            optimizer = fused(net)
            for x, y in batches(14, 8):
                net.step(loss, optimizer, x, y)
            return state["mean"].cpu(), replays(net)

    expected, _ = mean_loss(kit.Settings())
    found, replayed = mean_loss(REPLAY)
    assert torch.equal(found, expected)
    assert replayed[0] > 4


@pytest.mark.parametrize("kind", ["texts", "tensors that are there already"])
def test_arguments_that_a_replay_cannot_bring_are_seen(kind: str) -> None:
    def weights(settings: kit.Settings) -> list[Tensor]:
        with net_on_one_cpu(perceptron(), 2, settings=settings) as net:
            optimizer = fused(net)
            here = [tuple(net.split(t) for t in pair) for pair in batches(3, 8)]

            def loss(model: nn.Module, x: Any, y: Any, way: str = "sum") -> Any:
                return F.cross_entropy(model(x), y) * (2.0 if way == "twice" else 1.0)

            for i in range(15):
                if kind == "texts":
                    x, y = batches(1, 8)[0]
                    net.step(loss, optimizer, x, y, "twice" if i > 10 else "once")
                else:
                    net.step(loss, optimizer, *here[i // 7])
            return [p.detach().cpu() for m in net.modules for p in m.parameters()]

    expected, got = weights(kit.Settings()), weights(REPLAY)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


class Tied(nn.Module):
    """Its last layer has the weights of its first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x).tanh())


@pytest.mark.parametrize("settings", [kit.Settings(), REPLAY], ids=["recorded", "replayed"])
def test_a_parameter_of_two_modules_has_one_gradient(settings: kit.Settings) -> None:
    model = Tied()
    alone = copy.deepcopy(model)
    reference = torch.optim.AdamW(alone.parameters(), lr=0.01)
    with net_on_one_cpu(model, 2, settings=settings) as net:
        optimizer = fused(net)
        for x, y in batches(8, 8):
            net.step(loss_of, optimizer, x, y)
            reference.zero_grad()
            loss_of(alone, x, y).backward()
            reference.step()
        for module in net.modules:
            close(module.parameters(), alone.parameters())


def test_a_read_has_not_waited_for_its_replicas_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is there as soon as the other one has sent its part, and goes on recording."""
    monkeypatch.setattr("kit.runtime.replicas.turns.STANDSTILL_S", 3600.0)
    begun, ends = threading.Event(), []

    def job(x: Tensor) -> float:
        session = replica_here()
        assert session is not None
        if session.rank == 0:
            total = all_sum(session, x.sum())
            begun.set()
            return float(total)
        with session.collectives.group.turns.while_waiting():
            begun.wait(30)
        total = all_sum(session, x.sum())
        waits, since = net.sessions[0].issuer.waits, time.perf_counter_ns()
        for _ in range(3000):
            if waits.until_ns > since:
                break
            time.sleep(0.01)
        time.sleep(0.05)
        ends.append(time.perf_counter_ns())
        return float(total)

    with net_on_one_cpu(perceptron(), 2) as net:
        parts = net.split(torch.ones(4))
        assert net.map(job, parts) == (4.0, 4.0)
        read = net.sessions[0].syncs[-1]
    assert read.at_ns + read.wait_ns < ends[0]
