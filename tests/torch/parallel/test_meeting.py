"""Where replicas meet: batch normalisation of the whole batch, and barriers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from kit.errors import SessionError, SettingsError
from kit.torch.parallel.barrier import Barrier, replica_here
from kit.torch.parallel.batch_norm import SyncBatchNorm
from kit.torch.parallel.data_parallel import DataParallel
from tests.torch.parallel.replicas import close, net_on_one_cpu

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


def test_a_barrier_of_one_keeps_apart_what_is_pushed() -> None:
    barrier = Barrier(1)
    first, second = barrier.push(1), barrier.push(2)
    assert [barrier.pull(first), barrier.pull(second)] == [1, 2]


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


# -- turns ---------------------------------------------------------------------------------------


def test_replicas_record_one_after_the_other_and_a_read_lets_the_next_one(
    two: DataParallel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read needs what the other has yet to bring: it would fail after a minute."""
    monkeypatch.setattr("kit.runtime.replicas.turns.STANDSTILL_S", 3600.0)
    total, seen = Barrier(2), []

    def job(x: torch.Tensor) -> float:
        rank = replica_here().rank
        for _ in range(50):
            x = x + 1
            seen.append(rank)
        return float(total.wait(x.sum()))

    assert two.map(job, two.split(torch.zeros(4))) == (200, 200)
    assert [sum(seen[:50]), sum(seen[50:])] in ([0, 50], [50, 0])
