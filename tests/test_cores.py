"""How many cores a process may use: by files as systems write them, and under a real limit."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kit.cores import Limit, cpu_limit, schedulable_cores, usable_cores

STAT = "nr_periods 90\nnr_throttled 30\nthrottled_usec 5\n"
ONE, TWO = "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup"


def root_with(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(("files", "limit"), [
    ({}, Limit()),
    ({"proc/self/cgroup": "0::/\n", f"{TWO}/cpu.max": "max 100000\n", f"{TWO}/cpu.stat": STAT},
     Limit()),
    ({"proc/self/cgroup": "0::/\n", f"{TWO}/cpu.max": "150000 100000\n", f"{TWO}/cpu.stat": STAT},
     Limit(1.5, 3.0)),
    # Kubernetes limits the pod and the container in it: the narrower one counts.
    ({"proc/self/cgroup": "0::/pod/box\n", f"{TWO}/pod/box/cpu.max": "max 100000\n",
      f"{TWO}/pod/cpu.max": "400000 200000\n", f"{TWO}/pod/cpu.stat": STAT}, Limit(2.0, 6.0)),
    ({"proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/a/b\n0::/\n",
      f"{ONE}/a/b/cpu.cfs_quota_us": "-1\n", f"{ONE}/a/b/cpu.cfs_period_us": "100000\n",
      f"{ONE}/a/cpu.cfs_quota_us": "50000\n", f"{ONE}/a/cpu.cfs_period_us": "100000\n",
      f"{ONE}/a/cpu.stat": STAT}, Limit(0.5, 3.0)),
    # A container that sees its path on the host, and its own group as the topmost one.
    ({"proc/self/cgroup": "3:cpu,cpuacct:/docker/0123\n", f"{ONE}/cpu.cfs_quota_us": "200000\n",
      f"{ONE}/cpu.cfs_period_us": "100000\n", f"{ONE}/cpu.stat": STAT}, Limit(2.0, 3.0)),
    ({"proc/self/cgroup": "0::/../box\n", f"{TWO}/box/cpu.max": "100000 100000\n",
      f"{TWO}/box/cpu.stat": "usage_usec 5\n"}, Limit(1.0)),
    ({"proc/self/cgroup": "0::/\nnonsense\n", f"{TWO}/cpu.max": "lots\n"}, Limit()),
    ({"proc/self/cgroup": "0::/\n", f"{TWO}/cpu.max": "5 0\n", f"{TWO}/cpu.stat": STAT}, Limit()),
])  # fmt: skip
def test_the_narrowest_limit_is_read(tmp_path: Path, files: dict[str, str], limit: Limit) -> None:
    found = cpu_limit(root_with(tmp_path, files))
    assert found.cores == limit.cores
    assert found.reached_s == pytest.approx(limit.reached_s, nan_ok=True)


def test_a_process_may_use_a_core_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= usable_cores() <= schedulable_cores()
    for cores, usable in ((0.1, 1), (1.9, 1), (math.inf, schedulable_cores())):
        monkeypatch.setattr("kit.cores.cpu_limit", lambda cores=cores: Limit(cores))
        assert usable_cores() == usable


@pytest.fixture
def a_fifth_of_a_core() -> Iterator[Path]:
    """A group of the system's that has a fifth of a core."""
    group = Path(f"/sys/fs/cgroup/cpu/kit-{uuid.uuid4().hex}")
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("20000")
    except OSError as error:
        pytest.skip(f"no group of version 1 can be made here: {error}")
    try:
        yield group
    finally:
        group.rmdir()


LIMITED = """
import os, sys
import kit
from kit.runs.verdict.verdict import verdict
from kit.workloads import mlp
settings = kit.Settings(mode=sys.argv[2], device="cpu", steps=30, warmup=3)
kit.run(mlp, settings)  # imports and compiles
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
run = kit.run(mlp, settings)
print(run.conditions.cores, run.conditions.throttled > 0.3)
print(run.limited_by())
print(verdict(run).advice)
print(verdict(run).next_step)
"""


@pytest.mark.parametrize("mode", ["lazy", "torch"])
def test_a_run_that_its_container_stopped_says_so(a_fifth_of_a_core: Path, mode: str) -> None:
    command = [sys.executable, "-c", LIMITED, str(a_fifth_of_a_core), mode]
    clean = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=clean)
    assert done.returncode == 0, done.stderr
    seen, limit, advice, step = done.stdout.splitlines()
    assert seen == "0.2 True"
    assert "measured under a limit of 0.2 cores, which stopped the process in " in limit
    assert advice == "()"
    assert "or raise the container's limit" in step
