"""Several replicas are one device on the whole batch; whatever goes wrong has a rank and an end.

The replicas here share the process's one CPU device: what differs with devices of their own is in
the subprocess at the end, because jax takes the number of devices once, before it begins.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kit
from kit.errors import ExecutionError, LoweringError, SessionError, SettingsError
from kit.frontend.torch_parallel import DataParallel
from kit.frontend.torch_parallel_barrier import Barrier, all_sum, replica_here
from kit.frontend.torch_parallel_batch import Shards
from kit.frontend.torch_parallel_norm import SyncBatchNorm

CLASSES = 4


def net_on_one_cpu(model: nn.Module, count: int, **options: Any) -> DataParallel:
    return DataParallel(model, ["cpu:0"] * count, **options)


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def batches(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    made = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 6, generator=made), torch.randint(0, CLASSES, (size,), generator=made))
        for _ in range(count)
    ]


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=tolerance, atol=tolerance)


def loss_of(model: nn.Module, x: Any, y: Any) -> Tensor:
    return F.cross_entropy(model(x), y)


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


class TwoHeads(nn.Module):
    """Two outputs, of a shared layer; the second head is used only where x begins above 0."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 5)
        self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 2)
        self.never = nn.Linear(5, 1)

    def forward(self, x: Any, use: Any = None) -> tuple[Any, Any]:
        h = self.trunk(x).tanh()
        return self.first(h), (self.second(h) if use is None or use.shape[0] > 3 else h[:, :2])


@pytest.fixture(scope="module")
def two() -> Iterator[DataParallel]:
    """Two replicas of a small network, for what needs no network of its own."""
    torch.manual_seed(0)
    with net_on_one_cpu(TwoHeads(), 2) as net:
        yield net


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
            assert "test_parallel.py:" in str(caught.value)
            assert float(whole[1].sum()) == 0


# -- batch normalisation -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((9, 3), {"momentum": None}),
        ((7, 2, 3, 4), {}),
        ((5, 3), {"affine": False, "track_running_stats": False}),
    ],
    ids=["vectors", "images", "no weights, no running statistics"],
)
def test_sync_batch_norm_is_batch_norm_of_the_whole_batch(
    shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Forward, backward and running statistics, with parts of unequal sizes."""
    kind: Any = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    torch.manual_seed(0)
    alone = kind(shape[1], **options)
    if alone.affine:
        nn.init.normal_(alone.weight)
        nn.init.normal_(alone.bias)
    model = copy.deepcopy(alone)
    with net_on_one_cpu(model, 2, sync_batch_norm=True, average=False) as net:
        assert {type(m) for m in net.modules} == {SyncBatchNorm}
        for tolerance, away in ((1e-5, 1), (1e-4, 100)):  # at 100, E[x^2] - E[x]^2 has no digits
            x = torch.randn(shape) + away
            weight = torch.randn(shape)
            whole = x.clone().requires_grad_()
            expected = alone(whole)
            (expected * weight).sum().backward()
            parts = net.map(lambda t: t.detach().requires_grad_(), net.split(x))
            outputs = net.map(lambda m, t: m(t), net.modules, parts)
            close([torch.cat([o.detach().cpu() for o in outputs])], [expected], tolerance)
            net.backward(net.map(lambda o, w: (o * w).sum(), outputs, net.split(weight)))
            close([torch.cat([p.grad.cpu() for p in parts])], [whole.grad], tolerance)
            for module in net.modules:
                close(
                    [p.grad for p in module.parameters()],
                    [p.grad for p in alone.parameters()],
                    1e-4,
                )
                close(module.buffers(), alone.buffers(), tolerance)
        net.map(lambda m: m.eval(), net.modules)
        outputs = net.map(lambda m, t: m(t), net.modules, net.split(x))
        close([torch.cat([o.detach().cpu() for o in outputs])], [alone.eval()(x)], tolerance)


def test_torchs_own_sync_batch_norm_runs_on_a_cpu_and_an_early_read_does_not_hang() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.SyncBatchNorm(3), nn.ReLU())
    x = torch.randn(8, 6)
    expected = nn.Sequential(model[0], nn.BatchNorm1d(3), nn.ReLU())(x)
    with net_on_one_cpu(model, 2) as net:

        def early(module: nn.Module, part: Any) -> Any:
            result = module(part)
            session = replica_here()
            if session is not None and session.rank == 0:
                result.sum().item()
            return result

        outputs = net.map(early, net.modules, net.split(x))
        close([torch.cat([o.detach().cpu() for o in outputs])], [expected])


# -- barriers ----------------------------------------------------------------------------------


def test_a_barrier_gives_all_the_same_of_tensors_that_nobody_has_computed(
    two: DataParallel,
) -> None:
    total, longest = Barrier(2), Barrier(2, lambda items: torch.cat(items).max())
    x = torch.arange(10.0)
    parts = two.split(x)
    syncs = [len(s.syncs) for s in two.sessions]
    sums = two.map(lambda t: total.wait(t.sum()), parts)
    tops = two.map(lambda t: longest.pull(longest.push(t * 2)), parts)
    assert two.map(lambda t: total.wait(len(t)), parts) == (10, 10)
    assert [len(s.syncs) for s in two.sessions] == syncs
    assert [float(t) for t in (*sums, *tops)] == [45, 45, 18, 18]


def test_a_barrier_refuses_more_or_fewer_than_there_are_and_mixed_gifts(two: DataParallel) -> None:
    with pytest.raises(SessionError, match=r"Barrier\(3\).*of 2 replicas: it would wait for ever"):
        two.map(Barrier(3).wait)
    with pytest.raises(SessionError, match=r"Barrier\(1\).*make it kit\.Barrier\(2\)"):
        two.map(Barrier(1).wait)
    with pytest.raises(SessionError, match="outside of a replica"):
        Barrier(2).wait()
    with pytest.raises(SettingsError, match="at least 1, not 0"):
        Barrier(0)
    barrier = Barrier(2)
    with pytest.raises(SessionError, match="bring the same kind of thing"):
        two.map(lambda t: barrier.wait(t if len(t) > 3 else 1), two.split(torch.ones(7)))
    with pytest.raises(SessionError, match="which it has not pushed"):
        two.map(lambda: barrier.pull(5))


# -- what goes wrong ---------------------------------------------------------------------------


def test_a_replica_that_fails_ends_the_step_of_all_which_then_has_never_been() -> None:
    (x, y), *_ = batches(1, 5)
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, CLASSES))
    alone = copy.deepcopy(model)
    with net_on_one_cpu(model, 2, sync_batch_norm=True) as net:
        optimizer = net.optimizer(torch.optim.SGD, lr=0.1)
        before = [p.detach().cpu() for m in net.modules for p in m.parameters()]

        def loss(module: nn.Module, x: Any, y: Any) -> Tensor:
            made = loss_of(module, x, y)
            if x.shape[0] == 2:
                raise KeyError("lost")
            return made

        with pytest.raises(KeyError, match="lost") as caught:
            net.step(loss, optimizer, x, y)
        assert "this was in replica 1 of 2, at test_parallel.py:" in caught.value.__notes__[-1]
        after = [p.detach().cpu() for m in net.modules for p in m.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        net.step(loss_of, optimizer, x, y)  # as if the other had never been
        net.wait_all()
        reference = torch.optim.SGD(alone.parameters(), lr=0.1)
        loss_of(alone, x, y).backward()
        reference.step()
        for module in net.modules:
            close(module.state_dict().values(), alone.state_dict().values())


def test_an_op_that_fails_names_its_replica_and_the_callers_line(two: DataParallel) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        two(torch.randn(4, 5))
    notes = "\n".join(caught.value.__notes__)
    assert "at test_parallel.py:" in notes
    assert "this was in replica" in notes


def test_arguments_that_cannot_be_are_refused_with_what_to_do(two: DataParallel) -> None:
    with pytest.raises(SettingsError, match=r"batch of 1 .* over 2 devices: replica 1 would have"):
        two(torch.randn(1, 6))
    with pytest.raises(SettingsError, match=r"different lengths, \[4, 5\]"):
        two.split((torch.ones(4), torch.ones(5)))
    with pytest.raises(SessionError, match="1 losses for 2 replicas"):
        two.backward([torch.ones(())])
    with pytest.raises(SessionError, match="no loss depends on a parameter"):
        two.backward(two.split(torch.ones(2)))
    with pytest.raises(SettingsError, match=r"must be a torch\.nn\.Module, not a list"):
        DataParallel([])  # type: ignore[arg-type]
    for wrong in ({"cut": "never"}, {"bucket_mb": 0}, {"timeout_s": 0}, {"devices": 0}):
        with pytest.raises(SettingsError):
            DataParallel(perceptron(), **wrong)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"'0\.weight' of the model is on meta"):
        DataParallel(perceptron().to("meta"), ["cpu:0"] * 2)
    with pytest.raises(SettingsError, match="step_mode='retrace'"):
        net_on_one_cpu(perceptron(), 2, settings=kit.Settings(step_mode="replay")).open()
    deferred = kit.Settings(loss_scaling="dynamic, deferred")
    with pytest.raises(SettingsError, match="take 'dynamic, on device'"):
        net_on_one_cpu(perceptron(), 2, settings=deferred).open()
    with pytest.raises(SessionError, match="in its `with` block"):
        net_on_one_cpu(perceptron(), 2)(torch.ones(4, 6))
    with pytest.raises(SessionError, match=r"kit:3 was asked for, but this code runs on kit:[01]"):
        two.map(lambda: torch.ones(2, device="kit:3"))


def test_a_parameter_that_was_moved_and_tensors_of_another_replica_are_found() -> None:
    x = torch.randn(4, 6)
    with net_on_one_cpu(perceptron(), 2) as net:
        parts = net.split(x)
        swapped = Shards(reversed(parts))
        with pytest.raises(SessionError, match="tensors of this session and of another session"):
            net.map(lambda m, t: m(t), net.modules, swapped)
        net.modules[1][0].weight = nn.Parameter(torch.zeros(16, 6))
        with pytest.raises(
            SettingsError, match=r"replica 1: parameter '0\.weight' is another .* cpu"
        ):
            net.backward(net.map(lambda m: m[2].bias.sum(), net.modules))


def test_replicas_that_do_different_work_are_told_apart_from_a_hang(two: DataParallel) -> None:
    def work(t: Any) -> Any:
        session = replica_here()
        assert session is not None
        return all_sum(session, t[: 2 + session.rank])

    with pytest.raises(SessionError, match=r"brings float32\[[23]\], replica [01] float32\[[23]\]"):
        two.map(work, two.split(torch.ones(8)))

    def unequal(t: Any) -> Any:
        session = replica_here()
        assert session is not None
        return [all_sum(session, t) for _ in range(1 + session.rank)][-1].sum().item()

    with pytest.raises(SessionError, match="replica 0 ended without coming"):
        two.map(unequal, two.split(torch.ones(8)))
    assert two.map(lambda t: float(t.sum()), two.split(torch.ones(8))) == (4.0, 4.0)


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
        [sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, timeout=180
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
