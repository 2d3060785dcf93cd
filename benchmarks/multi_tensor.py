"""Many tensors at once: zeroing 500 of them, norms, clipping and optimizers; ratios in one run.

    python benchmarks/multi_tensor.py [--quick] [--rounds 7] [--small] [--mxnet mx/bin/python]

1. PR 16716: 500 arrays of (100, 100) set to zero 10 times, in torch, jax, the kit, and MXNet 1.9.1
   if `--mxnet` names a Python that has it (see `peers/mxnet_seeds.py`)
2. BERT-base's parameter list (110 M; `--small`: a sixteenth): global norm, clipping and optimizers,
   against torch's `_foreach_*` and fused ones on CPU tensors; torch has no LAMB

The parts of a comparison alternate within each round; numbers are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("KIT_CACHE_DIR", "")

import jax
import jax.numpy as jnp
import torch

import kit
from kit.trace.metrics import union_ns
from kit.workloads.many_arrays import WAYS

ARRAYS, SHAPE, REPEATS = 500, (100, 100), 10
Row = tuple[str, Callable[[], Any]]


def measured(rows: list[Row], rounds: int, sync: Callable[[], None]) -> dict[str, float]:
    """Median milliseconds of each; they take turns; the first two rounds only warm up:
    kit runs what it hybridizes once as it is, and compiles the op at the second call.
    """
    times: dict[str, list[float]] = {name: [] for name, _ in rows}
    for i in range(rounds + 2):
        for name, function in rows:
            sync()
            start = time.perf_counter()
            kept = function()
            sync()
            if i > 1:
                times[name].append((time.perf_counter() - start) * 1e3)
            del kept
    return {name: statistics.median(values) for name, values in times.items()}


def also_alone(rows: list[Row], is_quick: bool) -> list[Row]:
    """Torch's rows a second time with one thread.

    Where other programs use the cores too, torch's threads wait for each other at every op: a row
    of 4 ms has taken 400. The faster one of the two is what the kit is compared with; a
    quick run has only the second.
    """
    threads = torch.get_num_threads()

    def alone(function: Callable[[], Any]) -> Any:
        torch.set_num_threads(1)
        try:
            return function()
        finally:
            torch.set_num_threads(threads)

    found: list[Row] = []
    for name, function in rows:
        if not (is_quick and name.startswith("torch")):
            found.append((name, function))
        if name.startswith("torch"):
            found.append((f"{name}, 1 thread", partial(alone, function)))
    return found


def table(title: str, found: dict[str, float], base: str, *, per: int = 1) -> None:
    print(f"\n{title}\n\n| | ms | us an array | {base} is x this |\n| --- | ---: | ---: | ---: |")
    for name, ms in found.items():
        print(f"| {name} | {ms:.3g} | {ms * 1e3 / per:.3g} | {found[base] / ms:.3g} |")


def repeated(zero: Callable[[Any], Any], arrays: Any) -> Callable[[], None]:
    def run() -> None:
        for _ in range(REPEATS):
            zero(arrays)

    return run


def torch_rows() -> list[Row]:
    arrays = [torch.ones(SHAPE) for _ in range(ARRAYS)]
    params = [torch.nn.Parameter(torch.ones(SHAPE)) for _ in range(ARRAYS)]
    for p in params:
        p.grad = torch.ones(SHAPE)
    optimizer = torch.optim.SGD(params, lr=0.1)
    return [
        ("torch CPU: loop of a.zero_()", repeated(WAYS["loop"], arrays)),
        ("torch CPU: _foreach_zero_", repeated(WAYS["foreach"], arrays)),
        (
            "torch CPU: zero_grad(set_to_none=False)",
            repeated(lambda _: optimizer.zero_grad(set_to_none=False), None),
        ),
    ]


def jax_rows() -> list[Row]:
    held = [[jnp.ones(SHAPE) for _ in range(ARRAYS)] for _ in range(4)]
    one = jax.jit(jnp.zeros_like)
    many = jax.jit(lambda xs: [jnp.zeros_like(x) for x in xs])
    donated = jax.jit(
        lambda xs: [jnp.zeros_like(x) for x in xs], donate_argnums=0, keep_unused=True
    )
    zero = jnp.zeros(SHAPE)

    def each(k: int, function: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(REPEATS):
                held[k] = function(held[k])
            jax.block_until_ready(held[k])

        return run

    return [
        ("jax: a jitted op for each", each(0, lambda xs: [one(x) for x in xs])),
        ("jax: one jit", each(1, many)),
        ("jax: one jit, donated", each(2, donated)),
        ("jax: rebind to one shared zero", each(3, lambda xs: [zero for _ in xs])),
    ]


def kit_rows(session: Any, is_quick: bool) -> list[Row]:
    rows: list[Row] = []
    names = {"loop": "a.zero_()", "setitem": "a[:] = 0", "foreach": "torch._foreach_zero_",
             "one program": "kit.reset_arrays(share=False)", "reset_arrays": "kit.reset_arrays",
             "hybridize": "@kit.hybridize loop"}  # fmt: skip
    for how, zero in WAYS.items():
        arrays = [torch.ones(SHAPE, device="kit") for _ in range(ARRAYS)]
        # one op zeroes all: each in its own segment, or only the last one's results are computed
        sizes = (1, 15, ARRAYS) if how in ("loop", "setitem") else (1,)
        if is_quick and how == "setitem":
            sizes = (15,) if session.settings.segment_mode == "fuse" else ()
        for size in sizes:

            def run(zero: Any = zero, arrays: Any = arrays, size: int = size) -> None:
                with torch.no_grad(), kit.bulk(size):
                    repeated(zero, arrays)()

            tag = f", bulk({size})" if how in ("loop", "setitem") else ""
            rows.append((f"kit {session.settings.segment_mode}: {names[how]}{tag}", run))
    return rows


def launching(session: Any, function: Callable[[], Any]) -> float:
    """Of the worker's time, what is not kernels: from one more call, profiled."""

    def steps(end_step: Callable[[], None]) -> None:
        function()
        session.wait_all()
        end_step()

    timeline, *_ = session.trace(steps)
    worker, kernels = (union_ns(timeline.intervals(kind=k)) for k in ("dispatch", "kernel"))
    return 1 - min(kernels / worker, 1) if worker else 0.0


def split(session: Any, rows: list[Row]) -> None:
    """Where the time of the kit's rows goes: recording, the worker, and the wait at the end."""
    print("\nCost split (us an array; the worker and the recording overlap)\n")
    print("| | Python: recording | dispatch | execution | sync: waited at the end |")
    print("| --- | ---: | ---: | ---: | ---: |")
    count = ARRAYS * REPEATS / 1e6
    for name, function in rows:
        session.wait_all()
        before = session.metrics().get("execute.ns", 0.0)
        start = time.perf_counter()
        function()
        middle = time.perf_counter()
        session.wait_all()
        stop = time.perf_counter()
        worker = (session.metrics().get("execute.ns", 0.0) - before) / 1e9
        share = launching(session, function) if worker else 0.0
        cells = (middle - start, worker * share, worker * (1 - share), stop - middle)
        print(f"| {name} | " + " | ".join(f"{x / count:.3g}" for x in cells) + " |")


def seed_0(rounds: int, mxnet: str, is_quick: bool) -> None:
    found = measured([*torch_rows(), *jax_rows()], rounds, lambda: None)
    for mode in ("fuse", "launch"):
        with kit.Session(kit.Settings(segment_mode=mode)) as session:
            peer = [("torch CPU: _foreach_zero_", torch_rows()[1][1])]
            rows = kit_rows(session, is_quick)
            found |= measured([*peer, *rows], rounds, session.wait_all)
            split(session, [row for row in rows if not is_quick or "bulk(1)" not in row[0]])
    if mxnet:
        script = Path(__file__).parent / "peers" / "mxnet_seeds.py"
        command = [mxnet, str(script), "--only", "zero_grad", *(["--quick"] if is_quick else [])]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
        zeroed = json.loads(said.stdout.splitlines()[-1])["zero_grad"]
        found |= {f"MXNet 1.9.1: {name}": ms for name, ms in zeroed.items()}
    base = "MXNet 1.9.1: a[:] = 0" if mxnet else "torch CPU: _foreach_zero_"
    table("500 arrays of 100x100 set to zero 10 times", found, base, per=ARRAYS * REPEATS)
    hybrid = found["kit fuse: @kit.hybridize loop"] / found["kit fuse: kit.reset_arrays"]
    print(f"\nhybridized loop: {hybrid:.2f}x the hand-made op")


def bert_base(small: bool) -> list[tuple[int, ...]]:
    """The shapes of BERT-base's parameters: 110 M numbers, 199 tensors."""
    width, hidden, words, layers = (192, 768, 7630, 12) if small else (768, 3072, 30522, 12)
    shapes: list[tuple[int, ...]] = [(words, width), (512, width), (2, width), (width,), (width,)]
    for _ in range(layers):
        shapes += [(width, width), (width,)] * 4 + [(width,), (width,)]
        shapes += [(hidden, width), (hidden,), (width, hidden), (width,), (width,), (width,)]
    return [*shapes, (width, width), (width,)]


def parameters(small: bool, rounds: int, is_quick: bool) -> None:
    shapes = bert_base(small)
    count = sum(torch.Size(s).numel() for s in shapes)

    def some(device: str = "cpu", scale: float = 0.01) -> list[torch.Tensor]:
        return [(torch.randn(s) * scale).to(device) for s in shapes]

    found: dict[str, float] = {}
    with kit.Session(kit.Settings(mode="lazy")) as session, torch.no_grad():
        theirs, ours = some(), some("kit")
        rows: list[Row] = [
            (
                "torch: norm of _foreach_norm",
                lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(theirs))),
            ),
            ("kit.global_norm", partial(kit.global_norm, ours)),
            ("torch: isfinite, each", lambda: all(bool(t.isfinite().all()) for t in theirs)),
            ("kit.all_finite", partial(kit.all_finite, ours)),
        ]
        holders = [torch.nn.Parameter(t, requires_grad=True) for t in theirs]
        for h, g in zip(holders, some(), strict=True):
            h.grad = g
        grads = some("kit")
        rows += [
            (
                "torch: clip_grad_norm_(foreach=True)",
                lambda: torch.nn.utils.clip_grad_norm_(holders, 1e-3, foreach=True),
            ),
            ("kit.clip_by_global_norm", lambda: kit.clip_by_global_norm(grads, 1e-3)),
        ]
        found |= measured(also_alone(rows, is_quick), rounds, session.wait_all)
        del grads, rows
        each = torch.optim.AdamW(holders, lr=1e-3, foreach=True)
        fused = torch.optim.AdamW(
            [torch.nn.Parameter(h.detach().clone()) for h in holders], lr=1e-3, fused=True
        )
        for p, h in zip(fused.param_groups[0]["params"], holders, strict=True):
            p.grad = h.grad
        grads = some("kit")
        state = [[torch.zeros(s, device="kit") for s in shapes] for _ in range(2)]
        step = torch.zeros((), device="kit")
        rows = [
            ("torch: AdamW(foreach=True)", each.step),
            ("torch: AdamW(fused=True)", fused.step),
            ("kit.multi_adamw", lambda: kit.multi_adamw(ours, grads, *state, step)),
        ]
        found |= measured(also_alone(rows, is_quick), rounds, session.wait_all)
        del each, fused
        sgd = [
            torch.optim.SGD(holders, lr=1e-3, momentum=0.9, **{how: True})
            for how in ("foreach", "fused")
        ]
        rows = [
            ("torch: SGD(momentum=0.9, foreach=True)", sgd[0].step),
            ("torch: SGD(momentum=0.9, fused=True)", sgd[1].step),
            (
                "kit.multi_sgd(momentum=0.9)",
                lambda: kit.multi_sgd(ours, grads, state[0], lr=1e-3, momentum=0.9),
            ),
        ]
        found |= measured(also_alone(rows, is_quick), rounds, session.wait_all)
        lamb: list[Row] = [
            ("kit.multi_lamb", lambda: kit.multi_lamb(ours, grads, *state, step, lr=1e-3))
        ]
        alone = measured(lamb, rounds, session.wait_all)
    print(f"\nBERT-base's list, {len(shapes)} tensors, {count / 1e6:.0f} M parameters\n")
    print("| | ms | fastest torch / this |\n| --- | ---: | ---: |")
    group: list[str] = []
    for name in found:
        group.append(name)
        if name.startswith("kit"):
            fastest = min(found[peer] for peer in group[:-1])
            for row in group:
                print(f"| {row} | {found[row]:.3g} | {fastest / found[row]:.2f} |")
            group = []
    for name, ms in alone.items():
        print(f"| {name} | {ms:.3g} | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="a sixteenth of BERT-base's list")
    parser.add_argument("--quick", action="store_true", help="about a minute: 2 rounds, --small")
    parser.add_argument("--mxnet", default="", help="a Python that has MXNet 1.9.1")
    chosen = parser.parse_args()
    rounds = 2 if chosen.quick else chosen.rounds
    seed_0(rounds, chosen.mxnet, chosen.quick)
    parameters(chosen.small or chosen.quick, rounds, chosen.quick)


if __name__ == "__main__":
    main()
