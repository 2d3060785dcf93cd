"""How often the rule for "changed" is wrong of reruns, and how often it finds a true 10 %.

    python benchmarks/changed.py [--reruns 100] [--slower 10] [--steps 10] [--workload mlp]

Runs one step again and again under the same settings, by turns with the same step and 10 % of its
time spent in a loop at its end. Each run is compared with the next one of its kind, which has not
changed, and with the next one of the other kind, which has. At most 5 of 100 reruns may be called
changed, and 90 of 100 true changes must be found; the exit status is 1 otherwise. It prints what
reruns differ by, too: `RERUN` in kit/runs/change.py is that on a quiet machine.

Leave the machine alone meanwhile, and a core to the host: `NPROC=1` where there are few.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import kit
import kit.workloads
from kit.measure.many.placement import Placement
from kit.runs.change import RERUN, Difference, step_difference

MOST_WRONG, LEAST_FOUND = 5, 90  # of a hundred


def slowed(workload: kit.Workload, delay_ns: int) -> kit.Workload:
    """The workload, whose steps read their loss and then spend this time."""

    def build(ctx: kit.Context) -> Callable[[], Any]:
        step = workload(ctx)

        def longer() -> Any:
            loss = step()
            loss.item()  # the device has done its work: what follows is not hidden under it
            end = time.perf_counter_ns() + delay_ns
            while time.perf_counter_ns() < end:
                pass
            return loss

        return longer

    return kit.Workload(workload.name, build, framework=workload.framework)


def percent(found: list[bool]) -> float:
    """How many of a hundred."""
    return 100 * sum(found) / len(found)


def kinds(found: list[Difference]) -> str:
    """How often each answer was given."""
    counts = {
        kind: sum(d.kind == kind for d in found) for kind in ("same", "unclear", "more", "less")
    }
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reruns", type=int, default=100)
    parser.add_argument("--slower", type=float, default=10.0, help="percent")
    parser.add_argument("--steps", type=int, default=kit.Settings().steps)
    parser.add_argument("--workload", default="mlp")
    options = parser.parse_args()
    workload = getattr(kit.workloads, options.workload)
    settings = kit.Settings(mode="lazy", steps=options.steps, warmup=5)
    caches: dict[bool, list[Any]] = {False: [], True: []}

    def measure(delay_ns: int, is_slow: bool) -> kit.Run:
        placement = Placement.of(slowed(workload, delay_ns))
        return placement.run(settings, caches=caches[is_slow])

    first = [measure(0, is_slow=False) for _ in range(3)]  # also warms the process up
    delay_ns = round(first[-1].step_ms * 1e6 * options.slower / 100)
    began = time.monotonic()
    still, slow = [], []
    for _ in range(options.reruns):
        still.append(measure(0, is_slow=False))
        slow.append(measure(delay_ns, is_slow=True))
    still.append(measure(0, is_slow=False))
    same = [step_difference(a, b) for a, b in pairwise(still)]
    other = [step_difference(a, b) for a, b in zip(still, slow, strict=False)]
    logs = [math.log(d.new / d.old) for d in same]
    wrong, right = percent([d.is_changed for d in same]), percent([d.kind == "more" for d in other])
    cores, taken = still[0].environment["cores"], still[0].environment["cores for XLA"]
    step_ms = statistics.median(run.step_ms for run in still)
    true = statistics.median(d.new / d.old for d in other) - 1
    low, _, high = statistics.quantiles(logs, n=4)
    said = (
        f"{workload.name}, {options.steps} steps, {taken} of {cores} cores for XLA",
        f"took {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}",
        f"step {step_ms:.3g} ms, made slower by {true:.1%}",
        f"reruns differ by {statistics.stdev(logs):.1%} (standard deviation; by the middle half "
        f"{(high - low) / 1.349:.1%}); the rule takes {RERUN:.0%}",
        f"spread of a comparison, median: ± {statistics.median(d.spread for d in same):.1%}",
        f"reruns called changed: {wrong:.0f} of 100 (at most {MOST_WRONG}): {kinds(same)}",
        f"true changes found: {right:.0f} of 100 (at least {LEAST_FOUND}): {kinds(other)}",
    )
    print("\n".join(said))
    return int(wrong > MOST_WRONG or right < LEAST_FOUND)


if __name__ == "__main__":
    raise SystemExit(main())
