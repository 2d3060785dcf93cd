"""What a step frees is there for the next one: no kernel waits for the system to clear a page."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kit.runtime.profiling.heap import ONE_HEAP, keep_freed_memory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap is asked")

STEPS = """
import itertools, resource, statistics, sys, threading
import torch
import kit

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

end = threading.Event()
def hold():  # a heap of its own, as the threads of a notebook's kernel have
    bytes(1 << 16)
    end.wait()
for _ in range(int(sys.argv[1])):
    threading.Thread(target=hold, daemon=True).start()

with kit.Session(kit.Settings(mode="lazy", bulk_forward=1000)):
    x = torch.ones(4096, 64, device="kit")
    w = torch.ones(64, 4096, device="kit")
    counted = [faults()]
    for _ in range(15):  # of nine, five were seen to take fresh pages on a busy machine
        y = (x @ w).exp()  # 64 MB
        y = (y - y.sum(1, keepdim=True)).t() @ x
        y.sum().item()
        counted.append(faults())
print(statistics.median(b - a for a, b in itertools.pairwise(counted)))  # the heap may grow once
"""
PAGES = 64 * 2**20 // os.sysconf("SC_PAGESIZE")


def faults_of_a_step(tuning: dict[str, str], threads: int = 0) -> int:
    """Pages that a step of 64 MB is given fresh, in a process of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(threads)], env=kept | {"PYTHONPATH": root} | tuning,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(float(done.stdout.split()[-1]))


def test_a_step_uses_the_memory_that_the_step_before_freed() -> None:
    assert faults_of_a_step({}) < PAGES / 20


def test_glibc_is_left_alone_where_its_user_has_set_it() -> None:
    assert faults_of_a_step({"MALLOC_TOP_PAD_": "0"}) > PAGES / 2


def test_a_process_that_has_threads_before_is_told_by_its_environment() -> None:
    assert faults_of_a_step(ONE_HEAP, threads=12) < PAGES / 20


def test_an_older_glibc_is_asked_for_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses more than 32 MB; the other settings alone would leave all of 128 kB to mmap."""
    taken: dict[int, int] = {}

    class Older:
        @staticmethod
        def mallopt(name: int, value: int) -> int:
            if name == -3 and value > 32 * 2**20:
                return 0
            taken[name] = value
            return 1

    for name in [n for n in os.environ if n.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Older)
    assert keep_freed_memory.__wrapped__()
    assert taken[-3] == 32 * 2**20
    assert taken.keys() == {-1, -3, -8}


def test_other_systems_keep_their_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: "musl")
    assert not keep_freed_memory.__wrapped__()
