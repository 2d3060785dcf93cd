"""The verdict on a run: what limits its step, what that means, and what to do next, as one chain.

Whoever shows a limit shows all of it from here, so that no sentence contradicts the advice under
it, and no limit is left without a next step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kit.runs.conditions import IN_TURNS, LATER, OUTSIDE, doubt, in_cores, is_throttled
from kit.runs.labels import IMPORTED, is_native
from kit.runs.run import Run
from kit.runs.steady import sorts_of_steps, unequal_text
from kit.runs.verdict import advice as rules
from kit.runs.verdict.cures import Advice, in_a_step
from kit.runs.verdict.limit_rows import LIMIT_ROWS, limit_row
from kit.text import capital, format_count, format_ms, format_percent
from kit.trace import Limit, Timeline, count_devices
from kit.trace.active import launches, named
from kit.trace.communication import way_of
from kit.trace.devices import is_runtimes, is_transfer
from kit.trace.imported import OF_FUNCTIONS
from kit.trace.intervals import joined, within, without
from kit.trace.kinds import ON_DEVICE
from kit.trace.limits import BUSY, close_causes, is_filled
from kit.trace.metrics import waits_of

__all__ = ["Verdict", "verdict"]

_WITHHELD = "No advice is given either"
_ONE_THREAD = "have one thread make all of the loop's steps, and record that"
_AGAIN = "measure again when nothing else runs: close other programs and notebooks"
_WITHOUT = (
    "measure again without the threads of this process that were at work before the recording; "
    "those that belong to the loop are part of it if they begin after kit.watch does, or under "
    "kit run"
)
_TURNS = (
    "let processes do what other threads of the program compute, {}: while one runs Python, the "
    "step's thread waits for Python's lock, and longer in measured steps, as threads switch more "
    "often in traced ones"
)
_WARM = (
    "raise warmup, or leave it out (then it lasts until the steps are steady), and measure more "
    "steps, so that what only the first ones do is over; if a thread fills a queue of "
    "batches, make that shorter: it is full again once the profiler has begun"
)
_LIMITED = (
    "start fewer threads than the limit has cores (NPROC=1 in the environment for XLA, "
    "torch.set_num_threads(1)), or raise the container's limit, and measure again"
)
_OUTSIDE_STEP = (
    "call these functions inside of the one that kit.jax.step is given, or make a step of each of "
    "them: kit.jax.step(fn) in the place of jax.jit(fn)"
)
_UNMATCHED = (
    "measure again when nothing else uses the device or a profiler; if steps differ, as those with "
    "a validation pass do, measure them without what only each n-th one does"
)
_UNSEEN = (
    "trace with the device's activities (ProfilerActivity.CUDA, XPU, ...): the notes say what the "
    "profiler lacked, or which events are not read"
)
_NO_KERNEL = (
    "measure again when no other profiler runs, in this program or on the device: that of XLA gave "
    "no kernel, and the notes say what it lacked"
)
_NOTHING = (
    "put torch.profiler around the steps that compute, in the process that runs them: the file has "
    "no op of torch and no kernel"
)
_COPIES = (
    "keep on the device what each step copies, or copy from pinned memory (pin_memory=True, "
    "non_blocking=True) while kernels run; kit.kernel_table(run) has each kind of copy"
)
_NOT_LOOKED = (
    "The device waits for the host, between two ops or launches. Whether the host computes there, "
    "in Python, or sleeps or waits for a file or a lock, a trace of torch's tells only if it was "
    "made with_stack=True"
)
_OF_SHORT = (
    "The device waits for the host, between two ops or launches: it runs Python, or is in a "
    "library. What a function of yours does for 1 ms on end is told apart, as are calls that sleep "
    "or wait for a file or a lock"
)
_LOADS_NS = 1_000_000  # a launch takes 5 to 10 us, and longer while the device is busy
_HOLDS = 0.2  # cores that other threads take
LONG = 0.2  # of the step: waits, or copies, that draw the eye
LITTLE = 1 / 3  # of these waits: what they cost, if it is so little that it wants a sentence


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a run, in words."""

    limit: Limit
    said: str  # what it means; one sentence or two
    advice: tuple[Advice, ...]  # what costs time, the dearest first
    next_step: str  # what to do about the limit; "" where a piece of advice says it


def verdict(run: Run) -> Verdict | None:
    """What limits a run, what it means and what to do; None if no step was traced.

    Of a run in `doubt`, the reason, no advice, and that it is to be measured again.
    """
    rows = run.breakdown()
    if not rows:
        return None
    limit = run.limited_by()
    if limit.doubt:
        return Verdict(limit, _WITHHELD, (), _next_of(run))
    advice = run.advice()
    row = limit_row(run, limit)
    step_ms = run.traced_ms
    said = _of_device(run, limit) if limit.what == "device" else row.said
    is_untold = limit.what == "recording" and run.timeline.origin == "imported"
    if limit.what in ("recording", "own"):
        has_stacks = OF_FUNCTIONS in run.timeline.notes
        untold = _OF_SHORT if has_stacks else _NOT_LOOKED
        said = untold if is_untold else said + _of_collector(run)
    said += _of_threads(run, limit)
    first = _of_first_launches(run) if limit.what == "dispatch" else ""
    said += first
    copies = _of_copies(run.timeline, step_ms) if limit.what == "device" else ""
    said += copies
    waits = sum(r.total_ms for r in rows if r.category == "sync wait")
    lost = run.limit_shares["sync"]
    if waits >= LONG * step_ms and lost * step_ms < LITTLE * waits:
        told = waits_of(run)  # as the cards and the table of sync points; the share is of the trace
        said += (
            f". The host waits {format_ms(told.each_ms)} in the mean {told.kind}{told.at_once}: "
            "waiting is no loss while the device works, what follows is, "
            f"{format_percent(lost)} of the traced step"
        )
    if close := close_causes(run.limit_shares, limit):
        others = " and ".join(f"{cause}, {format_percent(x)}" for cause, x in close.items())
        said += f". Nearly as much is lost by {others}"
    if differ := sorts_of_steps(run.timeline, run.sorts):
        said += f". All of this is of the mean of the traced steps, which differ: {differ}"
    said += _of_unequal(run, advice) + _of_measured(run, limit)
    answered = {name for a in advice for name in rules.limits_of(a)}
    step = row.outside or row.inside if run.settings.mode == "torch" else row.inside
    step = f"if it computes: {step}" if is_untold else step
    step = (first and LATER) or (copies and _COPIES) or step
    return Verdict(limit, said, advice, "" if limit.what in answered else step)


def _of_unequal(run: Run, advice: Sequence[Advice]) -> str:
    """Which step's time savings are of, where that is not the card's."""
    mean_ms = sum(run.step_times_ns) / max(len(run.step_times_ns), 1) / 1e6
    if not (unequal_text(run) and mean_ms > run.step_ms and any(a.saving for a in advice)):
        return ""
    return f'. "Up to" is of the mean measured step, {format_ms(mean_ms)}'


def _of_measured(run: Run, limit: Limit) -> str:
    """What the traced steps do not tell of the measured ones, which are shorter or wait less."""
    part, waits = run.busy_of_measured, waits_of(run)
    if limit.what == "sync" and not waits.is_traced:
        mean_ms = sum(run.step_times_ns) / len(run.step_times_ns) / 1e6
        most_ms = 2 * waits.each_ms  # a wait, and as long after it
        if most_ms < limit.share * mean_ms:
            return (
                f". {capital(waits.kind)}s wait {format_ms(waits.each_ms)} only: no more than "
                f"{format_percent(most_ms / mean_ms)} of these is lost by that"
            )
    if not run.is_stretched or limit.what in ("device", "compile"):
        return ""
    return (
        ". The profiler makes the host slower, not the kernels: these need "
        f"{format_percent(part)} of a measured step, so no more than {format_percent(1 - part)} "
        "of that one is lost"
    )


def _next_of(run: Run) -> str:
    """What to do about a run whose limit cannot be told."""
    taken = run.conditions
    if not run.doubt:
        if cure := run.unseen.cure:
            return cure
        return _NO_KERNEL if run.segments else _UNSEEN if _has_device(run) else _NOTHING
    if run.doubt == IN_TURNS:
        return _ONE_THREAD
    if run.doubt == run.measured.unlike_text:
        is_held = taken.own_threads >= _HOLDS and is_native(run)
        return _TURNS.format(in_cores(taken.own_threads)) if is_held else _WARM
    if not doubt(taken):
        return _OUTSIDE_STEP if OUTSIDE in run.doubt else _UNMATCHED
    if is_throttled(taken):
        return _LIMITED
    outside = sum(x for x in (taken.others, taken.steal) if x > 0)  # nan is not
    return _WITHOUT if taken.threads > outside else _AGAIN


def _has_device(run: Run) -> bool:
    """Does a trace name a device, or calls of its runtime? Of other formats nobody knows."""
    is_torchs = run.environment.get(IMPORTED) == "torch.profiler"
    return (
        not is_torchs
        or "device" in run.environment
        or bool(run.timeline.where(kind="dispatch").any())
    )


def _of_collector(run: Run) -> str:
    """That Python's garbage collector is part of what the host does, if it clearly is."""
    full = run.conditions.full_collections
    if not full >= max(len(run.step_times_ns), 1):
        return ""
    return (
        f". Python's garbage collector went through all objects {format_count(int(full), 'time')} "
        "meanwhile, at least once a step: leave gc.collect() out of the step, or call gc.freeze() "
        "before the first one"
    )


def _of_threads(run: Run, limit: Limit) -> str:
    """That other threads of the program run, if they take much: the host has Python in turns."""
    taken = run.conditions.own_threads
    is_input = limit.what == "input" and not run.settings.prefetch  # of no thread that loads
    is_beside = limit.what == "device" and limit.share < BUSY
    is_part = is_input or is_beside or limit.what in ("recording", "own", "dispatch")
    if not (taken >= _HOLDS and is_part):
        return ""
    return (
        f". Other threads of the program took {in_cores(taken)} meanwhile: as long as one of them "
        "runs Python, the step's thread waits for Python's lock, and that "
        f"{'is part of the rest' if is_beside else 'counts as this, too'}"
    )


def _of_copies(timeline: Timeline, step_ms: float) -> str:
    """How long devices do no more than copy from or to the host, if that is much of the step."""
    steps, works = timeline.intervals(kind="step"), timeline.where(kind=ON_DEVICE)
    copies = named(timeline, way_of)
    alone = without(timeline.times(works & copies), timeline.times(works & ~copies))
    alone_ms = float(within(alone, steps).mean()) / 1e6 if len(steps) else 0.0
    if not len(alone) or alone_ms < LONG * step_ms:
        return ""
    return f". For {format_ms(alone_ms)} of the traced step it only copies from or to the host"


def _of_first_launches(run: Run) -> str:
    """That few calls which launch kernels, and are long, are most of what is lost by dispatching.

    As where code is loaded, which is once for each kernel: calls are not told so where most of the
    time is in later launches of the same ones. A call that launches a graph is long each time, and
    one that copies may wait for its copy.
    """
    t, steps = run.timeline, run.timeline.intervals(kind="step")
    chosen = np.flatnonzero(t.where(kind="dispatch") & named(t, _launches_one))
    calls = t.times(chosen)
    lengths = calls[:, 1] - calls[:, 0]
    is_long = lengths >= _LOADS_NS
    long = calls[is_long]
    if not len(long) or 2 * len(long) > len(calls):
        return ""
    is_first = np.isin(chosen, _first_launches(t))
    if 2 * lengths[is_long & is_first].sum() < lengths[is_long].sum():
        return ""
    exposed = within(without(long, t.intervals(kind=ON_DEVICE)), steps).sum()
    if 2 * exposed < run.limit_shares["dispatch"] * within(joined(steps), steps).sum():
        return ""
    took, whole = (int(x.sum()) / 1e6 for x in (lengths[is_long], lengths))
    which = f"{len(long):,} longest" if len(long) > 1 else "longest"
    return (
        f". Of {len(calls):,} calls that launch kernels the {which} took {format_ms(took)}, the "
        f"others {format_ms(whole - took)}, as where the first launch of a kernel loads its code"
    )


def _first_launches(timeline: Timeline) -> NDArray[np.intp]:
    """For each kernel of each lane the call that launched it first."""
    kernels = np.flatnonzero(timeline.where(kind=ON_DEVICE))
    called, call = launches(timeline, kernels)
    order = np.argsort(called, kind="stable")
    order = order[call[order] >= 0]
    chosen = kernels[order]
    keys = timeline.lane[chosen].astype(np.int64) * len(timeline.names) + timeline.name[chosen]
    _, first = np.unique(keys, return_index=True)
    return call[order][first]


def _launches_one(call: str) -> bool:
    return is_runtimes(call) and "Graph" not in call and not is_transfer(call)


def _of_device(run: Run, limit: Limit) -> str:
    """What is left to save, and whether the devices share the work evenly."""
    said = LIMIT_ROWS["device"].said
    if not is_filled(run.timeline, run.limit_shares["device"]):
        return (
            f"{said}, where nothing is traced: the profiler makes the host slower, not the "
            "kernels, so in the traced steps, of which the tables are, the device waits for it"
        )
    devices = count_devices(run.timeline)
    steps = run.timeline.steps
    idle = sum(row.total_ms for row in run.idle)
    each = 1 - idle / (devices * steps * run.traced_ms)
    if devices > 1 and each < BUSY:  # of one device it is the limit's share
        return (
            f"Mostly some device works, but each of the {devices} for "
            f"{format_percent(each)} of the time: they wait for each other"
        )
    rest = 1 - limit.share
    if rest < 0.01:
        return f"{said}: only less work or a faster device would help"
    saved = f"{format_ms(rest * run.step_ms)} a step"
    if math.isnan(run.busy_of_measured):
        saved = in_a_step(run, rest * run.traced_ms)
    return f"{said}: {saved} could be saved beside it, and more by less work only"
