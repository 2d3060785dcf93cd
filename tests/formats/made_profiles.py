"""Files of other profilers, made here: a jax profile's by jax itself, the others by their forms.

Nsight Systems' export and snapshots of torch's allocator are made from their documentation.
"""

from __future__ import annotations

import gzip
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

__all__ = ["THREAD", "chakra", "memory_snapshot", "nsys", "rocprof", "rocprofv3", "trace_viewer"]

GPU, OTHER_GPU, CPU = 37946, 37947, 37944
_TORCH = "/usr/lib/python3/site-packages/torch/nn/modules/linear.py"
THREAD = (7 << 24) | 12  # process 7, thread 12
_OTHER_THREAD = (7 << 24) | 13
_NSYS_TABLES = """
create table StringIds (id integer primary key, value text not null);
create table TARGET_INFO_GPU (id int, name text);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, eventClass int, globalTid int,
    correlationId int, nameId int, returnValue int);
create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, contextId int,
    streamId int, correlationId int, globalPid int, demangledName int, shortName int);
create table CUPTI_ACTIVITY_KIND_MEMCPY (start int, end int, deviceId int, contextId int,
    streamId int, correlationId int, bytes int, copyKind int);
create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int, textId int);
"""


def trace_viewer(file: Path, *, steps: int = 2) -> Path:
    """Write what jax's profiler writes as JSON of some steps; gives the profile beside it."""
    import jax
    import jax.numpy as jnp

    f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
    x = jnp.ones((16, 16))
    f(x).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    folder = tempfile.mkdtemp(dir=file.parent)
    with jax.profiler.trace(folder, profiler_options=options, create_perfetto_trace=False):
        for i in range(steps):
            with jax.profiler.StepTraceAnnotation("train", step_num=i):
                float(f(x))
    written = next(Path(folder).rglob("*.trace.json.gz"))
    file.write_bytes(gzip.decompress(written.read_bytes()))
    return next(Path(folder).rglob("*.xplane.pb"))


def rocprofv3(**records: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each kind of record one or two, in the form of a real file and of its sources."""

    def record(kind: int, operation: int, number: int, start: int, stop: int) -> dict[str, Any]:
        return {"kind": kind, "operation": operation, "thread_id": 908,
                "correlation_id": {"internal": number, "external": 0},
                "start_timestamp": 63_857_982_000_000 + start,
                "end_timestamp": 63_857_982_000_000 + stop}  # fmt: skip

    def kernel(number: int, start: int, stop: int, agent: int = GPU) -> dict[str, Any]:
        info = {"agent_id": {"handle": agent}, "queue_id": {"handle": 18}, "kernel_id": 7}
        return record(1, 2, number, start, stop) | {"dispatch_info": info}

    agents = [
        {"id": {"handle": CPU}, "type": 1, "logical_node_type_id": 0, "name": "AMD EPYC"},
        {"id": {"handle": GPU}, "type": 2, "logical_node_type_id": 0, "name": "gfx950",
         "product_name": "AMD Instinct MI350X"},
        {"id": {"handle": OTHER_GPU}, "type": 2, "logical_node_type_id": 1, "name": "gfx950"},
    ]  # fmt: skip
    kinds = [
        {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipStreamSynchronize"]},
        {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "ENQUEUE", "COMPLETE"]},
        {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
        {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]},
    ]
    ends = {"src_agent_id": {"handle": CPU}, "dst_agent_id": {"handle": GPU}}
    copy = record(2, 1, 9, 100, 600) | ends | {"bytes": 4096}
    made = {
        "hip_api": [record(0, 0, 4, 700, 900), record(0, 0, 5, 950, 990),
                    record(0, 1, 6, 1_000, 5_000)],
        "marker_api": [record(3, 1, 30, 50, 6_000)],
        "memory_copy": [copy],
        "kernel_dispatch": [kernel(4, 1_200, 2_203), kernel(5, 2_500, 4_000, OTHER_GPU)],
    }  # fmt: skip
    tool = {
        "agents": agents,
        "strings": {"buffer_records": kinds, "marker_api": [{"key": 30, "value": "train"}]},
        "buffer_records": made | records,
        "kernel_symbols": [{"kernel_id": 7, "formatted_kernel_name": "gemm<float>(int)"}],
    }
    return {"rocprofiler-sdk-tool": [tool]}


def rocprof() -> dict[str, Any]:
    """As `bin/tblextr.py` of rocprofiler writes: numbers are texts, times whole microseconds."""

    def event(pid: int, name: str, start_ns: int, stop_ns: int) -> dict[str, Any]:
        begun = 1_000_000_000
        return {"ph": "X", "name": name, "pid": pid, "tid": 3, "ts": str(start_ns // 1000),
                "dur": str(max((stop_ns - start_ns) // 1000, 1)),
                "args": {"BeginNs": str(begun + start_ns), "EndNs": str(begun + stop_ns),
                         "queue-id": "2"}}  # fmt: skip

    labels = {1: "COPY", 2: "CPU HIP API", 6: "GPU0", 0: "Markers and Ranges", 3: "CPU HSA API"}
    return {
        "traceEvents": [
            {},
            *({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": label}}
              for pid, label in labels.items()),
            event(0, "train", 0, 9_000),
            event(2, "hipLaunchKernel", 100, 350),
            event(2, "hipStreamSynchronize", 400, 8_400),
            event(3, "hsa_queue_create", 90, 95),
            event(1, "CopyHostToDevice", 200, 900),
            event(6, "gemm<float>(int)", 1_001, 7_004),
        ],
        "otherData": {},
    }  # fmt: skip


def chakra(*, with_times: bool = True) -> dict[str, Any]:
    """As `trace_link` of Chakra writes: torch's execution trace, with or without times."""

    def node(number: int, name: str, start: float, length: float, **more: Any) -> dict[str, Any]:
        times = {"ts": start, "inclusive_dur": length, "exclusive_dur": length}
        return {"id": number, "name": name, "ctrl_deps": 1,
                "attrs": [{"name": "tid", "type": "uint64", "value": 1}],
                **(times if with_times else {}), **more}  # fmt: skip

    return {
        "schema": "1.1.1-chakra.0.0.4",
        "pid": 7,
        "nodes": [
            node(
                1, "[pytorch|profiler|execution_trace|process]", 0.0, 100.0, cat="user_annotation"
            ),
            node(2, "aten::mm", 1.0, 20.0, cat="cpu_op"),
            node(3, "aten::add", 30.0, 9.5, cat="cpu_op"),
            node(4, "gemm<float>(int)", 25.0, 40.25, cat="kernel", stream=7),
        ],
    }


def nsys(file: Path, more: str = "", name: str = "void gemm<float>(int)") -> Path:
    """Write Nsight Systems' export of two steps, each with a copy, a kernel and a wait."""
    with closing(sqlite3.connect(file)) as database:
        database.executescript(_NSYS_TABLES)
        texts = [
            (1, "cudaLaunchKernel_v7000"),
            (2, name),
            (3, "cudaMemcpyAsync_v3020"),
            (4, "cudaStreamSynchronize_v3020"),
            (5, "train_step"),
        ]
        database.executemany("insert into StringIds values (?, ?)", texts)
        database.execute("insert into TARGET_INFO_GPU values (0, 'NVIDIA H100')")
        for n in range(2):
            t = 1_000_000 * n
            calls = [
                (t + 100, t + 200, THREAD, 10 * n + 1, 3),
                (t + 300, t + 400, THREAD, 10 * n + 2, 1),
                (t + 500, t + 9_000, THREAD, 10 * n + 3, 4),
            ]
            database.executemany(
                "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, 0, ?, ?, ?, 0)", calls
            )
            database.execute(
                "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 0, 1, 7, ?, 0, 2, 2)",
                (t + 1_001, t + 8_003, 10 * n + 2),
            )
            database.execute(
                "insert into CUPTI_ACTIVITY_KIND_MEMCPY values (?, ?, 0, 1, 20, ?, 4096, 1)",
                (t + 150, t + 650, 10 * n + 1),
            )
            database.execute(
                "insert into NVTX_EVENTS values (?, ?, 59, null, ?, 5)", (t, t + 990_000, THREAD)
            )
        database.execute(  # a thread that begins first, and does less
            "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (0, 5, 0, ?, 99, 1, 0)",
            (_OTHER_THREAD,),
        )
        database.executescript(more)
        database.commit()
    return file


def _frames(line: int) -> list[dict[str, Any]]:
    return [
        {"filename": "??", "line": 0, "name": "at::native::empty"},
        {"filename": _TORCH, "line": 134, "name": "forward"},
        {"filename": "/home/me/train.py", "line": line, "name": "step"},
    ]


def memory_snapshot(steps: list[tuple[int, int]], forget: int = 0) -> tuple[dict[str, Any], int]:
    """Allocate (line, size), or free the oldest block of a line (size 0); and the peak.

    Args:
        forget: the first events, that the history does not keep.
    """
    live: list[tuple[int, int, int]] = []  # address, line, size
    events: list[dict[str, Any]] = []
    held = []
    for i, (line, size) in enumerate(steps):
        held.append(sum(each[2] for each in live))
        if size:
            live.append((512 * (i + 1), line, size))
            events.append({"action": "alloc", "addr": 512 * (i + 1), "size": size,
                           "stream": 0, "frames": _frames(line)})  # fmt: skip
        elif own := [each for each in live if each[1] == line]:
            live.remove(own[0])
            for action in ("free_requested", "free_completed"):
                events.append({"action": action, "addr": own[0][0], "size": own[0][2],
                               "stream": 0, "frames": _frames(999)})  # fmt: skip
        else:
            held.pop()
    held.append(sum(each[2] for each in live))
    blocks = [{"address": a, "size": -(-size // 512) * 512, "requested_size": size,
               "state": "active_allocated", "frames": _frames(line)}
              for a, line, size in live]  # fmt: skip
    blocks.append({"address": 1 << 40, "size": 4096, "state": "inactive", "frames": []})
    segment = {"device": 0, "address": 512, "total_size": 1 << 21, "stream": 0, "blocks": blocks}
    return {"segments": [segment], "device_traces": [events[forget:], []]}, max(held)
