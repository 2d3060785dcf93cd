"""What torch's profiler saw, as a `Timeline`: steps, phases, kernels, and where the host waited.

Pure: events in, a timeline out. An event is torch's `FunctionEvent`; of it this file reads name,
time_range (microseconds), cpu_parent, device_type, device_index, device_resource_id, kernels, id,
thread and is_user_annotation. Steps are the regions named "kit step <n>"; what kit itself does at
the end of one is inside "kit finish".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from kit.measure.base.loading import BATCH
from kit.measure.native.calls import is_other_call, spent_in_calls
from kit.measure.native.places import Place, agreed, lines_of_reads, where
from kit.runtime.profiling.elsewhere import Look, blocked_of
from kit.runtime.profiling.own_code import stretches
from kit.runtime.recording.bulk import Site
from kit.runtime.recording.sites import format_site
from kit.text import format_number
from kit.trace import COLUMNS, Span, SyncPoint, Timeline, union_ns
from kit.trace.communication import cause_of, kind_on_device, way_of
from kit.trace.devices import (
    COMPILED,
    CPU_SENDS,
    TORCH_CPU,
    beside,
    compiles,
    is_collective,
    is_librarys,
    is_runtimes,
    is_transfer,
    is_wait,
    region_name,
    sends_on_host,
    stream_lane,
)
from kit.trace.host import AT_ONCE_NS, ENGINE, is_update, phases, waits_for_copy
from kit.trace.intervals import Ints, elapsed, joined
from kit.trace.kinds import BESIDE_WORKERS, BY_TORCH, OF_WORKERS

__all__ = [
    "FINISH",
    "STEP",
    "ancestors",
    "begins_in",
    "blocking_lines",
    "computed_ns",
    "is_outermost",
    "steps_of",
    "timeline_of",
]

STEP = "kit step "
FINISH = "kit finish"
UNSEEN = (
    "what the host waits for beside the device is not seen (these steps are too short, or this "
    "system does not tell): a sleep, a file or a lock counts as recording"
)
CPU = "on a CPU a tensor is ready when the call that makes it returns"

_MAIN = "host/main"
_OF_ENGINE_NS = 100_000  # what is longer may be a hook's
_LOADER = "enumerate(DataLoader)#"
_OPTIMIZER = "Optimizer."  # torch names them Optimizer.step#SGD.step, Optimizer.zero_grad#...


def timeline_of(
    events: Iterable[Any],
    *,
    device: str = "cpu",
    places: Sequence[Mapping[str, Sequence[Place]]] = (),
    looks: Sequence[Look] | None = None,
    caller: Callable[[Any], int] = lambda event: -1,
    notes: Sequence[str] = (),
) -> Timeline:
    """The steps among the events, on one clock that starts with the first of them.

    Args:
        device: "cuda": kernels are what the GPU ran; "cpu": they are the ops themselves.
        places: of some steps, for each cause, the places of its waits, in order. A wait has no
            place if none of them waited as often, or two that did differ in it: no line is better
            than a wrong one.
        looks: at the thread of the steps, in nanoseconds of the events' clock; none if it was
            looked at in vain, None if nobody did.
        caller: the number of what launched a kernel; -1: it is not known.
        notes: that stand before those of this timeline.
    """
    events = list(events)
    steps = steps_of(events)
    if not steps:
        return Timeline.of([], origin="profiled")
    zero = min(_start(e) for e in steps)
    events = [e for e in events if _ends(e)[1] > zero]
    host = [e for e in events if e.device_type.name == "CPU"]
    spans = [_span(_MAIN, e.name.removeprefix("kit "), "step", e) for e in steps]
    spans += [Span(_MAIN, name, "record", *ends) for name, *ends in _phases(host, steps)]
    spans += [_span(_MAIN, name, "input", e) for name, e in _batches(host, looks or ())]
    spans += _compiles(host, steps, looks or ())
    notes = [*notes]
    syncs: list[SyncPoint] = []
    if device == "cpu":
        spans += _on_cpu(host, caller)
        if reads := _reads(host, len(steps), places):
            said = (
                "1 read of a number a step"
                if reads == 1
                else f"{format_number(reads)} reads of a number a step"
            )
            does = "waits" if reads == 1 else "wait"
            notes.append(f"{said} (.item(){where(places, reads)}) {does} for nothing: {CPU}")
    else:
        kernels = list(_kernels(events, caller))
        if not kernels:
            notes.append("torch's profiler saw no GPU kernel: it may lack the right to")
        syncs = list(_syncs(_waits(events, host), steps, agreed(places)))
        calls = [e for e in host if is_other_call(e.name) and _is_of_steps(e, steps)]
        given, freed = spent_in_calls([e.name for e in calls], _times(calls), kernels)
        syncs += freed
        waits = [Span(_MAIN, s.cause, "wait", s.at_ns, s.at_ns + s.wait_ns) for s in syncs]
        spans += kernels + waits + given
    if looks is not None:
        known = _known(host, device)
        spans += _away(known, steps, looks)
        spans += [own for _, own in stretches(known, spans, looks, is_native=True)]
        notes += [] if len(looks) > 1 and looks[0].queued_ns >= 0 else [UNSEEN]
    return _since(zero, Timeline.of(spans, syncs, "profiled", notes))


def _since(zero: int, timeline: Timeline) -> Timeline:
    """The timeline on a clock that starts at `zero`; what came before is cut off."""
    kept = (timeline.stop_ns > zero) | (timeline.start_ns >= zero)
    columns = {name: getattr(timeline, name)[kept] for name in COLUMNS}
    columns |= {name: (columns[name] - zero).clip(0) for name in ("start_ns", "stop_ns")}
    syncs = tuple(replace(sync, at_ns=sync.at_ns - zero) for sync in timeline.syncs)
    return replace(timeline, syncs=syncs, **columns)


def steps_of(events: Iterable[Any]) -> list[Any]:
    """The regions of the steps, which the profiler draws among a GPU's events, too, and later."""
    return [e for e in events if e.name.startswith(STEP) and e.device_type.name == "CPU"]


def computed_ns(events: Iterable[Any]) -> int:
    """How long torch computed anything but batches; 0: nobody saw what the steps do."""
    ops = (
        e
        for e in events
        if (e.name.startswith(("aten::", COMPILED)) or e.device_type.name != "CPU")
        and not any(_is_input(a) for a in ancestors(e))
    )
    return union_ns(_times(ops))


def blocking_lines(timeline: Timeline, looks: Sequence[Look]) -> list[Site]:
    """The lines at which the host waits elsewhere, or computes, with their whole paths."""
    chosen = timeline.where(kind=("elsewhere", "own"))
    names = {timeline.names[i] for i in timeline.name[chosen].tolist()}
    return [site for site in dict.fromkeys(x.site for x in looks) if format_site(site) in names]


def _span(lane: str, name: str, kind: str, event: Any, caller: int = -1) -> Span:
    return Span(lane, name, kind, *_ends(event), node=caller)


def _ends(event: Any) -> tuple[int, int]:
    """In nanoseconds of the events' own clock."""
    return round(event.time_range.start * 1000), round(event.time_range.end * 1000)


def _start(event: Any) -> int:
    return _ends(event)[0]


def _times(events: Iterable[Any]) -> Ints:
    """Shape: (n, 2)."""
    return np.array([_ends(e) for e in events], np.int64).reshape(-1, 2)


def ancestors(event: Any) -> Iterator[Any]:
    """The host's events around this one, the innermost first."""
    while (event := event.cpu_parent) is not None:
        yield event


def is_outermost(event: Any) -> bool:
    """An aten op that no other aten op called: what torch's CPU kernels do for the step.

    What makes a batch is no work of the step's: on device "kit", too, it is input.
    """
    called = any(e.name.startswith("aten::") or _is_input(e) for e in ancestors(event))
    return event.name.startswith("aten::") and not called


def _on_cpu(host: Sequence[Any], caller: Callable[[Any], int]) -> Iterator[Span]:
    """The outermost ops of torch's, what computes beside those that it calls, and collectives."""
    ops = [e for e in host if is_outermost(e)]
    for e in ops:
        yield _span(TORCH_CPU, e.name, "kernel", e, caller(e))
    regions = sorted(filter(_is_outermost_region, host), key=_start)
    work = [*ops, *(e for e in host if is_collective(e.name))]
    pieces, of = beside(_times(regions), _times(work))
    for (start, stop), i in zip(pieces.tolist(), of.tolist(), strict=True):
        yield Span(TORCH_CPU, region_name(regions[i].name), "kernel", start, stop)
    for e in host:
        if sends_on_host(e.name):
            yield _span(CPU_SENDS, e.name, "communication", e)


def _is_region(event: Any) -> bool:
    """Does it compute beside the aten ops that it calls?"""
    is_op = is_librarys(event.name) and not event.is_user_annotation
    return is_op or bool(event.name.startswith(COMPILED))


def _is_outermost_region(event: Any) -> bool:
    return _is_region(event) and not any(
        a.name.startswith("aten::") or _is_region(a) or _is_input(a) for a in ancestors(event)
    )


def _is_input(event: Any) -> bool:
    """A loader makes the next batch, or waits for its workers or thread."""
    return bool(event.name.startswith((_LOADER, BATCH)))


def _batch(event: Any) -> str:
    """What a wait for the next batch is called: torch has a class for loaders with workers."""
    if event.name.startswith(BATCH):
        return str(event.name).removeprefix(BATCH)
    return OF_WORKERS if "MultiProcessing" in event.name else "next batch"


def _batches(host: Iterable[Any], looks: Sequence[Look]) -> Iterator[tuple[str, Any]]:
    """What brings batches, each with what it is called.

    The context's region has one of torch's in it where both are called alike: that is a part of it.
    """
    named = [(_batch(e), e) for e in host if _is_input(e) and not _is_part_of_batch(e)]
    waits = [_ends(e) for name, e in named if name == OF_WORKERS]
    is_busy = bool(waits) and len(looks) > 1 and _is_busy(waits, looks)
    for name, e in named:
        yield BESIDE_WORKERS if is_busy and name == OF_WORKERS else name, e


def _is_part_of_batch(event: Any) -> bool:
    return any(_is_input(a) and _batch(a) == _batch(event) for a in ancestors(event))


def _compiles(host: Iterable[Any], steps: Sequence[Any], looks: Sequence[Look]) -> Iterator[Span]:
    """When torch.compile compiles on the steps' thread, each span with the line that has it do so.

    What it does there is its own, and no code of the program's.
    """
    for e in host:
        if not compiles(e.name) or e.thread != steps[0].thread:
            continue
        if not any(compiles(a.name) for a in ancestors(e)):
            start, stop = _ends(e)
            sites = Counter(x.site for x in looks if start <= x.at_ns < stop and x.site[0])
            at = f" at {format_site(sites.most_common(1)[0][0])}" if sites else ""
            yield Span(_MAIN, f"{BY_TORCH}{at}", "compile", start, stop)


def _is_busy(waits: Sequence[tuple[int, int]], looks: Sequence[Look]) -> bool:
    """Does this thread itself work most of the time for which it waits for a loader's workers?

    It asks the sampler, which may sleep, and unpacks what the workers send.
    """
    at = np.array([x.at_ns for x in looks], np.int64)
    ran, queued = (
        np.diff([getattr(x, name) for x in looks]) / np.maximum(np.diff(at), 1)
        for name in ("cpu_ns", "queued_ns")
    )
    waited = np.diff(elapsed(joined(np.array(waits, np.int64)), at))
    works = np.where([x.in_loader for x in looks[1:]], 1.0, ran)
    return bool((waited * works).sum() > (waited * (1 - queued)).sum() / 2)


def _known(host: Sequence[Any], device: str) -> Ints:
    """When torch worked, or waited itself."""
    known = _times(e for e in host if _is_torchs(e, device))
    return np.concatenate([known, _between_nodes(host)]) if device == "cuda" else known


def _away(known: Ints, steps: Sequence[Any], looks: Sequence[Look]) -> Iterator[Span]:
    """When the host was blocked, but not by what the events tell of."""
    last = int(_times(steps)[:, 1].max())
    for away in blocked_of(looks, known):
        if away.start_ns < last:
            yield replace(away, stop_ns=min(away.stop_ns, last)).span


def _is_torchs(event: Any, device: str) -> bool:
    """What torch does or waits for itself: its threads compute an op together, and a backward pass
    on a GPU is issued by a thread of its own, for which the main one waits. On a CPU it may wait
    for a collective, which is its own time until the last rank has come.
    """
    if device == "cuda":
        is_work = event.name.startswith(("aten::", ENGINE)) or is_runtimes(event.name)
    else:
        is_work = event.name.startswith("aten::") or sends_on_host(event.name)
    return bool(is_work) or _is_region(event)


def _between_nodes(host: Iterable[Any]) -> Ints:
    """The engine's own time from node to node, of which a backward pass has thousands."""
    nodes = sorted(_ends(e) for e in host if e.name.startswith(ENGINE))
    latest = accumulate((stop for _, stop in nodes), max)
    pairs = zip(latest, (start for start, _ in nodes[1:]), strict=False)
    found = [(stop, start) for stop, start in pairs if 0 < start - stop < _OF_ENGINE_NS]
    return np.array(found, np.int64).reshape(-1, 2)


def _reads(
    host: Sequence[Any], steps: int, places: Sequence[Mapping[str, Sequence[Place]]]
) -> float:
    """How often the program reads a number, a step, in the mean.

    An optimizer's own reads do not count: its step counts are always on the CPU. Nor do those of a
    loader's items, which are on the CPU wherever the step runs. Where an optimizer has the step
    computed, by a closure as Lightning's, only the lines tell its own reads from those.
    """
    reads = [
        e
        for e in host
        if e.name == "aten::_local_scalar_dense" and not any(map(_is_input, ancestors(e)))
    ]
    own = [began for e in reads if (began := _optimizer_began(e)) is not None]
    computing = {_optimizer_began(e) for e in host if e.name.startswith(ENGINE)}
    if places and computing.intersection(own):
        return sum(len(lines_of_reads(one)) for one in places) / len(places)
    return (len(reads) - len(own)) / steps


def _optimizer_began(event: Any) -> float | None:
    """When the region of an optimizer around this event began; None: there is none."""
    around = (e.time_range.start for e in ancestors(event) if e.name.startswith(_OPTIMIZER))
    return next(around, None)


def _kernels(events: Iterable[Any], caller: Callable[[Any], int]) -> Iterator[Span]:
    """What ran on a GPU. The profiler draws the host's annotations there too: those did not run."""
    for e in events:
        if e.device_type.name != "CPU" and not e.is_user_annotation:
            lane = stream_lane(e.device_index, e.device_resource_id)
            yield _span(lane, e.name, kind_on_device(e.name), e, caller(e))


def _syncs(
    waits: Sequence[tuple[Any, Any]],
    steps: Iterable[Any],
    places: Mapping[tuple[str, int], Sequence[Place]],
) -> Iterator[SyncPoint]:
    """One for each wait, by its cause and then in time."""
    for step in steps:
        by_cause: dict[str, list[tuple[Any, Any]]] = {}
        for first, last in waits:
            if begins_in(first, step):
                by_cause.setdefault(_cause(first), []).append((first, last))
        for cause, found in by_cause.items():
            known = places.get((cause, len(found)), [("", "")] * len(found))
            for (first, last), (site, via) in zip(found, known, strict=True):
                start, stop = _start(first), _ends(last)[1]
                yield SyncPoint(start, stop - start, cause, site, via)


def _waits(events: Iterable[Any], host: Iterable[Any]) -> list[tuple[Any, Any]]:
    """The first and the last call of each wait, in time, but not of kit's own at a step's end.

    A copy may wait in the call that makes it, and then in the call after it, in the same op.
    """
    copies = {e.id: e for e in events if e.device_type.name != "CPU" and way_of(e.name)}
    calls = [e for e in host if is_wait(e.name) or _is_waiting_copy(e, copies)]
    found: list[tuple[Any, Any]] = []
    for e in sorted(calls, key=lambda e: (e.thread, e.time_range.start)):
        if any(a.name == FINISH for a in ancestors(e)):
            continue
        if found and _follows(e, found[-1][1]):
            found[-1] = found[-1][0], e
        else:
            found.append((e, e))
    return sorted(found, key=lambda wait: _start(wait[0]))


def _is_waiting_copy(call: Any, copies: Mapping[int, Any]) -> bool:
    """Does a call copy, and return no earlier than the copy is done?"""
    copy = copies.get(call.id) if is_transfer(call.name) else None
    return copy is not None and waits_for_copy(call.name, copy.name, _ends(call), _ends(copy))


def _follows(wait: Any, copy: Any) -> bool:
    """Does a call that waits come at once after one that copies, in the same op?"""
    is_pair = is_wait(wait.name) and is_transfer(copy.name) and wait.cpu_parent is copy.cpu_parent
    return is_pair and 0 <= _start(wait) - _ends(copy)[1] < AT_ONCE_NS


def _cause(wait: Any) -> str:
    """Why CUDA was asked to wait, by the op that asked."""
    op = next((e for e in ancestors(wait) if e.name.startswith("aten::")), None)
    if op is None:
        return "synchronize"
    ways = {way_of(kernel.name) for kernel in op.kernels}
    return cause_of(op.name, ways.pop() if len(ways) == 1 else "")


def _is_of_steps(call: Any, steps: Iterable[Any]) -> bool:
    """Is it made in a step, by its thread or by the engine's, for which that one waits?"""
    is_theirs = any(a.name.startswith((STEP, ENGINE)) for a in ancestors(call))
    return is_theirs and any(begins_in(call, step) for step in steps)


def begins_in(event: Any, step: Any) -> bool:
    """Does it begin in a step? What begins where one ends is of the next."""
    ends = step.time_range
    return bool(ends.start <= event.time_range.start < ends.end)


def _phases(host: Sequence[Any], steps: Sequence[Any]) -> Iterator[tuple[str, int, int]]:
    """Each step cut into forward, backward and update, without gaps."""
    tops = (e for e in host if is_outermost(e) or e.name.startswith(COMPILED))
    ops = (e for e in tops if not any(a.name.startswith(ENGINE) for a in ancestors(e)))
    engine = (e for e in host if e.name.startswith(ENGINE))
    updates = (e for e in host if is_update(e.name))
    return phases(_times(steps), _times(engine), _times(ops)[:, 0], _times(updates))
