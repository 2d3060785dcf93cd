"""Traces of a job of many ranks, made up: every offset, late-comer and overlap in them is known.

For looking at `kit.open_ranks` without a cluster, and for the kit's own tests. This command

    python -m kit.workloads.made_ranks FOLDER

writes eight ranks of three steps, in which rank 5 computes longer than the others and rank 2 loads
its batch late once. The files have the form of torch.profiler's, and say in "made by" that no GPU
has written them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LAYERS", "MADE_BY", "Job", "made_traces", "write_ranks"]

MADE_BY = "overlap-kit's generator of test data, not by a GPU"
EPOCH_NS = 1_790_857_026_000_000_000
LAYERS = 4


@dataclass(frozen=True)
class Job:
    """What the job did; times in microseconds."""

    ranks: int = 8
    steps: int = 3
    compute_us: float = 600.0  # of a layer, forward or backward
    transfer_us: float = 250.0  # of an all-reduce, once all have come
    jitter_us: float = 2.0  # by which ends of a collective differ
    slow: Mapping[int, float] = field(default_factory=dict)  # rank -> factor of its compute
    late: Mapping[tuple[int, int], float] = field(default_factory=dict)  # (rank, step) -> loading
    clock_us: Mapping[int, float] = field(default_factory=dict)  # rank -> how far its clock is on
    elements: int = 1 << 20  # of a gradient, float32
    has_args: bool = True  # do kernels say which collective they are?
    seed: int = 0


def write_ranks(folder: Path, job: Job) -> list[Path]:
    """A file for each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for rank, trace in enumerate(made_traces(job)):
        files.append(folder / f"rank{rank}.json")
        files[-1].write_text(json.dumps(trace), encoding="utf-8")
    return files


def made_traces(job: Job) -> list[dict[str, Any]]:
    """The content of each file: a collective ends when the last rank has come, and was sent."""
    rng = random.Random(job.seed)
    made = [_Rank(job, rank) for rank in range(job.ranks)]
    now = 1000.0
    for step in range(job.steps):
        for rank in made:
            rank.begin(step, now)
        for layer in range(LAYERS):
            for rank in made:
                rank.backward(layer)
            done = max(rank.arrived for rank in made) + job.transfer_us
            for rank in made:
                rank.reduce(done + rng.uniform(0, job.jitter_us), step * LAYERS + layer)
        now = max(rank.end() for rank in made)
    return [rank.trace() for rank in made]


class _Rank:
    """One rank while its trace is made."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.events: list[dict[str, Any]] = []
        self.correlation = 0
        self.computed = self.sent = self.arrived = self.begun = 0.0
        self.name = ""

    def begin(self, step: int, now: float) -> None:
        """The step's batch, and its forward pass."""
        self.begun, self.name = now, f"ProfilerStep#{step + 10}"
        late = self.job.late.get((self.rank, step), 0.0)
        if late:
            self.add("cpu_op", "enumerate(DataLoader)#__next__", now + 1, late, 7)
        self.computed = now + 20 + late
        for layer in range(LAYERS):
            self.compute(f"gemm_forward_{layer}")

    def compute(self, name: str) -> None:
        """One kernel, launched a little before it begins."""
        length = self.job.compute_us * self.job.slow.get(self.rank, 1.0)
        self.launch(self.computed - 10)
        self.kernel(name, self.computed, length, 7, {})
        self.computed += length

    def backward(self, layer: int) -> None:
        """The backward kernel of a layer; its gradient can be sent after it and the one before."""
        self.compute(f"gemm_backward_{layer}")
        self.arrived = max(self.computed + 5, self.sent)

    def reduce(self, stop: float, number: int) -> None:
        """The all-reduce of a layer's gradient, from this rank's arrival to the common end."""
        self.launch(self.arrived - 3)
        args: dict[str, Any] = {
            "Collective name": "allreduce",
            "In msg nelems": self.job.elements,
            "Out msg nelems": self.job.elements,
            "Group size": self.job.ranks,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Ranks": str(list(range(self.job.ranks))),
        }
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        length = stop - self.arrived
        self.kernel(name, self.arrived, length, 20, args if self.job.has_args else {})
        self.sent = stop

    def end(self) -> float:
        """The optimizer's kernel waits for the last gradient; then the host reads the loss."""
        self.computed = max(self.computed, self.sent)
        self.compute("multi_tensor_apply_kernel")
        self.add("cpu_op", "aten::item", self.computed - 200, 210, 7)
        self.add("cuda_runtime", "cudaStreamSynchronize", self.computed - 190, 195, 7)
        stop = self.computed + 20
        self.add("user_annotation", self.name, self.begun, stop - self.begun - 1, 7)
        return stop

    def launch(self, at: float) -> None:
        """A call of CUDA's; `kernel` is what it launches."""
        self.correlation += 1
        at = max(at, self.begun + 2)
        self.add("cuda_runtime", "cudaLaunchKernel", at, 3, 7, correlation=self.correlation)

    def kernel(self, name: str, at: float, length: float, stream: int, args: Any) -> None:
        """A kernel on a stream of the rank's device."""
        more = {"device": self.rank, "stream": stream, "correlation": self.correlation, **args}
        self.add("kernel", name, at, length, stream, **more)

    def add(self, cat: str, name: str, at: float, length: float, tid: int, **args: Any) -> None:
        """One event, by this rank's clock."""
        at += self.job.clock_us.get(self.rank, 0.0)
        what = {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "args": args}
        self.events.append({**what, "ts": round(at, 3), "dur": round(length, 3)})

    def trace(self) -> dict[str, Any]:
        """The file's content."""
        info = {"backend": "nccl", "rank": self.rank, "world_size": self.job.ranks}
        return {
            "schemaVersion": 1,
            "made by": MADE_BY,
            "distributedInfo": info,
            "baseTimeNanoseconds": EPOCH_NS,
            "traceEvents": self.events,
        }


if __name__ == "__main__":
    example = Job(
        slow={5: 1.2}, late={(2, 1): 1500.0}, clock_us={r: 137.0 * (r % 3) for r in range(8)}
    )
    for written in write_ranks(Path(sys.argv[1]), example):
        sys.stdout.write(f"{written}\n")
