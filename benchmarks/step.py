"""A whole training step with AdamW, on device kit and on what one would take instead: ratios.

    python benchmarks/step.py [--models encoder gpt2 conv lstm mlp bert] [--rows replay jit ...]
                              [--rounds 9] [--steps 20] [--cores 2] [--digits 2] [--xla PYTHON]

Each row is a process of its own, all on the same cores and with as many threads. They take turns:
in a round each runs so many steps of a model, then waits for the last one. A ratio is to torch
eager in the same round, the median of the rounds; CPU time is that of all threads of the process,
which other programs on the machine disturb less than the clock.

eager, compile    torch, and its `torch.compile`
jit               the same model in jax by hand, a donated `jax.jit` (peers/step_by_hand.py)
replay, ...       device kit in mode "lazy", by the way that it takes a step
unchecked         `retrace` with `check_indices="off"`: what the checks cost, beside `retrace`
xla               torch_xla 2.9, if `--xla` names a Python that has it (and no kit)

`OMP_WAIT_POLICY=passive` is set for all: threads of torch that spin while they wait would count as
its CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MODELS = ("encoder", "gpt2", "conv", "lstm", "mlp", "bert")
KIT = ("replay", "retrace", "speculate")
ROWS = ("eager", "compile", "jit", *KIT)
UNCHECKED = "unchecked"
WARM = 40  # steps before the first round; speculation has seen by then whether it pays

Steps = Callable[[int], None]  # runs so many steps, and waits for the last


# -- in the process of a row -----------------------------------------------------------------------


def torch_steps(model: str, row: str) -> Steps:
    import torch
    from peers.step_models import training_step

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    step = training_step(model, "cpu", torch.compile if row == "compile" else lambda net: net)

    def run(count: int) -> None:
        for _ in range(count):
            step()

    return run


def xla_steps(model: str) -> Steps:
    import torch_xla
    from peers.step_models import training_step

    step = training_step(model, "xla")

    def run(count: int) -> None:
        for _ in range(count):
            step()
            torch_xla.sync()
        torch_xla.sync(wait=True)

    return run


def jit_steps(model: str) -> Steps:
    import jax
    from peers.step_by_hand import MODELS, jit_step

    function, state, batch = jit_step(*MODELS[model]())

    def run(count: int) -> None:
        loss = None
        for _ in range(count):
            *state[:], loss = function(*state, *batch)
        jax.block_until_ready((state, loss))

    return run


def kit_steps(model: str, row: str) -> Steps:
    from peers.step_models import training_step

    import kit

    options = {"check_indices": "off"} if row == UNCHECKED else {"step_mode": row}
    session = kit.Session(kit.Settings(mode="lazy", **options))
    session.__enter__()
    step = training_step(model, "kit")

    def run(count: int) -> None:
        for _ in range(count):
            session.run_step(step)
        session.wait_all()

    return run


def serve(row: str) -> None:
    """Answer lines: "model NAME" makes one and warms it up, "steps N" runs and times it."""
    run: Steps | None = None
    out, sys.stdout = sys.stdout, sys.stderr  # for answers only
    for line in sys.stdin:
        order, what = line.split()
        spent, start = time.process_time(), time.perf_counter()
        if order == "model":
            if row in (*KIT, UNCHECKED):
                run = kit_steps(what, row)
            elif row == "jit":
                run = jit_steps(what)
            else:
                run = xla_steps(what) if row == "xla" else torch_steps(what, row)
            run(WARM)
        else:
            assert run is not None
            run(int(what))
        wall, own = time.perf_counter() - start, time.process_time() - spent
        print(wall * 1e3, own * 1e3, file=out, flush=True)


# -- in the process that asks ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds a step of one row and model, round by round: by the clock, and of the CPU."""

    wall: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)


class Row:
    """The process of a row."""

    def __init__(self, row: str, python: str, cores: int) -> None:
        allowed = sorted(os.sched_getaffinity(0))[:cores]
        threads = {name: str(cores) for name in ("NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        fixed = {"OMP_WAIT_POLICY": "passive", "PJRT_DEVICE": "CPU", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self.process = subprocess.Popen(
            [python, __file__, "--serve", row],
            env={**os.environ, **threads, **fixed}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )  # fmt: skip

    def ask(self, order: str) -> tuple[float, float]:
        """Wall and CPU time of what it was told to do."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{order}: the process ended, see above")
        wall, own = map(float, answer.split())
        return wall, own

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def measured(model: str, options: Any) -> dict[str, Times]:
    """The times of each row; the rows take turns."""
    rows = {
        name: Row(name, options.xla if name == "xla" else sys.executable, options.cores)
        for name in options.rows
    }
    try:
        for row in rows.values():
            row.ask(f"model {model}")
        found = {name: Times() for name in rows}
        for _ in range(options.rounds):
            for name, row in rows.items():
                wall, own = row.ask(f"steps {options.steps}")
                found[name].wall.append(wall / options.steps)
                found[name].own.append(own / options.steps)
    finally:
        for row in rows.values():
            row.end()
    return found


def against(mine: list[float], other: list[float]) -> float:
    """The median of the ratios of the rounds."""
    return statistics.median(a / b for a, b in zip(mine, other, strict=True))


def cell(found: dict[str, Times], row: str, digits: int) -> str:
    """Milliseconds of the first row, ratios to it of the others; CPU time, then the clock's."""
    mine, base = found[row], next(iter(found.values()))
    if mine is base:
        return f"{statistics.median(mine.own):.1f} ms, {statistics.median(mine.wall):.1f}"
    ratios = against(mine.own, base.own), against(mine.wall, base.wall)
    return ", ".join(f"{ratio:.{digits}f}" for ratio in ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=(*ROWS, UNCHECKED))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--digits", type=int, default=2, help="of a ratio")
    parser.add_argument("--xla", metavar="PYTHON", help="of an environment that has torch_xla 2.9")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    options.rows = [*options.rows, *(["xla"] if options.xla else [])]
    before, found = os.getloadavg()[0], {}
    for model in options.models:
        found[model] = measured(model, options)
        print(f"{model}: done", file=sys.stderr)
    print(
        f"{options.cores} cores each, {options.rounds} rounds of {options.steps} steps, load "
        f"{before:.1f} to {os.getloadavg()[0]:.1f}; CPU time, then the clock's, of a step:\n"
    )
    print("| | " + " | ".join(options.models) + " |")
    print("| --- |" + " ---: |" * len(options.models))
    for row in options.rows:
        cells = [cell(found[model], row, options.digits) for model in options.models]
        print(f"| {row} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
