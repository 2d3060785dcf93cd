"""Files of other profilers, made here: a jax profile's by jax itself, the others by their forms."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["chakra", "rocprof", "rocprofv3", "trace_viewer"]

GPU, OTHER_GPU, CPU = 37946, 37947, 37944


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
