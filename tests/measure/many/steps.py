"""Steps of several processes: a small net, and such as stop, die, sleep or read in one of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import nn

import kit
from kit.runs.settings import Settings
from kit.runtime.processes.join import current_processes
from kit.torch.parallel.barrier import replica_here

SETTINGS = Settings(steps=4, warmup=1, batch_size=7)  # 7 over 2 or 4: uneven parts
SHIFT_NS = 5_000_000_000
# The script of a user, for the command line and for a parent that is killed.
SCRIPT = """
import torch, torch.nn.functional as F, kit
from torch import nn
print("reading the data")

@kit.workload
def mine(ctx):
    net = nn.Linear(6, 4).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    batches = ctx.loader(torch.utils.data.TensorDataset(torch.randn(8, 6), torch.randn(8, 4)))
    def step():
        optimizer.zero_grad()
        a, b = next(batches)
        loss = F.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        return loss
    return step
"""


def rank() -> int:
    """Of the process that this runs in; 0 if there is but one."""
    joined = current_processes()
    return 0 if joined is None else joined.rank


@kit.workload
def classify(ctx: kit.Context) -> Callable[[], Any]:
    """A small net with statistics of the whole batch."""
    net = nn.Sequential(nn.Linear(6, 16), kit.SyncBatchNorm(16), nn.ReLU(), nn.Linear(16, 4))
    net = net.to(ctx.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, capturable=True)
    x, y = torch.randn(21, 6), torch.randint(0, 4, (21,))
    batches = ctx.loader(torch.utils.data.TensorDataset(x, y))

    def step() -> Any:
        optimizer.zero_grad()
        a, b = next(batches)
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        optimizer.step()
        return loss

    return step


@kit.workload
def lopsided(ctx: kit.Context) -> Callable[[], Any]:
    """Three buckets, of which the second has gradients in the last replica only."""
    torch.manual_seed(0)
    first, second, third = (nn.Linear(512, 512) for _ in range(3))
    net = nn.ModuleList([first, second, kit.SyncBatchNorm(512), third]).to(ctx.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, 512)
    batches = ctx.loader(torch.utils.data.TensorDataset(x))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            replica = replica_here()
            y = torch.tanh(self.parts[0](x))
            if replica is None or replica.rank == 1:
                y = y + self.parts[1](y)
            return self.parts[3](self.parts[2](y))  # type: ignore[no-any-return]

    whole = Whole()

    def step() -> Any:
        optimizer.zero_grad()
        (a,) = next(batches)
        loss = whole(a).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def at_step(ctx: kit.Context, number: int, act: Callable[[], None]) -> Callable[[], Any]:
    """The same workload, with something that happens in the last process at one step."""
    step, calls = classify.build(ctx), iter(range(1000))

    def acting() -> Any:
        joined = current_processes()
        if joined is not None and rank() == joined.count - 1 and next(calls) == number:
            act()
        return step()

    return acting


@kit.workload
def raises(ctx: kit.Context) -> Callable[[], Any]:
    def act() -> None:
        raise ValueError("the data of this shard is broken")

    return at_step(ctx, 2, act)


@kit.workload
def dies(ctx: kit.Context) -> Callable[[], Any]:
    return at_step(ctx, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))


@kit.workload
def first_dies(ctx: kit.Context) -> Callable[[], Any]:
    step, calls = classify.build(ctx), iter(range(1000))

    def dying() -> Any:
        if next(calls) == 2 and current_processes() is not None and rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return step()

    return dying


@kit.workload
def last_sleeps(ctx: kit.Context) -> Callable[[], Any]:
    return at_step(ctx, 2, lambda: time.sleep(1000))


@kit.workload
def last_hangs(ctx: kit.Context) -> Callable[[], Any]:
    return hangs(ctx, 1)


@kit.workload
def first_hangs(ctx: kit.Context) -> Callable[[], Any]:
    return hangs(ctx, 0)


def hangs(ctx: kit.Context, who: int) -> Callable[[], Any]:
    """All threads of a process stand still, and its connections stay open."""
    step, calls = classify.build(ctx), iter(range(1000))

    def hanging() -> Any:
        if next(calls) == 2 and current_processes() is not None and rank() == who:
            os.kill(os.getpid(), signal.SIGSTOP)
        return step()

    return hanging


@kit.workload
def last_reads(ctx: kit.Context) -> Callable[[], Any]:
    step = classify.build(ctx)

    def reading() -> Any:
        loss = step()
        if rank():
            loss.item()
        return loss

    return reading


def other_by_process() -> kit.Workload:
    """Another workload in each process, as of hosts with other versions of a script."""
    return last_reads if rank() else classify


@kit.workload
def first_sleeps(ctx: kit.Context) -> Callable[[], Any]:
    """The first process comes later than the others to each reduction."""
    step = classify.build(ctx)

    def sleeping() -> Any:
        if not rank():
            time.sleep(0.02)
        return step()

    return sleeping


def shifted_classify() -> kit.Workload:
    """`classify`, in a process whose clock is ahead by 5 s if it is not the first."""
    if rank():
        from kit.runtime.recording import bulk as stream

        real = time.perf_counter_ns

        def ahead() -> int:
            return real() + SHIFT_NS

        time.perf_counter_ns = stream.perf_counter_ns = ahead
    return classify


def children(pid: int | None = None) -> list[psutil.Process]:
    """The processes that a run has started and not ended: of this process, or of another one."""
    if pid is None:  # these are no children of its own, but of the server that they are forks of
        return [psutil.Process(child.pid) for child in multiprocessing.active_children()]
    return [child for child in psutil.Process(pid).children() if _is_of_a_run(child)]


def _is_of_a_run(child: psutil.Process) -> bool:
    try:
        return any("spawn_main" in arg for arg in child.cmdline())
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return False
