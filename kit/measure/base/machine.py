"""What else the machine does while a run is measured, asked of the system by psutil.

    watch = Watch()         as a run begins: threads that are there already are not its own
    watch.begin(cancelled)  before the measured steps
    watch.end()             after the traced ones: the run's `Conditions`

The counters are read before and after, never between two steps. Steps that are over before these
have ticked often enough are told what others took since the run began.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]
try:
    import psutil
except ImportError:  # on a GPU machine that has torch and jax only, a run can be measured too
    psutil = None

from kit.cores import cpu_limit
from kit.errors import but_of_handlers, suppressed
from kit.measure.base.ranks import has_siblings
from kit.measure.base.turns import TURNS, CancelledFn
from kit.runs.conditions import Conditions

__all__ = ["Reading", "Usage", "Watch", "began_s", "conditions_of", "read_machine", "usage_between"]

SHORTEST_S = 0.25  # systems count processor time in ticks of about 0.01 s: less says nothing
_RUNTIME = ("worker", "replica", "collectives", "prefetch", "channel", "writer")  # "kit ..." each
_BUSY = ("user", "nice", "system", "irq", "softirq")
_UNREADABLE: tuple[type[Exception], ...] = (
    *((psutil.Error,) if psutil else ()),
    OSError,
    NotImplementedError,
    AttributeError,
    RuntimeError,
)


@dataclass(frozen=True)
class Reading:
    """The machine's counters at one moment; nan where it does not say."""

    at_s: float = math.nan
    cores: float = math.nan  # that this process may use
    spare: float = 0.0  # further cores on which it may run, but beyond its container's limit
    limited_s: float = math.nan  # in periods in which it reached that limit
    busy_s: float = math.nan  # of these cores, by whomever
    steal_s: float = math.nan
    own_s: float = math.nan  # of this process and its children
    load: float = math.nan
    clock_mhz: float = math.nan
    collections: float = math.nan
    full_collections: float = math.nan
    system_s: float = math.nan  # of `own_s`, without children: in the operating system
    faults: float = math.nan  # pages that this process had to be given
    threads_s: dict[int, float] = field(default_factory=dict)  # of this process, by number


@dataclass(frozen=True)
class Usage:
    """What one process has seen between two readings; processors' time in cores."""

    host: str
    busy: float
    own: float
    conditions: Conditions
    spare: float = 0.0  # cores that others may take and leave this process its own


def began_s() -> float:
    """When this process began, by the clock that files have; NaN where no system tells."""
    with suppressed(*_UNREADABLE):
        return float(psutil.Process().create_time())
    return math.nan


def read_machine() -> Reading:
    """Ask the system; what it does not say stays unknown, and everything without psutil."""
    if psutil is None:
        return Reading()
    try:
        own = psutil.Process()
    except but_of_handlers(*_UNREADABLE):  # as without /proc
        return Reading()
    found: dict[str, Any] = {"at_s": time.perf_counter()}
    counts = [float(row["collections"]) for row in gc.get_stats()]
    found["collections"], found["full_collections"] = sum(counts), counts[-1]
    with suppressed(*_UNREADABLE):
        cpus = _own_cpus(own)
        limit = cpu_limit()
        found["cores"] = min(float(len(cpus)), limit.cores)
        found["spare"] = len(cpus) - found["cores"]
        found["limited_s"] = limit.reached_s
        found["busy_s"] = sum(getattr(cpu, name, 0.0) for cpu in cpus for name in _BUSY)
        found["steal_s"] = sum(getattr(cpu, "steal", math.nan) for cpu in cpus)
    with suppressed(*_UNREADABLE):
        children = own.children(recursive=True)
        others = sum(_of_children(own, children)) + sum(_of_siblings(own, children))
        found["own_s"] = time.process_time() + others
    with suppressed(*_UNREADABLE):
        found["system_s"] = os.times().system
    if resource is not None:
        found["faults"] = float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    with suppressed(*_UNREADABLE):
        found["threads_s"] = {t.id: t.user_time + t.system_time for t in own.threads()}
    if sys.platform != "win32":  # psutil has one there, which is 0 for the first five seconds
        with suppressed(*_UNREADABLE):
            found["load"] = os.getloadavg()[0]
    with suppressed(*_UNREADABLE):
        found["clock_mhz"] = float(psutil.cpu_freq().current)
    return Reading(**found)


def _own_cpus(own: Any) -> list[Any]:
    """The times of the cores that the process may use; of all, where no system says which."""
    every: list[Any] = psutil.cpu_times(percpu=True)
    with suppressed(*_UNREADABLE):
        chosen = own.cpu_affinity()
        if max(chosen) < len(every):
            return [every[i] for i in chosen]
    return every


def _of_children(own: Any, children: Sequence[Any]) -> Iterator[float]:
    """Such as a DataLoader's workers: part of the step."""
    yield _of_ended(own.cpu_times())
    for child in children:
        with suppressed(*_UNREADABLE):
            taken = child.cpu_times()
            yield taken.user + taken.system


def _of_ended(times: Any) -> float:
    """What children took that have ended; a system may not tell."""
    return float(getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0))


def _of_siblings(own: Any, children: Sequence[Any]) -> Iterator[float]:
    """What the other ranks of this host take on these cores: they are part of the job, too.

    One process has started them and this one, and may be a rank itself.
    """
    if not has_siblings():
        return
    parent = multiprocessing.parent_process()  # of a fork server's child, not the fork server
    launcher = own.parent() if parent is None else psutil.Process(parent.pid)
    if launcher is None:
        return
    cores = _cores_of(own)
    counted = {own.pid, *(child.pid for child in children)}
    for sibling in (launcher, *launcher.children(recursive=True)):
        with suppressed(*_UNREADABLE):
            if sibling.pid not in counted and cores & _cores_of(sibling):
                taken = sibling.cpu_times()
                ended = _of_ended(taken) if sibling is not launcher else 0.0
                yield taken.user + taken.system + ended


def _cores_of(process: Any) -> set[int]:
    """On which it may run; the same for all where no system says which."""
    with suppressed(*_UNREADABLE):
        return set(process.cpu_affinity())
    return {-1}


def usage_between(
    before: Reading,
    after: Reading,
    strangers: Iterable[int] = (),
    host: str = "",
    own: Iterable[int] = (),
) -> Usage:
    """What happened between two readings.

    Args:
        strangers: the numbers of the threads that do not belong to the run.
        own: those of Python's threads that do, beside the one that takes the steps.
    """
    took = after.at_s - before.at_s
    if not took >= SHORTEST_S:
        took = math.nan
    busy = (after.busy_s - before.busy_s) / took
    taken = (after.own_s - before.own_s) / took
    if busy < 0.5 * taken:  # a sandbox that shows made-up counters
        busy = math.nan

    def of_threads(numbers: Iterable[int]) -> float:
        if not (before.threads_s and after.threads_s):
            return math.nan
        known = [i for i in numbers if i in before.threads_s and i in after.threads_s]
        return sum(after.threads_s[i] - before.threads_s[i] for i in known) / took

    return Usage(
        host,
        busy,
        taken,
        Conditions(
            cores=before.cores,
            threads=of_threads(strangers),
            own_threads=of_threads(own),
            steal=(after.steal_s - before.steal_s) / took,
            load=before.load,
            clock_before_mhz=before.clock_mhz,
            clock_after_mhz=after.clock_mhz,
            collections=after.collections - before.collections,
            system=(after.system_s - before.system_s) / took,
            fresh_pages=(after.faults - before.faults) / took,
            full_collections=after.full_collections - before.full_collections,
            throttled=min((after.limited_s - before.limited_s) / took, 1.0),
        ),
        before.spare,
    )


def conditions_of(usages: Sequence[Usage], warmup: float = math.nan) -> Conditions:
    """The conditions of a run that these processes shared; of several hosts the busiest.

    What one of them takes is not what others take, although it is another process.

    Args:
        warmup: the steps before the measured ones.
    """
    found: list[Conditions] = []
    for host in dict.fromkeys(usage.host for usage in usages):
        here = [usage for usage in usages if usage.host == host]
        busy = sum(usage.busy for usage in here) / len(here)
        own = sum(usage.own for usage in here)
        ours = {
            name: sum(getattr(usage.conditions, name) for usage in here)
            for name in ("threads", "own_threads", "system", "fresh_pages")
        }
        others = busy - own - here[0].spare
        if not math.isnan(others):
            others = max(others, 0.0)
        found.append(replace(here[0].conditions, others=others, **ours))
    busiest = max(found, key=lambda c: -1.0 if math.isnan(c.others) else c.others / c.cores)
    return replace(busiest, warmup_steps=float(warmup))


class Watch:
    """Reads the machine around the measured and the traced steps of one run.

    Args:
        threads: those that are not the run's; by default all others that there are now.
    """

    def __init__(self, threads: Iterable[threading.Thread] | None = None) -> None:
        self._strangers = _numbers(threading.enumerate() if threads is None else threads)
        self._own: frozenset[int] = frozenset()
        self._began, self._before = read_machine(), Reading()
        self._usage: Usage | None = None

    def begin(self, cancelled: CancelledFn | None = None) -> None:
        """Wait until nothing is compiled ahead, then read: the steps to be measured follow.

        Raises:
            Cancelled: `cancelled()` became true.
        """
        TURNS.wait_quiet(cancelled)
        self._own = _numbers(threading.enumerate()) - self._strangers
        self._before = read_machine()

    def end(self) -> Usage:
        """What happened since `begin`; kept for `conditions`."""
        now, host = read_machine(), platform.node()
        usage = usage_between(self._before, now, self._strangers, host, self._own)
        if now.at_s - self._before.at_s < SHORTEST_S:
            whole = usage_between(self._began, now)
            taken = replace(usage.conditions, steal=whole.conditions.steal)
            usage = replace(usage, busy=whole.busy, own=whole.own, conditions=taken)
        self._usage = usage
        return usage

    def conditions(self, warmup: float) -> Conditions:
        """Those of a run of this process alone, after `end`; `warmup`: as of `conditions_of`."""
        assert self._usage is not None, "the steps have ended"
        return conditions_of([self._usage], warmup)


def _numbers(threads: Iterable[threading.Thread]) -> frozenset[int]:
    """The system's numbers of these threads, without this one and those of kit's runtime."""
    here = threading.get_native_id()
    found = {thread.native_id for thread in threads if not _is_runtimes(thread.name)}
    return frozenset(number for number in found if number is not None) - {here}


def _is_runtimes(name: str) -> bool:
    """A thread of kit's runtime belongs to the run whose session made it."""
    words = name.split()
    return words[:1] == ["kit"] and words[1:2] != [] and words[1] in _RUNTIME
