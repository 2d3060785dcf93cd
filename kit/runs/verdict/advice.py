"""Advice on a measured run: what costs time, on which line, and which setting would remove it.

Rules in the manner of pytorch/xla's auto-metric analysis, but with milliseconds and a cure. A rule
looks at a run's data only; it says nothing where the data do not show the cost.

Source: https://github.com/pytorch/xla/blob/master/docs/source/learn/troubleshoot.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kit.runs.analysis.lines import away_by_line, recorded_before_copies, seldom_at_line
from kit.runs.device.unrolled import unrolled_cells
from kit.runs.gradients import comes_last
from kit.runs.labels import is_native, is_of_jax, is_of_jit, is_of_strangers, is_on_cpu, is_on_gpu
from kit.runs.run import Run
from kit.runs.verdict.cures import (
    SYNC_CURES,
    Advice,
    compile_cures,
    copies_cure,
    has_workers,
    if_copied,
    in_a_step,
    loader_cure,
    sleeps_in_input,
    sync_cure,
)
from kit.runs.verdict.seen import HOST_WORK, RECORDING, SHARE, Seen
from kit.runs.verdict.wide import float64_advice
from kit.shown import Column, Rows
from kit.text import format_count, format_ms
from kit.trace import count_devices, union_ns
from kit.trace.devices import is_runtimes
from kit.trace.kinds import ELSEWHERE, MADE_ANEW, OWN, TRACE

__all__ = ["RULES", "Advice", "advise", "limits_of"]

_IN_A_THREAD = "let a thread do that ahead of the step (prefetch=2)."
_IN_PROCESSES = (
    "let processes do that ahead of the step ({processes}). A thread (prefetch=2) gains where the "
    "loader leaves Python's lock, as numpy does for large arrays. Else it takes turns with "
    "recording, which leaves it no time here: such steps have become slower."
)
_NO_TIME = 0.9  # of the step: a host that is at work for so much has none to spare for a thread
_IN_TURN = (
    ", one replica after the other (a sleep, a file, a lock or other Python in the step counts as "
    "that, too)"
)
_UNKNOWN = "An unknown line"
_LOADER = ("a DataLoader's num_workers", "processes of a loader of yours")  # of torch, of jax
FEW_OPS = 30  # a segment of fewer ops may cost more to issue than to run


class AdviceRows(Rows[Advice]):
    """What `advise` found."""

    noun, widest = "cure", 900
    columns = (Column("could save", lambda a: a.saving or "unknown"),
               Column("advice", lambda a: a.text, is_number=False))  # fmt: skip


def advise(run: Run) -> tuple[Advice, ...]:
    """What costs this run time, the dearest first; () if nothing stands out.

    None promises more than a step can lose: see `Seen.most_ms`.
    """
    seen, found = Seen(run), []
    for rule in ADVICE_RULES:
        most = seen.most_ms(rule.spares)
        for advice in rule.find(run, seen):
            if not advice.ms > most:
                found.append(advice)
            elif most >= SHARE * seen.step_ms or rule.is_rare:
                found.append(replace(advice, ms=most))
    dearest_first = sorted(found, key=lambda a: 0.0 if math.isnan(a.ms) else -a.ms)
    return AdviceRows(dearest_first).with_note(run.withheld)


def _syncs(run: Run, seen: Seen) -> Iterator[Advice]:
    for row in run.sync_rows:
        is_seen = run.settings.step_mode != "speculate" or seen.is_starved
        is_traced = not math.isnan(row.idle_ms_per_step)  # else the cost is an untraced wait
        if is_seen and not row.cost_ms_per_step < SHARE * (seen if is_traced else run).step_ms:
            yield sync_cure(row, run)  # of few: it looks through all waits


def _input(run: Run, seen: Seen) -> Iterator[Advice]:
    ms, whole = seen.exposed_ms("input"), seen.together_ms("input")
    is_seen = ms >= SHARE * seen.step_ms
    # Hidden under the device's work, it is still the host's, which may be what a step waits for.
    spared = min(whole, seen.step_ms - seen.rest_ms(("input",)))
    if not whole or not (is_seen or spared >= SHARE * seen.step_ms):
        return
    site, asleep = sleeps_in_input(run)
    waits = ms if is_seen else whole
    is_jaxs = is_of_jax(run)  # whose ctx.loader takes no DataLoader
    processes = "a pool of your own" if is_jaxs else "a DataLoader of your own with num_workers"
    if seen.copies_only:
        yield copies_cure(run, whole, recorded_before_copies(run))
    elif is_of_strangers(run) or has_workers(run):
        yield replace(loader_cure(run, waits, asleep), site=site, ms=whole)
    elif run.settings.prefetch == 0:
        doing = "while the next batch is prepared and copied"
        said = f"the device waits {in_a_step(run, ms)} {doing}"
        if not is_seen:
            said = f"the host records nothing for {in_a_step(run, whole)} {doing}"
        # A sleep takes no turns.
        is_full = not asleep and seen.together_ms(*HOST_WORK) >= _NO_TIME * seen.step_ms
        cure = _IN_PROCESSES.format(processes=processes) if is_full else _IN_A_THREAD
        text = f"{said}{asleep}: {cure}{if_copied(run)}"
        most = min(whole, seen.beside_ms(whole))  # whoever does it ahead takes as long for it
        cheaper = min(whole, seen.most_ms(("input",)))
        if most < cheaper:
            text += f" A faster loader would save more, up to {format_ms(cheaper)}."
        yield Advice("input", text, site, most, {} if is_full else {"prefetch": 2})
    else:
        text = (
            f"the host waits {in_a_step(run, waits)} for its batch though a thread prepares "
            "them ahead: the loader is slower than the step. Make its items cheaper, or prepare "
            f"them in more processes ({processes})."
        )
        yield Advice("input", text, ms=whole)


def _elsewhere(run: Run, seen: Seen) -> Iterator[Advice]:
    batch = _LOADER[is_of_jax(run)] if is_of_strangers(run) else "prefetch=2"
    keep = "" if is_of_jax(run) else " (in torch, no empty_cache())"
    what = "for something else than the device (it sleeps, reads a file or takes a lock)"
    if is_of_jit(run):
        what = (
            "(it sleeps, reads a file or takes a lock; np.asarray(x) and x.block_until_ready(), "
            "which wait for the device, look like a lock here)"
        )
    for site, lost, ms in _at_lines(run, seen, ELSEWHERE, "elsewhere"):
        text = (
            f"{site or _UNKNOWN} makes the host wait {what}, and {lost}. Do it ahead in a thread "
            f"(a batch: {batch}), or less often."
        )
        if is_runtimes(site):
            text = (
                f"the host is in {site}, a call of the device's runtime, and {lost}. The first "
                "calls of a program load the driver: trace later steps. Those that ask for memory "
                f"or give it back: keep it for the next step{keep}."
            )
        yield Advice("host waits elsewhere", text, site, ms)


def _own(run: Run, seen: Seen) -> Iterator[Advice]:
    is_jaxs = is_of_jax(run)
    there, loader = "with device=ctx.device", "ctx.loader"
    if is_of_strangers(run):
        there, loader = "with its device=", _LOADER[is_jaxs]
    what, where = "ops of torch on CPU tensors", f"on the device (tensors made {there})"
    if is_jaxs:
        what, where = "numpy", "on the device (in the jitted function, with jax.numpy)"
    is_traces = run.traced_as == "imported"
    if is_native(run) or is_traces:  # each op of torch's has a name, on CPU tensors, too
        what = ("a library that it calls", "a wait that is no call: `with lock`")[is_traces]
        where = f"with ops of torch{' on the device' * is_on_gpu(run)}"
    for site, lost, ms in _at_lines(run, seen, OWN, "own"):
        text = (
            f"{site or _UNKNOWN} computes on the host between two ops (Python, or {what}), and "
            f"{lost}. Do it ahead of the step (a batch: {loader}), less often, or, if it computes "
            f"with numbers, {where}."
        )
        yield Advice("own code", text, site, ms)


def _at_lines(run: Run, seen: Seen, cause: str, kind: str) -> Iterator[tuple[str, str, float]]:
    """Of each line with such spans: the line, what the device loses, in words, and all of it."""
    steps = max(run.timeline.steps, 1) * count_devices(run.timeline)
    whole = away_by_line(run, kind)
    what = "the devices then have" if run.devices > 1 else "the device then has"
    for row in run.idle:
        ms = row.total_ms / steps
        if row.cause == cause and ms >= SHARE * seen.step_ms:
            lost = f"{what} nothing to do for {in_a_step(run, ms)}"
            most = whole.get(row.site, ms)
            how_often, at_most = seldom_at_line(run, kind, row.site)
            if how_often:  # as a validation pass that fell into a traced step
                lost, most = f"{lost} ({how_often})", min(at_most, most)
            yield row.site, lost, most


def _compiles(run: Run, seen: Seen) -> Iterator[Advice]:
    late, steps = run.measured.compiles, max(len(run.step_times_ns), 1)
    if not late:
        return
    ms = sum(c.ms for c in late) / steps
    said = (
        f"{len(late)} program{'s were' if len(late) > 1 else ' was'} compiled in the "
        f"{format_count(steps, 'measured step')} ({format_ms(ms)} a step on average)"
    )
    if all(c.kind == "first" for c in late):
        text = (
            f"{said}, which nothing like had been compiled before. A training pays that once: to "
            "measure the steps after it, raise warmup, or leave it out."
        )
    else:
        why = next(c.sentence for c in reversed(late) if c.kind != "first")
        text = (
            f"{said}, the last one again: {why}. A number that changes should be "
            f"{'an array' if is_of_jax(run) else 'a tensor'}, and batches should have one shape."
        )
    yield Advice("compile", text, ms=ms)


def _traces(run: Run, seen: Seen) -> Iterator[Advice]:
    """Functions that jax runs in the steps to see their ops, which it does once for each kind."""
    t = run.timeline
    found: dict[str, list[str]] = {}
    for name in t.names:
        if name.startswith(TRACE):
            found.setdefault(name.partition(": ")[0], []).append(name)
    for what, names in found.items():
        ns = union_ns(np.concatenate([t.intervals(kind="lower", name=name) for name in names]))
        ms, why = ns / max(t.steps, 1) / 1e6, names[-1].partition(": ")[2]
        if ms < SHARE * seen.step_ms:
            continue
        cure = "batches should have one shape, and a number that changes should be an array"
        if why == MADE_ANEW:
            cure = "call kit.jax.step once, before the steps, and call in each what it gives"
        text = (
            f"jax traces {what.removeprefix(TRACE)} anew, {in_a_step(run, ms)}: {why}. A function "
            f"is traced once for each kind of arguments: {cure}."
        )
        yield Advice("tracing", text, what.rpartition(" at ")[2], ms)


def _recording(run: Run, seen: Seen) -> Iterator[Advice]:
    s, limit = run.settings, run.limited_by() if seen.rows else None
    if s.mode == "torch" or limit is None or limit.what != "recording":
        return
    if _takes_cores(run, seen) and seen.most_ms(()) >= SHARE * seen.step_ms:
        return  # `_cores` says how more of it can hide
    ms = limit.share * seen.step_ms
    many = run.devices > 1
    order = _IN_TURN if many else ""
    change, less = {"step_mode": "replay"}, "step_mode='replay'"
    if s.step_mode == "replay":
        change, less = {}, "the notes say which steps were not replayed, and why"
    elif is_of_strangers(run):
        change, less = {}, f"{less} of a @kit.workload"
    fused = "" if is_of_jax(run) else "; optimizers with fused=True or foreach=True"
    text = (
        f"the device{'s wait' if many else ' waits'} {in_a_step(run, ms)} for Python to record "
        f"the next one{order}. Record it less ({less}{fused}), or give the "
        f"device{'s' if many else ''} more to do (a larger batch)."
    )
    yield Advice("recording", text, ms=seen.together_ms(*RECORDING), change=change)


def _has_one_core_too_few(run: Run) -> bool:
    cores, taken = run.environment.get("cores", ""), run.environment.get("cores for XLA", "")
    return (
        is_on_cpu(run)
        and cores.isdecimal()
        and taken.isdecimal()
        and int(taken) > max(int(cores) - 1, 1)
    )


def _takes_cores(run: Run, seen: Seen) -> bool:
    """Do recording and the device take the cores from each other, for long enough to be told?"""
    ms = seen.together_ms(*RECORDING)
    busy = run.headline().device_busy_fraction  # a device that hardly works takes no core away
    is_large = ms >= 0.15 * seen.step_ms and ms > 0 and not busy < 0.15
    return is_large and run.settings.mode != "torch" and _has_one_core_too_few(run)


def _cores(run: Run, seen: Seen) -> Iterator[Advice]:
    if not _takes_cores(run, seen):
        return
    ms, work = seen.together_ms(*RECORDING), seen.together_ms("device busy")
    cores, taken = int(run.environment["cores"]), run.environment["cores for XLA"]
    text = (
        f"XLA works with {taken} threads on {format_count(cores, 'core')}, so recording "
        f"({in_a_step(run, ms)}) and the device take them from each other, and overlap gains "
        f"little. Leave one to the host: NPROC={max(cores - 1, 1)} in the environment before "
        "Python starts. A GPU has no such trouble."
    )
    yield Advice("cores", text, ms=min(ms, work) if work else ms)


def _reduction(run: Run, seen: Seen) -> Iterator[Advice]:
    ms = seen.exposed_ms("reduction")
    if ms < SHARE * seen.step_ms or not ms:
        return
    text = (
        f"the devices wait {in_a_step(run, ms)} for gradients that are on their way between "
        "them. Let them leave while the backward pass goes on: a smaller bucket_mb, as long as a "
        "message's own cost is small beside it, and cut='bucket'; or send them for more work "
        "each time (a larger batch). kit.ParallelView models all of that."
    )
    late, late_ms = comes_last(run.timeline)
    if late_ms > ms / 3:
        text = (
            f"the devices wait {in_a_step(run, ms)} for gradients, and {late} comes to them "
            f"{format_ms(late_ms)} a step after the others: look on its lanes for what it does "
            "before (a larger part, a slower host, a sleep or a file). Buckets do not change that."
        )
    whole = seen.together_ms("reduction")  # what is hidden takes its time, too
    yield Advice("reduction", text, ms=min(whole, seen.beside_ms(whole)))


def _segments(run: Run, seen: Seen) -> Iterator[Advice]:
    if not run.segments or run.settings.mode not in ("imperative", "bulked"):
        return
    overhead = sum(run.metrics.get(f"overhead.{x}_ns", 0.0) for x in ("launch", "sync"))
    each_ms = overhead / 1e6
    joined = sum(s.cut in ("size", "phase") for s in run.segments)  # with the next, in mode "lazy"
    count, ops = len(run.segments), sum(len(s.nodes) for s in run.segments)
    if ops < FEW_OPS * count and joined * each_ms >= 2 * SHARE * run.step_ms:
        text = (
            f"the step is cut into {count} segments of {format_count(round(ops / count), 'op')}; "
            f"to issue them and to wait for them costs about {format_ms(count * each_ms)}. Larger "
            "bulk sizes, or mode='lazy'."
        )
        yield Advice("small segments", text, ms=joined * each_ms, change={"mode": "lazy"})


def _unrolled(run: Run, seen: Seen) -> Iterator[Advice]:
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
    find: Callable[[Run, Seen], Iterator[Advice]]
    limits: tuple[str, ...] = ()  # of `kit.trace.LIMITS`: those that its advice answers
    spares: tuple[str, ...] = ()  # categories: what the host need not do if it is followed
    is_rare: bool = False  # it costs some steps much and most of them nothing


ADVICE_RULES = (
    AdviceRule(tuple(cure.rule for cure in SYNC_CURES), _syncs, ("sync",)),
    AdviceRule(("input",), _input, ("input",), ("input",)),
    AdviceRule(("host waits elsewhere",), _elsewhere, ("elsewhere",), ("host waits elsewhere",)),
    AdviceRule(("own code",), _own, ("own",), ("own code",)),
    AdviceRule(("compile",), _compiles, ("compile",), is_rare=True),
    AdviceRule(("tracing",), _traces, ("compile",)),
    AdviceRule(
        ("torch.compile",),
        lambda run, seen: compile_cures(run, SHARE * seen.step_ms),
        ("compile",),
        ("compile",),
    ),
    AdviceRule(("recording",), _recording, ("recording",), RECORDING),
    AdviceRule(("reduction",), _reduction, ("reduction",)),
    AdviceRule(("cores",), _cores, ("recording", "dispatch")),
    AdviceRule(("small segments",), _segments, ("dispatch",)),
    AdviceRule(("unrolled cells",), _unrolled, ("recording", "compile")),
    AdviceRule(
        ("float64",), lambda run, seen: float64_advice(run, SHARE * seen.step_ms), ("device",)
    ),
)
RULES = tuple(name for rule in ADVICE_RULES for name in rule.names)


def limits_of(advice: Advice) -> tuple[str, ...]:
    """The limits that it answers."""
    return next((r.limits for r in ADVICE_RULES if advice.rule in r.names), ())
