"""Kernels in the planes of XLA's profiler: what a live run and a profile on disk have in common.

On CPU thunks are asynchronous: an event covers only the launch, and the op ends at the event
`end: <op>` that carries its id. Spans that ignore it are off by an order of magnitude. The GPU half
(`/device:GPU:n`, one line a stream) was tried on a profile of eight MI300X, the TPU half
(`/device:TPU:n`, whose line "XLA Ops" has the ops one after another) on one of four cores, see
docs/design/published_files.md.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kit.trace.devices import stream_lane

__all__ = ["HOST_PLANE", "NOISE", "TPU_PLANE", "DeviceEvent", "device_events", "quiet_about_types"]

HOST_PLANE = "/host:CPU"
TPU_PLANE = "/device:TPU:"  # and the number of the core

# Beginnings of the names of events that are the profiler's and the thread pool's own.
NOISE = ("ThreadpoolListener::", "ThunkExecutor::", "Wait for ", "PythonRefManager", "end: ")
_STREAM = re.compile(r"^Stream ?#?")
_INSTRUCTION = re.compile(r"%(\S+) = ")  # "%add.1 = f32[8] add(...)": an op of a TPU in full
_CONTROL = re.compile(r"(while|cond|conditional|call)(\.|$)")  # names of ops that run others
_OPS_OF_A_TPU = "XLA Ops"  # its other lines: programs, steps, what overlaps with these ops


@contextmanager
def quiet_about_types() -> Iterator[None]:
    """Python 3.12 warns about types of the profiler's; as an error, that ends the process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)
        yield


@dataclass(slots=True, eq=False)
class DeviceEvent:
    """A kernel; its lane is "device/0 thread 2" on a CPU, "device/1 stream 7(Compute)" on a GPU."""

    lane: str
    name: str
    module: str
    run: Any  # kernels of a module that have the same one belong to one run of it
    start_ns: int
    stop_ns: int
    launch: int = 0  # the number that a GPU's kernel shares with the call that launched it; 0: none

    def __post_init__(self) -> None:
        self.stop_ns = max(self.start_ns, self.stop_ns)


def device_events(planes: Iterable[Any], offset: int = 0) -> list[DeviceEvent]:
    """The kernels of all planes, by their start; `offset` brings them to the caller's clock.

    Where a GPU has run kernels, what names an op on the host is the call that launched one.

    Units:
        nanoseconds
    """
    on_gpus: list[DeviceEvent] = []
    on_cpu: list[DeviceEvent] = []
    for plane in planes:
        if plane.name == HOST_PLANE:
            on_cpu += _cpu_events(plane, offset)
        elif plane.name.startswith(TPU_PLANE):
            on_gpus += _tpu_events(plane, offset)
        elif plane.name.startswith("/device:"):
            on_gpus += _gpu_events(plane, offset)
    found = sorted(on_gpus or on_cpu, key=lambda e: e.start_ns)
    if not on_gpus:
        threads: dict[str, int] = {}
        for event in found:
            device, _, thread = event.lane.partition(" ")
            number = threads.setdefault(thread, len(threads) + 1)
            event.lane = f"{device} thread {number}"
    return found


def _cpu_events(plane: Any, offset: int) -> Iterator[DeviceEvent]:
    """The kernels of the host's plane; the lane of each is its device and its thread's name.

    A process may have several devices on one CPU, which take turns on its threads.
    Of a loop, a branch or a call, whose ops have events of their own, only these.
    """
    ends: dict[Any, int] = {}  # an op may end on another thread than it started on
    found: list[tuple[DeviceEvent, Any]] = []
    for line in plane.lines:
        for event in line.events:
            if event.name.startswith("end: "):
                ends[dict(event.stats).get("_c")] = int(event.end_ns) + offset
            elif not event.name.startswith(NOISE):
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    start, stop = int(event.start_ns) + offset, int(event.end_ns) + offset
                    module, run = stats.get("hlo_module", ""), stats.get("run_id", 0)
                    lane = f"device/{stats.get('device_ordinal', 0)} {line.name}"
                    kernel = DeviceEvent(lane, event.name, module, run, start, stop)
                    found.append((kernel, stats.get("_p")))
    begins: dict[Any, list[int]] = {}  # of the ops of each run on each device
    for kernel, ident in found:
        begins.setdefault(_run_of(kernel), []).append(kernel.start_ns)
        if ident is not None and ident in ends:
            kernel.stop_ns = max(kernel.stop_ns, ends[ident])
    for starts in begins.values():
        starts.sort()
    for kernel, _ in found:
        starts = begins[_run_of(kernel)]
        after = bisect_right(starts, kernel.start_ns)
        has_inside = after < len(starts) and starts[after] < kernel.stop_ns
        if not (has_inside and _CONTROL.match(kernel.name)):
            yield kernel


def _run_of(kernel: DeviceEvent) -> tuple[str, str, Any]:
    return kernel.lane.partition(" ")[0], kernel.module, kernel.run


def _gpu_events(plane: Any, offset: int) -> Iterator[DeviceEvent]:
    """The kernels of one GPU's plane; of its lines, those of streams: "Stream #7(Compute)"."""
    number = plane.name.rsplit(":", 1)[-1]
    for line in plane.lines:
        if not line.name.startswith("Stream"):
            continue  # lines that XProf derives, and counters
        lane = stream_lane(number, _STREAM.sub("", line.name))
        for event in line.events:
            stats = dict(event.stats)
            # an op in a loop has those around it before its name; a kernel's name is C++
            name = str(stats["hlo_op"]).rsplit("::", 1)[-1] if "hlo_op" in stats else event.name
            module = str(stats.get("hlo_module", ""))
            start, stop = int(event.start_ns) + offset, int(event.end_ns) + offset
            # kit.runtime.profiling.launches finds the run, which is not here
            launch = stats.get("correlation_id", 0)
            yield DeviceEvent(lane, name, module, None, start, stop, launch)


def _tpu_events(plane: Any, offset: int) -> Iterator[DeviceEvent]:
    """The ops of one core; of a loop or a call, whose ops have events of their own, only these."""
    lane = f"device/{plane.name.removeprefix(TPU_PLANE)} {_OPS_OF_A_TPU}"
    for line in plane.lines:
        if line.name != _OPS_OF_A_TPU:
            continue
        for event in _without_ops_inside(line.events):
            stats = dict(event.stats)
            written = _INSTRUCTION.match(event.name)
            name = str(stats.get("hlo_op", written[1] if written else event.name))
            module = str(stats.get("hlo_module", ""))
            start, stop = int(event.start_ns) + offset, int(event.end_ns) + offset
            yield DeviceEvent(lane, name, module, stats.get("run_id", 0), start, stop)


def _without_ops_inside(events: Iterable[Any]) -> list[Any]:
    """The events in which no other one ran; one of less than a nanosecond may only be beside."""
    found = []
    after: tuple[int, int] | None = None  # the next one that has a length
    for event in sorted(events, key=lambda e: (-int(e.start_ns), int(e.end_ns))):
        start, stop = int(event.start_ns), int(event.end_ns)
        if after is None or after[0] >= stop or after[1] > stop:
            found.append(event)
        if start < stop:
            after = start, stop
    return found[::-1]
