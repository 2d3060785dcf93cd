"""Several devices of one CPU: what they cost, and the curve of step time against bulk size.

    python benchmarks/parallel.py [--devices 2] [--rounds 5] [--only overhead curve model]

overhead: the hand-over to the threads of the replicas, and a step of `DataParallel` against the
same step on one device with the whole batch, measured in turn in one process.
curve: a step against the backward bulk size over imitated links, measured and modelled, and a cut
where a bucket is full. Of the rounds the least is kept: what disturbs a step only makes it longer.
model: the same question for links and devices that are not here.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import kit
from kit.measure.many.replicas import deep_perceptron, measure_backward, measured_curve, step_ms
from kit.runs.gradients import Backward, best_buckets, predict_parallel
from kit.runtime.replicas.group import Group
from kit.runtime.replicas.pool import Pool

BULKS = (1, 2, 4, 8, 16, 1000)
FREE = kit.Link(0, 1e3)
LINKS = {
    "memory": None,
    "200 us, 0.5 GB/s": kit.Link(200, 0.5),
    "500 us, 0.1 GB/s": kit.Link(500, 0.1),
}


def stepper(net: kit.DataParallel, batch: int, width: int) -> Callable[[], Any]:
    """A whole step of `net` on the same batch each time."""
    torch.manual_seed(1)
    x, y = torch.randn(batch, width), torch.randint(0, 10, (batch,))
    optimizer = net.optimizer(torch.optim.SGD, lr=1e-3)
    return lambda: net.step(lambda m, x, y: F.cross_entropy(m(x), y), optimizer, x, y)


def overhead(devices: int, rounds: int) -> None:
    pool = Pool(Group(devices), lambda rank: contextlib.nullcontext())
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        pool.run([int] * devices)
        times.append((time.perf_counter() - start) * 1e6)
    pool.close()
    print(f"hand-over to {devices} threads and back: {statistics.median(times):.0f} us, median")
    print(
        f"\n{'layers':>7}{'width':>7}{'batch':>7} {'steps':8}{'one device':>12}"
        f"{devices:>6} devices{'ratio':>9}{'of CPU time':>13}"
    )
    for layers, width, batch in ((6, 512, 512), (6, 512, 2048), (24, 128, 512), (24, 128, 64)):
        for mode in ("retrace", "replay"):
            one, several, ratio, cpu = compared(layers, width, batch, mode, devices, rounds)
            print(
                f"{layers:>7}{width:>7}{batch:>7} {mode:8}{one:>9.2f} ms{several:>11.2f} ms"
                f"{ratio:>9.2f}{cpu:>13.2f}"
            )


def compared(
    layers: int, width: int, batch: int, mode: str, devices: int, rounds: int
) -> tuple[float, float, float, float]:
    """Milliseconds a step on one device and on several, and the ratios of time and CPU time."""
    model = deep_perceptron(layers, width)
    settings = kit.Settings(bulk_forward=1000, bulk_backward=1000, step_mode=mode)
    with kit.DataParallel(model, devices, settings=settings, bucket_mb=25) as many:
        ours = stepper(many, batch, width)
        with kit.DataParallel(model, 1, settings=settings) as alone:
            base = stepper(alone, batch, width)
            for _ in range(6):  # compiles; and a replay begins after three equal steps
                ours()
                base()
            pairs = [(timed(alone, base), timed(many, ours)) for _ in range(rounds)]
    one, several = (statistics.median(x[0] for x in column) for column in zip(*pairs, strict=False))
    ratio, cpu = (statistics.median(b[i] / a[i] for a, b in pairs) for i in (0, 1))
    return one, several, ratio, cpu


def timed(net: kit.DataParallel, step: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds a step, and of the process's CPU time, which other programs do not lengthen."""
    before = time.process_time()
    ms = step_ms(net, step)
    return ms, (time.process_time() - before) * 1e3


def curve(devices: int, rounds: int) -> None:
    width, bucket_mb = 128, 0.25
    model = deep_perceptron(24, width)
    with kit.DataParallel(model, devices, settings=kit.Settings(bulk_forward=60)) as net:
        step = stepper(net, 256, width)
        costs = measure_backward(net, step, rounds=rounds)
        size = sum(n for _, n in costs.gradients) / 1e6
        print(
            f"\n{costs.ops} ops backward, {len(costs.gradients)} gradients of {size:.2f} MB in "
            f"buckets of {bucket_mb} MB; {costs.op_ns / 1e3:.0f} us an op, "
            f"{costs.segment_ns / 1e3:.0f} us a segment"
        )
        print("bucket: a segment ends when one is full; of the size that the model finds best")
        names = [str(k) if k < 1000 else "all" for k in BULKS]
        print(f"{'ms a step, ops a segment:':40}" + "".join(f"{n:>8}" for n in names) + "  bucket")
        for name, link in LINKS.items():
            common = {"bucket_mb": bucket_mb, "link": link}
            cells: list[dict[str, Any]] = [
                {"bulk": (60, k), "cut": "size", **common} for k in BULKS
            ]
            best = best_buckets(costs, link or FREE, devices=devices)[0] / 1e6
            aware = {"bulk": (60, 1000), "cut": "bucket", "bucket_mb": best, "link": link}
            cells.append(aware)
            times = measured_curve(net, step, cells, rounds=rounds)
            said = [modelled(costs, c, devices) for c in cells]
            print(f"{name + ', measured':40}" + "".join(f"{ms:>8.1f}" for ms in times))
            print(
                f"{name + ', modelled':40}"
                + "".join(f"{ms:>8.1f}" for ms in said)
                + f"  ({best:.2f} MB)"
            )


def modelled(costs: Backward, cell: dict[str, Any], devices: int) -> float:
    made = predict_parallel(costs, bulk=cell["bulk"][1], link=cell["link"] or FREE, devices=devices,
                            bucket_bytes=cell["bucket_mb"] * 1e6, cut=cell["cut"])  # fmt: skip
    return made.step_ns / 1e6


def model() -> None:
    gradients = tuple((3 * i, 2_000_000) for i in range(1, 51))
    print("\nmodelled: 50 layers of 3 ops, 20 us an op, 100 MB of gradients; ms a step, each with")
    print("the best bucket size for it, for ops a segment:")
    sizes = (1, 3, 15, 60, 150)
    print(
        f"{'segment':>8}{'devices':>8}{'link':>20}" + "".join(f"{k:>8}" for k in sizes) + "  bucket"
    )
    for segment_us in (10, 55):
        costs = Backward(150, gradients, 20e3, segment_us * 1e3, 2e6, 5e5)
        for devices, link in (
            (2, kit.Link(5, 200)),
            (8, kit.Link(5, 200)),
            (8, kit.Link(20, 25)),
            (64, kit.Link(20, 25)),
        ):
            row = [
                best_buckets(costs, link, devices=devices, cut="size", bulk=k)[1].step_ns / 1e6
                for k in sizes
            ]
            aware = best_buckets(costs, link, devices=devices)[1].step_ns / 1e6
            name = f"{link.latency_us:g} us, {link.gb_per_s:g} GB/s"
            print(
                f"{segment_us:>5} us{devices:>8}{name:>20}"
                + "".join(f"{ms:>8.2f}" for ms in [*row, aware])
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=["overhead", "curve", "model"])
    options = parser.parse_args()
    if "overhead" in options.only:
        overhead(options.devices, options.rounds)
    if "curve" in options.only:
        curve(options.devices, options.rounds)
    if "model" in options.only:
        model()


if __name__ == "__main__":
    main()
