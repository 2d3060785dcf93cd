"""Open what AMD's profilers write as JSON: rocprofv3's own form, and the Chrome form of rocprof.

    rocprofv3 ::= {"rocprofiler-sdk-tool": [{"agents", "strings", "kernel_symbols",
                   "buffer_records": {"kernel_dispatch", "memory_copy", "hip_api", "marker_api"}}]}
    rocprof   ::= {"traceEvents": [...]}, its processes "GPU0", "COPY", "CPU HIP API", ...

Their kernels, copies, calls of HIP and ranges become events as torch.profiler would write them. Of
rocprofv3 a real file was met, with kernels only; calls, copies and markers follow its sources and
tests. Of rocprof none was met: its form follows the program that writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kit.formats.chrome.events import Events
from kit.formats.chrome.json import BEGINS, read_events, read_parts
from kit.formats.chrome.names import Room
from kit.formats.foreign import Clock, Streams, as_event, foreign_imported, link_of
from kit.formats.nvtx import category_and_name
from kit.trace.imported import MAX_SPAN_NAME, Imported, cut_name, naming
from kit.trace.kinds import ON_DEVICE

__all__ = ["read_rocprof", "read_rocprofv3"]

_TOOL = "rocprofiler-sdk-tool"
_KEY_CHARS = 200  # what the memory of a name's number costs
_GPU_AGENT = 2  # of "type"
# "MEMORY_COPY_HOST_TO_DEVICE" of rocprofv3, "CopyHostToDevice" of rocprof.
_COPY = re.compile(r"(host|device)_?to_?(host|device)", re.IGNORECASE)
_NOT_MET = (
    "written by rocprof: the reader has met no real file of it, so compare a number or two with "
    "its own statistics before you trust it"
)
_GPU = re.compile(r"(?:\d+ )?GPU ?(\d*)$")
_PROCESSES = {"COPY": "gpu_memcpy", "CPU HIP API": "hip_runtime"}
_RANGES = "Markers and Ranges"
Numbers = tuple[int, int]  # of a process in the file, and of what it has counted


def read_rocprofv3(path: str | os.PathLike[str], step_by: str = "") -> Imported:
    """The trace in a `*_results.json` of rocprofv3; arguments and errors as of `read_chrome`."""
    with naming(path):
        return _records(path, step_by)


def read_rocprof(path: str | os.PathLike[str], step_by: str = "") -> Imported:
    """The trace in the `results.json` of `rocprof --hip-trace`; as `read_rocprofv3`."""
    with naming(path):
        return _chrome(path, step_by)


class _Names:
    """What the records of a file have numbers for: each process counts for itself."""

    def __init__(self) -> None:
        self.process = 0  # the one that is being read, in the order of the file
        self._kernels: dict[Numbers, str] = {}
        self._operations: dict[Numbers, list[str]] = {}  # by kind of record
        self._gpus: dict[Numbers, tuple[int, str]] = {}  # handle of an agent -> number, name
        self._markers: dict[Numbers, str] = {}  # by correlation
        self._kinds = self._agents = 0  # of this process
        self._pids: dict[int, int] = {}
        self._room = Room()

    @property
    def parts(self) -> dict[tuple[str, ...], Callable[[Any], None]]:
        """Where these stand in the file, and what takes them."""
        return {
            (_TOOL, BEGINS): self.begin,
            (_TOOL, "metadata"): self._metadata,
            (_TOOL, "kernel_symbols"): self._kernel,
            (_TOOL, "strings", "buffer_records"): self._kind,
            (_TOOL, "strings", "marker_api"): self._marker,
            (_TOOL, "agents"): self._agent,
        }

    def begin(self, _: object) -> None:
        """The next process."""
        self.process += 1
        self._kinds = self._agents = 0

    @property
    def pid(self) -> int:
        """The system's number of the process; its place where the file does not say."""
        return self._pids.get(self.process, self.process)

    def kernel(self, info: dict[str, Any]) -> str:
        """The name of a kernel that was dispatched."""
        number = self.process, _number(info.get("kernel_id"))
        return self._kernels.get(number) or "unnamed kernel"

    def gpu(self, *agents: Any) -> tuple[int, str]:
        """Number and name of the first of these agents that is a GPU."""
        found = (self._gpus.get((self.process, _handle(agent))) for agent in agents)
        return next(filter(None, found), (0, ""))

    def marker(self, record: dict[str, Any]) -> str:
        """The text of a range."""
        return self._markers.get((self.process, _correlation(record)), "")

    def operation(self, record: dict[str, Any]) -> str:
        """The name of the call that a record is of; "" if the file does not say."""
        number = _number(record.get("operation"))
        names = self._operations.get((self.process, _number(record.get("kind"))), [])
        return names[number] if 0 <= number < len(names) else ""

    def _kept(self, value: Any) -> str:
        self._room.spend(_KEY_CHARS)
        return self._room.take(cut_name(value, MAX_SPAN_NAME))

    def _metadata(self, said: Any) -> None:
        if type(said) is dict and type(said.get("pid")) is int and len(self._pids) < 10_000:
            self._pids[self.process] = said["pid"]

    def _kernel(self, symbol: Any) -> None:
        if type(symbol) is dict and type(symbol.get("kernel_id")) is int:
            whole = symbol.get("formatted_kernel_name") or symbol.get("kernel_name")
            self._kernels[self.process, symbol["kernel_id"]] = self._kept(whole)

    def _kind(self, kind: Any) -> None:
        names = kind.get("operations") if type(kind) is dict else None
        names = names if type(names) is list else []
        if len(self._operations) < 100_000 and self._kinds < 1000:
            found = [self._kept(name) for name in names[:10_000]]
            self._operations[self.process, self._kinds] = found
        self._kinds += 1

    def _marker(self, marker: Any) -> None:
        if type(marker) is dict and type(marker.get("key")) is int:
            self._markers[self.process, marker["key"]] = self._kept(marker.get("value"))

    def _agent(self, agent: Any) -> None:
        if type(agent) is not dict or agent.get("type") != _GPU_AGENT or len(self._gpus) > 10_000:
            return
        number, handle = agent.get("logical_node_type_id"), _handle(agent.get("id"))
        number = number if type(number) is int else self._agents
        self._agents += 1
        name = cut_name(agent.get("product_name") or agent.get("name"))
        self._gpus[self.process, handle] = number, name


def _records(path: str | os.PathLike[str], step_by: str) -> Imported:
    """Two readings: of names, and of what has them; the file may have either first."""
    names = _Names()
    read_parts(path, names.parts)
    names.process = 0
    events, clock, streams = Events(step_by), Clock(), Streams()
    used: dict[int, str] = {}  # the GPUs that have run something

    def on_device(record: dict[str, Any], gpu: tuple[int, str], stream: Any, **more: Any) -> Any:
        used[gpu[0]] = gpu[1]
        stream = streams.of(names.pid, gpu[0], stream)
        return (gpu[0], stream), {"device": gpu[0], "stream": stream, **link(record), **more}

    def link(record: dict[str, Any]) -> dict[str, int]:
        return {"correlation": link_of(max(names.process - 1, 0), _correlation(record))}

    def kernel(record: dict[str, Any]) -> None:
        info = record.get("dispatch_info")
        info = info if type(info) is dict else {}
        place = on_device(record, names.gpu(info.get("agent_id")), _handle(info.get("queue_id")))
        events.add(as_event("kernel", names.kernel(info), clock.since(_times(record)), *place))

    def copy(record: dict[str, Any]) -> None:
        gpu = names.gpu(record.get("dst_agent_id"), record.get("src_agent_id"))
        place = on_device(record, gpu, "copies", bytes=record.get("bytes"))
        name = _copy_name(names.operation(record))
        events.add(as_event("gpu_memcpy", name, clock.since(_times(record)), *place))

    def call(record: dict[str, Any]) -> None:
        name, times = names.operation(record), clock.since(_times(record))
        events.add(as_event("hip_runtime", name, times, _thread(record), link(record)))

    def marker(record: dict[str, Any]) -> None:
        category, name = category_and_name(names.marker(record))
        events.add(as_event(category, name, clock.since(_times(record)), _thread(record), {}))

    takers = {"hip_api": call, "marker_api": marker, "kernel_dispatch": kernel, "memory_copy": copy}
    parts: dict[tuple[str, ...], Callable[[Any], None]] = {(_TOOL, BEGINS): names.begin}
    for name, taker in takers.items():
        parts[_TOOL, "buffer_records", name] = _of_records(taker, events)
    read_parts(path, parts)
    return foreign_imported(
        events,
        program="rocprofv3",
        nothing=[
            "it has no kernels and no copies: record them with `rocprofv3 --kernel-trace "
            "--hip-trace --memory-copy-trace --output-format json`"
        ],
        needs=ON_DEVICE,
        devices=[used[number] for number in sorted(used)],
        kind="rocm",
    )


def _of_records(take: Callable[[dict[str, Any]], None], events: Events) -> Callable[[Any], None]:
    """Take a record, and count what is none."""

    def checked(record: Any) -> None:
        if type(record) is dict:
            take(record)
        else:
            events.add(None)

    return checked


def _times(record: dict[str, Any]) -> tuple[Any, Any]:
    return record.get("start_timestamp"), record.get("end_timestamp")


def _thread(record: dict[str, Any]) -> tuple[Any, Any]:
    return "host", record.get("thread_id")


def _correlation(record: dict[str, Any]) -> int:
    given = record.get("correlation_id")
    return _number(given.get("internal") if type(given) is dict else given)


def _handle(value: Any) -> int:
    """Of {"handle": 7} the 7."""
    return _number(value.get("handle") if type(value) is dict else value)


def _number(value: Any) -> int:
    return value if type(value) is int else -1


def _chrome(path: str | os.PathLike[str], step_by: str) -> Imported:
    """The Chrome form; what a process is called says what its events are. Two readings."""
    labels: dict[str, str] = {}

    def label(some: Sequence[Any]) -> None:
        for event in some:
            if type(event) is dict and event.get("name") == "process_name" and len(labels) < 10_000:
                args = event.get("args")
                name = cut_name(args.get("name")) if type(args) is dict else ""
                labels[cut_name(event.get("pid"))] = name

    read_events(path, label)
    events, clock = Events(step_by), Clock()

    def take(some: Sequence[Any]) -> None:
        for event in some:
            if type(event) is dict and event.get("ph") == "X":
                process = labels.get(cut_name(event.get("pid")), "")
                events.extend(_as_torch(event, process, clock))

    read_events(path, take)
    return foreign_imported(
        events,
        program="rocprof",
        nothing=["it has no kernels and no copies: record with `rocprof --hip-trace`"],
        needs=ON_DEVICE,
        kind="rocm",
        notes=[_NOT_MET],
    )


def _as_torch(event: dict[str, Any], process: str, clock: Clock) -> Iterator[dict[str, Any]]:
    """An event of a GPU, of copies, of calls of HIP, of ranges; nothing of other processes."""
    gpu = _GPU.match(process)
    category = "kernel" if gpu else _PROCESSES.get(process.lstrip("0123456789 "), "")
    args, name = event.get("args"), cut_name(event.get("name"), MAX_SPAN_NAME)
    if process.endswith(_RANGES):
        category, name = category_and_name(name)
    if not category:
        return
    args = args if type(args) is dict else {}
    number = (gpu[1] or "0") if gpu else "0"
    stream = args.get("queue-id") or event.get("tid")
    more = {"device": number, "stream": stream if gpu else "copies"}
    if category == "gpu_memcpy":
        name = _copy_name(name)
    track = ("host", event.get("tid"))  # a thread's calls and ranges are of two "processes"
    yield as_event(category, name, clock.since(_exact(event, args)), track, more)


def _copy_name(name: str) -> str:
    """As torch names it, by its direction."""
    match = _COPY.search(name)
    ends = (match[1][0].upper(), match[2][0].upper()) if match else ()
    return f"Memcpy {'to'.join(ends)}" if ends else "Memcpy of another kind"


def _exact(event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, Any]:
    """Begin and end in ns: of the arguments, since the times beside them are whole microseconds."""
    exact = tuple(_whole(args.get(key)) for key in ("BeginNs", "EndNs"))
    if None not in exact:
        return exact[0], exact[1]
    start, length = (_whole(event.get(key)) for key in ("ts", "dur"))
    if start is None or length is None:
        return None, None
    return start * 1000, (start + length) * 1000


def _whole(value: Any) -> int | None:
    """A number, or a text that is one."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    return round(value) if type(value) is float and abs(value) < 1e18 else None
