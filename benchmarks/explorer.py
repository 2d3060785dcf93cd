"""What a move of the explorer's controls takes: to the modelled picture and the measured one.

    python benchmarks/explorer.py [--workload bert] [--only cold|ahead] [--moves 200] [--seconds 10]

No browser: the times are those of the kernel, up to the moment when the picture's columns have been
assigned. Compiled programs of earlier kernels are not used (KIT_CACHE_DIR is empty).
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from typing import Any

os.environ["KIT_CACHE_DIR"] = ""

import kit
import kit.workloads
from kit.measure.search.prepare import Prepared


class Clocked:
    """Runs and preparations of a workload, counted."""

    def __init__(self, workload: Any) -> None:
        self.prepared = Prepared(workload)
        self.runs = self.preparations = 0

    def run(self, settings: kit.Settings, /, **options: Any) -> kit.Run:
        self.runs += 1
        return self.prepared.run(settings, **options)

    def prepare(self, settings: kit.Settings, /, **options: Any) -> int:
        self.preparations += 1
        return self.prepared.prepare(settings, **options)


def explorer_of(clocked: Clocked, *, ahead: bool) -> Any:
    from kit.widgets.explorer.view import Explorer

    return Explorer(
        clocked.run,
        kit.Settings(steps=5, warmup=3),
        name="bench",
        prepare=clocked.prepare if ahead else None,
    )


def until_ready(explorer: Any) -> float:
    """Seconds until the neighbours are compiled."""
    start = time.perf_counter()
    while "is ready" not in explorer.ahead.text.value:
        time.sleep(0.05)
    return time.perf_counter() - start


def move(explorer: Any, **change: Any) -> tuple[float, float, kit.Run]:
    """Milliseconds to the modelled picture (nan if there was none), seconds to the measured one."""
    drawn = threading.Event()
    at = [float("nan")]

    def note(change: Any) -> None:
        if change["new"].timeline.origin == "modelled" and not drawn.is_set():
            at[0] = time.perf_counter()
            drawn.set()

    explorer.views["timeline"].observe(note, "run")  # called after the view has redrawn
    start = time.perf_counter()
    explorer.set(**change)
    run = explorer.wait()
    stop = time.perf_counter()
    explorer.views["timeline"].unobserve(note, "run")
    return (at[0] - start) * 1e3, stop - start, run


def burst(explorer: Any, clocked: Clocked, moves: int, seconds: float) -> None:
    before = clocked.runs, clocked.preparations
    sizes = [x for _, x in explorer.controls["bulk_backward"].options][:8]
    start = time.perf_counter()
    for i in range(moves):
        explorer.controls["bulk_backward"].value = sizes[i % len(sizes)]
        time.sleep(max(0.0, start + (i + 1) * seconds / moves - time.perf_counter()))
    took = time.perf_counter() - start
    run = explorer.wait()
    shown = explorer.views["timeline"].run
    print(
        f"{moves} moves in {took:.1f} s: {clocked.runs - before[0]} runs started, the newest is "
        f"shown: {run.settings == explorer.settings == shown.settings}, measured "
        f"{time.perf_counter() - start - took:.2f} s after the last move"
    )
    until_ready(explorer)
    explorer._foresight.wait()
    cpu, wall = time.process_time(), time.perf_counter()
    time.sleep(2.0)
    busy = (time.process_time() - cpu) / (time.perf_counter() - wall)
    print(
        f"then {clocked.preparations - before[1]} settings were prepared; after that the process "
        f"used {busy:.1%} of a core over 2 s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="bert", help="a name in kit.workloads")
    parser.add_argument(
        "--only", choices=("cold", "ahead"), help="without, or with compiling ahead"
    )
    parser.add_argument("--moves", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    workload = getattr(kit.workloads, chosen.workload)
    for ahead in (False, True):
        if chosen.only == ("ahead" if not ahead else "cold"):
            continue
        clocked = Clocked(workload)
        explorer = explorer_of(clocked, ahead=ahead)
        start = time.perf_counter()
        first = explorer.wait()
        nodes = len(first.graphs[0].nodes)
        print(
            f"--- compiling ahead {'on' if ahead else 'off'}: {nodes} nodes, "
            f"{len(first.segments)} segments; first picture {time.perf_counter() - start:.2f} s"
        )
        if ahead:
            print(
                f"neighbours compiled in {until_ready(explorer):.1f} s of idle time, "
                f"{clocked.preparations} settings"
            )
        modelled = []
        for change in ({"bulk_forward": 20}, {"batch_size": 16}, {"bulk_backward": 10},
                       {"batch_size": 8}, {"mode": "lazy"}):  # fmt: skip
            ms, s, run = move(explorer, **change)
            modelled.append(ms)
            count, ns = (run.metrics.get(f"compile.{x}", 0) for x in ("count", "ns"))
            print(
                f"{change!s:24} modelled {ms:6.0f} ms   measured {s:5.2f} s   compiled {count} "
                f"({ns / 1e9:.2f} s)"
            )
            if ahead:
                until_ready(explorer)
        known = [x for x in modelled if x == x]
        print(
            f"modelled picture: median {statistics.median(known):.0f} ms, most "
            f"{max(known):.0f} ms, {len(modelled) - len(known)} without"
        )
        if ahead:
            explorer.set(mode="bulked")
            explorer.wait()
            burst(explorer, clocked, chosen.moves, chosen.seconds)
        explorer.close()


if __name__ == "__main__":
    main()
