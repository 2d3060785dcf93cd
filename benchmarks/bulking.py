"""What bulking buys: the engine's own cost, step time against bulk size, fused against jax.jit.

    python benchmarks/bulking.py [--quick] [--rounds 5] [--mxnet mx/bin/python]

(a) the engine, without jax: microseconds for each no-op pushed and completed, with one worker
(b) the curve: step time by bulk size, the segments issued op by op ("launch") or as one program
    each ("fuse"); and a plain chain where the user waits for each segment, or only the worker does,
    which tells fewer syncs from fewer launches. Each curve is fitted as T = N c + S s: N ops, c
    each; S segments, s each. S is counted; without cuts at phases it is ceil(N / k).
(c) one program for all of a small MLP's step, against one hand-written jax.jit of the same

The parts of a comparison take turns in each round; numbers are medians over the rounds. `--mxnet`
names a Python that has MXNet 1.9.1; `peers/mxnet_seeds.py` says how to make it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("KIT_CACHE_DIR", "")

import jax
import jax.numpy as jnp
import numpy as np
import torch

import kit
from kit.measure.base.context import Context, Workload
from kit.runs.bulk_sizes import UNLIMITED
from kit.runtime.engine.engine import Engine
from kit.runtime.engine.operations import Variable
from kit.workloads import bert_of, flips, mlp

SIZES = (1, 2, 5, 15, 50, 200, UNLIMITED)
QUICK_SIZES = (1, 15, 200, UNLIMITED)
NOISE = 0.05  # a rise of less is not called one
Way = Callable[[], Any]


def clock(function: Way) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def in_turns(ways: dict[Any, Way], rounds: int, warm: int = 1) -> dict[Any, float]:
    """Median milliseconds of each; the first rounds only warm up."""
    times: dict[Any, list[float]] = {name: [] for name in ways}
    for i in range(rounds + warm):
        for name, way in ways.items():
            ms = clock(way)
            if i >= warm:
                times[name].append(ms)
    return {name: statistics.median(values) for name, values in times.items()}


def table(title: str, head: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    names = list(head)
    print(f"\n{title}\n\n| {' | '.join(names)} |\n| --- |{' ---: |' * (len(names) - 1)}")
    for row in rows:
        print(f"| {' | '.join(x if isinstance(x, str) else f'{x:.3g}' for x in row)} |", flush=True)


# -- (a) ------------------------------------------------------------------------------------------


def nothing() -> None:
    pass


def engine_cost(rounds: int, ops: int) -> None:
    """No-ops: what the engine adds to a call."""
    engine = Engine()
    each = [Variable() for _ in range(ops + 1)]
    one = Variable()
    push = engine.push

    def inline() -> None:
        for _ in range(ops):
            nothing()

    def independent() -> None:
        for v in each:
            push(nothing, (), (v,))
        engine.wait_all()

    def chain() -> None:
        for a, b in itertools.pairwise(each):
            push(nothing, (a,), (b,))
        engine.wait_all()

    def in_place() -> None:
        for _ in range(ops):
            push(nothing, (one,), (one,))
        engine.wait_all()

    def round_trips() -> None:
        for _ in range(ops // 20):
            push(nothing, (), (one,))
            engine.wait_all()

    ways = {"inline call": inline, "independent": independent, "chain": chain,
            "in place": in_place, "push and wait_all, each": round_trips}  # fmt: skip
    found = in_turns(ways, rounds)
    engine.close()
    rows = []
    for name, ms in found.items():
        us = ms * 1e3 / (ops // 20 if name.endswith("each") else ops)
        rows.append((name, us, us / (found["inline call"] * 1e3 / ops)))
    table(
        "(a) The engine: no-ops pushed and completed, one worker",
        ("", "us an op", "x an inline call"),
        rows,
    )


# -- (b) ------------------------------------------------------------------------------------------


def name_of(size: int) -> str:
    return "unlimited" if size >= UNLIMITED else str(size)


def fit(points: dict[int, tuple[float, float, float]]) -> str:
    """T = N c + S s through {size: (ms, ops, segments)}; squares of the relative errors."""
    t, n, s = np.array(list(points.values())).T
    cost, *_ = np.linalg.lstsq(np.stack([n / t, s / t], axis=1), np.ones(len(t)), rcond=None)
    worst = float(np.max(np.abs((n * cost[0] + s * cost[1]) / t - 1)))
    text = f"{cost[0] * 1e3:.3g} us/op + {cost[1] * 1e3:.3g} us/segment, within {worst:.0%}"
    rises = []
    for (small, before), (large, after) in itertools.pairwise(points.items()):
        if (rise := after[0] / before[0] - 1) > NOISE:
            rises.append(f"{name_of(small)} to {name_of(large)} {rise:+.0%}")
    return f"{text}; not monotone: {', '.join(rises)}" if rises else f"{text}; monotone"


def curves(title: str, found: dict[str, dict[int, tuple[float, float, float]]]) -> None:
    sizes = list(next(iter(found.values())))
    rows = [[name, *(points[k][0] for k in sizes), fit(points)] for name, points in found.items()]
    ops = max(p[1] for points in found.values() for p in points.values())
    table(
        f"{title}: ms by bulk size ({ops:.0f} ops)",
        ("", *map(name_of, sizes), "T = N c + S s"),
        rows,
    )
    for name, points in found.items():
        ideal = [f"{name_of(k)}: {p[2]:.0f} ({math.ceil(p[1] / k)})" for k, p in points.items()]
        print(f"\n{name}: segments (and ceil(N / k)): {', '.join(ideal)}")


def measured(
    session: Any, ways: dict[int, Way], rounds: int, steps: int
) -> dict[int, tuple[float, float, float]]:
    """Size -> (ms, ops, segments) of one call."""
    times: dict[int, list[float]] = {size: [] for size in ways}
    counts: dict[int, tuple[float, float]] = {}

    def many(way: Way) -> None:
        for _ in range(steps):
            way()
        session.wait_all()

    for i in range(rounds + 1):
        for size, way in ways.items():
            session.set_bulk_size(size)
            for _ in range(2 if i else 3):  # the first round compiles; later, old values die
                way()
            session.wait_all()
            before = session.metrics()
            ms = clock(partial(many, way)) / steps
            after = session.metrics()
            if i:
                times[size].append(ms)
                ops, segments = (after[x] - before[x] for x in ("record.ops", "segment.count"))
                counts[size] = ops / steps, segments / steps
    return {k: (statistics.median(v), *counts[k]) for k, v in times.items()}


def workload_curve(workload: Workload, sizes: tuple[int, ...], rounds: int, steps: int) -> None:
    found = {}
    for mode in ("launch", "fuse"):
        settings = kit.Settings(segment_mode=mode)
        with kit.Session(settings) as session:
            torch.manual_seed(0)
            step = workload(Context(settings, "kit"))
            ways = dict.fromkeys(sizes, partial(session.run_step, step))
            found[mode] = measured(session, ways, rounds, steps)
    curves(f"(b) {workload.name}", found)


def chain(session: Any, x: Any, a: Any, b: Any, ops: int, wait: int) -> Any:
    """`ops` ops on x, one after the other; the user waits after each `wait` of them."""
    for i in range(1, ops + 1):
        x = x * a if i % 2 else x + b
        if i % wait == 0:
            session.wait_all()
    session.wait_all()
    return x


def chain_curve(sizes: tuple[int, ...], rounds: int, ops: int = 500) -> None:
    """Fewer syncs against fewer launches, on arrays of (100, 100)."""
    found: dict[str, dict[int, tuple[float, float, float]]] = {}
    for mode in ("launch", "fuse"):
        with kit.Session(kit.Settings(segment_mode=mode)) as session, torch.no_grad():
            leaves = [torch.rand(100, 100).to("kit") for _ in range(3)]
            run = partial(chain, session, *leaves, ops)
            for who in ("the worker waits", "the user waits"):
                is_user = who == "the user waits"
                ways = {k: partial(run, k if is_user else ops) for k in sizes}
                found[f"{mode}, {who}"] = measured(session, ways, rounds, 4)
    curves("(b) A chain of (100, 100)", found)


def mxnet_curve(python: str, is_quick: bool) -> None:
    script = Path(__file__).parent / "peers" / "mxnet_seeds.py"
    command = [python, str(script), "--only", "flips", *(["--quick"] if is_quick else [])]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for name, row in json.loads(said.splitlines()[-1])["flips"].items():
        points = {int(k): (ms, 2000.0, 2.0 * math.ceil(1000 / int(k))) for k, ms in row.items()}
        found[f"MXNet 1.9.1, {name}"] = points
    curves("(b) flips in MXNet", found)


# -- (c) ------------------------------------------------------------------------------------------

RATE = 0.01
Layers = list[tuple[Any, Any]]


def predict(p: Layers, x: Any) -> Any:
    for w, b in p:
        x = jnp.tanh(x @ w + b)
    return x


def loss_of(p: Layers, x: Any, y: Any) -> Any:
    return jnp.mean((predict(p, x) - y) ** 2)


def train(p: Layers, x: Any, y: Any) -> Any:
    loss, g = jax.value_and_grad(loss_of)(p, x, y)
    return jax.tree.map(lambda p, g: p - RATE * g, p, g), loss


def by_hand(part: str, weights: list[Any], x: Any, y: Any) -> tuple[Way, list[Any]]:
    """One call of the jitted function, waited for; and the losses that it will have had."""
    state: Layers = [(jnp.asarray(w), jnp.zeros(len(w))) for w in weights]
    x, y = jnp.asarray(x), jnp.asarray(y)
    jitted, losses = jax.jit(train if part == "training step" else predict), []

    def train_once() -> None:
        nonlocal state
        state, loss = jitted(state, x, y)
        losses.append(loss)
        jax.block_until_ready((state, loss))

    def infer_once() -> None:
        jax.block_until_ready(jitted(state, x))

    return (train_once if part == "training step" else infer_once), losses


def on_kit(part: str, session: Any, weights: list[Any], x: Any, y: Any) -> tuple[Way, list[Any]]:
    """The same on device "kit", from the same weights."""
    net = torch.nn.Sequential()
    for w in weights:
        linear = torch.nn.Linear(*w.shape)
        torch.nn.init.zeros_(linear.bias)
        linear.weight.data = torch.from_numpy(w.T.copy())
        net.extend([linear, torch.nn.Tanh()])
    net, losses = net.to("kit"), []
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    x, y = torch.from_numpy(x).to("kit"), torch.from_numpy(y).to("kit")

    def train_step() -> Any:
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def infer() -> Any:
        with torch.no_grad():
            return net(x)

    def train_once() -> None:
        losses.append(session.run_step(train_step))
        session.wait_all()

    def infer_once() -> None:
        kept = session.run_step(infer)
        session.wait_all()
        del kept

    return (train_once if part == "training step" else infer_once), losses


def against_jit(rounds: int, steps: int, width: int, layers: int = 8, batch: int = 64) -> None:
    """One program for everything, against the same written by hand."""
    rng = np.random.default_rng(0)
    weights = [
        (rng.normal(size=(width, width)) / width**0.5).astype("float32") for _ in range(layers)
    ]
    data = [rng.normal(size=(batch, width)).astype("float32") for _ in range(2)]
    settings = kit.Settings(mode="lazy", segment_mode="fuse")
    rows = []
    for part, step_mode in itertools.product(("training step", "inference"), ("retrace", "replay")):
        with kit.Session(settings.replace(step_mode=step_mode)) as session:
            theirs, their_losses = by_hand(part, weights, *data)
            ours, our_losses = on_kit(part, session, weights, *data)
            ways = {"jax": partial(repeat, theirs, steps), "kit": partial(repeat, ours, steps)}
            found = in_turns(ways, rounds, warm=2)
            pairs = [(float(a), float(b)) for a, b in zip(our_losses, their_losses, strict=True)]
            off = max((abs(a / b - 1) for a, b in pairs), default=math.nan)
        rows.append((f"{part}, {step_mode}", found["kit"] / steps, found["jax"] / steps,
                     found["kit"] / found["jax"], off))  # fmt: skip
    table(
        f"(c) MLP, {layers} layers of {width}, batch {batch}: fuse unlimited against jax.jit",
        ("", "kit ms", "jax.jit ms", "ratio", "largest difference of a loss"),
        rows,
    )


def repeat(function: Way, times: int) -> None:
    for _ in range(times):
        function()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    parser.add_argument("--mxnet", default="", help="a Python that has MXNet 1.9.1")
    parser.add_argument("--part", choices=("a", "b", "c"), help="only this one")
    options = parser.parse_args()
    quick, part = options.quick, options.part
    rounds = 2 if quick else options.rounds
    sizes = QUICK_SIZES if quick else SIZES
    print(
        f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"jax {jax.__version__}"
    )
    if part in (None, "a"):
        engine_cost(3 if quick else 7, 5_000 if quick else 20_000)
    if part in (None, "b"):
        chain_curve(sizes, rounds)
        workload_curve(flips, sizes, rounds, 1 if quick else 5)
        if options.mxnet:
            mxnet_curve(options.mxnet, quick)
        workload_curve(mlp, sizes, rounds, 5 if quick else 20)
        workload_curve(bert_of("tiny"), (1, 15, UNLIMITED) if quick else sizes, rounds, 2)
    if part in (None, "c"):
        against_jit(max(rounds, 3), 20, 64)
        if not quick:
            against_jit(rounds, 10, 512)


if __name__ == "__main__":
    main()
