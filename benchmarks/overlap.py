"""What the loss-scale check costs, and what removes or hides it: ratios in one run.

    python benchmarks/overlap.py [--steps 30] [--rounds 5] [--size tiny] [--batch 8]

Prints native torch and kit in each loss-scaling mode, with speculation, accumulated micro-batches
and prefetch, interleaved in rounds so that a noisy machine hits all of them alike. A ratio is to
another row of the same round, median of rounds; "hidden" is the part of the host's recording that
goes on under a busy device. With one core left to the host the recording is the smaller of the two
times, so it is also the part of the smaller one that is hidden.

`NPROC=1 python benchmarks/overlap.py` leaves a core to the host: on a 2-core machine XLA's threads
otherwise take both, and there is nothing to overlap with.
"""

from __future__ import annotations

import argparse
import os
import statistics

import kit
from kit.workloads import bert_of

CHECK, DEVICE, LATE = "dynamic, host check", "dynamic, on device", "dynamic, deferred"
MODES = {
    "native torch": {"mode": "torch"},
    "native torch, host check": {"mode": "torch", "loss_scaling": CHECK},
    "kit lazy, none": {},
    "kit lazy, static": {"loss_scaling": "static"},
    "kit lazy, host check": {"loss_scaling": CHECK},
    "kit lazy, on device": {"loss_scaling": DEVICE},
    "kit lazy, deferred": {"loss_scaling": LATE},
    "kit speculate, host check": {"loss_scaling": CHECK, "step_mode": "speculate"},
    "kit replay, on device": {"loss_scaling": DEVICE, "step_mode": "replay"},
    "kit lazy, none, 4 micro": {"accumulate": 4},
    "kit lazy, check, 4 micro": {"loss_scaling": CHECK, "accumulate": 4},
    "kit lazy, none, prefetch": {"prefetch": 2},
    "kit bulked 50, host check": {"mode": "bulked", "loss_scaling": CHECK},
    "kit bulked 50, on device": {"mode": "bulked", "loss_scaling": DEVICE},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--only", nargs="*", help="rows to run, by parts of their names")
    options = parser.parse_args()
    chosen = [n for n in MODES if not options.only or any(part in n for part in options.only)]
    base = kit.Settings(mode="lazy", steps=options.steps, warmup=4, batch_size=options.batch,
                        bulk_forward=50, bulk_backward=50)  # fmt: skip
    workload = bert_of(options.size)
    runs: dict[str, list[kit.Run]] = {name: [] for name in chosen}
    for _ in range(options.rounds):
        for name in chosen:
            runs[name].append(kit.run(workload, base.replace(**MODES[name])))
    environment = next(iter(runs.values()))[-1].environment
    print(
        f"BERT {options.size}, batch {options.batch}, {options.steps} steps, "
        f"{options.rounds} rounds, NPROC={os.environ.get('NPROC', 'unset')}, "
        f"{environment['device']}"
    )
    print(
        f"{'':28}{'ms':>8}{'a batch':>9}{'x native':>10}{'x none':>8}{'busy':>7}{'hidden':>8}"
        f"{'syncs':>7}{'wait ms':>9}{'idle ms':>9}"
    )
    for name in chosen:
        print(row(name, runs))


def row(name: str, runs: dict[str, list[kit.Run]]) -> str:
    """One line of the table; a ratio to a row that was left out is a dash."""
    made = runs[name]
    times = [run.step_ms / run.settings.accumulate for run in made]

    def against(other: str) -> str:
        if other not in runs:
            return "-"
        ratios = [t / r.step_ms for t, r in zip(times, runs[other], strict=True)]
        return f"{statistics.median(ratios):.2f}"

    heads = [run.headline() for run in made]
    busy, hidden, syncs, wait = (
        statistics.median(getattr(h, field) for h in heads)
        for field in ("device_busy_fraction", "overlap_fraction", "syncs_per_step", "sync_wait_ms")
    )
    idle = statistics.median(
        (1 - h.device_busy_fraction) * _traced_ms(run) for h, run in zip(heads, made, strict=True)
    )
    return (
        f"{name:28}{statistics.median(r.step_ms for r in made):8.2f}"
        f"{statistics.median(times):9.2f}{against('native torch'):>10}"
        f"{against('kit lazy, none'):>8}{busy:7.0%}{hidden:8.0%}{syncs:7.1f}{wait:9.2f}{idle:9.2f}"
    )


def _traced_ms(run: kit.Run) -> float:
    return sum(row.exposed_ms for row in run.breakdown())


if __name__ == "__main__":
    main()
