"""Workloads on several devices, and what a step of several replicas takes.

`run` calls the builder of a workload, unchanged, for each replica: with a `ReplicaContext`, and a
`loss.backward()` whose gradients are summed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from kit.errors import SettingsError
from kit.measure.base.context import as_workload
from kit.measure.base.loop import TRACED_STEPS, Pace, timed_steps, to_trace
from kit.measure.base.loss import check_loss, no_loss
from kit.measure.base.machine import Watch, conditions_of
from kit.measure.base.randomness import random_kept
from kit.measure.base.turns import CancelledFn, in_turn
from kit.measure.many.common import Common
from kit.measure.many.context import ReplicaContext
from kit.measure.many.joined import Seen, added, merge_processes
from kit.measure.many.options import check_alike, check_options, name_of
from kit.runs.gradients import Backward, exposed_ms, fit_backward
from kit.runs.run import Run
from kit.runs.settings import ENOUGH, Settings
from kit.runs.sources import snippets_of
from kit.runtime.compiling.cache import ExecutableCache
from kit.runtime.processes.channel import Clock
from kit.runtime.processes.join import Processes
from kit.runtime.recording.sites import format_site
from kit.runtime.replicas.group import parted
from kit.shown import Progress
from kit.text import check_whole_number, format_count
from kit.torch.parallel.data_parallel import DataParallel
from kit.torch.parallel.own_step import OwnStepParallel
from kit.torch.parallel.shards import Shards
from kit.trace import Span, Timeline
from kit.trace.syncs import from_first

__all__ = [
    "deep_perceptron",
    "measure",
    "measure_backward",
    "measured_curve",
    "run",
    "step_ms",
]

_NOTES = (
    "a device's lanes are timed by the host: on a CPU from issue to end",
    "of several replicas a sleep, a file, a lock or other Python of the step counts as recording: "
    "a run on one device tells them apart, each with its line",
)


def deep_perceptron(layers: int = 24, width: int = 128) -> nn.Sequential:
    """Many equal layers: gradients are ready one after the other all through backward."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(width, 10))


@in_turn
def run(
    workload: Any, settings: Settings | None = None, *, devices: int | Sequence[Any] = 2,
    progress: Progress | None = None, cancelled: CancelledFn | None = None,
    caches: list[ExecutableCache] | None = None, **options: Any,
) -> Run:  # fmt: skip
    """Run a workload's step on several devices, `settings.batch_size` split over them.

    The builder is called once for each replica, with the same seed, and its step runs in each
    replica's thread. The loss is taken to be a mean over the batch.

    Args:
        caches: runs that are given the same list compile what they have in common once.
        options: as for `kit.DataParallel`: buckets, cuts, a link. Batch norms are shared if the
            model has `kit.SyncBatchNorm`.

    Raises:
        SettingsError: it is no workload of torch, an option is none, or a batch is smaller than
            the devices.
        SessionError: an optimizer updates a parameter that is in no module that was called; or
            another process was given other settings.
        Cancelled: `cancelled()` became true between two steps.
        Exception: whatever the workload raises, with a note that says in which replica.
    """
    chosen = as_workload(workload)
    check_options(chosen, options)
    settings = chosen.fit(settings)  # no replica's: the whole batch's

    def build(rank: int) -> Callable[[], Any]:
        torch.manual_seed(settings.seed)
        if net.processes is not None:  # each draws its batches, and must draw the same ones
            random.seed(settings.seed)
            np.random.seed(settings.seed % 2**32)
        return chosen(ReplicaContext(net, rank, common))

    opened = OwnStepParallel(devices, settings=settings, caches=caches, **options)
    with random_kept(pythons=True), opened as net:
        if net.processes is not None:
            check_alike(net.processes, chosen, settings, options)
        common = Common(net)
        net.build(build)

        made_of = net.one_step

        def step() -> Shards:
            made = net.run()
            for result in made:
                if not isinstance(result, torch.Tensor):
                    raise no_loss(result, made_of)
                check_loss(result, made_of)
            return made

        return measure(net, step, steps=settings.steps, warmup=settings.warmup,
                       name=name_of(chosen, net.count, options), progress=progress,
                       cancelled=cancelled, source=net.one_step)  # fmt: skip


@in_turn
def measure(
    net: DataParallel, step: Callable[[], Any], *, steps: int = 10, warmup: int = 3,
    name: str = "", progress: Progress | None = None, cancelled: CancelledFn | None = None,
    source: Any = None,
) -> Run:  # fmt: skip
    """Warm up, time steps untraced, then record three more: their timeline is of origin "recorded".

    `step()` does one whole step with `net` and returns its losses, or nothing. On a CPU a segment's
    span is the time from its issue to its end; on a GPU it is that of its issue alone.

    Graph and cuts are the first replica's, with nodes for what it sends; sync points are those of
    the replica that waits most often; counters are of all replicas together.

    Args:
        source: a Python function whose lines the run shall carry; else only lines that it names.

    Raises:
        SettingsError: there is not a step to measure.
        Cancelled: `cancelled()` became true between two steps.
    """
    if steps != ENOUGH:
        check_whole_number(SettingsError, "steps", steps)
    processes, watch = net.processes, Watch()
    waits = [session.reads.follow() for session in net.sessions]

    def agree() -> None:
        watch.begin(cancelled)
        if processes is not None:
            _agree(net, processes, "the first measured step")

    def start() -> None:
        for of_session in waits:
            of_session.clear()

    timed = timed_steps(
        step,
        net.settings.replace(steps=steps, warmup=warmup),
        Pace(
            finish=net.wait_all,
            quiet=agree,
            start=start,
            keep=lambda loss: (loss, net.weights),
            agree=bool if processes is None else partial(_agree_steady, processes),
            share=int if processes is None else partial(_most_steps, processes),
        ),
        progress=progress,
        cancelled=cancelled,
    )
    most = max(waits, key=len)
    waited = tuple(most)
    metrics = added(session.metrics() for session in net.sessions)
    if processes is not None:
        _agree(net, processes, "the end of the measured steps")
    host, clocks = _traced(net, to_trace(step, net.settings))
    seen = Seen(host, timed.times, waited, metrics, net.capture, (watch.end(),))
    notes: tuple[str, ...] = ()
    where: dict[str, str] = {}
    if processes is not None:
        seen, where, note = merge_processes(processes, seen, clocks)
        notes = (note,)
    run = _run_of(net, seen, _window(seen, notes), source)
    return replace(
        run,
        losses=tuple(net.mean(loss, weights) for loss, weights in timed.kept if _is_loss(loss)),
        environment={**run.environment, **where},
        conditions=conditions_of(seen.usages, timed.warmup),
        name=name or format_count(net.count, "replica"),
    )


def _traced(net: DataParallel, step: Callable[[], Any]) -> tuple[list[Span], list[Clock]]:
    """Run the steps that `net.capture` watches: their spans, and this process's clock around them.

    No clock is read where there is one process.
    """
    channel = None if net.processes is None else net.processes.channel
    host, clocks = [], []
    with net.watched():
        if channel is not None:
            clocks.append(channel.clock())
            channel.meet("the first traced step")  # else one would only wait in it
        for _ in range(max(net.settings.settling, 1)):
            step()
        net.wait_all()  # what the window holds is the work of its own steps
        for i in range(TRACED_STEPS):
            start = time.perf_counter_ns()
            step()
            if i == TRACED_STEPS - 1:
                net.wait_all()
            host.append(Span("host/main", f"step {i}", "step", start, time.perf_counter_ns()))
        if channel is not None:
            clocks.append(channel.clock())
    return host, clocks


def _run_of(net: DataParallel, seen: Seen, timeline: Timeline, source: Any) -> Run:
    """The run that the replicas have seen, still without losses and a name."""
    first, made = net.sessions[0], seen.capture
    metrics = seen.metrics | first.overheads()
    metrics |= {f"exposed.{device}_ms": ms for device, ms in exposed_ms(timeline).items()}
    metrics["parallel.devices"] = float(net.count)
    return Run(
        settings=net.settings,
        losses=(),
        step_times_ns=tuple(seen.times_ns),
        timeline=timeline,
        sync_points=from_first(seen.syncs),
        graphs=(made.graph,),
        segments=made.segments,
        fused=made.fused(),
        metrics=metrics,
        compiles=first.compiles,
        changes=first.report.log.changes(),
        unlowered=dict(sum((session.unlowered for session in net.sessions), Counter())),
        environment={**first.report.environment(), "torch": torch.__version__},
        sources=snippets_of(made.places, format_site, step=source),
    )


def _agree(net: DataParallel, processes: Processes, what: str) -> None:
    """Meet; and refuse to go on with optimizers whose numbers differ between the processes.

    Raises:
        SessionError: they do, or a process does not come.
    """
    first, *others = processes.channel.meet(what, net.note)
    for process, note in enumerate(others, start=1):
        if error := parted(process * len(net.ranks), note, 0, first):
            raise error


def _agree_steady(processes: Processes, is_steady: bool) -> bool:
    """Whether all processes call their steps steady: they must take equally many."""
    return all(processes.channel.meet("a warm-up step", is_steady))


def _most_steps(processes: Processes, steps: int) -> int:
    """As many steps as the process wants that wants most: all must take equally many."""
    return int(max(processes.channel.meet("the number of measured steps", steps)))


def _is_loss(result: Any) -> bool:
    """True for one number of each replica, on its device."""
    return isinstance(result, Shards) and all(
        isinstance(x, torch.Tensor) and x.numel() == 1 for x in result
    )


def step_ms(net: DataParallel, step: Callable[[], Any], *, steps: int = 4) -> float:
    """Mean time of some steps in a row, untraced, the devices' last work included."""
    net.wait_all()
    start = time.perf_counter_ns()
    for _ in range(steps):
        step()
    net.wait_all()
    return (time.perf_counter_ns() - start) / steps / 1e6


@in_turn
def measured_curve(
    net: DataParallel,
    step: Callable[[], Any],
    cells: Sequence[dict[str, Any]],
    *,
    rounds: int = 3,
    steps: int = 4,
) -> list[float]:
    """Milliseconds a step for each way to tune `net`, such as {"bulk": (15, 5), "cut": "size"}.

    All are measured in turn, so that a machine that is slow for a while is slow for all; the least
    of the rounds is kept, because what disturbs a step only makes it longer.
    """
    best = [float("inf")] * len(cells)
    for number in range(rounds + 1):
        for i, cell in enumerate(cells):
            net.retune(**cell)
            if number == 0:  # compiles
                step_ms(net, step, steps=2)
            else:
                best[i] = min(best[i], step_ms(net, step, steps=steps))
    return best


@in_turn
def measure_backward(
    net: DataParallel,
    step: Callable[[], Any],
    bulks: Sequence[int] = (1, 3, 20),
    *,
    rounds: int = 3,
    steps: int = 4,
) -> Backward:
    """What the model of `kit.runs.gradients` needs to know of this step, measured here.

    Leaves `net` with the last bulk size, cut by size, all gradients in one bucket, and no link.
    """
    forward = net.settings.bulk_forward
    net.retune(cut="size", bucket_mb=1e6)
    cells: list[dict[str, Any]] = [{"bulk": (forward, bulk)} for bulk in bulks]
    times = measured_curve(net, step, cells, rounds=rounds, steps=steps)
    points, shares = [], []
    for cell, ms in zip(cells, times, strict=True):
        net.retune(**cell)
        with net.watched():
            step()
        compute = [s for s in net.capture.spans if s.lane == "device/0 compute"]
        shares.append([_took(compute, phase) for phase in ("forward", "backward", "update")])
        points.append((sum(s.name.startswith("backward") for s in compute), ms * 1e6))
    ops, gradients = net.backward_shape()
    forward_ns, backward_ns, update_ns = (
        float(sum(column)) for column in zip(*shares, strict=True)
    )
    return fit_backward(ops, gradients, points, (forward_ns, backward_ns, update_ns))


def _took(spans: Sequence[Span], phase: str) -> int:
    return sum(s.stop_ns - s.start_ns for s in spans if s.name.startswith(phase))


def _window(seen: Seen, notes: Sequence[str] = ()) -> Timeline:
    """The spans and waits that lie in the steps, with times from their start."""
    start, stop = seen.steps[0].start_ns, seen.steps[-1].stop_ns
    shown = [
        replace(s, start_ns=max(s.start_ns - start, 0), stop_ns=min(s.stop_ns, stop) - start)
        for s in sorted([*seen.steps, *seen.capture.spans], key=lambda s: s.lane)
        if s.stop_ns > start and s.start_ns < stop
    ]
    waits = [
        replace(s, at_ns=s.at_ns - start) for s in seen.capture.syncs if start <= s.at_ns < stop
    ]
    return Timeline.of(shown, waits, "recorded", (*_NOTES, *notes))
