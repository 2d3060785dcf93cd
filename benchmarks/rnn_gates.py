"""Gates of an LSTM or GRU, in every way of Flux PR 1761; ratios to slicing, in one run.

    python benchmarks/rnn_gates.py [--cell lstm] [--layers 2] [--hidden 64] [--batch 256]
                                   [--rounds 15] [--only ops,program,scan,bytes] [--quick]

1. op by op: kit in mode "imperative", jax without jit, torch; 4 time steps
2. one program: kit in mode "lazy" replaying its step, jax.jit; 16 time steps, unrolled
3. the same as one scan
4. bytes that a step writes, modelled from kit's graph

Each row is a training step: forward, backward, SGD (jax's rows: loss and gradients only). Rows take
turns, round by round; numbers are medians, by the clock and of the process's own CPU time, which
other programs disturb less. Torch has one thread. Titles say how busy the machine was.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

os.environ.setdefault("KIT_CACHE_DIR", "")

import jax
import jax.numpy as jnp
import torch

import kit
from kit.runtime.session import current_session
from kit.workloads import rnn_gates
from kit.workloads import rnn_scanned as scanned
from kit.workloads.context import Context
from kit.workloads.jax_context import JaxContext
from kit.workloads.rnn_cells import GATES

WARMUP = 5
Rows = dict[str, Callable[[], Any]]


def measured(rows: Rows, rounds: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds of each row, by the clock and of the process; the rows take turns."""
    wall: dict[str, list[float]] = {name: [] for name in rows}
    own: dict[str, list[float]] = {name: [] for name in rows}
    for i in range(rounds + WARMUP):
        for name, function in rows.items():
            start, spent = time.perf_counter(), time.process_time()
            function()
            if i >= WARMUP:
                wall[name].append((time.perf_counter() - start) * 1e3)
                own[name].append((time.process_time() - spent) * 1e3)
    return {name: (statistics.median(wall[name]), statistics.median(own[name])) for name in rows}


def table(title: str, rows: Rows, rounds: int) -> None:
    """The rows' medians, and how often each goes into the `slice` row of its family."""
    before = os.getloadavg()[0]
    found = measured(rows, rounds)
    print(f"\n{title}; {rounds} rounds, load {before:.1f} to {os.getloadavg()[0]:.1f}\n")
    print("| | ms | slice is x this | CPU ms | slice is x this |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, (wall, own) in found.items():
        base = found[f"{name.split(':')[0]}: slice"]
        print(f"| {name} | {wall:.3g} | {base[0] / wall:.2f} | {own:.3g} | {base[1] / own:.2f} |",
              flush=True)  # fmt: skip


def kit_row(shape: dict[str, Any], gates: str, settings: kit.Settings, loop: str = "unrolled",
            ) -> Callable[[], None]:  # fmt: skip
    """One step of a session of its own, ended and waited for."""
    where = copy_context()
    workload = rnn_gates(gates=gates, loop=loop, **shape)

    def begin() -> Callable[[], Any]:
        if workload.framework == "jax":
            from kit.frontend.jax_frontend import JaxFrontend
            from kit.runtime.session import Session

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


def jax_row(shape: dict[str, Any], gates: str, batch: int, *, is_jitted: bool, unroll: int = 0,
            ) -> Callable[[], Any]:  # fmt: skip
    """Loss and gradients in jax alone; without `unroll`, Python goes through the time steps."""
    cell, hidden, length = shape["cell"], shape["hidden"], shape["length"]
    keys = iter(jax.random.split(jax.random.key(0), 100))
    wide = scanned.GATES[cell] * hidden
    params = [
        {"w_input": jax.random.normal(next(keys), (hidden, wide)) / hidden**0.5,
         "w_hidden": jax.random.normal(next(keys), (hidden, wide)) / hidden**0.5,
         "b_input": jnp.zeros(wide), "b_hidden": jnp.zeros(wide)}
        for _ in range(shape["layers"])
    ]  # fmt: skip
    x = jax.random.normal(next(keys), (batch, length, hidden))

    def loss(params: Any) -> Any:
        if unroll:
            outputs = scanned.predict(params, x, cell=cell, gates=gates, unroll=unroll)
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


def op_by_op(shape: dict[str, Any], batch: int, rounds: int, ways: tuple[str, ...]) -> None:
    shape = {**shape, "length": 4}
    settings = kit.Settings(mode="imperative", batch_size=batch)
    replayed = settings.replace(step_mode="replay")
    rows: Rows = {f"kit: {g}": kit_row(shape, g, settings) for g in ways}
    rows |= {f"kit, replayed: {g}": kit_row(shape, g, replayed) for g in ways}
    rows |= {f"jax: {g}": jax_row(shape, g, batch, is_jitted=False)
             for g in ways if g in ("slice", "multigate", "fused")}  # fmt: skip
    rows |= {f"torch: {g}": torch_row(shape, g, settings) for g in ways}
    table("Op by op, T=4", rows, rounds)


def one_program(shape: dict[str, Any], batch: int, rounds: int, ways: tuple[str, ...]) -> None:
    shape = {**shape, "length": 16}
    settings = kit.Settings(mode="lazy", step_mode="replay", batch_size=batch)
    rows: Rows = {f"kit: {g}": kit_row(shape, g, settings) for g in ways}
    rows |= {f"jax.jit: {g}": jax_row(shape, g, batch, is_jitted=True)
             for g in ways if g in ("slice", "multigate", "fused")}  # fmt: skip
    table("One program, T=16, unrolled", rows, rounds)


def one_scan(shape: dict[str, Any], batch: int, rounds: int, ways: tuple[str, ...]) -> None:
    shape = {**shape, "length": 16}
    settings = kit.Settings(mode="lazy", step_mode="replay", batch_size=batch)
    chosen = [g for g in ways if g != "torch"]
    rows: Rows = {f"kit: {g}": kit_row(shape, g, settings, "scanned") for g in chosen}
    rows |= {f"jax.jit: {g}": jax_row(shape, g, batch, is_jitted=True, unroll=1)
             for g in chosen if g in ("slice", "multigate", "fused")}  # fmt: skip
    table("One program, T=16, scanned", rows, rounds)


def written(shape: dict[str, Any], batch: int, ways: tuple[str, ...]) -> None:
    """What a step writes, and of that what puts gradients together: zeros, sums, one buffer."""
    settings = kit.Settings(mode="imperative", batch_size=batch, steps=1, warmup=1)
    for length in (4, 16):
        print(f"\nBytes written, T={length}\n")
        print("| | ops | buffers | MB a step | slice is x this | of that joining gradients, MB | "
              "slice is x this | of the gates alone, MB | slice is x this |")  # fmt: skip
        print("| --- |" + " ---: |" * 8)
        first: list[float] = []
        for gates in ways:
            run = kit.run(rnn_gates(gates=gates, **{**shape, "length": length}), settings)
            graph, found = run.graphs[0], kit.memory(run)
            joins, own = 0, 0
            wide = (batch, scanned.GATES[shape["cell"]] * shape["hidden"])
            for i, size in zip(found.nodes, found.written, strict=True):
                node = graph.nodes[i]
                name = node.op.split(".")[1]
                if node.phase == "backward" and name in ("slice_backward", "cat", "add"):
                    joins += size
                    own += size * (node.avals[0].shape == wide)
            numbers = [found.allocated / 1e6, joins / 1e6, own / 1e6]
            first = first or numbers
            cells = " | ".join(f"{n:.3g} | {f / n:.2f}" if n else "0 | " for n, f in
                               zip(numbers, first, strict=True))  # fmt: skip
            print(f"| {gates} | {len(found.nodes)} | {found.allocations} | {cells} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", default="lstm", choices=["lstm", "gru"])
    for name, default in (("layers", 2), ("hidden", 64), ("batch", 256), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="ops,program,scan,bytes")
    parser.add_argument("--quick", action="store_true", help="three ways, 3 rounds")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # more wait for each other at every op where others use the cores
    shape = {"cell": asked.cell, "layers": asked.layers, "hidden": asked.hidden}
    ways = ("slice", "multigate", "fused") if asked.quick else GATES
    rounds = 3 if asked.quick else asked.rounds
    print(f"{asked.cell}, {asked.layers} layers of {asked.hidden}, batch {asked.batch}; "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    parts: dict[str, Callable[[], None]] = {
        "ops": partial(op_by_op, shape, asked.batch, rounds, ways),
        "program": partial(one_program, shape, asked.batch, rounds, ways),
        "scan": partial(one_scan, shape, asked.batch, rounds, ways),
        "bytes": partial(written, shape, asked.batch, ways),
    }
    for name in asked.only.split(","):
        parts[name]()


if __name__ == "__main__":
    main()
