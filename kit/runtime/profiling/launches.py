"""Which run of a program each kernel belongs to, and which task has issued that run.

A kernel on a CPU names its module and its run. One of a GPU names its module, and shares a number,
the correlation, with the call on the host that launched it. XLA notes on the host from when to when
it ran which module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from kit.runtime.recording.bulk import Task
from kit.trace.planes import HOST_PLANE, DeviceEvent

__all__ = ["Issue", "issues_of", "number_runs"]

Issue = tuple[Task, Any, int]  # what ran an executable, the executable, the first of its ops
_Times = tuple[int, int]  # from when to when

_RAN = ":XLA GPU module"  # after the module's name, as `GpuExecutable` of XLA writes it


class _Ran(NamedTuple):
    """A thread of the host ran a module."""

    start_ns: float
    stop_ns: float
    line: str

    def apart(self, at_ns: float) -> float:
        """How far a time is outside of it: calls and these runs are not timed by one clock."""
        return max(self.start_ns - at_ns, at_ns - self.stop_ns, 0.0)


def number_runs(
    kernels: Sequence[DeviceEvent], planes: Iterable[Any], issued: Mapping[str, int]
) -> None:
    """Set `run` of each kernel that a call on the host has launched.

    Where the calls do not tell, as with some GPUs at work at once, each run of a module is taken to
    have launched as many kernels as any other.

    Args:
        issued: how often each module was run, on all devices together.
    """
    launched = [kernel for kernel in kernels if kernel.launch and kernel.module in issued]
    if not launched:
        return
    calls, ran = _calls(planes)
    found: dict[str, dict[str, list[DeviceEvent]]] = defaultdict(lambda: defaultdict(list))
    for kernel in sorted(launched, key=lambda k: k.launch):
        found[kernel.module][kernel.lane.partition(" ")[0]].append(kernel)
    for module, by_device in found.items():
        known = _Runs(ran[module])
        for device, mine in by_device.items():
            runs: list[Any] = [known.around(calls.get(k.launch)) for k in mine]
            if None in runs:
                runs = _equal_parts(len(mine), issued[module] // len(by_device))
            for kernel, run in zip(mine, runs, strict=True):
                kernel.run = None if run is None else (device, run)


def _calls(
    planes: Iterable[Any],
) -> tuple[dict[int, tuple[str, float]], dict[str, list[_Ran]]]:
    """Number -> the thread and the time of the call; module -> its runs, by their start."""
    calls: dict[int, tuple[str, float]] = {}
    ran: dict[str, list[_Ran]] = defaultdict(list)
    for line in (line for plane in planes if plane.name == HOST_PLANE for line in plane.lines):
        for event in line.events:
            if event.name.endswith(_RAN):
                module = event.name.removesuffix(_RAN)
                ran[module].append(_Ran(event.start_ns, event.end_ns, line.name))
            elif number := dict(event.stats).get("correlation_id"):
                calls[number] = (line.name, event.start_ns)
    for runs in ran.values():
        runs.sort()
    return calls, ran


class _Runs:
    """Those of one module, of all threads and of each."""

    def __init__(self, runs: Sequence[_Ran]) -> None:
        by_line: dict[str, list[_Ran]] = defaultdict(list)
        for run in runs:
            by_line[run.line].append(run)
        self._by_line = {line: _in_turn(mine) for line, mine in by_line.items()}
        self._all = _in_turn(runs)

    def around(self, call: tuple[str, float] | None) -> _Ran | None:
        """The run in which a thread has made a call at a time; None if that is not sure."""
        if call is None:
            return None
        line, at = call
        near = self._by_line.get(line, self._all)
        after = bisect_right(near, at, key=lambda run: run.start_ns)
        beside = near[max(after - 1, 0) : after + 1]
        return min(beside, key=lambda run: run.apart(at), default=None)


def _in_turn(runs: Sequence[_Ran]) -> Sequence[_Ran]:
    """Runs by their start, one after the other; none if some overlap, as of several devices."""
    return () if any(b.start_ns < a.stop_ns for a, b in pairwise(runs)) else runs


def _equal_parts(kernels: int, runs: int) -> list[int | None]:
    """The number of the run of each kernel; None where the runs are not alike."""
    if not runs or kernels % runs:
        return [None] * kernels
    return [i * runs // kernels for i in range(kernels)]


def issues_of(
    kernels: Sequence[DeviceEvent], issued: Mapping[str, Sequence[Issue]]
) -> tuple[dict[tuple[str, Any], Issue], int]:
    """(module, run) -> what has issued it; and how many runs of these modules nothing has issued.

    Another session, in another thread, may run the same program. On a CPU, where the worker waits
    for the end, a run is of the task that it lies in. Elsewhere the n-th run is the n-th issued.
    """
    runs: dict[str, dict[Any, _Times]] = defaultdict(dict)
    on_cpu = False
    for kernel in kernels:
        if kernel.module in issued and kernel.run is not None:
            known = runs[kernel.module]
            start, stop = known.get(kernel.run, (kernel.start_ns, kernel.stop_ns))
            known[kernel.run] = min(start, kernel.start_ns), max(stop, kernel.stop_ns)
            on_cpu = " thread " in kernel.lane
    found: dict[tuple[str, Any], Issue] = {}
    for module, mine in runs.items():
        issues = issued[module]
        has_foreign = len(mine) > len(issues)
        in_turn = _in_time(mine, issues) if on_cpu and has_foreign else mine
        pairs = zip(in_turn, issues, strict=False)
        found.update(((module, run), issue) for run, issue in pairs if run is not None)
    return found, sum(map(len, runs.values())) - len(found)


def _in_time(runs: Mapping[Any, _Times], issues: Sequence[Issue]) -> list[Any]:
    """The run of each issue, None if there is none: one that lies in the time of its task.

    Of more than a task has issued, the longest are taken: they fill its time.
    """
    counts = Counter(id(task) for task, _, _ in issues)
    windows = sorted((*task.seen.dispatch_ns, id(task)) for task, _, _ in issues)
    near: dict[int, list[tuple[int, int, Any]]] = defaultdict(list)
    for run, (start, stop) in runs.items():
        after = bisect_right(windows, start, key=itemgetter(0))
        beside = windows[max(after - 1, 0) : after + 1]
        apart, key = min((max(w[0] - start, stop - w[1], 0), w[2]) for w in beside)
        near[key].append((apart, start - stop, run))
    own = {}
    for key, count in counts.items():
        best = [run for _, _, run in sorted(near[key], key=itemgetter(0, 1))[:count]]
        own[key] = iter(sorted(best, key=lambda run: runs[run]))
    return [next(own[id(task)], None) for task, _, _ in issues]
