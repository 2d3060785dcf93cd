"""What an op, a segment and a step cost as their number grows, and the devices and processes.

    python benchmarks/scale.py [--powers 6] [--counts 1 2 4 8] [--only ops devices processes model]

ops: chains of 10^2 to 10^6 ops, in small segments and in ten times as large ones, 50 and 500 where
there are ops enough: from both follow the cost of an op and of a segment; and a step of one op.
devices, processes: a training step with the same batch on each, on devices of this CPU, and with
one device in each of several processes. They share its cores, so the wall time must grow; what the
kit adds is in the CPU time a replica.
model: what those costs come to on 8 to 1,000 devices. Its assumptions are printed with it.

Each part runs in processes of its own. All of it takes less than 8 minutes on 2 quiet cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import kit
from kit.runtime.processes.links import free_port

LARGE = 500  # ops of a segment, and a tenth of that
AT_LEAST = 20_000  # ops that are timed for a row; a short chain is repeated
LAYERS, WIDTH, BATCH = 12, 64, 32
LINKS = (kit.Link(5, 200), kit.Link(20, 25))


def clocks() -> tuple[float, float, float]:
    """Seconds: of the wall, of all threads, of this thread."""
    return time.perf_counter(), time.process_time(), time.thread_time()


def chain_us(size: int, count: int) -> tuple[float, float, float, float]:
    """Microseconds of a chain of ops, by each clock, and how many segments it was."""
    import torch

    def chain(x: Any, length: int) -> Any:
        for _ in range(length):
            x = x + 1.5
        return x

    settings = kit.Settings(mode="bulked", bulk_forward=size, bulk_backward=size)
    with kit.Session(settings) as session, torch.no_grad():
        x = torch.ones(4, device="kit")
        kept = [chain(x, count)]  # compiles
        session.wait_all()
        rows, segments = [], session.metrics()["segment.count"]
        repeats = max(AT_LEAST // count, 1)
        for _ in range(repeats):
            before = clocks()
            kept[0] = chain(x, count)
            session.wait_all()
            rows.append([(now - then) * 1e6 for now, then in zip(clocks(), before, strict=True)])
        made = (session.metrics()["segment.count"] - segments) / repeats
    wall, cpu, own = (statistics.median(column) for column in zip(*rows, strict=True))
    return wall, cpu, own, made


def step_us() -> float:
    """Microseconds of CPU time of a step of one op, median of 9 times 100."""
    import torch

    with kit.Session(kit.Settings(mode="lazy")) as session, torch.no_grad():
        x, found = torch.ones(4, device="kit"), []
        for _ in range(10):
            begun = time.process_time()
            for _ in range(100):
                x = x + 1.5
                session.mark_step()
            session.wait_all()
            found.append((time.process_time() - begun) / 100 * 1e6)
    return statistics.median(found[1:])


def ops(options: argparse.Namespace) -> None:
    print("us, of CPU time in all threads; 'recording' is the program's thread alone")
    print(f"{'ops':>10}{'an op':>9}{'recording':>11}{'a segment':>11}{'wall, an op':>13}")
    for power in range(2, options.powers + 1):
        count = 10**power
        size = min(LARGE, count // 2)
        small, large = chain_us(size // 10, count), chain_us(size, count)
        segment = (small[1] - large[1]) / (small[3] - large[3])
        op = (large[1] - large[3] * segment) / count
        print(
            f"{count:>10,}{op:>9.1f}{large[2] / count:>11.1f}{segment:>11.0f}"
            f"{large[0] / count:>13.1f}",
            flush=True,
        )
    print(f"a step of one op, with its segment: {step_us():.0f} us")


def stepper(net: kit.DataParallel, batch: int) -> Callable[[], Any]:
    """A training step of this batch in all."""
    import torch

    torch.manual_seed(1)
    x, y = torch.randn(batch, WIDTH), torch.randint(0, 10, (batch,))
    optimizer = net.optimizer(torch.optim.SGD, lr=1e-3)

    def loss(model: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x), y)

    return lambda: net.step(loss, optimizer, x, y)


def step_ms(net: kit.DataParallel, step: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of the wall and of this process's CPU time a step, medians of 7 times 5."""
    rows = []
    for _ in range(8):
        net.wait_all()
        before = clocks()
        for _ in range(5):
            step()
        net.wait_all()
        rows.append([(now - then) / 5 * 1e3 for now, then in zip(clocks(), before, strict=True)])
    wall, cpu, _ = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    return wall, cpu


def devices(options: argparse.Namespace) -> None:
    from kit.measure.many.replicas import deep_perceptron

    print(f"{'devices':>10}{'ms a step':>11}{'CPU ms a replica':>18}")
    for count in sorted(options.counts, reverse=True):  # jax makes so many with the first
        with kit.DataParallel(deep_perceptron(LAYERS, WIDTH), count) as net:
            wall, cpu = step_ms(net, stepper(net, BATCH * count))
        print(f"{count:>10}{wall:>11.1f}{cpu / count:>18.1f}", flush=True)


def one_process(rank: int, count: int, port: int) -> None:
    from kit.measure.many.replicas import deep_perceptron

    where = f"127.0.0.1:{port}"
    with (
        kit.join_processes(where, count, rank, secret="of one benchmark on loopback"),
        kit.DataParallel(deep_perceptron(LAYERS, WIDTH), 1) as net,
    ):
        wall, cpu = step_ms(net, stepper(net, BATCH * count))
    if rank == 0:
        print(f"{count:>10}{wall:>11.1f}{cpu:>18.1f}", flush=True)


def processes(options: argparse.Namespace) -> None:
    print(f"{'processes':>10}{'ms a step':>11}{'CPU ms a replica':>18}", flush=True)
    for count in options.counts:
        if count > 1:
            port = free_port()
            together([(one_process, (rank, count, port)) for rank in range(count)])


def model(options: argparse.Namespace) -> None:
    from kit.measure.many.replicas import deep_perceptron, measure_backward
    from kit.runs.gradients import best_buckets

    with kit.DataParallel(deep_perceptron(LAYERS, WIDTH), 2) as net:
        costs = measure_backward(net, stepper(net, 2 * BATCH), rounds=3)
    counts = (1, 8, 64, 256, 1000)
    print("modelled ms a step, of the costs of a step on 2 devices here, with the best buckets:")
    print(f"{'link':>20}" + "".join(f"{count:>9,}" for count in counts))
    for link in LINKS:
        row = [best_buckets(costs, link, devices=n)[1].step_ns / 1e6 for n in counts]
        name = f"{link.latency_us:g} us, {link.gb_per_s:g} GB/s"
        print(f"{name:>20}" + "".join(f"{ms:>9.2f}" for ms in row))
    print(
        "Assumed: a core and a link of its own for each device, equal devices, ring reductions\n"
        "over links of one speed, no device that is late, and a host whose part a replica does\n"
        "not grow with their number, as the column 'CPU ms a replica' has to show."
    )


def together(work: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    """Run functions in processes of their own, at the same time."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=function, args=given) for function, given in work]
    for process in started:
        process.start()
    for process in started:
        process.join()
    if failed := [process.exitcode for process in started if process.exitcode]:
        raise SystemExit(f"a part failed: {failed}")


def main() -> None:
    parts = {"ops": ops, "devices": devices, "processes": processes, "model": model}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--powers", type=int, default=6, help="up to 10 to this many ops")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for name in options.only:
        print(f"\n{name}", flush=True)
        together([(parts[name], (options,))])


if __name__ == "__main__":
    main()
