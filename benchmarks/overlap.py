"""What the loss-scale check costs, and what removing it gives: ratios in one run, on this machine.

    python benchmarks/overlap.py [--steps 30] [--rounds 5] [--size tiny] [--batch 8]

Prints native torch and kit in each loss-scaling mode, interleaved in rounds so that a noisy
machine hits all of them alike; the ratio is to native torch in the same round, median of rounds.
`NPROC=1 python benchmarks/overlap.py` leaves a core to the host: on a 2-core machine XLA's threads
otherwise take both, and there is nothing to overlap with.
"""

from __future__ import annotations

import argparse
import os
import statistics

import kit
from kit.workloads import bert_of

MODES = {
    "native torch": {"mode": "torch", "loss_scaling": "none"},
    "native torch, host check": {"mode": "torch", "loss_scaling": "dynamic, host check"},
    "kit lazy, none": {"mode": "lazy", "loss_scaling": "none"},
    "kit lazy, host check": {"mode": "lazy", "loss_scaling": "dynamic, host check"},
    "kit lazy, on device": {"mode": "lazy", "loss_scaling": "dynamic, on device"},
    "kit bulked 50, host check": {"loss_scaling": "dynamic, host check"},
    "kit bulked 50, on device": {"loss_scaling": "dynamic, on device"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    base = kit.Settings(steps=options.steps, warmup=4, batch_size=options.batch,
                        bulk_forward=50, bulk_backward=50)  # fmt: skip
    workload = bert_of(options.size)
    times: dict[str, list[float]] = {name: [] for name in MODES}
    runs: dict[str, list[kit.Run]] = {name: [] for name in MODES}
    for _ in range(options.rounds):
        for name, changes in MODES.items():
            runs[name].append(kit.run(workload, base.replace(**changes)))
            times[name].append(runs[name][-1].step_ms)
    native = times["native torch"]
    print(f"BERT {options.size}, batch {options.batch}, {options.steps} steps, "
          f"{options.rounds} rounds, NPROC={os.environ.get('NPROC', 'unset')}, "
          f"{runs['kit lazy, none'][0].environment['device']}")  # fmt: skip
    print(f"{'':28}{'ms':>8}{'x native':>10}{'busy':>7}{'hidden':>8}{'syncs':>7}{'wait ms':>9}")
    for name, values in times.items():
        ratio = statistics.median(t / n for t, n in zip(values, native, strict=True))
        heads = [run.headline() for run in runs[name]]
        busy, hidden, syncs, wait = (
            statistics.median(getattr(h, field) for h in heads)
            for field in ("device_busy_fraction", "overlap_fraction", "syncs_per_step",
                          "sync_wait_ms")
        )  # fmt: skip
        print(
            f"{name:28}{statistics.median(values):8.2f}{ratio:10.2f}"
            f"{busy:7.0%}{hidden:8.0%}{syncs:7.1f}{wait:9.2f}"
        )
    for mode in ("lazy", "bulked 50"):
        check, device = times[f"kit {mode}, host check"], times[f"kit {mode}, on device"]
        gain = statistics.median(c / d for c, d in zip(check, device, strict=True))
        print(f"kit {mode}: without the host check the step is {gain:.2f}x faster")


if __name__ == "__main__":
    main()
