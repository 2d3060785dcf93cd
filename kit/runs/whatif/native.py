"""What if, of steps that torch ran natively on the CPU: a loop as it is, or a run of mode "torch".

There each op computes in the call itself, so a step is one chain: the host's own work, a kernel,
the host again. Each instant of the traced steps goes to one part of it, and a question makes the
parts of one kind shorter, or takes the loading of batches out of the chain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from kit.errors import SettingsError
from kit.runs.knob import knobs_of
from kit.runs.labels import is_of_jit
from kit.runs.run import Run
from kit.runs.whatif.question import Question
from kit.runs.whatif.steps import last_steps
from kit.text import format_ms
from kit.trace import Span, Timeline, each_step
from kit.trace.active import LOADER, hull
from kit.trace.devices import TORCH_CPU
from kit.trace.kinds import OF_WORKERS
from kit.trace.simulate import Work, simulate

__all__ = ["NativeModel"]

STEPS, SHOWN = 5, 2  # simulated, and drawn: the first ones fill the loader
_HOST, _DEVICE = "host/main", "device/0 modelled"
# What an instant counts as, where several kinds go on: the ops of a batch's loading are loading.
_FIRST = ("input", "elsewhere", "kernel", "record")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a traced step in which one thing goes on."""

    name: str
    kind: str  # one of _FIRST
    ns: float


class NativeModel:
    """What the steps of one native run consist of.

    Raises:
        SettingsError: nothing can be predicted from this run.
    """

    def __init__(self, run: Run) -> None:
        if run.timeline.origin == "imported":
            raise SettingsError("a prediction needs a measured run, not an imported trace")
        if is_of_jit(run):
            raise SettingsError(
                "of a step of jax.jit's it is not known what waits for what. Predict from a run of "
                "it on device kit"
            )
        timeline = run.timeline
        kernels = timeline.where(kind="kernel")
        if kernels.sum() > timeline.where(kind="kernel", lane=TORCH_CPU).sum():
            raise SettingsError(
                "natively on a GPU the profiler makes the host slower and not the kernels, so the "
                "traced steps do not say how the two lie in others. Predict from a run on device "
                "kit, such as `kit run --on kit` makes"
            )
        self._run = run
        self._steps = [_parts(step, *hull(step)) for step in each_step(timeline)]
        traced = sum(part.ns for step in self._steps for part in step)
        if not traced > 0:
            raise SettingsError(
                "a prediction of native steps needs traced ones: this run has no timeline"
            )
        if not run.step_ms > 0:
            raise SettingsError("the run has no measured step, so nothing says how long it takes")
        self._ratio = run.step_ms * 1e6 * len(self._steps) / traced  # a trace slows steps down

    def predict(self, asked: Question) -> tuple[float, Timeline, list[str]]:
        """The step's nanoseconds, its timeline, and what was assumed, in words.

        Raises:
            SettingsError: a native run cannot tell.
        """
        _check(self._run, asked)
        # A run that prefetched shows how long its steps wait, and not what loading takes.
        depth = 0 if self._run.settings.prefetch else asked.settings.prefetch
        steps = [[self._scaled(part, asked) for part in step] for step in self._steps]
        work, marks = _chain([steps[i % len(steps)] for i in range(STEPS * len(steps))], depth)
        spans = simulate(work)
        ends = [spans[i].stop_ns for i in marks]
        shown = max(SHOWN, len(steps))
        ends = ends[-1 - shown :]
        notes = self._notes(asked)
        return (ends[-1] - ends[0]) / shown, _timeline(spans, ends, notes), notes

    def _scaled(self, part: Part, asked: Question) -> Part:
        by = {"kernel": asked.device_speed, "record": asked.host_speed}.get(part.kind, 1.0)
        return replace(part, ns=part.ns * self._ratio / by)

    def _notes(self, asked: Question) -> list[str]:
        notes = ["natively on a CPU an op computes in the call itself: nothing overlaps with it"]
        if asked.device_speed != 1.0:
            notes.append(f"every kernel takes 1/{asked.device_speed:g} of its time")
        if asked.host_speed != 1.0:
            notes.append(
                f"the host's own work takes 1/{asked.host_speed:g} of its time; what the step "
                "loads and sleeps stays"
            )
        if self._run.settings.prefetch:
            notes.append("a step waits for its batch as long as in the run")
        elif asked.settings.prefetch:
            notes.append(self._loading())
        return notes

    def _loading(self) -> str:
        loads = [part for step in self._steps for part in step if part.kind == "input"]
        ms = format_ms(sum(p.ns for p in loads) / len(self._steps) * self._ratio / 1e6)
        if any(part.name == OF_WORKERS for part in loads):
            return (
                f"the loader has so many workers that no batch is waited for; now a step waits {ms}"
            )
        return (
            f"a batch takes the {ms} that the step spends on it now, beside the step, on a core "
            "that is free: as by DataLoader(num_workers=1)"
        )


def _check(run: Run, asked: Question) -> None:
    asked.check_numbers()
    mine, theirs = run.settings, asked.settings
    for knob in knobs_of(mine):
        if knob.is_measuring or knob.name == "prefetch":
            continue
        if getattr(mine, knob.name) != getattr(theirs, knob.name):
            raise SettingsError(
                f"{knob.name}={getattr(theirs, knob.name)!r} cannot be predicted from a native "
                "run: its program follows no setting of kit's. Ask for device_speed, host_speed "
                "or prefetch; or run it on device kit (`kit run --on kit`) and ask that run"
            )
    if mine.prefetch and theirs.prefetch != mine.prefetch:
        raise SettingsError(
            f"prefetch={theirs.prefetch} cannot be predicted from a native run with "
            f"prefetch={mine.prefetch}: how long a batch is loaded beside the step is not known. "
            "Ask a run with prefetch=0"
        )
    if asked.without:
        raise SettingsError(
            "natively on a CPU a read waits for nothing, so there is no wait to take away"
        )
    if asked.launch_ns is not None or asked.sync_ns is not None or asked.stream is not None:
        raise SettingsError(
            "launch_ns, sync_ns and stream are of device kit: a native run has none of them"
        )


def _parts(timeline: Timeline, begin: int, end: int) -> list[Part]:
    """Whose each instant of a step is, in order. The timeline is that of the step alone."""
    rows = sorted(  # start, stop, place in _FIRST, name
        (span.start_ns, span.stop_ns, _FIRST.index(span.kind), span.name)
        for span in timeline.spans
        if span.kind in _FIRST and span.start_ns < span.stop_ns
    )
    return list(_joined(_cut(rows, begin, end)))


def _cut(rows: Sequence[tuple[int, int, int, str]], begin: int, end: int) -> Iterator[Part]:
    """A part between each two instants at which something begins or ends."""
    edges = sorted({begin, end, *(t for row in rows for t in row[:2])})
    active: list[tuple[int, int, int, str]] = []
    left = iter([*rows, (math.inf, math.inf, 0, "")])
    row = next(left)
    for start, stop in pairwise(edges):
        active = [other for other in active if other[1] > start]
        while row[0] <= start:
            active.append(row)  # type: ignore[arg-type]
            row = next(left)
        first = min(active, key=lambda other: other[2], default=(0, 0, _FIRST.index("record"), ""))
        yield Part(first[3] or "host", _FIRST[first[2]], stop - start)


def _joined(parts: Iterator[Part]) -> Iterator[Part]:
    """Neighbours of one name and kind as one."""
    for (name, kind), alike in groupby(parts, key=lambda part: (part.name, part.kind)):
        yield Part(name, kind, sum(part.ns for part in alike))


def _chain(steps: Sequence[Sequence[Part]], depth: int) -> tuple[list[Work], list[int]]:
    """The work of some steps, and the place of each one's last. `depth`: batches loaded ahead."""
    work: list[Work] = []
    marks: list[int] = []
    taken: list[int] = []  # where each step has its batch
    last: tuple[int, ...] = ()
    for step in steps:
        loads = round(sum(part.ns for part in step if part.kind == "input"))
        is_of_workers = any(part.name == OF_WORKERS for part in step)
        if depth and loads and not is_of_workers:
            room = (taken[-depth],) if len(taken) >= depth else ()
            work.append(Work(LOADER, "next batch", "input", loads, room))
            last = (*last, len(work) - 1)
            work.append(Work(_HOST, "next batch", "input", 0, last))
            last = (len(work) - 1,)
            taken.append(len(work) - 1)
        for part in step:
            if depth and part.kind == "input":
                continue
            lane = _DEVICE if part.kind == "kernel" else _HOST
            work.append(Work(lane, part.name, part.kind, round(part.ns), last))
            last = (len(work) - 1,)
        marks.append(len(work) - 1)
    return work, marks


def _timeline(spans: Sequence[Span], ends: Sequence[int], notes: Sequence[str]) -> Timeline:
    """The last steps, of origin "modelled"; times count from the first that is shown."""
    begin, end = ends[0], ends[-1]
    waits = [
        Span(_HOST, "next batch", "input", a - begin, b - begin)
        for a, b in _waits(spans)
        if begin <= a < b <= end
    ]
    return Timeline.of([*last_steps(spans, ends), *waits], [], "modelled", notes)


def _waits(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """When the step waits for a batch that is loaded beside it."""
    stop = 0
    for span in spans:
        if span.kind == "input" and span.lane == _HOST and span.start_ns == span.stop_ns:
            yield stop, span.start_ns
        if span.lane != LOADER:
            stop = span.stop_ns
