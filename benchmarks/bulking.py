"""What bulking is worth: the engine's own cost, the curve over the bulk size, and a jax.jit.

    python benchmarks/bulking.py [--rounds 5] [--quick] [--mxnet mx/bin/python]

1. the engine: microseconds for each no-op operation, pushed and completed by one worker
2. the curve: step time by bulk size, 1 to unlimited, segments fused or launched op by op, for
   MXNet's 1000 flips, an MLP step and a BERT step; fitted as T = N c + ceil(N / k) s
3. a chain of 500 ops where the user waits after each segment, against only the worker waiting:
   what fewer syncs and what fewer launches are worth
4. `fuse` without a limit against one hand-written jax.jit, training and inference

Numbers are medians of rounds in which the parts of a comparison alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KIT_CACHE_DIR", "")

import jax
import jax.numpy as jnp
import numpy as np
import torch

import kit
from kit.run_bulk import UNLIMITED
from kit.runtime.engine import Engine
from kit.workloads import bert, flips, mlp

SIZES = (1, 2, 5, 15, 50, 200, UNLIMITED)


def nothing() -> None:
    """An operation that costs only what the engine adds."""


def engine_cost(rounds: int, count: int = 5000) -> None:
    print("1. Engine, us for each no-op operation pushed and completed (1 worker)\n")
    kinds: dict[str, list[float]] = {}
    for _ in range(rounds * 3):
        for name in ("no variable", "one write each", "chain", "in place"):
            engine = Engine(1)
            v = [engine.variable() for _ in range(1000)]
            engine.push(nothing)
            engine.wait_all()
            start = time.perf_counter()
            for i in range(count):
                if name == "no variable":
                    engine.push(nothing)
                elif name == "one write each":
                    engine.push(nothing, (), (v[i % 1000],))
                elif name == "chain":
                    engine.push(nothing, (v[i % 1000],), (v[(i + 1) % 1000],))
                else:
                    engine.push(nothing, (v[0],), (v[0],))
            engine.wait_all()
            kinds.setdefault(name, []).append((time.perf_counter() - start) * 1e6 / count)
            if name == "chain":
                start = time.perf_counter()
                for _ in range(100):
                    engine.push(nothing)
                    engine.wait_all()
                trip = (time.perf_counter() - start) * 1e4
                kinds.setdefault("push and wait, round trip", []).append(trip)
            engine.close()
    for name, values in kinds.items():
        print(f"- {name}: {statistics.median(values):.2f} us (best {min(values):.2f})")


def fit(ops: int, sizes: Sequence[int], ms: Sequence[float]) -> tuple[float, float, float]:
    """c and s of T = N c + ceil(N / k) s in microseconds, and the largest relative residual."""
    segments = np.array([-(-ops // min(k, ops)) for k in sizes], float)
    system = np.stack([np.full(len(sizes), float(ops)), segments], axis=1)
    times = np.array(ms) * 1e3
    (c, s), *_ = np.linalg.lstsq(system / times[:, None], np.ones(len(sizes)), rcond=None)
    off = np.abs(system @ np.array([c, s]) - times) / times
    return float(c), float(s), float(off.max())


def curve(name: str, workload: Any, rounds: int, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Step time by bulk size in both segment modes."""
    settings = kit.Settings(steps=6, warmup=3)
    native = kit.run(workload, settings.replace(mode="torch")).step_ms
    stream = kit.plan(workload)
    found: dict[str, list[float]] = {}
    for mode in ("fuse", "launch"):
        times = [
            statistics.median(
                kit.run(
                    workload,
                    settings.replace(bulk_forward=k, bulk_backward=k, segment_mode=mode),
                ).step_ms
                for _ in range(rounds)
            )
            for k in sizes
        ]
        found[mode] = times
        c, s, off = fit(stream.counted, sizes, times)
        cells = " | ".join(f"{t:.3g}" for t in times)
        gain = times[0] / times[sizes.index(15)]
        print(f"| {name}, {mode} ({stream.counted} ops; torch {native:.3g}) | {cells} "
              f"| {gain:.2f}x | {c:.2g} + {s:.3g}, {off:.0%} |")  # fmt: skip
        worse = [f"{a:,} to {b:,}" for a, b, x, y in zip(sizes, sizes[1:], times, times[1:],
                 strict=False) if y > 1.05 * x]  # fmt: skip
        if worse:
            print(f"| ↳ slower again from {', '.join(worse)} |" + " |" * (len(sizes) + 2))
    return found


def curves(rounds: int, sizes: Sequence[int], mxnet: str) -> None:
    print("\n2. Milliseconds a step by bulk size\n")
    heads = " | ".join("unlimited" if k >= UNLIMITED else f"{k}" for k in sizes)
    print(f"| | {heads} | 15 against 1 | fit: c + s us, worst residual |")
    print("| --- |" + " ---: |" * (len(sizes) + 2))
    for name, workload in (("flips", flips), ("mlp", mlp), ("bert", bert)):
        curve(name, workload, rounds, sizes)
    if mxnet:
        script = Path(__file__).parent / "peers" / "mxnet_seeds.py"
        said = subprocess.run([mxnet, str(script)], capture_output=True, text=True, check=True)
        by_size = json.loads(said.stdout.splitlines()[-1])["flips"]
        for kind in ("symbolic", "gluon static"):
            row = {int(k): v[kind] for k, v in by_size.items()}
            cells = " | ".join(f"{row.get(min(k, 1000), float('nan')):.3g}" for k in sizes)
            print(f"| flips, MXNet 1.9.1 {kind} | {cells} | {row[1] / row[15]:.2f}x | |")


def two_effects(rounds: int, count: int = 500) -> None:
    print(f"\n3. A chain of {count} ops on (100, 100), milliseconds\n")
    sizes = [k for k in SIZES if k < UNLIMITED] + [count]
    print("| | " + " | ".join(map(str, sizes)) + " | fit: c + s us, worst residual |")
    print("| --- |" + " ---: |" * (len(sizes) + 1))
    for mode in ("launch", "fuse"):
        for who in ("only the worker waits", "the user waits after each segment"):
            times = []
            for k in sizes:
                with kit.Session(kit.Settings(segment_mode=mode)) as session, torch.no_grad():
                    x = torch.ones(100, 100, device="kit")
                    session.wait_all()
                    found = []
                    for _ in range(rounds + 2):
                        start = time.perf_counter()
                        y = x
                        with kit.bulk(k):
                            for i in range(count // 2):
                                y = y * 0.999 + 0.001
                                if who.startswith("the user") and not (2 * i + 2) % k:
                                    session.wait_all()
                        session.wait_all()
                        found.append((time.perf_counter() - start) * 1e3)
                        del y
                    times.append(statistics.median(found[2:]))
            c, s, off = fit(count, sizes, times)
            cells = " | ".join(f"{t:.3g}" for t in times)
            print(f"| {mode}, {who} | {cells} | {c:.2g} + {s:.3g}, {off:.0%} |")


def against_jit(rounds: int, layers: int = 6, width: int = 256, batch: int = 256) -> None:
    print("\n4. `fuse` without a limit against one jax.jit of the same program\n")
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(width, width)).astype(np.float32) * 0.05 for _ in range(layers)]
    data = rng.normal(size=(batch, width)).astype(np.float32)

    def forward(ws: Any, x: Any) -> Any:
        for w in ws:
            x = jnp.tanh(x @ w)
        return (x * x).mean()

    def train(ws: Any, x: Any) -> Any:
        loss, grads = jax.value_and_grad(forward)(ws, x)
        return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], loss

    state = {"ws": [jnp.asarray(w) for w in weights]}
    x = jnp.asarray(data)
    trained, inferred = jax.jit(train, donate_argnums=0), jax.jit(forward)

    def jax_training() -> Any:
        state["ws"], loss = trained(state["ws"], x)
        return jax.block_until_ready(loss)

    def jax_inference() -> Any:
        return jax.block_until_ready(inferred(state["ws"], x))

    with kit.Session(kit.Settings(mode="lazy")) as session:
        ours = [torch.tensor(w).to("kit").requires_grad_() for w in weights]
        xs = torch.tensor(data).to("kit")

        def loss_of() -> Any:
            y = xs
            for w in ours:
                y = torch.tanh(y @ w)
            return y.square().mean()

        def kit_training() -> Any:
            loss = loss_of()
            grads = torch.autograd.grad(loss, ours)
            with torch.no_grad():
                for w, g in zip(ours, grads, strict=True):
                    w.sub_(g, alpha=0.1)
            loss = loss.detach()
            session.mark_step()
            session.wait_all()
            return loss

        def kit_inference() -> Any:
            with torch.no_grad():
                found = loss_of()
            session.wait_all()
            return found

        for name, mine, theirs in (("training", kit_training, jax_training),
                                   ("inference", kit_inference, jax_inference)):  # fmt: skip
            ratios, devices, times = [], [], []
            for i in range(rounds * 6):
                start = time.perf_counter()
                theirs()
                middle = time.perf_counter()
                before = session.metrics().get("execute.ns", 0.0)
                kept = mine()
                stop = time.perf_counter()
                ran = (session.metrics()["execute.ns"] - before) / 1e9
                if i > 5:
                    ratios.append((stop - middle) / (middle - start))
                    devices.append(ran / (middle - start))
                    times.append(((middle - start) * 1e3, (stop - middle) * 1e3))
                del kept
            jit, whole = (statistics.median(t[k] for t in times) for k in (0, 1))
            print(f"- {name}: jit {jit:.2f} ms; kit recorded and run {whole:.2f} ms, "
                  f"{statistics.median(ratios):.2f}x; its program alone "
                  f"{statistics.median(devices):.2f}x")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round, fewer sizes")
    parser.add_argument("--mxnet", default="", help="a Python that has MXNet 1.9.1")
    chosen = parser.parse_args()
    rounds = 1 if chosen.quick else chosen.rounds
    engine_cost(rounds)
    curves(rounds, (1, 15, UNLIMITED) if chosen.quick else SIZES, chosen.mxnet)
    two_effects(rounds)
    against_jit(max(rounds, 2))


if __name__ == "__main__":
    main()
