"""Measure a step of several replicas: its time, and a timeline with two lanes for each device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kit.errors import SettingsError
from kit.frontend.torch_parallel import DataParallel
from kit.frontend.torch_parallel_batch import Shards
from kit.run import Run
from kit.run_parallel import Backward, exposed_ms, fit_backward
from kit.trace import Span, Timeline

__all__ = ["deep_perceptron", "measure", "measure_backward", "measured_curve", "step_ms"]

TRACED_STEPS = 2


def deep_perceptron(layers: int = 24, width: int = 128) -> nn.Sequential:
    """Many equal layers: gradients are ready one after the other all through backward."""
    torch.manual_seed(0)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts, nn.Linear(width, 10))


def measure(
    net: DataParallel, step: Callable[[], Any], *, steps: int = 10, warmup: int = 3, name: str = ""
) -> Run:
    """Warm up, time steps untraced, then record two more: their timeline is of origin "recorded".

    `step()` does one whole step with `net` and returns its losses, or nothing. On a CPU a segment's
    span is the time from its issue to its end; on a GPU it is that of its issue alone.

    Raises:
        SettingsError: there is not a step to measure.
    """
    if steps < 1 or warmup < 0:
        raise SettingsError(f"steps must be at least 1 and warmup 0, not {steps!r} and {warmup!r}")
    for _ in range(warmup):
        step()
    net.wait_all()
    times, losses = _timed(net, step, steps)
    with net.watched() as spans:
        step()  # fills the pipeline
        host = []
        for i in range(TRACED_STEPS):
            start = time.perf_counter_ns()
            step()
            if i == TRACED_STEPS - 1:
                net.wait_all()
            host.append(Span("host/main", f"step {i}", "step", start, time.perf_counter_ns()))
    timeline = _window(host, spans)
    metrics = {f"exposed.{device}_ms": ms for device, ms in exposed_ms(timeline).items()}
    metrics["parallel.devices"] = float(net.count)
    return Run(
        settings=net.settings,
        losses=tuple(net.mean(loss) for loss in losses if isinstance(loss, Shards)),
        step_times_ns=tuple(times),
        timeline=timeline,
        metrics=metrics,
        environment={**net.sessions[0].environment(), "torch": torch.__version__},
        name=name or f"{net.count} replicas",
    )


def step_ms(net: DataParallel, step: Callable[[], Any], *, steps: int = 4) -> float:
    """Mean time of some steps in a row, untraced, the devices' last work included."""
    net.wait_all()
    times, _ = _timed(net, step, steps)
    return sum(times) / steps / 1e6


def measured_curve(
    net: DataParallel, step: Callable[[], Any], cells: Sequence[dict[str, Any]], *,
    rounds: int = 3, steps: int = 4,
) -> list[float]:  # fmt: skip
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


def measure_backward(
    net: DataParallel, step: Callable[[], Any], bulks: Sequence[int] = (1, 3, 20), *,
    rounds: int = 3, steps: int = 4,
) -> Backward:  # fmt: skip
    """What the model of `kit.run_parallel` needs to know of this step, measured here.

    Leaves `net` with the last bulk size, cut by size, all gradients in one bucket, and no link.
    """
    forward = net.settings.bulk_forward
    net.retune(cut="size", bucket_mb=1e6)
    cells: list[dict[str, Any]] = [{"bulk": (forward, bulk)} for bulk in bulks]
    times = measured_curve(net, step, cells, rounds=rounds, steps=steps)
    points, shares = [], []
    for cell, ms in zip(cells, times, strict=True):
        net.retune(**cell)
        with net.watched() as spans:
            step()
        compute = [s for s in spans if s.lane == "device/0 compute"]
        shares.append([_took(compute, phase) for phase in ("forward", "backward", "update")])
        points.append((sum(s.name.startswith("backward") for s in compute), ms * 1e6))
    ops, gradients = net.backward_shape()
    forward_ns, backward_ns, update_ns = (
        float(sum(column)) for column in zip(*shares, strict=True)
    )
    return fit_backward(ops, gradients, points, (forward_ns, backward_ns, update_ns))


def _took(spans: Sequence[Span], phase: str) -> int:
    return sum(s.stop_ns - s.start_ns for s in spans if s.name.startswith(phase))


def _timed(net: DataParallel, step: Callable[[], Any], steps: int) -> tuple[list[int], list[Any]]:
    times, losses = [], []
    for i in range(steps):
        start = time.perf_counter_ns()
        losses.append(step())
        if i == steps - 1:
            net.wait_all()
        times.append(time.perf_counter_ns() - start)
    return times, losses


def _window(host: Sequence[Span], spans: Sequence[Span]) -> Timeline:
    """The spans that lie in the steps, with times from their start."""
    start, stop = host[0].start_ns, host[-1].stop_ns
    shown = [
        Span(s.lane, s.name, s.kind, max(s.start_ns - start, 0), min(s.stop_ns, stop) - start)
        for s in sorted([*host, *spans], key=lambda s: s.lane)
        if s.stop_ns > start and s.start_ns < stop
    ]
    note = "a device's lanes are timed by the host: on a CPU from issue to end"
    return Timeline.of(shown, (), "recorded", (note,))
