"""The profiler's GPU half on device "kit": what it sees is compared with what must be so."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from kit.gpu_check.base.journal import Journal
from kit.gpu_check.parts.bert import TINY
from kit.measure.base.context import Context, Workload, workload
from kit.measure.experiment import run as run_once
from kit.runs.loss_scaling import HOST_CHECK
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.profiling.device_spans import profiled
from kit.trace.active import launches
from kit.trace.kernels import charged_ns
from kit.trace.metrics import breakdown_ns, union_ns
from kit.workloads.masked_lm import bert_of

__all__ = ["joined_ns", "run"]

JOINED = 0.98  # of the device's time has to belong to a node of the graph
CLOCK_US = 50.0  # by how much a kernel may seem to run outside of its call
BUSY = (0.9, 1.1)  # what the profiler saw of the device, divided by what a clock says
_STREAM = re.compile(r"device/\d+ stream ")
_COPY = re.compile(r"mem_?cpy|copy", re.IGNORECASE)


def run(journal: Journal) -> None:
    """Everything that can be told from one run of BERT, then the clocks."""
    with journal.attempt("kernels of native torch and of device kit by turns"):
        _turns(journal)  # first: no profile of the kit's was before the program's own
    is_gpu = jax.default_backend() != "cpu"
    size = TINY if journal.is_tiny else "base"
    # as in part b, whose programs are on disk then
    dtype = "float32" if journal.is_tiny else "float16"
    settings = Settings(mode="lazy", batch_size=8, loss_scaling=HOST_CHECK, steps=4, dtype=dtype)
    with journal.attempt("BERT under the profiler"):
        made = run_once(bert_of(size), settings)
        journal.keep(made, "profiler")
        _joined(journal, made)
        _lanes(journal, made, is_gpu)
        _launched(journal, made, is_gpu)
        steps = made.timeline.intervals(kind="step")
        exposed = sum(part for _, part in breakdown_ns(made.timeline).values())
        journal.check(
            "breakdown adds up to the steps, device kit",
            float(abs(exposed - union_ns(steps))),
            at_most=0,
            unit="ns",
        )
    with journal.attempt("clocks of host and device agree"):
        _clocks(journal, is_gpu)
    for mode in ("lazy", "torch"):
        with journal.attempt(f"device busy against a clock, mode {mode}"):
            _busy(journal, mode, is_gpu)


def joined_ns(run: Run) -> dict[tuple[str, bool], float]:
    """Device time by (kernel's name, is it known which nodes it computes?)."""
    t = run.timeline
    ids = np.flatnonzero(t.where(kind="kernel"))
    charged = charged_ns(t.times(ids))
    found: dict[tuple[str, bool], float] = defaultdict(float)
    for i, ns in zip(ids.tolist(), charged.tolist(), strict=True):
        name = t.names[t.name[i]]
        found[name, bool(run.nodes_of(int(t.segment[i]), name, int(t.node[i])))] += ns
    return dict(found)


def _joined(journal: Journal, made: Run) -> None:
    """How much of the device's time belongs to nodes, and what does not."""
    found = joined_ns(made)
    whole = sum(found.values())
    known = sum(ns for (_, is_known), ns in found.items() if is_known)
    journal.check(
        "device time that is joined to nodes",
        known / max(whole, 1.0),
        at_least=JOINED,
        why="; ".join(made.timeline.notes) or "the table names the rest",
    )
    rest = sorted(((ns, name) for (name, is_known), ns in found.items() if not is_known))[::-1]
    journal.table(
        "Kernels that no node is known for",
        [{"kernel": name, "ms": ns / 1e6, "share": ns / whole} for ns, name in rest[:12]],
    )


def _lanes(journal: Journal, made: Run, is_gpu: bool) -> None:
    """Kernels lie on streams, and the copies of the batches are among them."""
    t = made.timeline
    kernels = np.flatnonzero(t.where(kind="kernel"))
    lanes = sorted({t.lanes[t.lane[i]] for i in kernels.tolist()})
    names = [t.names[t.name[i]] for i in kernels.tolist()]
    journal.facts({"lanes of the device": ", ".join(lanes)})
    journal.check("kernels in the timeline, device kit", float(len(kernels)), at_least=1)
    if not is_gpu:
        journal.not_run("kernels lie on streams", "only a GPU has streams")
        journal.not_run("copies in the timeline", "only a GPU has memory of its own")
        return
    on_streams = sum(bool(_STREAM.match(lane)) for lane in lanes)
    journal.check(
        "kernels lie on streams", on_streams / max(len(lanes), 1), at_least=1, why=", ".join(lanes)
    )
    copies = sum(bool(_COPY.search(name)) for name in names)
    journal.check(
        "copies in the timeline",
        float(copies),
        at_least=1,
        why="each step loads a batch: one copy to the device at least",
    )


def _launched(journal: Journal, made: Run, is_gpu: bool) -> None:
    """No kernel runs before the call that launched it."""
    t = made.timeline
    kernels = np.flatnonzero(t.where(kind="kernel"))
    launched, _ = launches(t, kernels)
    known = launched >= 0
    journal.check(
        "kernels whose launch is known",
        float(known.mean()) if len(known) else 0.0,
        why="a fraction of all kernels",
    )
    if not known.any():
        journal.not_run("kernels begin after their launch", "no launch of a kernel is known")
        return
    first = float((t.start_ns[kernels][known] - launched[known]).min()) / 1e3
    journal.check(
        "kernels begin after their launch",
        first,
        unit="us",
        at_least=-CLOCK_US if is_gpu else None,
        why="the shortest time from a launch to its kernel",
    )


def _clocks(journal: Journal, is_gpu: bool) -> None:
    """A program that the host waits for runs between the call and the end of the wait."""
    wide = 2048 if is_gpu else 128
    chain = jax.jit(lambda x: jnp.linalg.multi_dot([x] * 4))
    x = jnp.eye(wide, dtype=jnp.float32)
    jax.block_until_ready(chain(x))
    calls = []
    with profiled() as profile:
        for _ in range(10):
            start = time.perf_counter_ns()
            jax.block_until_ready(chain(x))
            calls.append((start, time.perf_counter_ns()))
    kernels = profile.kernels([], {})
    if not kernels:
        raise RuntimeError(f"the profiler saw no kernel {profile.notes}")
    early, late = [], []
    for start, stop in calls:
        middles = [k for k in kernels if start <= (k.start_ns + k.stop_ns) // 2 < stop]
        if middles:
            early.append(min(k.start_ns for k in middles) - start)
            late.append(stop - max(k.stop_ns for k in middles))
    journal.check(
        "calls with a kernel inside",
        len(early) / len(calls),
        at_least=1,
        why="by the middle of the kernel; fewer: the clocks do not agree",
    )
    if not early:
        return
    limit = -CLOCK_US if is_gpu else None
    journal.check(
        "kernels begin after the call",
        min(early) / 1e3,
        at_least=limit,
        unit="us",
        why="the shortest of all calls; negative: the device's clock is early",
    )
    journal.check(
        "kernels end before the wait does",
        min(late) / 1e3,
        at_least=limit,
        unit="us",
        why="the shortest of all calls; negative: the device's clock is late",
    )


def _turns(journal: Journal) -> None:
    """Both profilers see kernels in one process, whichever was on before, the user's too."""
    if torch.cuda.is_available():
        os.environ.pop("TEARDOWN_CUPTI", None)  # a profile of a program that knows nothing of it
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            torch.ones(1, device="cuda").add_(1)
    modes = ("torch", "lazy", "torch", "lazy", "lazy", "torch")
    found = []
    for mode in modes:
        made = run_once(products_of(128), Settings(mode=mode, steps=2))
        found.append(int(made.timeline.where(kind="kernel").sum()))
    journal.check(
        "kernels of native torch and of device kit by turns",
        float(min(found)),
        at_least=1,
        why=", ".join(f"{mode}: {n}" for mode, n in zip(modes, found, strict=True)),
    )


def _busy(journal: Journal, mode: str, is_gpu: bool) -> None:
    """Of a step that only multiplies large matrices the device is busy for all of the time."""
    made = run_once(products_of(4096 if is_gpu else 128), Settings(mode=mode, steps=6))
    if not is_gpu:
        journal.not_run(
            f"device busy against a clock, mode {mode}",
            "it ran, but on a CPU other programs share the cores: the number would say nothing",
        )
        return
    t = made.timeline
    steps = max(t.steps, 1)
    busy_ms = union_ns(t.intervals(kind="kernel")) / steps / 1e6
    clock = "CUDA events" if mode == "torch" and torch.cuda.is_available() else "the host's clock"
    journal.check(
        f"device busy against a clock, mode {mode}",
        busy_ms / made.step_ms,
        at_least=BUSY[0],
        at_most=BUSY[1],
        why=f"kernels of a traced step {busy_ms:.3f} ms, an untraced step {made.step_ms:.3f} ms "
        f"by {clock}; 20 products of large matrices",
    )


def products_of(width: int) -> Workload:
    """A step of twenty products of matrices, one after the other."""

    @workload
    def products(ctx: Context) -> Callable[[], Any]:
        torch.manual_seed(ctx.seed)
        a = (torch.randn(width, width) / width**0.5).to(ctx.device)

        def step() -> Tensor:
            x: Tensor = a
            for _ in range(20):
                x = x @ a
            return x.square().mean()

        return step

    return products
