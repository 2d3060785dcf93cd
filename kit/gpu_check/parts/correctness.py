"""Are the numbers right, and does memory stay where it was? Products of matrices are in float32.

By default XLA multiplies float32 matrices on a GPU with fewer bits (TF32), and torch does not; so
that a difference means something, both are asked for all bits here.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import torch
from torch import Tensor
from torch.nn import functional

from kit.gpu_check.base.journal import Journal
from kit.gpu_check.parts.bert import TINY
from kit.measure.base.context import Workload
from kit.measure.base.jax import JaxContext
from kit.measure.experiment import run as run_once
from kit.measure.kit_run import open_workload
from kit.runs.settings import Settings
from kit.runtime.profiling.devices import bytes_on, peak_bytes_on, pick_device
from kit.torch.device import open_session
from kit.workloads.jax_layers import jax_mlp
from kit.workloads.masked_lm import bert_of
from kit.workloads.small_ops import mlp

__all__ = ["run"]

EVERY = 24  # of torch's table of ops, one in so many
OPS_SHARE = 0.5  # of the part's time at most
FIRST, LAST = 1e-4, 1e-2  # relative difference of the losses of the first five steps; of all
Op = Callable[[Tensor, Tensor], Tensor]

# What is compared where torch's own table of ops is not at hand.
OWN_OPS: dict[str, Op] = {
    "matmul": lambda x, y: x @ y,
    "softmax": lambda x, y: (x * y).softmax(-1),
    "layer_norm": lambda x, y: functional.layer_norm(x + y, x.shape[-1:]),
    "gelu": lambda x, y: functional.gelu(x) * y,
    "cumsum": lambda x, y: (x - y).cumsum(0),
    "sort": lambda x, y: x.sort(-1).values + y,
    "index_put": lambda x, y: x.index_put((torch.arange(3, device=x.device),), y[:3]),
    "conv1d": lambda x, y: functional.conv1d(x[None], y[:, :, None]),
    "cross_entropy": lambda x, y: functional.cross_entropy(x, y.softmax(-1)),
    "logsumexp": lambda x, y: x.logsumexp(0) + y.amax(0),
}


def run(journal: Journal) -> None:
    """Losses and memory first: they need little time, and say most."""
    jax.config.update("jax_default_matmul_precision", "highest")
    with journal.attempt("losses against native torch"):
        _losses(journal)
    with journal.attempt("memory does not grow"):
        _growth(journal)
    with journal.attempt("memory against jax.jit"):
        _memory(journal)
    with journal.attempt("ops against torch's CPU"):
        _ops(journal)


def _losses(journal: Journal) -> None:
    """The same training on device "kit" and natively, from equal weights."""
    steps, size = (10, TINY) if journal.is_tiny else (50, "small")
    settings = Settings(steps=steps, warmup=0, batch_size=8, mode="lazy")
    expected = run_once(bert_of(size), settings.replace(mode="torch")).losses
    got = run_once(bert_of(size), settings).losses
    apart = [abs(a - b) / max(abs(b), 1e-9) for a, b in zip(got, expected, strict=True)]
    why = "largest relative difference to native torch on the same machine; float32"
    journal.check("losses of the first 5 steps", max(apart[:5]), at_most=FIRST, why=why)
    journal.check(f"losses of {steps} steps", max(apart), at_most=LAST, why=why)
    journal.check("it learns", got[-1] / got[0], at_most=1.0, why="last loss by the first")


def _growth(journal: Journal) -> None:
    """The bytes of all arrays after a few steps, and after many."""
    few, many = (10, 60) if journal.is_tiny else (20, 1000)
    settings = Settings(mode="lazy", batch_size=8)
    opened, context, _ = open_workload(mlp, settings, None)
    with opened as session:
        step = mlp(context())
        found = []
        for number in range(many):
            session.run_step(step)
            if number + 1 in (few, many):
                session.wait_all()
                found.append(bytes_on(pick_device(settings.device)))
    journal.check(
        f"growth from step {few} to step {many}",
        float(found[1] - found[0]),
        at_most=0,
        unit="bytes",
        why=f"of all arrays on the device; {found[0]} bytes after step {few}",
    )


def _memory(journal: Journal) -> None:
    """A step of jax with its optimizer: by jax.jit with donated state, then on device "kit"."""
    steps, settings = 5, Settings(mode="lazy", batch_size=32)
    device = pick_device(settings.device)
    before = bytes_on(device)
    held = _steps_of_jit(jax_mlp, settings, steps)
    by_jit, peak = bytes_on(device) - before, peak_bytes_on(device)
    del held
    before = bytes_on(device)
    opened, context, _ = open_workload(jax_mlp, settings, None)
    with opened as session:
        step = jax_mlp(context())
        for _ in range(steps):
            session.run_step(step)
        session.wait_all()
        by_kit = bytes_on(device) - before
    journal.check(
        "bytes of live arrays, by those of jax.jit",
        by_kit / max(by_jit, 1),
        at_most=1.1,
        why=f"after {steps} steps: {by_kit} and {by_jit} bytes",
    )
    if peak is None:
        journal.not_run("peak memory, by that of jax.jit", "XLA counts it on a GPU only")
        return
    after = peak_bytes_on(device) or 0
    journal.check(
        "peak memory, by that of jax.jit",
        after / peak,
        at_most=1.1,
        why="jax.jit ran first: above 1, device kit has raised the peak of the process",
    )


def _steps_of_jit(workload: Workload, settings: Settings, steps: int) -> Any:
    """Run the steps without a session, which is by jax.jit; what keeps the state alive."""
    step = workload(JaxContext(settings, jax.default_backend()))
    for _ in range(steps):
        jax.block_until_ready(step())
    return step


def _ops(journal: Journal) -> None:
    """Each op forward and backward, compared with torch's CPU."""
    with journal.attempt("ops of a list of the check's own"):
        wrong = [name for name, op in OWN_OPS.items() if not _is_right(op)]
        journal.check(
            "ops of a list of the check's own that are wrong",
            float(len(wrong)),
            at_most=0,
            why=", ".join(wrong) or f"of {len(OWN_OPS)}, forward and backward",
        )
    try:  # a checkout has it, an installed kit has not
        harness = import_module("tests.coverage.harness")
    except ImportError as error:
        journal.not_run("a sample of torch's table of ops", f"not in a checkout: {error}")
        return
    with journal.attempt("a sample of torch's table of ops"):
        _sample(journal, harness)


def _is_right(op: Op) -> bool:
    """Values and gradients on device "kit" are those of the CPU, within float32's rounding."""
    found = []
    for device in ("cpu", "kit"):
        torch.manual_seed(0)
        x, y = (torch.randn(8, 8) for _ in range(2))
        with open_session(Settings(mode="lazy")):
            x, y = (t.to(device).requires_grad_() for t in (x, y))
            out = op(x, y)
            out.square().sum().backward()
            found.append([t.cpu() for t in (out.detach(), x.grad, y.grad) if t is not None])
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(*found, strict=True))


def _sample(journal: Journal, harness: ModuleType) -> None:
    """One in `EVERY` entries of torch's table, while the time allows."""
    until = journal.seconds_left * (1 - OPS_SHARE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own tables warn of themselves
        entries = harness.entries("op")[:: EVERY * (8 if journal.is_tiny else 1)]
        found = []
        for entry in entries:
            if journal.seconds_left < until:
                break
            journal.doing(f"op {harness.entry_name(entry)}")
            found.append(harness.check_op(entry, samples=2))
    bad = [v for v in found if v.verdict in ("wrong", "error", "unsupported")]
    counts = Counter(v.verdict for v in found)
    journal.check(
        "entries of torch's table that are wrong",
        float(sum(v.verdict == "wrong" for v in found)),
        at_most=0,
        why=f"of {len(found)} that were compared, {len(entries)} chosen: {dict(counts)}",
    )
    journal.table(
        "Ops that are not right", [{"op": v.name, "verdict": v.verdict, "why": v.why} for v in bad]
    )
