"""Trace files for tests: one of torch.profiler's, one like those from a GPU, and damaged ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.formats.chrome.read import read_chrome
from kit.trace import Span, Timeline

__all__ = ["cuda", "cuda_trace", "damaged", "kernels", "mutated", "op", "opened", "random_events",
           "shown", "step", "torch_trace", "written"]  # fmt: skip


def torch_trace(path: Path, *, steps: int = 2, accumulate: int = 1, name: str = "kit step ",
                with_stack: bool = False, read: bool = True,
                around: Callable[[Any], Any] = lambda work: work()) -> Any:  # fmt: skip
    """Train a small model under torch.profiler, write the Chrome trace; returns the profiler.

    Args:
        around: calls the forward pass.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8)

    def train() -> None:
        optimizer.zero_grad()
        for _ in range(accumulate):
            loss = around(lambda: model(x)).sum()
            loss.backward()
        optimizer.step()
        if read:
            loss.item()

    train()
    with profile(
        activities=[ProfilerActivity.CPU], with_stack=with_stack, acc_events=True
    ) as profiler:
        for i in range(steps):
            with record_function(f"{name}{i}"):
                train()
    profiler.export_chrome_trace(str(path))
    return profiler


def cuda_trace(*, skew_us: float = 0.0) -> dict[str, Any]:
    """Two steps as torch.profiler writes them with a GPU, by hand: autograd has a thread, kernels
    have streams, and the host waits once a step in `loss.item()` and once in a copy.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "args": {"name": "thread 7 (py)"}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "pt_autograd_0"}},
    ]

    def add(
        cat: str, name: str, ts: float, dur: float, tid: int = 7, pid: int = 7, **args: Any
    ) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
                       "ts": ts, "dur": dur, "args": args})  # fmt: skip

    def kernel(cat: str, name: str, ts: float, dur: float, correlation: int, stream: int) -> None:
        add(cat, name, ts + skew_us, dur, stream, 0, device=0, stream=stream,
            correlation=correlation)  # fmt: skip

    add("python_function", "train.py(1): <module>", 900.0, 3000.0)
    for n in range(2):
        t, c = 1000.0 + 1000 * n, 10 * n
        add("user_annotation", f"ProfilerStep#{n + 3}", t, 900.0)
        add("gpu_user_annotation", f"ProfilerStep#{n + 3}", t, 800.0, 7, 0)
        add("python_function", "train.py(41): step", t + 1, 890.0)
        add("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", t + 2, 20.0)
        add("cpu_op", "aten::copy_", t + 30, 40.0)
        add("cuda_runtime", "cudaMemcpyAsync", t + 32, 10.0, correlation=c + 1)
        add("cuda_runtime", "cudaStreamSynchronize", t + 44, 25.0, correlation=c + 2)
        kernel("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", t + 36, 30.0, c + 1, 20)
        add("cpu_op", "aten::mm", t + 100, 30.0)
        add("cuda_runtime", "cudaLaunchKernel", t + 110, 8.0, correlation=c + 3)
        kernel("kernel", "sgemm_128x64<float>", t + 130, 200.0, c + 3, 7)
        engine = "autograd::engine::evaluate_function: MmBackward0"
        add("cpu_op", engine, t + 200, 100.0, 8)
        add("cpu_op", "aten::mm", t + 210, 50.0, 8)
        add("cuda_runtime", "cudaLaunchKernel", t + 215, 8.0, 8, correlation=c + 4)
        kernel("kernel", "sgemm_64x64<float>", t + 330, 200.0, c + 4, 7)
        add("user_annotation", "Optimizer.step#SGD.step", t + 400, 50.0)
        add("python_function", "torch/_tensor.py(900): item", t + 500, 320.0)
        add("python_function", "<built-in method item of Tensor object>", t + 501, 318.0)
        add("cpu_op", "aten::item", t + 502, 310.0)
        add("cpu_op", "aten::_local_scalar_dense", t + 503, 308.0)
        # as CUDA does it: to memory that is not pinned, the copy itself waits
        add("cuda_runtime", "cudaMemcpyAsync", t + 504, 300.0, correlation=c + 5)
        add("cuda_runtime", "cudaStreamSynchronize", t + 806, 4.0, correlation=c + 6)
        kernel("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", t + 800, 2.0, c + 5, 7)
    add("cuda_runtime", "cudaDeviceSynchronize", 3000.0, 10.0)
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000}],
        "cuda_runtime_version": 12080,
        "traceEvents": events,
    }


_EXTREMES = ("NaN", "Infinity", "-1", "1e308", "-1e308", "9" * 400, '"x"', "null", "[]", "{}",
             "0.5", "true", '"' + "A" * 5000 + '"', '"\\ud800\\u0000<script>"')  # fmt: skip


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same bytes with a few faults in them."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(changed) + 1)
        length = rng.choice([1, 1, 4, 60, 2000])
        replacement = rng.choice(
            [
                b"",
                rng.randbytes(length),
                bytes(changed[at : at + length]) * 2,
                rng.choice(_EXTREMES).encode(),
                bytes([rng.choice(b'{}[],:"\\0\n')]),
            ]
        )
        changed[at : at + length] = replacement
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.random() < 0.15 else changed)


def damaged(trace: dict[str, Any], rng: random.Random) -> bytes:
    """A trace that is JSON still, with wrong values, and events lost or out of order."""
    trace = dict(trace)
    events = [dict(e) for e in trace["traceEvents"]]
    for _ in range(rng.randrange(1, 30)):
        event = rng.choice(events)
        key = rng.choice([*event, "ts", "dur", "name"])
        event[key] = rng.choice([None, -1, 0, float("nan"), float("inf"), 1e300, -1e17, 2**70, "x",
                                 [], {}, [[]], True, event.get("ts"),
                                 "</script>\x00" * 200])  # fmt: skip
    if rng.random() < 0.4:
        rng.shuffle(events)
    if rng.random() < 0.4:
        events = [e for e in events if rng.random() < 0.8] + events[:5]
    trace["traceEvents"] = events
    if rng.random() < 0.2:
        trace[rng.choice([*trace])] = rng.choice([None, [], {}, 5, "x", [None]])
    return json.dumps(trace).encode()


def random_events(rng: random.Random, count: int) -> bytes:
    """A file of the right form whose events are made of words and numbers that a reader knows."""
    cats = ("cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", "user_annotation", "python_function",
            "kit.kernel", "kit.step", "kit.sync", "kit.nonsense", "ac2g", "", None, 3)  # fmt: skip
    names = ("aten::mm", "aten::item", "aten::copy_", "aten::_local_scalar_dense", "cudaMemcpy",
             "ProfilerStep#1", "ProfilerStep#2", "Optimizer.step#A", "cudaStreamSynchronize",
             "autograd::engine::evaluate_function: X", "cudaLaunchKernel", "train.py(3): f",
             "kit finish", "enumerate(DataLoader)#x", "<b>\x00\u202e" + "n" * 3000, "", None, 9,
             ["list"])  # fmt: skip
    numbers = (0, 1, 5.5, 100, 100.25, 200, -3, 1e9, 1e18, -1e18, 1e300, float("nan"),
               float("inf"), "7", None, 2**70, True, 4399610493655.776)  # fmt: skip
    phases = ("X", "X", "X", "X", "B", "E", "i", "s", "f", "M", "", None)

    def event() -> Any:
        if rng.random() < 0.02:
            return rng.choice([None, 1, "event", [], [[]]])
        args = {"device": rng.choice(numbers), "stream": rng.choice(numbers),
                "correlation": rng.choice(numbers), "segment": rng.choice(numbers),
                "node": rng.choice(numbers), "cause": rng.choice(names),
                "name": rng.choice(names)}  # fmt: skip
        whole = {
            "ph": rng.choice(phases),
            "cat": rng.choice(cats),
            "name": rng.choice(names),
            "ts": rng.choice([*numbers, rng.uniform(0, 300), rng.uniform(0, 300)]),
            "dur": rng.choice([*numbers, rng.uniform(0, 90)]),
            "pid": rng.choice([1, 1, 1, "p", 2.5, None, []]),
            "tid": rng.choice([1, 1, 1, 2, "t", {}]),
            "args": rng.choice([args, args, args, None, [], "x"]),
        }
        return {k: v for k, v in whole.items() if rng.random() < 0.97}

    head: dict[str, Any] = {"traceEvents": [event() for _ in range(count)]}
    if rng.random() < 0.5:
        own = {
            "format": "overlap-kit trace",
            "version": rng.choice([1, 1, 1, 2, "x"]),
            "tracks": rng.choice([{"1": "host/main", "2": 3}, [], None]),
            "notes": rng.choice([["n"], 5, [[]]]),
            "name": rng.choice(names),
            "environment": rng.choice([{"a": []}, 4, {"b": "c"}]),
            "step_times_ns": rng.choice([[1, 2], [-1], "x", None]),
        }
        head = {"otherData": own} | head
    if rng.random() < 0.1:
        return json.dumps(head["traceEvents"]).encode()
    head["deviceProperties"] = rng.choice([[{"name": 5}], [3], "x", {}, [{"name": "GPU"}]])
    return json.dumps(head).encode()


def written(folder: Path, content: Any, name: str = "trace.json") -> Path:
    """A file of this content: bytes, a text, or what becomes JSON."""
    path = folder / name
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def op(name: str = "aten::mm", ts: Any = 10, dur: Any = 5, **more: Any) -> dict[str, Any]:
    """One event of torch's."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
            **more}  # fmt: skip


def step(ts: Any, dur: Any, number: int = 0) -> dict[str, Any]:
    return op(f"ProfilerStep#{number}", ts, dur, cat="user_annotation")


def opened(folder: Path, *events: Any) -> Timeline:
    return read_chrome(written(folder, {"traceEvents": list(events)})).timeline


def shown(timeline: Timeline, kind: str, zero: int = 0) -> list[tuple[str, int, int]]:
    """(name, start, stop) of the spans of one kind."""
    return [(s.name, s.start_ns - zero, s.stop_ns - zero) for s in timeline.spans if s.kind == kind]


def cuda(folder: Path, **how: Any) -> Timeline:
    return read_chrome(written(folder, cuda_trace(**how))).timeline


def kernels(timeline: Timeline) -> list[Span]:
    """What ran; a trace that marks no steps has a step around it."""
    return [s for s in timeline.spans if s.kind == "kernel"]
