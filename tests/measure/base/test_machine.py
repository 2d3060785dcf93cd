"""What the machine did meanwhile: the sums by made readings, the readings by this machine's own."""

from __future__ import annotations

import contextlib
import gc
import math
import mmap
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import kit
from kit.measure.base.machine import (
    Reading,
    Usage,
    Watch,
    conditions_of,
    read_machine,
    usage_between,
)
from kit.runs.conditions import Conditions, doubt

START = Reading(
    at_s=10.0, cores=2.0, busy_s=100.0, steal_s=1.0, own_s=30.0, load=1.5, clock_mhz=3000.0,
    collections=7.0, system_s=8.0, faults=1000.0, threads_s={1: 5.0, 2: 1.0, 3: 0.0},
)  # fmt: skip


def after(**changes: Any) -> Reading:
    return Reading(**{**vars(START), "at_s": 14.0, **changes})


def test_what_others_took_is_what_the_cores_did_less_ones_own() -> None:
    end = after(busy_s=106.0, own_s=32.8, steal_s=1.4, collections=10.0, clock_mhz=2500.0,
                system_s=9.0, faults=401_000.0, threads_s={1: 7.0, 2: 1.4, 4: 9.0})  # fmt: skip
    usage = usage_between(START, end, strangers=[2, 3, 4], own=[1])
    assert (usage.busy, usage.own) == (pytest.approx(1.5), pytest.approx(0.7))
    found = conditions_of([usage])
    assert found.others == pytest.approx(0.8)
    assert found.threads == pytest.approx(0.1)  # of number 2: 3 has ended, 4 is newer than the run
    assert found.own_threads == pytest.approx(0.5)
    assert "0.5 cores of its own other threads of Python" in str(found)
    assert found.steal == pytest.approx(0.1)
    assert (found.cores, found.load, found.collections) == (2.0, 1.5, 3.0)
    assert (found.system, found.fresh_pages) == (0.25, 100_000)
    told = "0.25 cores of its own in the operating system, 100,000 fresh pages a second"
    assert told in str(found)
    assert "operating system" not in str(replace(found, fresh_pages=9_000.0))
    assert (found.clock_before_mhz, found.clock_after_mhz) == (3000.0, 2500.0)


def test_under_a_limit_others_may_use_the_cores_beyond_it() -> None:
    """A container with two of eight cores loses nothing while others take six."""
    start = Reading(**{**vars(START), "spare": 6.0, "limited_s": 3.0})
    end = after(busy_s=130.0, own_s=36.0, limited_s=4.0)  # 7.5 cores, of which 1.5 its own
    found = conditions_of([usage_between(start, end)])
    assert found.others == 0.0
    assert found.throttled == pytest.approx(0.25)
    full = conditions_of([usage_between(start, after(busy_s=130.0, own_s=34.0))])
    assert full.others == pytest.approx(0.5)  # of the two
    assert math.isnan(full.throttled)


def test_without_psutil_nothing_of_the_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.measure.base.machine.psutil", None)
    watch = Watch()
    watch.begin()
    assert str(conditions_of([watch.end()])) == ""


def test_without_proc_nothing_of_the_machine_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """NoSuchProcess of this very process ended the run."""

    def gone() -> None:
        raise psutil.NoSuchProcess(os.getpid())

    monkeypatch.setattr("kit.measure.base.machine.psutil.Process", gone)
    watch = Watch()
    watch.begin()
    assert str(conditions_of([watch.end()])) == ""


def test_what_is_not_known_stays_unknown() -> None:
    nothing = conditions_of([usage_between(Reading(), Reading())])
    assert str(nothing) == ""
    short = conditions_of([usage_between(START, after(at_s=10.2, busy_s=100.02, own_s=30.0))])
    assert math.isnan(short.others)  # two ticks of the clock, or none
    made_up = conditions_of([usage_between(START, after(busy_s=100.0, own_s=33.0))])
    assert math.isnan(made_up.others)  # a sandbox whose counters stand still
    silent = conditions_of([usage_between(START, after(busy_s=math.nan, own_s=33.0))])
    assert math.isnan(silent.others)
    less = conditions_of([usage_between(START, after(busy_s=103.0, own_s=33.1))])
    assert less.others == 0.0


def test_the_other_processes_of_a_run_are_no_strangers_to_it() -> None:
    def usage(host: str, busy: float, own: float) -> Usage:
        return Usage(host, busy, own, Conditions(cores=4.0, threads=0.0))

    here = [usage("a", 3.0, 1.4), usage("a", 3.2, 1.5)]
    assert conditions_of(here).others == pytest.approx(0.2)
    both = conditions_of([*here, usage("b", 3.9, 1.0)])
    assert both.others == pytest.approx(2.9)


class Burner(threading.Thread):
    """Uses the processor until it is stopped, and counts what it has done."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0
        self._stop_it = threading.Event()

    def run(self) -> None:
        while not self._stop_it.wait(0.0005):
            sum(range(20_000))
            self.done += 1

    def __enter__(self) -> Burner:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_it.set()
        self.join()


def test_a_real_reading_knows_its_cores_its_threads_and_what_it_took() -> None:
    with Burner() as burner:
        before = read_machine()
        while before.threads_s.get(burner.native_id or 0, 0.0) < 0.1:
            before = read_machine()
        gc.collect()
        later = read_machine()
    assert before.cores == len(psutil.Process().cpu_affinity())
    assert later.collections > before.collections
    assert later.full_collections > before.full_collections
    assert later.own_s > before.own_s


def test_fresh_pages_are_counted() -> None:
    size = os.sysconf("SC_PAGESIZE")
    before = read_machine()
    fresh = mmap.mmap(-1, 1000 * size)
    for i in range(1000):
        fresh[i * size] = 1
    assert read_machine().faults - before.faults >= 900  # some may come by two
    assert read_machine().system_s >= before.system_s


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_thread_of_the_users_own_is_seen_and_one_that_waits_is_not(mode: str) -> None:
    burner = Burner()

    @kit.workload
    def beside_it(ctx: Any) -> Any:
        model = torch.nn.Linear(8, 8).to(ctx.device)
        x = torch.ones(2, 8).to(ctx.device)

        def step() -> Any:
            until = burner.done + 100  # some 50 ms of the other thread's work, however slow
            while burner.is_alive() and burner.done < until:
                time.sleep(0.001)
            if not burner.is_alive():
                time.sleep(0.05)
            return model(x).square().mean()

        return step

    settings = kit.Settings(mode=mode, steps=8, warmup=1)
    with burner:
        run = kit.run(beside_it, settings)
    assert run.conditions.threads > 0
    assert kit.run(beside_it, settings).conditions.threads < run.conditions.threads


@pytest.mark.parametrize("is_before", [True, False])
def test_only_a_thread_that_was_there_before_the_watch_is_no_part_of_the_loop(
    is_before: bool,
) -> None:
    """A loop that loads its batches in a thread of its own, begun before the first step."""
    burner, weight = Burner(), torch.ones(8, 8)
    with contextlib.ExitStack() as around:
        if is_before:
            around.enter_context(burner)
        watch = around.enter_context(kit.watch(steps=8, skip=1))
        if not is_before:
            around.enter_context(burner)
        while not watch.runs:
            until = burner.done + 50
            while burner.done < until:
                time.sleep(0.001)
            (weight @ weight).sum()
            watch.step()
    assert (watch.run.conditions.threads > 0) == is_before


RANK = """
import psutil
from kit.measure.base.machine import read_machine
(sibling,) = [x for x in psutil.Process().parent().children() if x.pid != psutil.Process().pid]
before, taken = read_machine(), sibling.cpu_times().user
while sibling.cpu_times().user < taken + 0.5:
    psutil.time.sleep(0.02)
print(read_machine().own_s - before.own_s)
"""
LAUNCHER = """
import subprocess, sys
busy = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"])
try:
    subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
finally:
    busy.kill()
"""


@pytest.mark.parametrize(
    ("said", "is_job"),
    [
        ({"LOCAL_WORLD_SIZE": "1"}, False),
        ({"LOCAL_WORLD_SIZE": "2"}, True),  # torchrun
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3)"}, True),
        ({"SLURM_NTASKS": "2"}, False),  # a batch job's, without srun
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
    ],
)
def test_another_rank_that_the_launcher_has_started_is_part_of_the_job(
    said: dict[str, str], is_job: bool
) -> None:
    told = subprocess.run(
        [sys.executable, "-c", LAUNCHER, RANK],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **said},
    )
    assert (float(told.stdout) > 0.45) == is_job


def _rank(rank: int, folder: Path) -> None:
    """One of two: the first computes until the second has seen that, which watches a loop."""
    torch.set_num_threads(1)
    group = torch.distributed.FileStore(str(folder / "store"), 2)
    torch.distributed.init_process_group("gloo", store=group, rank=rank, world_size=2)
    if rank == 0:
        while not (folder / "seen").exists():
            sum(range(10_000))
        return
    others = [x for x in psutil.Process(os.getppid()).children() if x.pid != os.getpid()]
    before = read_machine()
    taken = max(child.cpu_times().user for child in others)
    while max(child.cpu_times().user for child in others) < taken + 0.5:
        time.sleep(0.02)
    own = read_machine().own_s - before.own_s
    with kit.watch(1, skip=0, save=folder / "step.kitrun") as watch:
        for _ in range(3):
            watch.step()
    (folder / "seen").write_text(str(own), "utf-8")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no groups")
def test_a_rank_that_multiprocessing_has_started_is_one_though_no_launcher_says_so(
    tmp_path: Path,
) -> None:
    torch.multiprocessing.spawn(_rank, args=(tmp_path,), nprocs=2)
    assert float((tmp_path / "seen").read_text("utf-8")) > 0.45
    assert [file.name for file in tmp_path.glob("*.kitrun")] == ["step_rank1.kitrun"]


def test_what_others_took_of_few_short_steps_is_what_they_took_since_the_run_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten steps of 7 ms on two full cores: nothing was known, and the verdict was sure."""
    ends = (
        replace(START, threads_s={2: 0.0}),
        after(at_s=12.0, busy_s=103.9, own_s=30.5, threads_s={2: 1.0}),
        after(at_s=12.1, busy_s=104.0, own_s=30.6, steal_s=1.2, threads_s={2: 1.1}),
    )
    readings = iter(ends)
    monkeypatch.setattr("kit.measure.base.machine.read_machine", lambda: next(readings))
    watch = Watch()
    watch.begin()
    watch.end()
    found = watch.conditions(warmup=6)
    assert found.others == pytest.approx(3.4 / 2.1)
    assert found.steal == pytest.approx(0.2 / 2.1)
    assert doubt(found).startswith("measured on a busy machine: others used 1.62 of 2 cores")
    assert math.isnan(found.system)  # the program's own is another before the steps


def test_another_process_is_seen_and_said() -> None:
    busy = f"{sys.executable} -c 'while True: sum(range(1000))' > /dev/null 2>&1 & echo $!"
    told = subprocess.run(["sh", "-c", busy], check=True, capture_output=True, text=True)
    stranger = psutil.Process(int(told.stdout))  # the shell has ended: it is nobody's child here
    try:
        watch = Watch()
        watch.begin()
        taken = stranger.cpu_times().user
        while stranger.cpu_times().user < taken + 0.5:
            threading.Event().wait(0.05)
        found = conditions_of([watch.end()])
    finally:
        stranger.kill()
    assert found.others > 0.1
