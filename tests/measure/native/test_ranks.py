"""Native steps of the ranks of a job: as many on each, and waits for the others are seen."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kit
from kit.runs.settings import Settings
from kit.runs.steady import LEAST_STEPS, MOST_WARMUP

pytestmark = pytest.mark.usefixtures("one_torch_thread")
WAIT_S = 0.02


def counted(settings: Settings, nap_s: Callable[[int], float]) -> tuple[int, kit.Run]:
    """How many steps a native run takes whose n-th one lasts so long."""
    done = 0

    def build(ctx: kit.Context) -> Callable[[], Any]:
        def step() -> Any:
            nonlocal done
            time.sleep(nap_s(done))
            done += 1
            return torch.ones(4).sum()

        return step

    made = kit.run(kit.Workload("naps", build), settings)
    return done, made


def test_all_ranks_of_a_job_take_equally_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = Settings(mode="torch", device="cpu")
    steady, run = counted(settings, lambda n: 0.001)
    faster, _ = counted(settings, lambda n: 0.02 / (n + 1))
    assert steady == faster
    assert (len(run.step_times_ns), run.conditions.warmup_steps) == (LEAST_STEPS, MOST_WARMUP)
    assert any("the ranks of a job must run equally many steps" in x for x in run.timeline.notes)


def test_a_rank_takes_as_many_steps_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = Settings(mode="torch", device="cpu", warmup=1, steps=4)
    _, run = counted(settings, lambda n: 0.001)
    assert len(run.step_times_ns) == 4
    assert not any("ranks" in x for x in run.timeline.notes)


@pytest.fixture
def pair() -> Iterator[Any]:
    """One of two groups of gloo, whose other rank comes late to each all-reduce."""
    store = dist.HashStore()
    groups: list[Any] = [None, None]

    def join(rank: int) -> None:
        groups[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=30))

    asked = threading.Semaphore(0)
    is_over = threading.Event()

    def late() -> None:
        join(1)
        while asked.acquire() and not is_over.is_set():
            time.sleep(WAIT_S)
            groups[1].allreduce([torch.ones(4)]).wait()

    thread = threading.Thread(target=late)
    thread.start()
    join(0)

    def all_reduce() -> None:
        asked.release()
        groups[0].allreduce([torch.ones(4)]).wait()

    yield all_reduce
    is_over.set()
    asked.release()
    thread.join()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread does")
def test_a_wait_for_another_rank_is_communication_and_no_sleep(pair: Callable[[], None]) -> None:
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with kit.watch(steps=1, skip=1) as watch:
        for _ in range(8):
            loss = net(torch.ones(4, 8)).sum()
            optimizer.zero_grad()
            loss.backward()
            pair()
            optimizer.step()
    run = watch.run
    waits = [s for s in run.timeline.spans if s.kind == "communication"]
    assert {(s.lane, s.name) for s in waits} == {("device/0 collectives", "gloo:all_reduce")}
    exposed = {row.category: row.exposed_ms for row in run.breakdown()}
    assert exposed["communication"] > WAIT_S * 1e3 * 0.9
    assert exposed.get("host waits elsewhere", 0.0) < WAIT_S * 1e3 * 0.5
    assert run.limited_by().what == "communication"
