"""`torch.distributed` on device kit: two processes, each collective against the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import multiprocessing, nn

from kit.torch.device import open_session


def numbers(rank: int, *shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) * (rank + 1)


def all_reduce(d: str, rank: int) -> Any:
    x = numbers(rank, 2).to(d)
    dist.all_reduce(x)
    y = numbers(rank, 2, 2).to(d)
    work = dist.all_reduce(y, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    return [x, y]


def all_gather(d: str, rank: int) -> Any:
    parts = [torch.zeros(2).to(d) for _ in range(2)]
    dist.all_gather(parts, numbers(rank, 2).to(d))
    return parts


def broadcast_reduce(d: str, rank: int) -> Any:
    x, y = numbers(rank, 2).to(d), numbers(rank, 2).to(d)
    dist.broadcast(x, 1)
    dist.reduce(y, 0)
    return [x, y] if rank == 0 else [x]


def scatter_gather(d: str, rank: int) -> Any:
    got = torch.zeros(2).to(d)
    dist.scatter(got, [numbers(i + 3, 2).to(d) for i in range(2)] if rank == 0 else None, 0)
    parts = [torch.zeros(2).to(d) for _ in range(2)] if rank == 0 else None
    dist.gather(got * 2, parts, 0)
    return [got, *(parts or [])]


def reduce_scatter(d: str, rank: int) -> Any:
    out = torch.zeros(2).to(d)
    dist.reduce_scatter(out, [numbers(rank, 2).to(d), numbers(rank + 5, 2).to(d)])
    return [out]


def all_to_all(d: str, rank: int) -> Any:
    out = torch.zeros(4).to(d)
    dist.all_to_all_single(out, numbers(rank, 4).to(d))
    return [out]


def into_a_view(d: str, rank: int) -> Any:
    x = numbers(rank, 2, 2).to(d)
    dist.all_reduce(x[0])
    return [x]


PROGRAMS: dict[str, Callable[[str, int], Any]] = {
    f.__name__: f
    for f in (
        all_reduce, all_gather, broadcast_reduce, scatter_gather, reduce_scatter, all_to_all,
        into_a_view,
    )
}  # fmt: skip


def gradients(d: str, rank: int) -> Any:
    """Data parallel by hand: sum the gradients of two processes."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to(d)
    model(numbers(rank, 1, 2).to(d)).square().sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    return [p.grad for p in model.parameters()]


def in_each_process(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for name, program in {**PROGRAMS, "gradients": gradients}.items():
        expected = [x.detach().clone() for x in program("cpu", rank)]
        with open_session() as session:
            got = [x.detach().cpu() for x in program("kit", rank)]
            waits = [sync.site for sync in session.syncs if sync.cause.startswith("collective")]
        found[name] = (expected, got, waits)
    with open_session():
        try:
            nn.parallel.DistributedDataParallel(nn.Linear(2, 1).to("kit"))
        except RuntimeError as error:
            found["ddp"] = str(error)
        try:
            dist.recv(torch.zeros(2, device="kit"), 1 - rank)
        except RuntimeError as error:
            found["recv"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, warm_processes: None
) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("collectives")
    multiprocessing.spawn(in_each_process, args=(str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", [*PROGRAMS, "gradients"])
def test_a_collective_gives_on_the_device_what_it_gives_on_the_cpu(
    name: str, outcomes: list[dict[str, Any]]
) -> None:
    for found in outcomes:
        expected, got, waits = found[name]
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g, e)
        assert waits  # a collective is a sync point, with its line
        assert all("test_collectives.py" in site for site in waits)


def test_what_cannot_work_says_what_to_use(outcomes: list[dict[str, Any]]) -> None:
    assert all("kit.DataParallel" in found["ddp"] for found in outcomes)
    assert all("send x.cpu()" in found["recv"] for found in outcomes)
    with open_session():
        model = nn.DataParallel(nn.Linear(2, 1)).to("kit")
        with pytest.raises(RuntimeError, match=r"kit\.DataParallel"):
            model(torch.ones(1, 2, device="kit"))
        with pytest.raises(RuntimeError, match=r"kit\.DataParallel"):
            torch.ones(2, device="kit").share_memory_()
