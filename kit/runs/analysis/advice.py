"""Advice on a measured run: what costs time, on which line, and which setting would remove it.

Rules in the manner of pytorch/xla's auto-metric analysis, but with milliseconds and a cure. A rule
looks at a run's data only; it says nothing where the data do not show the cost.

Source: https://github.com/pytorch/xla/blob/master/docs/source/learn/troubleshoot.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kit.runs.analysis.unrolled import unrolled_cells
from kit.runs.labels import is_of_strangers
from kit.runs.loss_scaling import DEFERRED, ON_DEVICE
from kit.runs.run import Run
from kit.text import Column, Rows, format_count, format_ms
from kit.trace import SyncRow, count_devices, sync_table
from kit.trace.gaps import ELSEWHERE
from kit.trace.kinds import CATEGORY_ROWS, OF_WORKERS
from kit.trace.metrics import Together, waits_of

__all__ = ["RULES", "Advice", "advise", "limits_of", "sync_cure"]

SHARE = 0.05  # of the step: what costs less is not worth a sentence
_RECORDING = tuple(row.name for row in CATEGORY_ROWS if row.phase)
HOST_WORK = (*_RECORDING, "input", "host waits elsewhere")  # what one thread does in turn
_NESTED = (("input",), ("host waits elsewhere",))  # one thread's batch, and the sleep in it: one
_OF_BUILDERS = ("prefetch", "loss_scaling")  # a builder asks its `Context` for these
FEW_OPS = 30  # a segment of fewer ops may cost more to issue than to run


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


class AdviceRows(Rows[Advice]):
    """What `advise` found."""

    noun, widest = "cure", 900
    columns = (Column("could save", lambda a: a.saving or "unknown"),
               Column("advice", lambda a: a.text, is_number=False))  # fmt: skip


def advise(run: Run) -> tuple[Advice, ...]:
    """What costs this run time, the dearest first; () if nothing stands out.

    None promises more than a step can lose: see `_Seen.most_ms`.
    """
    seen, found = _Seen(run), []
    for rule in ADVICE_RULES:
        most = seen.most_ms(rule.spares, is_rare=rule.is_rare)
        for advice in rule.find(run, seen):
            if not advice.ms > most:
                found.append(advice)
            elif most >= SHARE * seen.step_ms or rule.is_rare:
                found.append(replace(advice, ms=most))
    found = [replace(advice, change=_known(run, advice.change)) for advice in found]
    return AdviceRows(sorted(found, key=lambda a: 0.0 if math.isnan(a.ms) else -a.ms))


def _known(run: Run, change: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a change this run's program would obey."""
    left_out = _OF_BUILDERS if is_of_strangers(run) else ()
    return {name: value for name, value in change.items() if name not in left_out}


def sync_cure(row: SyncRow, run: Run) -> Advice:
    """What to do about the sync points of one place."""
    cure = next(cure for cure in SYNC_CURES if cure.fits(row.cause, row.via))
    idle = row.idle_ms_per_step
    text = f"{row.site or 'An unknown line'} waits {format_ms(row.wait_ms_per_step)} a step"
    if not math.isnan(idle):
        text += f", and the device then has nothing to do for {format_ms(idle)}"
    # Several devices can neither guess nor take back what others were sent.
    can_guess = run.settings.mode != "torch" and run.devices == 1
    cost = row.wait_ms_per_step if math.isnan(idle) else idle
    change = cure.change if can_guess or "step_mode" not in cure.change else {}
    text += f": {_filled(cure, row, run, can_guess)}"
    return Advice(cure.rule, text, row.site, cost, _known(run, change))


def _filled(cure: SyncCure, row: SyncRow, run: Run, can_guess: bool) -> str:
    """The text of a cure, with the names of this row and what this run could do as well."""
    later = f", look one step later (loss_scaling={DEFERRED!r})"
    keep = ", keep the read and hide it (step_mode='speculate')"
    hide = "; step_mode='speculate' keeps the read and hides most of the wait"
    own = "an optimizer with fused=True, whose step takes found_inf"
    is_own = is_of_strangers(run)
    return cure.text.format(
        via=row.via,
        cause=row.cause,
        on_device=own if is_own else f"loss_scaling={ON_DEVICE!r}, or an optimizer with fused=True",
        several="several batches" if is_own else "several batches (accumulate)",
        op=row.cause.removeprefix("unlowered op aten."),
        later=later if run.devices == 1 and not is_own else "",
        keep=keep if can_guess else "",
        hide=hide if can_guess else "",
    )


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
        "a number is printed or logged in each step. Do it every 50th step, or keep "
        "loss.detach() and print it later{hide}.",
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
        lambda cause, via: bool(via),
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
        "wait for the device",
        lambda cause, via: cause in ("synchronize", "block_until_ready"),
        "the host stops there until the device is done ({cause}). Leave the call out or make it "
        "less often; if it copies, pinned memory and the asynchronous call do not wait.",
    ),
    SyncCure(
        "read",
        lambda cause, via: True,
        "the step reads a value ({cause}). Read it every n-th step, or keep it on the device (in "
        "torch, x.detach()) and read it later{hide}.",
        _SPECULATE,
    ),
)


class _Seen:
    """What several rules ask of a run's timeline, worked out once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.rows = run.breakdown()
        self._together = Together(run.timeline)
        self.step_ms = sum(row.exposed_ms for row in self.rows)  # of the traced steps

    def most_ms(self, spares: Sequence[str], *, is_rare: bool = False) -> float:
        """The most that a step can lose if the host is spared this work.

        The device's work remains, and the host's other work; at best the two hide each other.

        Args:
            spares: categories of the breakdown.
            is_rare: it is in few steps, so that the mean of the measured ones counts.
        """
        if not self.rows:
            return self._run.step_ms
        times = self._run.step_times_ns if is_rare else ()
        step_ms = sum(times) / len(times) / 1e6 if times else self.step_ms
        rest = self.together_ms(*(name for name in HOST_WORK if name not in spares))
        if spares in _NESTED and not self._run.settings.prefetch and self._run.devices == 1:
            rest = self.together_ms(*HOST_WORK) - self.together_ms(*spares)
        return max(step_ms - max(rest, self.together_ms("device busy")), 0.0)

    def together_ms(self, *categories: str) -> float:
        """Milliseconds a step in which one of these categories goes on, hidden or not."""
        steps = max(int(self._run.timeline.where(kind="step").sum()), 1)
        return self._together.time_ns(categories) / steps / 1e6

    def exposed_ms(self, category: str) -> float:
        """Milliseconds a step of this category that nothing hides."""
        return sum(row.exposed_ms for row in self.rows if row.category == category)

    @property
    def is_starved(self) -> bool:
        """True if the device is idle for long enough to be worth a sentence, or it is not known."""
        busy = self._run.headline().device_busy_fraction
        return not 1.0 - busy < SHARE


def _syncs(run: Run, seen: _Seen) -> Iterator[Advice]:
    waits = waits_of(run)
    if not waits.steps:
        return
    for row in sync_table(waits.syncs, steps=waits.steps, timeline=run.timeline):
        advice = sync_cure(row, run)
        is_seen = run.settings.step_mode != "speculate" or seen.is_starved
        if is_seen and not advice.ms < SHARE * run.step_ms:
            yield advice


def _input(run: Run, seen: _Seen) -> Iterator[Advice]:
    ms = seen.exposed_ms("input")
    if ms < SHARE * seen.step_ms or not ms:
        return
    if is_of_strangers(run):
        yield _loader(run, ms)
    elif run.settings.prefetch == 0:
        text = (
            f"the device waits {format_ms(ms)} a step while the next batch is prepared and copied: "
            "let a thread do that ahead of the step (prefetch=2)."
        )
        most = seen.step_ms - seen.together_ms("input")  # the thread takes as long for it
        yield Advice("input", text, ms=min(ms, most), change={"prefetch": 2})
    else:
        text = (
            f"the step waits {format_ms(ms)} for its batch though a thread prepares them ahead: "
            "the loader is slower than the step. Make its items cheaper, or prepare them in more "
            "processes (a DataLoader of your own with num_workers)."
        )
        yield Advice("input", text, ms=ms)


def _loader(run: Run, ms: float) -> Advice:
    """What a script says to its own loader."""
    t = run.timeline
    inputs = np.unique(t.name[t.where(kind="input")])
    names = [t.names[i] for i in inputs.tolist()]
    on_gpu = run.settings.device == "gpu"
    pinned = " pin_memory=True lets their copies to the GPU go beside its work." if on_gpu else ""
    if any(name == OF_WORKERS or "_MultiProcessing" in name for name in names):  # torch's name
        text = (
            f"the step waits {format_ms(ms)} for its batch though the DataLoader has workers: they "
            "are slower than the step, or begin anew with each epoch. Give it more of them "
            "(num_workers), more batches ahead (prefetch_factor) and persistent_workers=True, or "
            f"make its items cheaper.{pinned}"
        )
    else:
        text = (
            f"the step waits {format_ms(ms)} for its batch: let processes of the DataLoader "
            "prepare batches ahead of the step (num_workers=2, prefetch_factor=2, "
            f"persistent_workers=True), or make its items cheaper.{pinned}"
        )
    return Advice("input", text, ms=ms)


def _elsewhere(run: Run, seen: _Seen) -> Iterator[Advice]:
    steps = max(int(run.timeline.where(kind="step").sum()), 1) * count_devices(run.timeline)
    for row in run.idle:
        ms = row.total_ms / steps
        if row.cause != ELSEWHERE or ms < SHARE * seen.step_ms:
            continue
        what = "the devices then have" if run.devices > 1 else "the device then has"
        batch = "a DataLoader's num_workers" if is_of_strangers(run) else "prefetch=2"
        text = (
            f"{row.site or 'An unknown line'} makes the host wait for something else than the "
            f"device (it sleeps, reads a file or takes a lock), and {what} nothing to do for "
            f"{format_ms(ms)} a step. Do it ahead in a thread (a batch: {batch}), or less often."
        )
        yield Advice("host waits elsewhere", text, row.site, ms)


def _compiles(run: Run, seen: _Seen) -> Iterator[Advice]:
    warmup = run.conditions.warmup_steps  # nan in an old file, whose settings said it
    first = max(run.settings.warmup, 0) if math.isnan(warmup) else int(warmup)
    steps = max(len(run.step_times_ns), 1)
    last = first + steps
    late = [c for c in run.compiles if first <= c.step < last]
    if not late:
        return
    ms = sum(c.lower_ms + c.compile_ms for c in late) / steps
    many = f"{len(late)} program{'s were' if len(late) > 1 else ' was'} compiled in the "
    text = (
        f"{many}{steps} measured steps ({format_ms(ms)} a step on average), the last because "
        f"{late[-1].sentence}. A number that changes should be a tensor, and batches should have "
        "one shape."
    )
    yield Advice("compile", text, ms=ms)


def _recording(run: Run, seen: _Seen) -> Iterator[Advice]:
    s, limit = run.settings, run.limited_by() if seen.rows else None
    if s.mode == "torch" or limit is None or limit.what != "recording":
        return
    if _has_one_core_too_few(run) and seen.most_ms(()) >= SHARE * seen.step_ms:
        return  # `_cores` says how more of it can hide
    ms = limit.share * seen.step_ms
    many = run.devices > 1
    order = ", one replica after the other" if many else ""
    change, less = {"step_mode": "replay"}, "step_mode='replay'"
    if s.step_mode == "replay":
        change, less = {}, "the notes say which steps were not replayed, and why"
    text = (
        f"the device{'s wait' if many else ' waits'} {format_ms(ms)} a step for Python to record "
        f"the next one{order}. Record it less ({less}; optimizers with fused=True or foreach=True),"
        f" or give the device{'s' if many else ''} more to do (a larger batch)."
    )
    yield Advice("recording", text, ms=ms, change=change)


def _has_one_core_too_few(run: Run) -> bool:
    cores, taken = run.environment.get("cores", ""), run.environment.get("cores for XLA", "")
    on_cpu = run.environment.get("device", "").startswith("cpu")
    return (
        on_cpu and cores.isdecimal() and taken.isdecimal() and int(taken) > max(int(cores) - 1, 1)
    )


def _cores(run: Run, seen: _Seen) -> Iterator[Advice]:
    ms, work = seen.together_ms(*_RECORDING), seen.together_ms("device busy")
    busy = run.headline().device_busy_fraction  # a device that hardly works takes no core away
    is_large = ms >= 0.15 * seen.step_ms and ms > 0 and not busy < 0.15
    if run.settings.mode == "torch" or not is_large or not _has_one_core_too_few(run):
        return
    cores, taken = int(run.environment["cores"]), run.environment["cores for XLA"]
    text = (
        f"XLA works with {taken} threads on {format_count(cores, 'core')}, so recording "
        f"({format_ms(ms)} a step) and the device take them from each other, and overlap gains "
        f"little. Leave one to the host: NPROC={max(cores - 1, 1)} in the environment before "
        "Python starts. A GPU has no such trouble."
    )
    yield Advice("cores", text, ms=min(ms, work) if work else ms)


def _reduction(run: Run, seen: _Seen) -> Iterator[Advice]:
    ms = seen.exposed_ms("reduction")
    if ms < SHARE * seen.step_ms or not ms:
        return
    text = (
        f"the devices wait {format_ms(ms)} a step for gradients that are on their way between "
        "them. Let them leave while the backward pass goes on: a smaller bucket_mb, as long as a "
        "message's own cost is small beside it, and cut='bucket'; or send them for more work "
        "each time (a larger batch). kit.ParallelView models all of that."
    )
    most = seen.step_ms - seen.together_ms("reduction")  # what is hidden takes its time, too
    yield Advice("reduction", text, ms=min(ms, most))


def _segments(run: Run, seen: _Seen) -> Iterator[Advice]:
    if not run.segments or run.settings.mode not in ("imperative", "bulked"):
        return
    overhead = sum(run.metrics.get(f"overhead.{x}_ns", 0.0) for x in ("launch", "sync"))
    ms = len(run.segments) * overhead / 1e6
    ops = sum(len(s.nodes) for s in run.segments) / len(run.segments)
    if ops < FEW_OPS and ms >= 2 * SHARE * run.step_ms:
        text = (
            f"the step is cut into {len(run.segments)} segments of {ops:.0f} ops; to issue "
            f"them and to wait for them costs about {format_ms(ms)}. Larger bulk sizes, or "
            "mode='lazy'."
        )
        yield Advice("small segments", text, ms=ms, change={"mode": "lazy"})


def _unrolled(run: Run, seen: _Seen) -> Iterator[Advice]:
    for row in unrolled_cells(run.graphs[0]) if run.graphs else ():
        text = (
            f"{row.site or 'An unknown line'} runs {row.cells} cells a step in a Python loop: each "
            "is recorded and compiled for itself. Where nothing else happens between them, "
            f"{row.layer} with the same weights is one op for a layer, whatever the length."
        )
        yield Advice("unrolled cells", text, row.site)


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """What looks for one sort of cost."""

    names: tuple[str, ...]  # of the advice that it may give
    find: Callable[[Run, _Seen], Iterator[Advice]]
    limits: tuple[str, ...] = ()  # of `kit.trace.LIMITS`: those that its advice answers
    spares: tuple[str, ...] = ()  # of HOST_WORK: what the host need not do if it is followed
    is_rare: bool = False  # it costs some steps much and most of them nothing


ADVICE_RULES = (
    AdviceRule(tuple(cure.rule for cure in SYNC_CURES), _syncs, ("sync",)),
    AdviceRule(("input",), _input, ("input",), ("input",)),
    AdviceRule(("host waits elsewhere",), _elsewhere, ("elsewhere",), ("host waits elsewhere",)),
    AdviceRule(("compile",), _compiles, ("compile",), is_rare=True),
    AdviceRule(("recording",), _recording, ("recording",), _RECORDING),
    AdviceRule(("reduction",), _reduction, ("reduction",)),
    AdviceRule(("cores",), _cores, ("recording", "dispatch")),
    AdviceRule(("small segments",), _segments, ("dispatch",)),
    AdviceRule(("unrolled cells",), _unrolled, ("recording", "compile")),
)
RULES = tuple(name for rule in ADVICE_RULES for name in rule.names)


def limits_of(advice: Advice) -> tuple[str, ...]:
    """The limits that it answers."""
    return next((r.limits for r in ADVICE_RULES if advice.rule in r.names), ())
