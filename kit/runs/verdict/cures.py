"""What one piece of advice is, and the cures of input and of sync points, a row for each read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kit.runs.labels import is_of_jax, is_of_strangers, is_on_gpu, told_settings
from kit.runs.loss_scaling import DEFERRED, ON_DEVICE
from kit.runs.run import Run
from kit.text import format_ms, format_percent
from kit.trace import SyncRow, union_ns
from kit.trace.devices import is_runtimes
from kit.trace.intervals import common
from kit.trace.kinds import BESIDE_WORKERS, BY_TORCH, COPY, OF_WORKERS, WORKERS_BEGIN, WORKERS_END
from kit.trace.syncs import READ_OR_READY

__all__ = [
    "SYNC_CURES",
    "Advice",
    "SyncCure",
    "change_text",
    "compile_cures",
    "copies_cure",
    "has_workers",
    "if_copied",
    "in_a_step",
    "input_names",
    "loader_cure",
    "sleeps_in_input",
    "sync_cure",
]

APART = 0.1  # of a step: so much longer or shorter are the traced ones, that a reader is told
_EACH = 0.95  # times a step: what comes as often is said of each
_SELDOM = 1 / 50  # times a step: what comes no more often is seldom enough


@dataclass(frozen=True)
class Advice:
    """One sentence to act on."""

    rule: str  # one of RULES
    text: str  # what happens and what to do, in words
    site: str = ""  # the user's line, if it is one line's doing
    ms: float = math.nan  # of a step: what following it could save at most
    change: Mapping[str, Any] = field(default_factory=dict)  # settings that would remove or hide it

    @property
    def saving(self) -> str:
        """`up to 1.3 ms`; "" if nobody knows."""
        return "" if math.isnan(self.ms) else f"up to {format_ms(self.ms)}"


def change_text(change: Mapping[str, Any]) -> str:
    """Settings as Python would write them: `step_mode='replay'`."""
    return ", ".join(f"{name}={value!r}" for name, value in change.items())


def sync_cure(row: SyncRow, run: Run) -> Advice:
    """What to do about the sync points of one place."""
    cure = next(cure for cure in SYNC_CURES if cure.fits(row.cause, row.via))
    idle = row.idle_ms_per_step
    wait = row.wait_ms_per_step
    text = f"{row.site or 'An unknown line'} waits {format_ms(wait)} a step"
    if not math.isnan(idle):
        then = f", and the device then has nothing to do for {format_ms(idle)}"
        traced = format_ms(_traced_wait_ms(row, run))  # of the steps that the idle time is of
        text += then if traced == format_ms(wait) else f" (in the traced steps {traced}{then})"
    # Several devices can neither guess nor take back what others were sent; a loop that is
    # watched gives no step to be issued ahead.
    can_guess = run.settings.mode != "torch" and run.devices == 1 and not is_of_strangers(run)
    change = cure.change if can_guess or "step_mode" not in cure.change else {}
    text += f": {_filled(cure, row, run, can_guess)}"
    # Without the wait, the device can work beside all that the host does, its sleeps included.
    obeyed = told_settings(run)
    known = {name: value for name, value in change.items() if name in obeyed}
    return Advice(cure.rule, text, row.site, wait, known)


def in_a_step(run: Run, ms: float) -> str:
    """`78.6 ms a step`, of the traced ones: with their length, if a card shows another one."""
    whole = run.traced_ms
    if run.measures_untraced and abs(whole - run.step_ms) >= APART * run.step_ms:
        return f"{format_ms(ms)} of the mean traced step's {format_ms(whole)}"
    return f"{format_ms(ms)} a step"


def _traced_wait_ms(row: SyncRow, run: Run) -> float:
    """What the waits of a place take in the traced steps, if each step has as many; in ms."""
    found = [s.wait_ns for s in run.timeline.syncs if s.place == row.place]
    return row.count_per_step * sum(found) / max(len(found), 1) / 1e6


def _filled(cure: SyncCure, row: SyncRow, run: Run, can_guess: bool) -> str:
    """The text of a cure, with the names of this row and what this run could do as well."""
    later = f", look one step later (loss_scaling={DEFERRED!r})"
    keep = ", keep the read and hide it (step_mode='speculate')"
    hide = "; step_mode='speculate' keeps the read and hides most of the wait"
    own = "an optimizer with fused=True, whose step takes found_inf"
    is_own = is_of_strangers(run)
    copies = "; if it copies, pinned memory and the asynchronous call do not wait"
    return cure.text.format(
        copies="" if is_of_jax(run) else copies,
        via=row.via,
        cause=row.cause,
        on_device=own if is_own else f"loss_scaling={ON_DEVICE!r}, or an optimizer with fused=True",
        several="several batches" if is_own else "several batches (accumulate)",
        op=row.cause.removeprefix("unlowered op aten."),
        later=later if run.devices == 1 and not is_own else "",
        keep=keep if can_guess else "",
        hide=hide if can_guess else "",
        often=_how_often(row),
        rather="Keep" if row.count_per_step <= _SELDOM else "Do it every 50th step, or keep",
    )


def _how_often(row: SyncRow) -> str:
    if row.count_per_step >= _EACH:
        return "in each step"
    if row.count_per_step > 2 / 3:  # nearer to each step than to each second one
        return f"in {format_percent(row.count_per_step)} of the steps"
    return f"once in {round(1 / row.count_per_step)} steps"


def copies_cure(run: Run, ms: float, calls_ms: float) -> Advice:
    """What a step is told that copies arrays itself, and records for so long to call for that."""
    loader = "a loader" if is_of_strangers(run) else "ctx.loader"
    site = _mostly_copied_at(run)
    calls = f", and calls that take {format_ms(calls_ms)} more" if calls_ms >= APART * ms else ""
    text = (
        f"{site or 'the step'} copies arrays of the host to the device, {in_a_step(run, ms)}"
        f"{calls}; no batch of {loader} is among them. Put them there once, before the steps "
        f"({_placing(run)}), or take batches from {loader}."
    )
    return Advice("input", text, site, ms + calls_ms)


def _placing(run: Run) -> str:
    """How its program puts an array on the device."""
    if is_of_jax(run):
        return "kit.jax.device_put"
    return f".to({'device' if is_of_strangers(run) else 'ctx.device'})"


def if_copied(run: Run) -> str:
    """A sentence, if most of the input is one line's copy, which need not be of a batch."""
    if not (copied := _mostly_copied_at(run)):
        return ""
    return (
        f" Most of it is a copy at {copied}: if that is no batch, put it on the device once, "
        f"before the steps ({_placing(run)})."
    )


def _mostly_copied_at(run: Run) -> str:
    """The line at which most of the input copies a large array; "" if none does."""
    t = run.timeline
    at = {
        site: union_ns(t.intervals(kind="input", name=name))
        for name in sorted(input_names(run, lane="host/main"))
        if name.startswith(COPY) and (site := name.partition(" at ")[2])
    }
    site = max(at, key=lambda x: at[x], default="")
    return site if site and at[site] >= union_ns(t.intervals(kind="input")) / 2 else ""


def sleeps_in_input(run: Run) -> tuple[str, str]:
    """The line at which most of the loading sleeps, and a clause about it; "" if none does."""
    t = run.timeline
    loading = t.intervals(kind="input", lane="host/main")
    if not len(loading) or OF_WORKERS in input_names(run):
        return "", ""
    asleep = {
        name: union_ns(common(loading, t.intervals(kind="elsewhere", name=name)))
        for name in sorted({t.names[i] for i in t.name[t.where(kind="elsewhere")]})
        if not is_runtimes(name)
    }
    site = max(asleep, key=lambda name: asleep[name], default="")
    if not site or asleep[site] < union_ns(loading) / 2:
        return "", ""
    return site, f", most of the time at {site}, which sleeps, reads a file or takes a lock"


def loader_cure(run: Run, ms: float, asleep: str) -> Advice:
    """What a script says to its own loader."""
    names = input_names(run)
    beside = " pin_memory=True lets their copies to the GPU go beside its work."
    pinned = beside if is_on_gpu(run) else ""
    waits = f"the host waits {in_a_step(run, ms)} for its batch"
    if is_of_jax(run):
        text = (
            f"{waits}{asleep}: let a thread or processes of its own prepare batches ahead of the "
            "step, or make its items cheaper."
        )
    elif _mostly_restarts(run):
        text = (
            f"{waits}, and most of that time workers of a DataLoader begin and end. Keep one "
            "iterator for all steps (in place of next(iter(loader)) in each), and let the workers "
            "outlive an epoch (persistent_workers=True)."
        )
    elif BESIDE_WORKERS in names:
        text = (
            f"{waits} though the DataLoader has workers{asleep}: this process is itself at work "
            "for it (in a sampler, or unpacking what they send), and more workers would not help. "
            f"Make that cheaper, or let the workers do it.{pinned}"
        )
    elif has_workers(run):
        text = (
            f"{waits} though the DataLoader has workers: they are slower than the step, or begin "
            "anew with each epoch. Give it more of them (num_workers), more batches ahead "
            f"(prefetch_factor) and persistent_workers=True, or make its items cheaper.{pinned}"
        )
    else:
        text = (
            f"{waits}{asleep}: let processes of the DataLoader prepare batches ahead of the step "
            "(num_workers=2, prefetch_factor=2, persistent_workers=True), or make its items "
            f"cheaper.{pinned}"
        )
    return Advice("input", f"{text}{if_copied(run)}")


def compile_cures(run: Run, least_ms: float) -> Iterator[Advice]:
    """What a native step is told in which torch.compile compiles for at least so long."""
    t = run.timeline
    for name in (name for name in t.names if name.startswith(BY_TORCH)):
        ms = union_ns(t.intervals(kind="compile", name=name)) / max(t.steps, 1) / 1e6
        if ms < least_ms:
            continue
        site = name.removeprefix(BY_TORCH).removeprefix(" at ")
        text = (
            f"torch.compile compiles{f' at {site}' * bool(site)}, {in_a_step(run, ms)}. A training "
            "pays that once where it is only the first steps: raise the warm-up. Else call "
            "torch.compile once, before the steps, and keep shapes and Python's numbers as they "
            "are, or say dynamic=True (TORCH_LOGS=recompiles in the environment says what differs)."
        )
        yield Advice("torch.compile", text, site, ms)


def has_workers(run: Run) -> bool:
    """Do workers of a loader of torch's prepare its batches?"""
    names = input_names(run)
    return BESIDE_WORKERS in names or any(
        name == OF_WORKERS or "_MultiProcessing" in name  # torch's own, in its traces
        for name in names
    )


def input_names(run: Run, lane: str | None = None) -> set[str]:
    """What the parts of its input are called, of one lane or of all."""
    t = run.timeline
    return {t.names[i] for i in np.unique(t.name[t.where(kind="input", lane=lane)]).tolist()}


def _mostly_restarts(run: Run) -> bool:
    """Do a loader's workers begin and end in most of its input?"""
    loading, *parts = (
        run.timeline.intervals(kind="input", name=name)
        for name in (None, WORKERS_BEGIN, WORKERS_END)
    )
    return union_ns(np.concatenate(parts)) > union_ns(loading) / 2


_BY_DATA = ("nonzero", "index.Tensor", "masked_select", "unique", "argwhere")
_SPECULATE = {"step_mode": "speculate"}


@dataclass(frozen=True, slots=True)
class SyncCure:
    """What to do about sync points of one sort."""

    rule: str
    fits: Callable[[str, str], bool]  # of a sync point's cause and its library line
    text: str  # see `_filled`
    change: Mapping[str, Any] = field(default_factory=dict)


def _through(*beginnings: str) -> Callable[[str, str], bool]:
    """The library line that waited is in one of these places."""
    return lambda cause, via: via.startswith(beginnings)


# The first cure that fits is given; the last fits all.
SYNC_CURES = (
    SyncCure(
        "loss scale check",
        _through("torch/amp/grad_scaler.py"),
        "GradScaler reads whether a gradient was infinite before it lets the optimizer step. Let "
        "the device decide ({on_device}){later}{keep}, or pay it once for {several}.",
        {"loss_scaling": ON_DEVICE},
    ),
    SyncCure(
        "optimizer state read",
        _through("torch/optim/"),
        "the optimizer reads a number of its state, such as its step count, from the device. Make "
        "it with fused=True or capturable=True.",
    ),
    SyncCure(
        "gradient norm read",
        _through("torch/nn/utils/clip_grad"),
        "error_if_nonfinite=True reads the norm. Leave it out: a scaler skips such a step without "
        "reading.",
    ),
    SyncCure(
        "logging",
        lambda cause, via: cause == "print" or via.startswith(("logging/", "tqdm/")),
        "a number is printed or logged {often}. {rather} loss.detach() and print it later{hide}.",
        _SPECULATE,
    ),
    SyncCure(
        "data-dependent shape",
        lambda cause, via: cause.startswith("unlowered op") and any(n in cause for n in _BY_DATA),
        "how large the result of {op} is depends on the data, so the host has to look; a boolean "
        "mask does that. Use torch.where(mask, x, 0), or multiply by the mask.",
    ),
    SyncCure(
        "op on the host",
        lambda cause, via: cause.startswith("unlowered op"),
        "the op {op} has no lowering rule and runs on the host. Write it with other ops, or give "
        "it a rule: session.explain() prints how one begins.",
    ),
    SyncCure(
        "library read",
        lambda cause, via: "/" in via,  # jax's profiler writes no folders: its own ways to wait
        "{via} reads a number from the device. Give a metric or callback its numbers every n-th "
        "step, or after the step.",
        _SPECULATE,
    ),
    SyncCure(
        "copy",
        lambda cause, via: cause == "copy_to_device",
        "pinned memory and non_blocking=True copy without waiting.",
        {"prefetch": 2},
    ),
    SyncCure(
        "memory given back",
        lambda cause, via: cause == "free",
        "memory is given back, for which the device first finishes its work. Keep it for the next "
        "step (in torch, no empty_cache()); if no line of yours gives it back, the memory is "
        "nearly full: a smaller batch.",
    ),
    SyncCure(
        "wait for the device",
        lambda cause, via: cause in ("synchronize", "copy", "block_until_ready", READ_OR_READY),
        "the host stops there until the device is done ({cause}). Leave the call out or make it "
        "less often{copies}.",
    ),
    SyncCure(
        "read",
        lambda cause, via: True,
        "the step reads a value ({cause}). Read it every n-th step, or keep it on the device (in "
        "torch, x.detach()) and read it later{hide}.",
        _SPECULATE,
    ),
)
