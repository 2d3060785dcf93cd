"""How many cores this process may use: by its affinity, and by the limit of its container.

A container's limit is a quota of processor time in each period, 100 ms long. Who has spent it is
stopped until the next period, with all threads at once; so 64 threads under a limit of two cores
work for 3 ms and stand still for 97. Linux alone has such limits (cgroups, versions 1 and 2).

Source: https://docs.kernel.org/scheduler/sched-bwc.html,
https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.errors import but_of_handlers, suppressed

__all__ = ["Limit", "cpu_limit", "schedulable_cores", "usable_cores"]

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Limit:
    """The narrowest limit on this process.

    Attributes:
        cores: seconds of processor a second; inf without a limit.
        reached_s: the periods, added up, in which it was reached since the container was made; nan
            without a limit.
    """

    cores: float = math.inf
    reached_s: float = math.nan


def schedulable_cores() -> int:
    """How many cores the system may put this process on; XLA makes so many threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cores() -> int:
    """How many cores this process can keep busy, at least one."""
    return int(max(1, min(schedulable_cores(), cpu_limit().cores)))


def cpu_limit(root: Path = _ROOT) -> Limit:
    """The limit of this process's group or of one above it; none where no file says so.

    Args:
        root: where `proc` and `sys` are.
    """
    found = [limit for folder in _groups(root) if (limit := _limit_of(folder)) is not None]
    return min(found, key=lambda limit: limit.cores, default=Limit())


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's groups that may limit its time, each with those above it.

    A container may see its group's path on the host, where it has no such folder, but its own group
    as the topmost one.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except but_of_handlers(OSError, ValueError):
        return
    mounts = root / "sys/fs/cgroup"
    for line in lines:
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names and "cpu" not in names.split(","):
            continue
        top = mounts / names if names else mounts
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for count in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:count])


def _limit_of(folder: Path) -> Limit | None:
    with suppressed(OSError, ValueError):
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text("utf-8").split()[:2]
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((folder / name).read_text("utf-8").strip() for name in names)
        if quota == "max" or not int(quota) > 0 < int(period):
            return None
        counts = dict(
            line.split()[:2] for line in (folder / "cpu.stat").read_text("utf-8").splitlines()
        )
        periods = int(counts["nr_throttled"]) if "nr_throttled" in counts else math.nan
        return Limit(int(quota) / int(period), periods * int(period) / 1e6)
    return None
