"""What goes wrong in one replica has its name, and an end for the others."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import kit
from kit.errors import SessionError, SettingsError
from kit.torch.parallel.barrier import all_sum, replica_here
from kit.torch.parallel.data_parallel import DataParallel
from kit.torch.parallel.shards import Shards
from tests.torch.parallel.replicas import (
    CLASSES,
    batches,
    close,
    loss_of,
    net_on_one_cpu,
    perceptron,
)


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
        note = caught.value.__notes__[-1]
        assert "this was in replica 1 of 2, at test_failures.py:" in note
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
    assert "at replicas.py:" in notes
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
        net_on_one_cpu(perceptron(), 2, settings=kit.Settings(step_mode="speculate")).open()
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


@pytest.mark.parametrize("cut", ["bucket", "size"])
def test_a_layer_that_is_used_twice_under_reentrant_checkpointing_is_refused(cut: str) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for _ in range(2):
                x = checkpoint(self.layer, x, use_reentrant=True)
            return x.square().mean()

    with kit.DataParallel(Twice(), devices=["cpu:0", "cpu:0"], cut=cut) as net:
        losses = net(torch.ones(4, 4))
        with pytest.raises(SessionError, match=r"'layer.*twice.*use_reentrant=False"):
            net.backward(losses)


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


def test_a_replica_that_brings_arrays_a_second_time_ends_the_wait_of_the_others() -> None:
    """What it has brought would be lost, and the others would add up arrays of two passes."""

    tried = threading.Event()

    def twice(rank: int) -> None:
        session = replica_here()
        assert session is not None
        x: Any = torch.ones(2, device="kit")
        if rank == 1:
            with session.collectives.group.turns.while_waiting():
                tried.wait(60)
            return
        try:
            for _ in range(2):
                value = x.kit_value()
                session.flush("bucket")
                session.collectives.post(0, "sum", [value], [value.aval], name="bucket 0")
        finally:
            tried.set()

    with net_on_one_cpu(perceptron(), 2) as net:
        said = "bucket 0: replica 0 brings arrays a second time, before replica 1 came"
        with pytest.raises(SessionError, match=said):
            net.map(twice, Shards(net.ranks))
