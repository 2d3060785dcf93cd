"""Several replicas are one device on the whole batch: steps, pieces of steps, their bits.

The replicas here share the process's one CPU device: what differs with devices of their own is in
the subprocess at the end, because jax takes the number of devices once, before it begins.
"""

from __future__ import annotations

import copy
import gc
import subprocess
import threading
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kit
from kit.errors import ExecutionError, LoweringError, SessionError
from kit.torch.parallel.barrier import Barrier, replica_here
from kit.torch.parallel.data_parallel import DataParallel
from tests.torch.parallel.replicas import (
    TwoHeads,
    batches,
    close,
    loss_of,
    net_on_one_cpu,
    perceptron,
)
from tests.warm import warm_python


@pytest.mark.parametrize(
    ("cut", "bulk"), [("bucket", 15), ("size", 3)], ids=["cut by bucket", "cut by size"]
)
def test_fifty_steps_have_the_gradients_and_weights_of_one_device_on_the_whole_batch(
    cut: str, bulk: int
) -> None:
    model = perceptron()
    alone = copy.deepcopy(model)
    reference = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    given = kit.Settings(bulk_forward=bulk, bulk_backward=bulk)
    with net_on_one_cpu(model, 3, settings=given, bucket_mb=0.0002, cut=cut) as net:
        optimizer = net.optimizer(torch.optim.AdamW, lr=1e-2)
        for i, (x, y) in enumerate(batches(50, 8)):  # parts of 3, 3 and 2
            losses = net.map(F.cross_entropy, net(x), net.split(y))
            net.backward(losses)
            expected = loss_of(alone, x, y)
            expected.backward()
            if i % 7 == 0:
                assert net.mean(losses) == pytest.approx(expected.item(), abs=1e-5)
                for module in net.modules:
                    close(
                        [p.grad for p in module.parameters()], [p.grad for p in alone.parameters()]
                    )
            optimizer.step()
            optimizer.zero_grad()
            reference.step()
            reference.zero_grad()
        for module in net.modules:
            close(module.parameters(), alone.parameters())
        first, *others = [[p.detach().cpu() for p in m.parameters()] for m in net.modules]
        assert all(torch.equal(a, b) for o in others for a, b in zip(first, o, strict=True))
        counts = net.sessions[1].metrics()
        assert counts["reduction.count"] == 100  # two buckets a step
        assert counts.get("cut.bucket", 0) == (100 if cut == "bucket" else 0)


def test_several_outputs_and_losses_and_a_part_of_the_model_that_one_replica_does_not_use(
    two: DataParallel,
) -> None:
    alone = TwoHeads()
    alone.load_state_dict({k: v.cpu() for k, v in two.modules[0].state_dict().items()})
    x = torch.randn(7, 6)  # parts of 4 and 3: the second one leaves out a head
    outputs = two(x, use=x)
    assert [type(o) for o in outputs] == [tuple, tuple]
    two.backward(two.map(lambda o: (o[0].square().mean(), o[1].abs().mean()), outputs))
    parts = [alone(x[:4], x[:4]), alone(x[4:], x[4:])]
    shares = (4 / 7, 3 / 7)
    losses = [
        (a.square().mean() + b.abs().mean()) * n for (a, b), n in zip(parts, shares, strict=True)
    ]
    sum(losses).backward()  # type: ignore[union-attr]
    for module in two.modules:
        got = dict(module.named_parameters())
        assert got["never.weight"].grad is None
        for name, p in alone.named_parameters():
            if p.grad is not None:
                close([got[name].grad], [p.grad])
    two.map(lambda m: m.zero_grad(), two.modules)


def test_accumulated_gradients_are_summed_once_and_a_second_pass_adds_to_the_sum() -> None:
    (x, y), (x2, y2), (x3, y3) = batches(3, 5)
    model = perceptron()
    alone = copy.deepcopy(model)
    with net_on_one_cpu(model, 2) as net:
        with net.no_sync():
            net.backward(net.map(F.cross_entropy, net(x), net.split(y)))
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        with pytest.raises(SessionError, match="have not been reduced, so the replicas would part"):
            optimizer.step()
        assert net.sessions[0].metrics().get("reduction.count", 0) == 0
        for a, b in ((x2, y2), (x3, y3)):
            net.backward(net.map(F.cross_entropy, net(a), net.split(b)))
        for a, b in ((x, y), (x2, y2), (x3, y3)):
            loss_of(alone, a, b).backward()
        for module in net.modules:
            close([p.grad for p in module.parameters()], [p.grad for p in alone.parameters()])


def test_a_programs_own_backward_is_summed_too_and_only_in_a_replicas_thread() -> None:
    x, y = batches(1, 5)[0]
    model = perceptron()
    alone = copy.deepcopy(model)
    with net_on_one_cpu(model, 2) as net:
        parts = net.split(x), net.split(y)
        net.map(lambda m, x, y: loss_of(m, x, y).backward(), net.modules, *parts)
        loss_of(alone, x, y).backward()
        for module in net.modules:
            close([p.grad for p in module.parameters()], [p.grad for p in alone.parameters()])
        losses = net.map(loss_of, net.modules, *parts)
        with pytest.raises(SessionError, match="loss of replica 1 outside of its thread"):
            losses[1].backward()


def test_a_whole_step_is_its_pieces_and_its_bits_do_not_depend_on_who_is_late() -> None:
    weights = []
    for late in (0, 1):
        with net_on_one_cpu(perceptron(), 2, bucket_mb=0.0002) as net:
            optimizer = net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)

            def loss(model: nn.Module, x: Any, y: Any, late: int = late) -> Tensor:
                session = replica_here()
                assert session is not None
                time.sleep(0.004 * (session.rank == late))
                return loss_of(model, x, y)

            losses = [net.step(loss, optimizer, x, y) for x, y in batches(6, 7)]
            assert all(not t.requires_grad for pair in losses for t in pair)
            weights.append([p.detach().cpu() for p in net.modules[1].parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    alone = perceptron()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(6, 7):
        loss_of(alone, x, y).backward()
        reference.step()
        reference.zero_grad()
    close(weights[0], alone.parameters())


def test_one_device_has_no_threads_of_its_own_and_the_same_interface() -> None:
    gc.collect()  # what earlier tests left is ended by a thread
    before = set(threading.enumerate())
    model = perceptron()
    alone = copy.deepcopy(model)
    (x, y), *_ = batches(1, 5)
    with DataParallel(model, 1) as net:
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        losses = net.step(loss_of, optimizer, x, y)
        assert {t.name for t in set(threading.enumerate()) - before} == {"kit worker"}
        assert net.mean(losses) == pytest.approx(loss_of(alone, x, y).item(), abs=1e-5)
        assert Barrier(1).wait(3) == 3


def test_an_error_of_a_device_names_replica_and_line_at_the_call_or_when_it_is_read() -> None:
    def unlucky(x: Any) -> Any:
        raise ValueError("no such luck")

    class Unlucky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.erfinv() if x.shape[0] == 1 else x

    rules = kit.Rules({"aten.erfinv.default": unlucky}).over(kit.DEFAULT_RULES)
    for sync in (True, False):
        with net_on_one_cpu(Unlucky(), 2, sync=sync, rules=rules) as net:
            whole = net(torch.zeros(4))
            assert [len(s.syncs) for s in net.sessions] == [int(sync)] * 2

            def call(net: DataParallel = net, sync: bool = sync) -> None:
                failing = net(torch.zeros(3))
                assert not sync
                float(failing[1])

            with pytest.raises((LoweringError, ExecutionError), match="no such luck") as caught:
                call()
            assert "this was in replica 1" in "".join(caught.value.__notes__)
            assert "test_data_parallel.py:" in str(caught.value)
            assert float(whole[1].sum()) == 0


# -- devices of their own ----------------------------------------------------------------------

TWO_DEVICES = """
import torch, kit
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
alone = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
alone.load_state_dict(model.state_dict())
reference = torch.optim.SGD(alone.parameters(), lr=0.1)
with kit.DataParallel(model, devices=2) as net:
    optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
    for _ in range(5):
        x, y = torch.randn(7, 6), torch.randint(0, 4, (7,))
        net.step(lambda m, x, y: F.cross_entropy(m(x), y), optimizer, x, y)
        F.cross_entropy(alone(x), y).backward(); reference.step(); reference.zero_grad()
    for m in net.modules:
        for p, q in zip(m.parameters(), alone.parameters()):
            torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-5, atol=1e-5)
    weights = [m[0].weight for m in net.modules]
    print([str(w.device) for w in weights])
    print([str(w.kit_value().cell.array.devices()) for w in weights])
try:
    kit.DataParallel(model, devices=3)
except kit.errors.SettingsError as error:
    print(error)
"""


def test_two_devices_of_a_cpu_are_used_and_a_third_is_refused_with_what_to_do() -> None:
    done = subprocess.run(
        [warm_python(), "-c", TWO_DEVICES], capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    names, homes, error = done.stdout.strip().splitlines()
    assert names == "['kit:0', 'kit:1']"
    assert "id=0" in homes
    assert "id=1" in homes
    assert error.startswith(
        "devices=3, but jax sees 2 cpu devices: it was told so, or began before"
    )
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=3" in error


def test_an_error_while_replicas_are_watched_leaves_no_recording_on() -> None:
    """Each later step added its spans to those of the block."""
    words, table = torch.full((2,), 99), torch.ones(3, 2)

    def lookup(_: Tensor) -> Tensor:
        return F.embedding(words.to("kit"), table.to("kit"))

    def watched(net: DataParallel) -> None:
        with net.watched():
            net.map(lookup, net.split(torch.ones(4, 1)))

    with net_on_one_cpu(perceptron(), 2) as net:
        with pytest.raises(IndexError, match="index out of range"):
            watched(net)
        assert not net._collectives.is_tracing
        assert not any(session.issuer.executor.is_tracing for session in net.sessions)
