"""What a run's headline says, and how it differs from another's by the rule for "changed".

Step times and waits come from the untraced steps. Fractions come from the traced ones, which are
few: their interval is wide unless they agree.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from kit.runs.change import (
    Difference,
    StepTimes,
    doubt_of,
    doubt_of_traced,
    part_difference,
    shift_of,
    within_text,
)
from kit.runs.conditions import MUCH
from kit.runs.labels import is_native, is_of_jit, is_on_cpu
from kit.runs.run import Run
from kit.runs.spread import SURE
from kit.runs.steady import rare_reads
from kit.text import UNKNOWN, format_count, format_ms, format_percent
from kit.trace import Headline, SyncPoint, count_devices, each_step, headline
from kit.trace.devices import TORCH_CPU
from kit.trace.imported import ONLY_CALLS
from kit.trace.metrics import says_host, waits_of
from kit.trace.timeline import Place

__all__ = [
    "HEADLINE_WORDS",
    "Headlines",
    "busy_of",
    "doubt_of_waits",
    "headline_differences",
    "headline_text",
    "hidden_of",
    "syncs_of_steps",
    "why_no_waits",
    "why_waits_unknown",
]

HEADLINE_WORDS = {  # what each field of `Headline` is called wherever it is shown
    "step_ms": "step time",
    "device_busy_fraction": "device busy",
    "overlap_fraction": "recording hidden",
    "sync_wait_ms": "sync wait",
    "syncs_per_step": "sync points",
}
_RERUN_POINTS = 0.03  # what a fraction of one differs by between reruns (standard deviation)
_BLUR_POINTS = 0.10
_REGULAR = 1.5  # times the shortest: the longest pause between reads at every n-th step
_FRACTIONS: dict[str, Callable[[Headline], float]] = {
    "device_busy_fraction": lambda h: h.device_busy_fraction,
    "overlap_fraction": lambda h: h.overlap_fraction,
}


def headline_text(run: Run) -> str:
    """`step 3.35 ms (95% of reruns: 3.2 ms to 3.5 ms), ...`: the cards as one line.

    What is not known is left out.
    """
    h = run.headline()
    numbers = [
        f"step {format_ms(h.step_ms)}{_within(run)}",
        f"device busy {format_percent(h.device_busy_fraction)}{_which(run)}",
        f"recording hidden {format_percent(h.overlap_fraction)}",
        f"sync wait {format_ms(h.sync_wait_ms)}{_of_mean(h)}{waits_of(run).at_once}",
        f"{format_count(h.syncs_per_step, 'sync point')} a step",
    ]
    return ", ".join(text for text in numbers if UNKNOWN not in text) or "nothing was timed"


def _within(run: Run) -> str:
    is_known = len(run.step_times_ns) > 1
    return f" ({within_text(run, before='95% of reruns: ')})" if is_known else ""


def _of_mean(h: Headline) -> str:
    """A step's time is the middle one's, and a wait the mean: it can be longer than the step."""
    return " in the mean step" if h.sync_wait_ms > h.step_ms else ""


def busy_of(run: Run) -> str:
    """What "device busy" is a part of, and which of several devices it means."""
    if run.is_stretched:
        return f"of a measured step, {_traced_busy(run)} of a traced one{_of_which(run)}"
    which = "traced" if math.isnan(run.busy_of_measured) else "measured"
    whole = f"of the {which} step" if run.timeline.steps else "of the trace"
    return f"{whole}{_of_which(run)}"


def _traced_busy(run: Run) -> str:
    """The same of a traced step, which the profiler has made longer."""
    return format_percent(headline(run.timeline).device_busy_fraction)


def hidden_of(run: Run) -> str:
    """What "recording hidden" means, or why it is unknown."""
    timeline = run.timeline
    if not math.isnan(run.headline().overlap_fraction):
        return "under a busy device"
    if timeline.where(kind="kernel", lane=TORCH_CPU).any():
        return "on a CPU torch computes in the call itself: nothing runs beside it"
    if not timeline.where(kind="kernel").any():
        return "no kernel was seen"
    return "nothing was recorded in the traced steps"


def why_no_waits(run: Run) -> str:
    """Why a run has no sync point, as a clause: on a CPU torch has nothing to wait for."""
    if is_native(run) and is_on_cpu(run):
        return (
            "on a CPU torch computes in the call itself, so .item() finds its value ready. On a "
            'GPU and on device "kit" it waits for it'
        )
    if ONLY_CALLS in run.timeline.notes:
        return "the notes say which waits cannot be seen"
    if traced := len(run.timeline.syncs):
        measured = format_count(len(run.step_times_ns), "measured step")
        often = format_count(traced, "time")
        return f"the host waited in none of the {measured} (in the traced ones it did, {often})"
    return "the host never waited for the device"


def why_waits_unknown(run: Run) -> str:
    """Why nothing is known of the waits of measured steps, as a clause."""
    if is_of_jit(run):
        return "what a program reads of jax.jit's arrays is not seen"
    if not says_host(run.timeline):
        return "no call of the host was read from the file"
    if run.timeline.origin == "imported":
        return "the file marks no steps, and waits are those of steps"
    return "no step was traced, and only a trace sees where the host waits"


def _which(run: Run) -> str:
    """Which devices are meant, and what the tables of a longer, traced step say."""
    if not run.is_stretched:
        return _of_which(run)
    return f" ({_traced_busy(run)} of a traced step){_of_which(run)}"


def _of_which(run: Run) -> str:
    """Of which devices and kernels: idle time is the mean of the devices, and this is not; and of
    a device that is behind, little of its work lies in the steps that launched it."""
    devices, later = count_devices(run.timeline), run.after_steps_fraction
    said = [f"at least one of {format_count(devices, 'device')}"] * (devices > 1)
    said += [f"{format_percent(later)} of its kernels' time comes later"] * (later >= MUCH)
    return f" ({'; '.join(said)})" if said else ""


class Headlines:
    """The headlines of many runs, worked out once, to be compared pair by pair.

    Where runs of one label and the same settings are among them, these say what the step times of
    reruns differ by; see `StepTimes`.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.steps = StepTimes(runs)
        self._runs = runs
        self._all = [run.headline() for run in runs]
        self._told = [waits_of(run) for run in runs]
        self._waits = [_waits_ms(run) for run in runs]

    def differences(self, old: int, new: int) -> dict[str, Difference]:
        """From one run to another, by the field of `Headline`.

        Steps of other batch sizes are compared by the sample.
        """
        before, now = self._all[old], self._all[new]
        waits = before.sync_wait_ms, now.sync_wait_ms
        steps = self._waits[old], self._waits[new]
        waited = part_difference(waits, steps, now.step_ms)
        runs = self._runs[old], self._runs[new]
        traced = doubt_of_traced(*runs)
        return {
            "step_ms": self.steps.difference(old, new),
            **{n: replace(self._fraction(n, old, new), doubt=traced) for n in _FRACTIONS},
            "sync_wait_ms": replace(waited, doubt=doubt_of_waits(*runs)),
            "syncs_per_step": self._counts(old, new),
        }

    @cached_property
    def _parts(self) -> dict[str, list[list[float]]]:
        """Each fraction of each traced step of each run: long to find, for pairs only."""
        traced = [[headline(step) for step in each_step(run.timeline)] for run in self._runs]
        found = {
            name: [[field(step) for step in steps] for steps in traced]
            for name, field in _FRACTIONS.items()
        }
        for run, busy in zip(self._runs, found["device_busy_fraction"], strict=True):
            if busy and not math.isnan(part := run.busy_of_measured):
                mean = sum(busy) / len(busy)
                busy[:] = [min(each * part / mean, 1.0) for each in busy] if mean else busy
        return found

    @cached_property
    def _rare(self) -> list[dict[Place, tuple[int, int]]]:
        return [_rare_in_a_step(run) for run in self._runs]

    def _counts(self, old: int, new: int) -> Difference:
        """Of sync points a step: exact, but for a read in some steps only.

        A run may hold one such step more or less, by where in the program it began, and so all that
        a step reads at such a line. Reads that depend on the data vary as much as counts by chance.
        """
        a, b = (self._all[i].syncs_per_step for i in (old, new))
        steps = [self._told[i].steps for i in (old, new)]
        rare = [self._rare[i] for i in (old, new)]
        places = {*rare[0], *rare[1]}
        most = sum(max(found.get(place, (0, 0))[0] for found in rare) for place in places)
        half = most * sum(1 / n for n in steps) if all(steps) else 0.0
        chances = [sum(chance for _, chance in found.values()) for found in rare]
        varied = sum(count / n**2 for count, n in zip(chances, steps, strict=True) if count)
        half = max(half, SURE * math.sqrt(varied))
        return Difference(a, b, b - a - half, b - a + half, is_ratio=False, blur=0.0)

    def _fraction(self, name: str, old: int, new: int) -> Difference:
        """From the traced steps taken together; how sure, from each of them alone."""
        a, b = (_FRACTIONS[name](self._all[i]) for i in (old, new))
        parts = self._parts[name]
        half = shift_of([parts[old]], [parts[new]], rerun=_RERUN_POINTS).spread
        return Difference(a, b, b - a - half, b - a + half, is_ratio=False, blur=_BLUR_POINTS)


def headline_differences(old: Run, new: Run) -> dict[str, Difference]:
    """By the field of `Headline`. Steps of other batch sizes are compared by the sample."""
    return Headlines([old, new]).differences(0, 1)


def doubt_of_waits(*runs: Run) -> str:
    """Why a change of waits may be another program's, or the profiler's where it alone saw them."""
    is_traced = any(waits_of(run).is_traced for run in runs)
    return doubt_of_traced(*runs) if is_traced else doubt_of(*runs)


def syncs_of_steps(run: Run) -> list[Sequence[SyncPoint]]:
    """The sync points that the cards tell of, of each step alone.

    Nobody kept when an untraced step began. Where not all have equally many at a line, its reads
    are dealt out evenly, those of one step together: so it is known how they vary, and not when.
    """
    told = waits_of(run)
    if not told.steps:
        return []
    if told.is_traced:
        syncs = sorted(told.syncs, key=lambda sync: sync.at_ns)
        ends = run.timeline.intervals(kind="step")
        places = np.searchsorted([sync.at_ns for sync in syncs], ends).tolist()
        return [syncs[first:last] for first, last in places]
    rare = {*rare_reads(run)}
    found: list[list[SyncPoint]] = [[] for _ in range(told.steps)]
    for place, at in _by_place(told.syncs).items():
        is_rare = place[0] in rare or len(at) % told.steps
        bursts = _bursts(at, run.step_ms * 1e6) if is_rare else [[sync] for sync in at]
        for i, burst in enumerate(bursts):
            found[i * told.steps // len(bursts)] += burst
    return list(found)


def _by_place(syncs: Sequence[SyncPoint]) -> dict[Place, list[SyncPoint]]:
    at: dict[Place, list[SyncPoint]] = defaultdict(list)
    for sync in sorted(syncs, key=lambda sync: sync.at_ns):
        at[sync.place].append(sync)
    return at


def _bursts(syncs: Sequence[SyncPoint], step_ns: float) -> list[list[SyncPoint]]:
    """What belongs to one step: the reads at a place that follow each other within half a step."""
    found: list[list[SyncPoint]] = []
    for sync in syncs:
        if found and sync.at_ns - found[-1][-1].at_ns <= step_ns / 2:
            found[-1].append(sync)
        else:
            found.append([sync])
    return found


def _by_chance(bursts: Sequence[Sequence[SyncPoint]]) -> int:
    """How many reads may be more or fewer by chance; 0 where they come at every n-th step."""
    pauses = np.diff([burst[0].at_ns for burst in bursts])
    is_regular = len(pauses) > 1 and pauses.max() <= _REGULAR * pauses.min()
    return 0 if is_regular else sum(map(len, bursts))


def _rare_in_a_step(run: Run) -> dict[Place, tuple[int, int]]:
    """How often a step waits at most at each place at which not all steps wait equally often, and
    how many of its waits come by chance.

    Of an untraced step: those that follow each other within half a step, in as long a time as the
    longest one took. That one alone may be an outlier, in which other steps' reads would count.
    """
    told, found = waits_of(run), {}
    at = _by_place(told.syncs)
    if told.is_traced:
        steps = [Counter(sync.place for sync in syncs) for syncs in syncs_of_steps(run)]
        for place in at if steps else ():
            most = max(step[place] for step in steps)
            if any(step[place] < most for step in steps):
                found[place] = most, _by_chance(_bursts(at[place], run.traced_ms * 1e6))
        return found
    rare, longest = {*rare_reads(run)}, max(run.step_times_ns)
    for place, syncs in at.items():
        if place[0] in rare or len(syncs) % told.steps:
            begins = np.array([sync.at_ns for sync in syncs])
            until = np.searchsorted(begins, begins + longest, "right")
            bursts = _bursts(syncs, run.step_ms * 1e6)
            most = min(int((until - np.arange(len(begins))).max()), max(map(len, bursts)))
            found[place] = most, _by_chance(bursts)
    return found


def _waits_ms(run: Run) -> list[float]:
    """What each step waited, in all."""
    return [sum(sync.wait_ns for sync in syncs) / 1e6 for syncs in syncs_of_steps(run)]
