"""A plain eager step of torch: its sync points by line, why the device was idle, the advice."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kit.gpu_check.base.journal import Journal
from kit.gpu_check.parts.bert import TINY
from kit.measure.base.context import Context, Workload
from kit.measure.experiment import run as run_once
from kit.runs.device.callers import caller_table
from kit.runs.loss_scaling import HOST_CHECK
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.recording.sites import format_site
from kit.torch.tensors.places import outside_torch
from kit.trace.metrics import breakdown_ns, union_ns
from kit.workloads.known_waits import known_waits, sites_that_wait
from kit.workloads.masked_lm import bert_of

__all__ = ["debug_mode_waits", "run"]

NO_CUDA = "torch sees no CUDA device: on a CPU a tensor is there when its op returns"
UNKNOWN = 0.1  # of the idle time may have no cause
KNOWN = 0.9  # of the kernels' time must have a line


def run(journal: Journal) -> None:
    """Known waits on device "kit" and natively, then BERT natively."""
    short = Settings(steps=4, warmup=2, batch_size=8)
    with journal.attempt('sync points of known lines, device "kit"'):
        made = run_once(known_waits, short)
        _known(journal, 'device "kit"', {s.site for s in made.sync_points})
    if not torch.cuda.is_available():
        for name in ("sync points of known lines, native", "torch's sync debug mode, known lines"):
            journal.not_run(name, NO_CUDA)
    else:
        with journal.attempt("sync points of known lines, native"):
            made = run_once(known_waits, short.replace(mode="torch"))
            _known(journal, "native", {s.site for s in made.sync_points})
        with journal.attempt("torch's sync debug mode, known lines"):
            _known(journal, "torch's sync debug mode", set(_debugged(known_waits, short)))
    with journal.attempt("BERT, native"):
        _bert(journal)


def _known(journal: Journal, what: str, found: set[str]) -> None:
    """Are these lines those on which the step waits, all of them and no other?"""
    wanted = sites_that_wait()
    journal.check(
        f"sync points of known lines, {what}",
        len(found & wanted) / len(wanted),
        at_least=1,
        why=f"found {sorted(found)}; the step waits at {sorted(wanted)}",
    )
    journal.check(
        f"sync points of other lines, {what}",
        float(len(found - wanted)),
        at_most=0,
        why=", ".join(sorted(found - wanted)),
    )


def _bert(journal: Journal) -> None:
    """The step that most users bring: eager, autocast, `GradScaler`."""
    size = TINY if journal.is_tiny else "base"
    dtype = "float32" if journal.is_tiny else "float16"
    settings = Settings(
        mode="torch",
        batch_size=8,
        loss_scaling=HOST_CHECK,
        dtype=dtype,
        steps=4 if journal.is_tiny else 20,
    )
    start = time.monotonic()
    made = run_once(bert_of(size), settings)
    took = time.monotonic() - start
    journal.keep(made, "native_eager")
    _tables(journal, made)
    _sums(journal, made)
    lines = caller_table(made, by="line")
    journal.check(
        "kernel time of a known line, native",
        sum(row.share for row in lines if ":" in row.name),
        at_least=KNOWN,
        why=str(lines),
    )
    agree = "sync points agree with torch's sync debug mode"
    if not torch.cuda.is_available():
        journal.not_run(agree, NO_CUDA)
        return
    if not journal.has_time(agree, took):
        return
    ours = {s.site for s in made.sync_points}
    torchs = set(_debugged(bert_of(size), settings))
    journal.check(
        agree,
        len(ours & torchs) / max(len(ours | torchs), 1),
        at_least=1,
        why=f"only the kit: {sorted(ours - torchs)}; only torch: {sorted(torchs - ours)}",
    )


def _tables(journal: Journal, made: Run) -> None:
    """What `kit` says of the run, as the views would show it."""
    head = made.headline()
    journal.table(
        "BERT, native: the headline",
        [
            {
                "": "native",
                "ms a step": head.step_ms,
                "device busy": head.device_busy_fraction,
                "host work hidden": head.overlap_fraction,
                "syncs a step": head.syncs_per_step,
                "waits (ms a step)": head.sync_wait_ms,
                "bound by": str(made.limited_by()),
            }
        ],
    )
    journal.table(
        "BERT, native: sync points by line",
        [
            {
                "line": r.site or "unknown",
                "by": r.via,
                "cause": r.cause,
                "a step": r.count_per_step,
                "waits (ms a step)": r.wait_ms_per_step,
                "device idle (ms a step)": r.idle_ms_per_step,
            }
            for r in made.sync_rows
        ],
    )
    journal.table(
        "BERT, native: why the device was idle",
        [
            {
                "cause": r.cause,
                "line": r.site,
                "gaps": float(r.count),
                "ms": r.total_ms,
                "share": r.share,
            }
            for r in made.idle
        ],
    )
    journal.table(
        "BERT, native: advice",
        [{"rule": a.rule, "says": a.text, "ms a step": a.ms} for a in made.advice()],
    )


def _sums(journal: Journal, made: Run) -> None:
    """The parts add up to the step, and nearly all idle time has a cause."""
    timeline = made.timeline
    exposed = sum(part for _, part in breakdown_ns(timeline).values())
    journal.check(
        "breakdown adds up to the steps, native",
        float(abs(exposed - union_ns(timeline.intervals(kind="step")))),
        at_most=0,
        unit="ns",
    )
    kernels = int(timeline.where(kind="kernel").sum())
    journal.check(
        "kernels in the timeline, native",
        float(kernels),
        at_least=1,
        why="; ".join(timeline.notes),
    )
    unknown = sum(r.share for r in made.idle if r.cause == "unknown")
    journal.check(
        "idle time without a cause, native",
        unknown,
        at_most=UNKNOWN,
        why="a fraction of all idle time",
    )


def _debugged(workload: Workload, settings: Settings) -> Counter[str]:
    """The lines of one warm step at which torch itself says that it waits for the GPU."""
    torch.manual_seed(settings.seed)
    step: Callable[[], Any] = workload(Context(settings, "cuda"))
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with debug_mode_waits() as found:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return found


@contextlib.contextmanager
def debug_mode_waits() -> Iterator[Counter[str]]:
    """Count the warnings of torch's sync debug mode by the user's line that they come from."""
    found: Counter[str] = Counter()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing CUDA operation" in str(message):
            found[format_site(outside_torch(sys._getframe(1).f_back)[0]) or "unknown"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield found
