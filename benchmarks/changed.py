"""How often the rule for "changed" is wrong of reruns, and how often it finds a true 10 %.

    NPROC=1 python benchmarks/changed.py [--minutes 6] [--slower 10] [--steps 50] [--workload mlp]

Runs one step again and again under the same settings, by turns with the same step and 10 % of its
time spent in a loop at its end, for at most so many minutes. It prints one table: of how many
comparisons, of single runs and of several by turns, a change is said. At most 5 of 100 of unchanged
steps may be called changed: then the exit status is 1. A single pair may well say "maybe" on a
machine whose speed wanders; by turns 90 of 100 true changes should be found.

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
from kit.runs.change import Difference, doubt_of, steps_difference
from kit.runs.settings import ENOUGH
from kit.text import markdown_table

MOST_WRONG = 5  # of a hundred
TURNS = (1, 3, 5, 9)  # runs of each side in one comparison
KINDS = {"more": "slower", "less": "faster", "same": "no change", "unclear": "maybe"}
Runs = list[kit.Run]


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


def measured(options: argparse.Namespace) -> tuple[Runs, Runs]:
    """Runs of the step and of the slowed one, by turns, until the time is over."""
    began = time.monotonic()
    workload = getattr(kit.workloads, options.workload)
    settings = kit.Settings(mode="lazy", steps=options.steps or ENOUGH)
    caches: dict[bool, list[Any]] = {False: [], True: []}

    def measure(delay_ns: int, is_slow: bool) -> kit.Run:
        placement = Placement.of(slowed(workload, delay_ns))
        return placement.run(settings, caches=caches[is_slow])

    first = [measure(0, is_slow=False) for _ in range(2)]  # also warms the process up
    delay_ns = round(first[-1].step_ms * 1e6 * options.slower / 100)
    still, slow = [measure(0, is_slow=False)], [measure(delay_ns, is_slow=True)]
    while len(still) < 4 or time.monotonic() - began < 60 * options.minutes:
        still.append(measure(0, is_slow=False))
        slow.append(measure(delay_ns, is_slow=True))
    return still, slow


def comparisons(still: Runs, slow: Runs, turns: int) -> dict[str, list[Difference]]:
    """Each group of runs against the next one that took turns with it."""
    apart = [still[i::2] for i in (0, 1)]  # the unchanged step, by turns with itself
    return {
        "unchanged": _grouped(*apart, turns),
        "slower": _grouped(still, slow, turns),
    }


def _grouped(old: Runs, new: Runs, turns: int) -> list[Difference]:
    whole = min(len(old), len(new)) // turns * turns
    return [
        steps_difference(old[i : i + turns], new[i : i + turns]) for i in range(0, whole, turns)
    ]


def table(still: Runs, slow: Runs) -> tuple[str, float]:
    """The table, and the most that were called changed of a hundred that were not."""
    heads = ("step", "runs of each side", "comparisons", *KINDS.values(), "spread, median")
    rows, wrong = [], 0.0
    for turns in TURNS:
        for step, found in comparisons(still, slow, turns).items():
            if not found:
                continue
            shares = [100 * sum(d.kind == kind for d in found) / len(found) for kind in KINDS]
            spread = statistics.median(d.spread for d in found)
            percent = (f"{share:.0f} %" for share in shares)
            how_wide = f"± {spread:.1%}" if spread < 1 else "more than all of it"
            rows.append((step, str(turns), str(len(found)), *percent, how_wide))
            if step == "unchanged" and len(found) >= 20:
                wrong = max(wrong, shares[0] + shares[1])
    return markdown_table(heads, rows), wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--slower", type=float, default=10.0, help="percent")
    parser.add_argument("--steps", type=int, default=0, help="by default as many as kit.run takes")
    parser.add_argument("--workload", default="mlp")
    options = parser.parse_args()
    still, slow = measured(options)
    logs = [math.log(b.step_ms / a.step_ms) for a, b in pairwise(still)]
    true = statistics.median(b.step_ms / a.step_ms for a, b in zip(still, slow, strict=True)) - 1
    cores, taken = still[0].environment["cores"], still[0].environment["cores for XLA"]
    steps = statistics.median(len(run.step_times_ns) for run in still)
    text, wrong = table(still, slow)
    disturbed = sum(bool(doubt_of(run)) for run in (*still, *slow))
    print(
        f"{options.workload}: {steps:.0f} steps of {still[0].step_ms:.3g} ms, made slower by "
        f"{true:.1%}; {taken} of {cores} cores for XLA, load {os.getloadavg()[0]:.1f}; "
        f"{disturbed} of {2 * len(still)} runs say that the machine was busy; neighbouring runs "
        f"differ by {statistics.pstdev(logs):.1%} (standard deviation)\n\n{text}"
    )
    return int(wrong > MOST_WRONG)


if __name__ == "__main__":
    raise SystemExit(main())
