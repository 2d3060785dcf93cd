"""Two processes on loopback: a step of kit's replicas against torch's DistributedDataParallel.

    python benchmarks/processes.py [--processes 2] [--rounds 9] [--step-mode replay]

Both have the same model, batch and optimizer, the whole batch split over the processes, gradients
reduced over gloo in buckets; they take turns in the same processes, so what disturbs one disturbs
the other. Printed are medians, their ratio, and what the same steps take on one device alone.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from kit.runtime.processes.links import free_port

BUCKETS_MB = (0.3, 1.0, 5.0, 25.0)


def timed(step: Callable[[], Any], finish: Callable[[], Any], steps: int = 5) -> float:
    """Milliseconds a step."""
    finish()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    finish()
    return (time.perf_counter() - start) / steps * 1e3


def work(rank: int, options: argparse.Namespace, ports: tuple[int, int]) -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.nn.parallel import DistributedDataParallel

    import kit
    from kit.measure.many.replicas import deep_perceptron

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[1])}
    model = deep_perceptron(options.layers, options.width)
    x, y = torch.randn(options.batch, options.width), torch.randint(0, 10, (options.batch,))
    count = options.processes
    own_x, own_y = x.chunk(count)[rank], y.chunk(count)[rank]
    settings = kit.Settings(bulk_forward=1000, bulk_backward=1000, step_mode=options.step_mode)

    def ddp(bucket_mb: float) -> Callable[[], Any]:
        net = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=bucket_mb)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(net(own_x), own_y).backward()
            optimizer.step()

        return step

    def replicas(net: kit.DataParallel) -> Callable[[], Any]:
        optimizer = net.optimizer(torch.optim.SGD, lr=1e-3)
        return lambda: net.step(lambda m, x, y: F.cross_entropy(m(x), y), optimizer, x, y)

    secret = "of one benchmark on loopback"
    with kit.join_processes(f"127.0.0.1:{ports[0]}", count, rank, secret=secret) as joined:
        dist.init_process_group("gloo", rank=rank, world_size=count)
        for bucket_mb in BUCKETS_MB:
            with kit.DataParallel(model, 1, settings=settings, bucket_mb=bucket_mb) as net:
                ours, theirs = replicas(net), ddp(bucket_mb)
                rounds: list[tuple[float, float]] = []
                for number in range(options.rounds + 2):
                    joined.channel.meet("a round")
                    mine = timed(ours, net.wait_all)
                    joined.channel.meet("a round")
                    other = timed(theirs, dist.barrier)
                    if number > 1:  # the first compiles, and a replay begins after some steps
                        rounds.append((mine, other))
            if rank == 0:
                kit_ms, torch_ms = (statistics.median(c) for c in zip(*rounds, strict=True))
                ratio = statistics.median(a / b for a, b in rounds)
                print(
                    f"{bucket_mb:>10} {kit_ms:>10.1f} {torch_ms:>10.1f} {ratio:>8.2f}", flush=True
                )
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--step-mode", default="retrace", choices=("retrace", "replay"))
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}; milliseconds a step, {options.processes} processes")
    print(f"{'bucket MB':>10} {'kit':>10} {'torch DDP':>10} {'ratio':>8}", flush=True)
    ports = (free_port(), free_port())
    context = multiprocessing.get_context("spawn")
    started = [
        context.Process(target=work, args=(rank, options, ports))
        for rank in range(options.processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()


if __name__ == "__main__":
    main()
