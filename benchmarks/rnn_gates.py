"""Gates of an LSTM or GRU, in every way of Flux PR 1761; ratios to slicing, in one run.

    python benchmarks/rnn_gates.py [--cell lstm] [--layers 2] [--hidden 64] [--batch 256]
                                   [--rounds 15] [--only bytes,ops,program,scan,aimed] [--quick]

bytes    what a step writes, modelled from kit's graph: both cells, 16 time steps
ops      op by op: kit in mode "imperative", jax without jit, torch; 4 time steps
program  one program: kit in mode "lazy" replaying its step, jax.jit; 16 time steps, unrolled
scan     the same as one scan
aimed    ops and program with one layer, then what was aimed at next to what was measured

Each row is a training step: forward, backward, SGD (jax's rows: loss and gradients only). Rows take
turns, round by round. Times are by the clock and the process's own CPU time, which other programs
disturb less; the least is what they disturb least. Torch has one thread. Titles say how busy the
machine was. docs/rnn_gates.md says what they showed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

os.environ.setdefault("KIT_CACHE_DIR", "")

import jax
import jax.numpy as jnp
import torch

import kit
from kit.measure.base.context import Context
from kit.measure.base.jax import JaxContext
from kit.runs.analysis.memory import memory
from kit.runtime.session.session import current_session
from kit.trace import Timeline
from kit.workloads import rnn_gates
from kit.workloads.rnn import scanned
from kit.workloads.rnn.cells import GATES

WARMUP = 5
COMPARED = ("slice", "multigate", "fused")
Rows = dict[str, Callable[[], Any]]
AIMED = (  # part, way, what it is, jax's ratio measured earlier
    ("ops, 2", "multigate", "multigate, op by op, two layers", 2.3),
    ("ops, 1", "multigate", "the same, one layer", 2.3),
    ("ops, 2", "fused", "fused cell, op by op, two layers", 3.2),
    ("ops, 1", "fused", "the same, one layer", 3.2),
    ("program, 2", "multigate", "multigate, one program, two layers", 1.68),
    ("program, 1", "multigate", "the same, one layer", 1.68),
)
JOINED = 3.7  # times fewer bytes that join gradients


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of one row, round by round: by the clock, and of the process."""

    wall: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)

    def ratios(self, other: Times) -> tuple[float, float, float]:
        """How often this goes into the other: clock, CPU time, least CPU time."""
        return (
            statistics.median(other.wall) / statistics.median(self.wall),
            statistics.median(other.own) / statistics.median(self.own),
            min(other.own) / min(self.own),
        )


Found = dict[str, Times]


def measured(rows: Rows, rounds: int) -> Found:
    """The times of each row; the rows take turns."""
    found: Found = {name: Times() for name in rows}
    for i in range(rounds + WARMUP):
        for name, function in rows.items():
            start, spent = time.perf_counter(), time.process_time()
            function()
            if i >= WARMUP:
                found[name].wall.append((time.perf_counter() - start) * 1e3)
                found[name].own.append((time.process_time() - spent) * 1e3)
    return found


def base(found: Found, name: str) -> Times:
    """The `slice` row of the same family."""
    return found[f"{name.split(':')[0]}: slice"]


def table(title: str, rows: Rows, rounds: int) -> Found:
    """Print the rows, and how often each goes into the `slice` row of its family."""
    before = os.getloadavg()[0]
    found = measured(rows, rounds)
    print(f"\n{title}; {rounds} rounds, load {before:.1f} to {os.getloadavg()[0]:.1f}\n")
    print("| | ms | x | CPU ms | x | least CPU ms | x |")
    print("| --- |" + " ---: |" * 6)
    for name, times in found.items():
        x = times.ratios(base(found, name))
        numbers = (statistics.median(times.wall), x[0], statistics.median(times.own), x[1],
                   min(times.own), x[2])  # fmt: skip
        print(f"| {name} | " + " | ".join(f"{n:.3g}" for n in numbers) + " |", flush=True)
    return found


def kit_row(
    shape: dict[str, Any],
    gates: str,
    settings: kit.Settings,
    loop: str = "unrolled",
) -> Callable[[], None]:
    """One step of a session of its own, ended and waited for."""
    where = copy_context()
    workload = rnn_gates(gates=gates, loop=loop, **shape)

    def begin() -> Callable[[], Any]:
        if workload.framework == "jax":
            from kit.jax.frontend import JaxFrontend
            from kit.runtime.session.session import Session

            Session(settings, frontends=(JaxFrontend(),)).__enter__()
            return workload(JaxContext(settings, "kit"))
        kit.Session(settings).__enter__()
        return workload(Context(settings, "kit"))

    step = where.run(begin)

    def run() -> None:
        session = current_session()
        assert session is not None
        session.run_step(step)
        session.wait_all()

    return partial(where.run, run)


def torch_row(shape: dict[str, Any], gates: str, settings: kit.Settings) -> Callable[[], Any]:
    torch.manual_seed(0)
    return rnn_gates(gates=gates, **shape)(Context(settings, "cpu"))


def jax_row(
    shape: dict[str, Any], gates: str, batch: int, *, is_jitted: bool, is_scanned: bool = False
) -> Callable[[], Any]:
    """Loss and gradients in jax alone; not scanned, Python goes through the time steps."""
    cell, hidden, length = shape["cell"], shape["hidden"], shape["length"]
    keys = iter(jax.random.split(jax.random.key(0), 100))
    wide = scanned.GATES[cell] * hidden
    params = [
        {
            "w_input": jax.random.normal(next(keys), (hidden, wide)) / hidden**0.5,
            "w_hidden": jax.random.normal(next(keys), (hidden, wide)) / hidden**0.5,
            "b_input": jnp.zeros(wide),
            "b_hidden": jnp.zeros(wide),
        }
        for _ in range(shape["layers"])
    ]
    x = jax.random.normal(next(keys), (batch, length, hidden))

    def loss(params: Any) -> Any:
        if is_scanned:
            outputs = scanned.predict(params, x, cell=cell, gates=gates)
        else:
            outputs = _looped(params, x, cell, gates)
        return jnp.mean(jnp.square(outputs[-1]))

    gradients = jax.value_and_grad(loss)
    if is_jitted:
        gradients = jax.jit(gradients)
    return lambda: jax.block_until_ready(gradients(params))


def _looped(params: Any, x: Any, cell: str, gates: str) -> Any:
    run = scanned.cell_of(cell, gates)
    sequence = [x[:, t] for t in range(x.shape[1])]
    for layer in params:
        zeros = jnp.zeros_like(sequence[0])
        state = (zeros, zeros) if cell == "lstm" else (zeros,)
        outputs = []
        for now in sequence:
            given = now @ layer["w_input"] + layer["b_input"]
            state = run(given, state[0] @ layer["w_hidden"] + layer["b_hidden"], state)
            outputs.append(state[0])
        sequence = outputs
    return sequence


def op_by_op(shape: dict[str, Any], batch: int, rounds: int, ways: tuple[str, ...]) -> Found:
    """Time every op as a program of its own; 4 time steps."""
    shape = {**shape, "length": 4}
    settings = kit.Settings(mode="imperative", batch_size=batch)
    rows: Rows = {f"kit: {g}": kit_row(shape, g, settings) for g in ways}
    rows |= {f"jax: {g}": jax_row(shape, g, batch, is_jitted=False) for g in COMPARED}
    rows |= {
        f"torch: {g}": torch_row(shape, g, settings) for g in (*COMPARED, "torch") if g in ways
    }
    return table(f"Op by op, T=4, {_layers(shape)}", rows, rounds)


def one_program(shape: dict[str, Any], batch: int, rounds: int, ways: tuple[str, ...]) -> Found:
    """Time the step as one program, unrolled; 16 time steps."""
    shape = {**shape, "length": 16}
    settings = kit.Settings(mode="lazy", step_mode="replay", batch_size=batch)
    rows: Rows = {f"kit: {g}": kit_row(shape, g, settings) for g in ways}
    rows |= {f"jax.jit: {g}": jax_row(shape, g, batch, is_jitted=True) for g in COMPARED}
    return table(f"One program, T=16, unrolled, {_layers(shape)}", rows, rounds)


def one_scan(shape: dict[str, Any], batch: int, rounds: int, ways: tuple[str, ...]) -> Found:
    """The same with one scan for each layer."""
    shape = {**shape, "length": 16}
    settings = kit.Settings(mode="lazy", step_mode="replay", batch_size=batch)
    rows: Rows = {f"kit: {g}": kit_row(shape, g, settings, "scanned") for g in COMPARED}
    rows |= {
        f"jax.jit: {g}": jax_row(shape, g, batch, is_jitted=True, is_scanned=True) for g in COMPARED
    }
    return table(f"One program, T=16, scanned, {_layers(shape)}", rows, rounds)


def _layers(shape: dict[str, Any]) -> str:
    return f"{shape['cell']}, {shape['layers']} layer{'s' * (shape['layers'] > 1)}"


def written(shape: dict[str, Any], batch: int, ways: tuple[str, ...]) -> dict[str, float]:
    """Print what a step writes, and of that what puts gradients together: zeros, sums, one buffer.

    Returns:
        for each cell, how many times fewer bytes multigate joins than slices do
    """
    print(f"\nBytes written, T=16, {shape['layers']} layers\n")
    print(
        "| | launches | buffers | MB written | forward | backward | x less | joining | x less | "
        "peak MB |"
    )
    print("| --- |" + " ---: |" * 9)
    joined: dict[str, dict[str, int]] = {}
    for cell in ("lstm", "gru"):
        joined[cell], first = {}, 0
        for gates in ways:
            workload = rnn_gates(gates=gates, **{**shape, "cell": cell, "length": 16})
            graph = kit.plan(workload, kit.Settings(mode="imperative", batch_size=batch)).graph
            found = memory(kit.Run(settings=kit.Settings(), losses=(), step_times_ns=(),
                                   timeline=Timeline.of([]), graphs=(graph,)))  # fmt: skip
            nodes = [
                (graph.nodes[i], size) for i, size in zip(found.nodes, found.written, strict=True)
            ]
            each = {
                p: sum(size for n, size in nodes if n.phase == p) for p in ("forward", "backward")
            }
            joins = joined[cell][gates] = sum(
                size
                for n, size in nodes
                if n.phase == "backward" and n.op.split(".")[1] in ("slice_backward", "cat", "add")
            )
            first = first or found.allocated
            less = f"{joined[cell]['slice'] / joins:.2f}" if joins else "all"
            print(
                f"| {cell}, {gates} | {sum(n > 0 for n in found.buffers):,} | "
                f"{found.allocations:,} | {found.allocated / 1e6:.1f} | "
                f"{each['forward'] / 1e6:.1f} | {each['backward'] / 1e6:.1f} | "
                f"{first / found.allocated:.2f} | {joins / 1e6:.1f} | {less} | "
                f"{found.peak / 1e6:.1f} |",
                flush=True,
            )
    return {cell: by["slice"] / by["multigate"] for cell, by in joined.items()}


def summary(found: dict[str, Found], joined: dict[str, float]) -> None:
    """Print what was aimed at next to what was measured, and the same work in three libraries."""
    print(
        "\n| against slices | aimed at | clock | CPU time | least CPU time | "
        "jax in the same run: clock | CPU time | least CPU time |"
    )
    print("| --- |" + " ---: |" * 7)
    for part, gates, what, aim in AIMED:
        rows = found.get(part, {})
        cells = []
        for family in ("kit", "jax.jit" if part.startswith("program") else "jax"):
            name = f"{family}: {gates}"
            x = rows[name].ratios(base(rows, name)) if rows else ()
            cells += [f"{n:.2f}{' **met**' * (n >= aim and family == 'kit')}" for n in x]
        print(f"| {what} | {aim} | {' | '.join(cells) or 'not measured'} |")
    for cell, ratio in joined.items():
        is_met = "met" if ratio >= JOINED else "missed"
        print(f"| bytes that join gradients, {cell} | {JOINED} | {ratio:.2f}, exact: {is_met} |")
    rows = found.get("ops, 2", {})
    if not rows:
        return
    print("\n| CPU ms, median and least, op by op | kit | jax, not jitted | torch |")
    print("| --- | ---: | ---: | ---: |")
    for gates in COMPARED:
        own = [rows[f"{family}: {gates}"].own for family in ("kit", "jax", "torch")]
        cells = [f"{statistics.median(o):.3g}, {min(o):.3g}" for o in own]
        print(f"| {gates} | {' | '.join(cells)} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", default="lstm", choices=["lstm", "gru"])
    for name, default in (("layers", 2), ("hidden", 64), ("batch", 256), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="bytes,ops,program,scan,aimed")
    parser.add_argument("--quick", action="store_true", help="three ways, 3 rounds")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # more wait for each other at every op where others use the cores
    shape = {"cell": asked.cell, "layers": asked.layers, "hidden": asked.hidden}
    ways = COMPARED if asked.quick else GATES
    rounds = 3 if asked.quick else asked.rounds
    print(
        f"{asked.cell}, {asked.layers} layers of {asked.hidden}, batch {asked.batch}; "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    parts = asked.only.split(",")
    joined = written(shape, asked.batch, ways) if "bytes" in parts else {}
    found: dict[str, Found] = {}
    for name, measure in (("ops", op_by_op), ("program", one_program), ("scan", one_scan)):
        if name in parts:
            found[f"{name}, {asked.layers}"] = measure(shape, asked.batch, rounds, ways)
    if "aimed" in parts:
        for name, measure in (("ops", op_by_op), ("program", one_program)):
            found[f"{name}, 1"] = measure({**shape, "layers": 1}, asked.batch, rounds, COMPARED)
        summary(found, joined)


if __name__ == "__main__":
    main()
