"""Do kit's metrics agree with Holistic Trace Analysis (HTA) on traces that both can read?

HTA reads traces from GPUs only, and this project has none of its own, so the traces are made here:
random launches and kernels on two streams, in the format of torch.profiler, in whole microseconds
because HTA rounds to them. HTA needs an environment of its own:

    python3 -m venv hta && hta/bin/pip install HolisticTraceAnalysis
    python benchmarks/peers/hta_agreement.py --hta hta/bin/python [--traces 20]
    python benchmarks/peers/hta_agreement.py --hta hta/bin/python --files a.json.gz b.json.gz

`--files` compares traces of real GPUs, twice: as they are, and with the known differences taken
out (docs/traces.md): HTA rounds times down to microseconds, leaves out what the GPU did if the file
has no call that launched it, counts as its work whatever names a stream (waits, annotations drawn
on a GPU, ops of Triton), takes a call that waits (`cudaMemcpy`) as a launch, a copy's bandwidth as
the file says it, and has waits below 0 where rounded kernels overlap.

Compared, at the defaults of both, are the idle time of the device, the idle time of each stream by
HTA's causes, the overlap of communication and computation, the longest queue of each stream, the
times of launches, the mean of each kernel, and the bandwidth of each kind of copy. Prints what
differs, exits with 1 if anything does.

    python benchmarks/peers/hta_agreement.py --launch-edges a.json.gz b.json.gz

says without HTA why its critical path has less of the host than the kit's: which gaps between
kernels of a stream the host has ended, since it called later than the last kernel had ended, and of
which of these HTA's graph leaves out the edge from the call, by the rule of its source.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CALLS = ("cuda_runtime", "cuda_driver", "runtime")
WORK = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
WAITING = ("cudaMemcpy", "hipMemcpy", "hipMemcpyWithStream")  # calls that launch, and wait
RATE = "memory bandwidth (GB/s)"
LEAST_RATE = 1e-9  # below it, a step of a running sum of floats is none
COMPUTE, COMMUNICATION = ("sgemm", "relu", "norm", "softmax"), "ncclDevKernel_AllReduce_Sum_f32"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hta", help="a Python that has HTA")
    parser.add_argument("--traces", type=int, default=20)
    parser.add_argument("--files", type=Path, nargs="+", help="traces of real GPUs instead")
    parser.add_argument("--launch-edges", type=Path, nargs="+", help="the critical path's graph")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print("answer: " + json.dumps(hta_says(options.ask)))
        return 0
    if options.launch_edges:
        for file in options.launch_edges:
            print(f"{file.name}: {launch_edges(file)}")
        return 0
    if not options.hta:
        parser.error("--hta is missing: a Python in whose environment HTA is installed")
    if options.files:
        return published(options.hta, options.files)
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for seed in range(options.traces):
            path.write_text(json.dumps(trace(random.Random(seed))))
            differing += compared(f"trace {seed}", asked(options.hta, path), kit_says(path))
    print(f"{options.traces} traces, {differing} differ")
    return 1 if differing else 0


def published(hta: str, files: Sequence[Path]) -> int:
    """Compare real traces; what differs beyond the known differences is the exit code."""
    differing = failing = 0
    with tempfile.TemporaryDirectory() as folder:
        alike = Path(folder) / "alike.json"
        for file in files:
            try:
                theirs = without_means(asked(hta, file))
                alike.write_text(json.dumps(without_known_differences(file)))
                alike_theirs = without_means(asked(hta, alike, HTA_DISABLE_NS_ROUNDING="1"))
            except subprocess.CalledProcessError as error:
                print(f"{file.name}: HTA fails: {error.stderr.strip().rpartition(chr(10))[2]}")
                failing += 1
                continue
            compared(f"{file.name}, as it is", theirs, kit_says(file))
            differing += compared(f"{file.name}, made alike", alike_theirs, kit_says(alike))
    print(f"{len(files)} traces, {differing} differ when made alike, of {failing} HTA fails")
    return 1 if differing else 0


def without_means(said: dict[str, float]) -> dict[str, float]:
    """All but the kernels' means: for a trace of one rank HTA gives sums of some in their place."""
    return {name: value for name, value in said.items() if not name.endswith(" mean")}


def without_known_differences(file: Path) -> dict[str, Any]:
    """A trace of which HTA takes nothing for the GPU's work that is none, without work that HTA
    leaves out, or that a call has launched which waits for it; each copy's rate is from its length.
    """
    packed = file.read_bytes()
    whole = gzip.decompress(packed) if file.suffix == ".gz" else packed
    content: dict[str, Any] = json.loads(whole)
    events = content["traceEvents"]
    calls = {e["args"].get("correlation"): e["name"] for e in events if _category(e) in CALLS}
    content["traceEvents"] = [
        e
        for e in events
        if (
            calls.get(e["args"].get("correlation"), WAITING[0]) not in WAITING
            if _category(e) in WORK
            else "stream" not in e.get("args", {}) or _category(e) in CALLS
        )
    ]
    _keep_apart(content["traceEvents"])
    for event in content["traceEvents"]:
        if RATE in event.get("args", {}):
            length = event["dur"]
            event["args"][RATE] = event["args"]["bytes"] / length / 1e3 if length else 0.0
    return content


def _keep_apart(events: Sequence[dict[str, Any]]) -> None:
    """Let kernels of a stream that overlap, as old files round their times, end where the next
    begins: HTA has a wait below 0 there.
    """
    latest: dict[Any, dict[str, Any]] = {}
    for event in sorted((e for e in events if _category(e) in WORK), key=lambda e: e["ts"]):
        stream = event["args"].get("stream")
        before = latest.get(stream)
        if before and before["ts"] < event["ts"]:
            before["dur"] = min(before["dur"], event["ts"] - before["ts"])
        latest[stream] = event


def launch_edges(file: Path) -> str:
    """Gaps of the first step that the host has ended, and those without an edge from the call.

    The rule of `_construct_graph_from_kernels` in HTA's critical_path_analysis.py: an edge from a
    call to its kernel is there if the stream's queue had one entry when called and none when the
    kernel began. Else the gap becomes overhead between two kernels, if it is under 1.5 ms.
    """
    packed = file.read_bytes()
    events = json.loads(gzip.decompress(packed) if file.suffix == ".gz" else packed)["traceEvents"]
    steps = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep")]
    steps = [e for e in steps if _category(e) != "gpu_user_annotation"]
    first = min(steps, key=lambda e: e["ts"])
    calls = {e["args"].get("correlation"): e for e in events if _category(e) in CALLS}
    streams: dict[Any, list[Any]] = {}
    for event in events:
        if _category(event) in WORK:
            streams.setdefault(event["args"].get("stream"), []).append(event)
    ended, without = [], []
    for kernels in streams.values():
        kernels.sort(key=lambda e: e["ts"])
        pairs = [(calls.get(e["args"].get("correlation")), e) for e in kernels]
        called = sorted(call["ts"] for call, _ in pairs if call)
        begun = [e["ts"] for call, e in pairs if call]
        free = -math.inf
        for call, kernel in pairs:
            gap = kernel["ts"] - free
            inside = call and first["ts"] <= call["ts"] < first["ts"] + first["dur"]
            if inside and math.isfinite(free) and gap > 0 and call["ts"] > free:
                ended.append(gap)
                at_call = bisect_right(called, call["ts"]) - bisect_left(begun, call["ts"])
                at_begin = bisect_right(called, kernel["ts"]) - bisect_right(begun, kernel["ts"])
                if (at_call, at_begin) != (1, 0):
                    without.append(gap)
            free = max(free, kernel["ts"] + kernel["dur"])
    return (
        f"of its first step's gaps the host has ended {len(ended):,}, {sum(ended) / 1e3:.1f} ms; "
        f"{len(without):,} of them, {sum(without) / 1e3:.1f} ms, have no edge from the call"
    )


def _category(event: dict[str, Any]) -> str:
    return str(event.get("cat", "")).lower()


def asked(hta: str, path: Path, **environment: str) -> dict[str, float]:
    """What HTA says of a trace, in the environment that has it."""
    command = [hta, __file__, "--ask", str(path)]
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    ).stdout
    found: dict[str, float] = json.loads(out.split("answer: ", 1)[1])
    return found


def compared(which: str, theirs: dict[str, float], ours: dict[str, float]) -> bool:
    """Print where the two differ by more than HTA's own rounding."""
    found = {
        name: (value, ours.get(name))
        for name, value in theirs.items()
        if not math.isclose(ours.get(name, math.inf), value, rel_tol=1e-6, abs_tol=0.006)
        and not (math.isnan(value) and math.isnan(ours.get(name, math.nan)))
    }
    for name, (value, own) in found.items():
        print(f"{which}: {name}: HTA {value}, kit {own}")
    return bool(found)


def hta_says(path: Path) -> dict[str, float]:
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(
        trace_files={0: str(path)}, trace_dir=str(path.parent), include_last_profiler_step=True
    )
    whole = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    idle = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    queue = analysis.get_queue_length_time_series(ranks=[0])[0]
    launched = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    kernels = analysis.get_gpu_kernel_breakdown(visualize=False)[1]
    running = analysis.get_memory_bw_time_series(ranks=[0])  # empty: the trace has no copies
    return {
        "idle": float(whole["idle_time(us)"]),
        "overlap": float(overlap["comp_comm_overlap_pctg"]),
        **{
            f"{what} GB/s": mean_step(of["memory_bw_gbps"])
            for series in running.values()
            for what, of in series.groupby("name")
        },
        **{f"{r.stream} {r.idle_category}": float(r.idle_time) for r in idle.itertuples()},
        **{f"queue {s}": float(of["queue_length"].max()) for s, of in queue.groupby("stream")},
        **{
            f"{of} of launches": float(launched[of].sum())
            for of in ("cpu_duration", "gpu_duration", "launch_delay")
        },
        **{
            f"{name} mean": float(mean)
            for name, mean in zip(kernels["name"], kernels["mean (us)"], strict=True)
        },
    }


def mean_step(running: Sequence[float]) -> float:
    """The mean bandwidth of copies, from HTA's running sum of it; nan if it has no step up.

    The mean that HTA gives is of the sum's points: of copies that touch, of the sum of both, and,
    as floats do not add up to 0, of what is left of it between copies.
    """
    values = [0.0, *running]
    steps = [b - a for a, b in itertools.pairwise(values) if b - a > LEAST_RATE]
    return sum(steps) / len(steps) if steps else math.nan


def kit_says(path: Path) -> dict[str, float]:
    import kit
    from kit.trace import Timeline, hta_idle, hta_launches, hta_overlap, hta_queue, kernel_table
    from kit.trace.kinds import ON_DEVICE
    from kit.trace.metrics import union_ns

    timeline = kit.open_trace(path).timeline
    rates: dict[str, list[float]] = {}
    for copy in kit.open_ranks(path).traces[0].copies:
        if copy.stop_ns > copy.start_ns:
            rate = copy.size_bytes / (copy.stop_ns - copy.start_ns)
            rates.setdefault(copy.what, []).append(rate)
    times = timeline.intervals(kind=ON_DEVICE)
    busy = union_ns(times)
    launched = hta_launches(timeline)
    # HTA has the kernels, too, that run after the end of the last step
    kernels = kernel_table(Timeline.of([s for s in timeline.spans if s.kind != "step"]))
    causes = {
        f"{lane.rsplit(' ', 1)[1]} {cause.replace(' ', '_')}": ns / 1e3
        for lane, parts in hta_idle(timeline).items()
        for cause, ns in parts.items()
    }
    return {
        "idle": (times[:, 1].max() - times[:, 0].min() - busy) / 1e3,
        "overlap": 100 * hta_overlap(timeline),
        **causes,
        **{f"{what} GB/s": sum(each) / len(each) for what, each in rates.items()},
        **{
            f"queue {lane.rsplit(' ', 1)[1]}": float(series[:, 1].max())
            for lane, series in hta_queue(timeline).items()
        },
        "cpu_duration of launches": float(launched.call_ns.sum()) / 1e3,
        "gpu_duration of launches": float(launched.kernel_ns.sum()) / 1e3,
        "launch_delay of launches": float(launched.delay_ns.sum()) / 1e3,
        **{f"{row.name} mean": row.mean_us for row in kernels},
    }


def trace(rng: random.Random) -> dict[str, Any]:
    """Three steps of 120 launches: some back to back, some late, kernels on two streams."""
    events: list[dict[str, Any]] = []

    def add(
        cat: str, name: str, ts: int, dur: int, tid: int = 7, pid: int = 7, **args: Any
    ) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts,
                       "dur": dur, "args": args})  # fmt: skip

    now, correlation, free = 1000, 1, {7: 0, 13: 0, 21: 0}

    def copy(called: int, correlation: int) -> None:
        """A copy on a stream of its own: HTA takes what its file says of the bandwidth."""
        add("cuda_runtime", "cudaMemcpyAsync", called, 3, correlation=correlation)
        start = max(free[21], called + 5)
        what, size, length = rng.choice(("HtoD", "DtoH")), rng.randint(1, 9) << 12, 8
        add("gpu_memcpy", f"Memcpy {what} (Pinned -> Device)", start, length, 21, 0, stream=21,
            device=0, correlation=correlation, context=1, bytes=size,
            **{RATE: size / length / 1e3})  # fmt: skip
        free[21] = start + length + 2

    for step in range(3):
        begin = now
        for _ in range(120):
            add("cpu_op", "aten::mm", now, rng.randint(6, 10))
            add("cuda_runtime", "cudaLaunchKernel", now + 1, 3, correlation=correlation)
            stream = rng.choice([7, 7, 7, 13])
            name = rng.choice(COMPUTE) if stream == 7 else COMMUNICATION
            start = max(now + rng.randint(5, 8), free[stream] + rng.randint(0, 3))
            start += start % 2  # calls are at odd times: HTA gives an equal time no order
            length = rng.randint(1, 15)
            add("kernel", name, start, length, stream, 0, stream=stream, device=0,
                correlation=correlation, context=1)  # fmt: skip
            free[stream] = start + length
            if rng.random() < 0.1:
                copy(now + 5, 100_000 + correlation)
            correlation += 1
            now += 12 if rng.random() < 0.8 else 60
        add("user_annotation", f"ProfilerStep#{step}", begin, now - begin)
        now += 6
    device = {"id": 0, "name": "made up", "numSms": 132, "totalGlobalMem": 8e10,
              "computeMajor": 9, "computeMinor": 0}  # fmt: skip
    return {"schemaVersion": 1, "deviceProperties": [device], "baseTimeNanoseconds": 0,
            "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
            "displayTimeUnit": "ms", "traceEvents": events}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
