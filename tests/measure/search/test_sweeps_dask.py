"""`kit.sweep` over a dask cluster: its workers are processes, and some of them are killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import pytest
import torch
from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker
from distributed.utils import get_mp_context

import kit
from kit.errors import Cancelled, ExecutionError, SweepError, SweepInterrupted
from kit.measure.base.context import Workload
from kit.runs.run import Run
from kit.runs.settings import Settings

NATIVE = Settings(mode="torch", steps=1, warmup=0)
SEEDS = {"seed": [0, 1, 2, 3, 4, 5]}
LOCAL = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1",
         "dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}  # fmt: skip
GATE = threading.Event()  # opened by a test, for the workers that are threads of its process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two processes. They fork off one that has imported torch, so that a new one is there soon."""
    folder = str(tmp_path_factory.mktemp("dask"))
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        get_mp_context().set_forkserver_preload(
            ["distributed", "jax", "torch._dynamo", "kit.workloads"]
        )
        before = dict(os.environ)
        try:
            with LocalCluster(**LOCAL, processes=True, local_directory=folder) as cluster:
                yield cluster
        finally:
            for name in os.environ.keys() - before.keys():  # numbers of threads, for its processes
                del os.environ[name]
            os.environ.update(before)


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as client:
        yield client


@dataclass(frozen=True)
class Logged:
    """A step that costs nothing. Each build of a cell is a line in a file, with its process."""

    folder: Path
    then: Callable[[Path, int], None] = lambda folder, seed: None

    def __call__(self, ctx: Any) -> Callable[[], Any]:
        with (self.folder / f"built-{ctx.seed}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        self.then(self.folder, ctx.seed)
        loss = torch.tensor(float(10 + ctx.seed))
        return lambda: loss

    @property
    def workload(self) -> Workload:
        return Workload("logged", self)


def builders(folder: Path, seed: int) -> list[int]:
    """The process of each build of a cell."""
    file = folder / f"built-{seed}"
    return [int(pid) for pid in file.read_text().split("\n")[:-1]] if file.exists() else []


def last_waits_once(folder: Path, seed: int) -> None:
    if seed == 5 and len(builders(folder, seed)) == 1:
        raise TimeoutError(f"not killed: {threading.Event().wait(60)}")


def first_kills(folder: Path, seed: int) -> None:
    if seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def seeds_of(runs: list[Run]) -> list[int]:
    return [r.settings.seed for r in runs]


def saved(folder: Path) -> list[int]:
    return sorted(seeds_of([Run.load(file) for file in folder.iterdir()]))


def descent(ctx: Any) -> Callable[[], Any]:
    weights = torch.randn(64).to(ctx.device).requires_grad_()

    def step() -> Any:
        loss = weights.sin().square().sum()
        loss.backward()
        with torch.no_grad():
            weights.sub_(0.1 * weights.grad)
        return loss

    return step


def test_workers_give_the_same_losses_and_say_that_they_are_several(client: Client):
    chosen = Settings(mode="lazy", steps=3, warmup=1)
    runs = kit.sweep(descent, {"seed": [0, 1]}, chosen, executor=client.get_executor())
    alone = kit.sweep(descent, {"seed": [0, 1]}, chosen)
    assert [r.settings for r in runs] == [r.settings for r in alone]
    assert [r.losses for r in runs] == [r.losses for r in alone]
    assert len(set(runs[0].losses + runs[1].losses)) == 6
    assert {r.environment["measured in parallel"] for r in runs} == {"number of workers unknown"}


def test_a_cell_that_the_grid_holds_twice_is_measured_twice(client: Client, tmp_path: Path):
    workload = Logged(tmp_path).workload
    for times in (2, 4):
        kit.sweep(workload, {"seed": [5, 5]}, NATIVE, executor=client.get_executor())
        assert len(builders(tmp_path, 5)) == times


def test_a_workload_of_a_notebook_is_sent_whole(client: Client, monkeypatch: pytest.MonkeyPatch):
    main = sys.modules["__main__"]
    text = "def step_of(ctx): return lambda: torch.tensor(factor * kit.Settings(seed=2).seed)"
    for name, value in {"kit": kit, "torch": torch, "factor": 3.0, "step_of": None}.items():
        monkeypatch.setattr(main, name, value, raising=False)
    exec(text, vars(main))
    bare = main.step_of
    monkeypatch.setattr(main, "step_of", kit.workload(bare))
    for workload in (bare, main.step_of):
        (run,) = kit.sweep(workload, {"seed": [2]}, NATIVE, executor=client.get_executor())
        assert run.losses == (6.0,)


def test_a_closure_is_sent_and_its_errors_come_back(client: Client):
    scale = 0.5

    class Held(Exception):
        def __init__(self, what: str, why: str) -> None:
            super().__init__(f"{what} because of {why}")
            self.lock = threading.Lock()

    @kit.workload
    def scaled(ctx: Any) -> Any:
        if ctx.seed == 2:
            raise Held("stuck", "pickle")
        if ctx.seed == 3:
            raise ValueError("three")
        return lambda: scale * torch.tensor(float(ctx.seed))

    with pytest.raises(SweepError, match="seed=2: ExecutionError: Held: stuck because") as caught:
        kit.sweep(scaled, {"seed": [1, 2, 3]}, NATIVE, executor=client.get_executor())
    assert [r.losses for r in caught.value.runs] == [(0.5,)]
    portable = caught.value.failures[NATIVE.replace(seed=3)]
    assert (type(portable), str(portable)) == (ValueError, "three")
    assert "in scaled" in "".join(portable.__notes__)
    assert type(caught.value.failures[NATIVE.replace(seed=2)]) is ExecutionError


def test_a_killed_worker_loses_nothing(cluster: LocalCluster, client: Client, tmp_path: Path):
    built, runs = tmp_path / "built", tmp_path / "runs"
    built.mkdir()
    killed: list[int] = []

    def progress(text: str, fraction: float) -> None:
        at_last = builders(built, 5)
        if at_last and not killed and len(cluster.scheduler.tasks) == 1:
            killed.append(at_last[0])
            os.kill(at_last[0], signal.SIGKILL)

    workload = Logged(built, last_waits_once).workload
    swept = kit.sweep(
        workload, SEEDS, NATIVE, path=runs, progress=progress, executor=client.get_executor()
    )
    assert [r.losses for r in swept] == [(10.0 + seed,) for seed in range(6)]
    assert [len(builders(built, seed)) for seed in range(6)] == [1, 1, 1, 1, 1, 2]
    assert builders(built, 5)[0] == killed[0] != builders(built, 5)[1]
    assert saved(runs) == [0, 1, 2, 3, 4, 5]


def test_a_cell_that_kills_every_worker_fails_alone(
    cluster: LocalCluster, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    built, runs = tmp_path / "built", tmp_path / "runs"
    built.mkdir()
    workload = Logged(built, first_kills).workload
    with pytest.raises(SweepError, match="seed=0: KilledWorker: Attempted to run") as caught:
        kit.sweep(workload, SEEDS, NATIVE, path=runs, executor=client.get_executor())
    assert seeds_of(caught.value.runs) == saved(runs) == [1, 2, 3, 4, 5]
    ((cell, error),) = caught.value.failures.items()
    assert cell.seed == 0
    assert isinstance(error, KilledWorker)


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two workers in this process, which wait at the gate from the third cell on."""
    GATE.clear()
    folder = str(tmp_path / "dask")
    with LocalCluster(**LOCAL, processes=False, protocol="tcp://", local_directory=folder) as some:
        yield some


def two_go_through(folder: Path, seed: int) -> None:
    if seed >= 2 and not GATE.wait(60):
        raise TimeoutError("nobody opened the gate")


def raises(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


def ended_by(client: Client, folder: Path, end: Callable[[], None] | None) -> None:
    """A sweep that ends after two cells: by the call, or without one by being cancelled."""
    built, runs = folder / "built", folder / "runs"
    built.mkdir()

    def two_are_done() -> bool:
        return len(list(runs.iterdir())) == 2

    def progress(text: str, fraction: float) -> None:
        if end is not None and two_are_done():
            end()

    workload, cancelled = Logged(built, two_go_through).workload, None if end else two_are_done
    try:
        kit.sweep(workload, SEEDS, NATIVE, path=runs, executor=client.get_executor(),
                  progress=progress, cancelled=cancelled)  # fmt: skip
    finally:
        GATE.set()


def test_a_cancelled_sweep_keeps_what_is_done_and_waits_for_nobody(
    threads: LocalCluster, tmp_path: Path
):
    with Client(threads) as client, pytest.raises(Cancelled, match="2 of 6 cells done"):
        ended_by(client, tmp_path, None)
    assert saved(tmp_path / "runs") == [0, 1]


def test_an_interrupted_sweep_keeps_what_is_done_and_waits_for_nobody(
    threads: LocalCluster, tmp_path: Path
):
    with Client(threads) as client, pytest.raises(SweepInterrupted) as caught:
        ended_by(client, tmp_path, raises(KeyboardInterrupt()))
    assert seeds_of(caught.value.runs) == saved(tmp_path / "runs") == [0, 1]
    assert [cell.seed for cell in caught.value.missing] == [2, 3, 4, 5]


@pytest.mark.parametrize("gone", ["client", "scheduler"])
def test_a_cluster_that_goes_away_fails_the_cells_that_are_left(
    threads: LocalCluster, tmp_path: Path, gone: str
):
    with Client(threads) as client:
        ends = {"client": client.close, "scheduler": partial(threads.sync, threads.scheduler.close)}
        with pytest.raises(SweepError, match="seed=5: CancelledError: the executor") as caught:
            ended_by(client, tmp_path, ends[gone])
    assert seeds_of(caught.value.runs) == saved(tmp_path / "runs") == [0, 1]
    assert [cell.seed for cell in caught.value.failures] == [2, 3, 4, 5]
    with dask.config.set({"distributed.comm.timeouts.connect": "100ms"}):  # no scheduler answers
        threads.close()
