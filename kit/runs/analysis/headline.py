"""How the headline of one run differs from another's, each number by the rule for "changed".

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
from kit.runs.labels import samples_of
from kit.runs.run import Run
from kit.runs.steady import rare_reads
from kit.text import UNKNOWN, format_count, format_ms, format_number, format_percent
from kit.trace import Headline, SyncPoint, count_devices, each_step, headline
from kit.trace.devices import TORCH_CPU
from kit.trace.metrics import waits_of

__all__ = [
    "HEADLINE_WORDS",
    "RERUN_POINTS",
    "Headlines",
    "busy_of",
    "doubt_of_waits",
    "has_other_samples",
    "headline_differences",
    "headline_text",
    "hidden_of",
    "syncs_of_steps",
]

HEADLINE_WORDS = {  # what each field of `Headline` is called wherever it is shown
    "step_ms": "step time",
    "device_busy_fraction": "device busy",
    "overlap_fraction": "recording hidden",
    "sync_wait_ms": "sync wait",
    "syncs_per_step": "sync points",
}
RERUN_POINTS = 0.03  # what a fraction of one differs by between reruns (standard deviation)
_BLUR_POINTS = 0.10
_Place = tuple[str, str, str]  # line, library line and cause
_FRACTIONS: dict[str, Callable[[Headline], float]] = {
    "device_busy_fraction": lambda h: h.device_busy_fraction,
    "overlap_fraction": lambda h: h.overlap_fraction,
}


def headline_text(run: Run) -> str:
    """`step 3.35 ms (95% of reruns: 3.2 ms to 3.5 ms), ...`: the cards as one line.

    What is not known is left out.
    """
    h = run.headline()
    points = format_number(h.syncs_per_step)
    numbers = [
        f"step {format_ms(h.step_ms)}{_within(run)}",
        f"device busy {format_percent(h.device_busy_fraction)}{_which(run)}",
        f"recording hidden {format_percent(h.overlap_fraction)}",
        f"sync wait {format_ms(h.sync_wait_ms)}{_of_mean(h)}{waits_of(run).at_once}",
        f"{points} sync point{'s' * (points != '1')} a step",
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
        return f"of a measured step, {_traced_busy(run)} of a traced one{_of_several(run)}"
    which = "traced" if math.isnan(run.busy_of_measured) else "measured"
    whole = f"of the {which} step" if run.timeline.steps else "of the trace"
    return f"{whole}{_of_several(run)}"


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


def _which(run: Run) -> str:
    """Which devices are meant, and what the tables of a longer, traced step say."""
    if not run.is_stretched:
        return _of_several(run)
    return f" ({_traced_busy(run)} of a traced step){_of_several(run)}"


def _of_several(run: Run) -> str:
    """Idle time is the mean of the devices, and this is not."""
    devices = count_devices(run.timeline)
    return f" (at least one of {format_count(devices, 'device')})" if devices > 1 else ""


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
    def _rare(self) -> list[dict[_Place, int]]:
        return [_rare_in_a_step(run) for run in self._runs]

    def _counts(self, old: int, new: int) -> Difference:
        """Of sync points a step: exact, but for a read in some steps only.

        A run may hold one such step more or less, by where in the program it began, and so all that
        a step reads at such a line.
        """
        a, b = (self._all[i].syncs_per_step for i in (old, new))
        steps = [self._told[i].steps for i in (old, new)]
        rare = [self._rare[i] for i in (old, new)]
        most = sum(max(found.get(place, 0) for found in rare) for place in {*rare[0], *rare[1]})
        half = most * sum(1 / n for n in steps) if all(steps) else 0.0
        return Difference(a, b, b - a - half, b - a + half, is_ratio=False, blur=0.0)

    def _fraction(self, name: str, old: int, new: int) -> Difference:
        """From the traced steps taken together; how sure, from each of them alone."""
        a, b = (_FRACTIONS[name](self._all[i]) for i in (old, new))
        parts = self._parts[name]
        half = shift_of([parts[old]], [parts[new]], rerun=RERUN_POINTS).spread
        return Difference(a, b, b - a - half, b - a + half, is_ratio=False, blur=_BLUR_POINTS)


def headline_differences(old: Run, new: Run) -> dict[str, Difference]:
    """By the field of `Headline`. Steps of other batch sizes are compared by the sample."""
    return Headlines([old, new]).differences(0, 1)


def doubt_of_waits(*runs: Run) -> str:
    """Why a change of waits may be another program's, or the profiler's where it alone saw them."""
    is_traced = any(waits_of(run).is_traced for run in runs)
    return doubt_of_traced(*runs) if is_traced else doubt_of(*runs)


def has_other_samples(old: Run, new: Run) -> bool:
    """Do their steps hold different numbers of samples, so that step times do not compare?

    Of a trace of another program nobody knows: then steps are compared.
    """
    a, b = samples_of(old), samples_of(new)
    return a != b and 0 not in (a, b)


def syncs_of_steps(run: Run) -> list[Sequence[SyncPoint]]:
    """The sync points that the cards tell of, of each step alone.

    Nobody kept when an untraced step began: there is nothing if not all have equally many.
    """
    told = waits_of(run)
    if told.steps and told.is_traced:
        syncs = sorted(told.syncs, key=lambda sync: sync.at_ns)
        ends = run.timeline.intervals(kind="step")
        places = np.searchsorted([sync.at_ns for sync in syncs], ends).tolist()
        return [syncs[first:last] for first, last in places]
    if not told.steps or {*rare_reads(run)} & {sync.site for sync in told.syncs}:
        return []
    each = len(told.syncs) // told.steps
    return [told.syncs[i * each : (i + 1) * each] for i in range(told.steps)]


def _rare_in_a_step(run: Run) -> dict[_Place, int]:
    """How often a step waits at most at each place at which not all steps wait equally often.

    Of an untraced step: those that follow each other within half a step, in as long a time as the
    longest one took. That one alone may be an outlier, in which other steps' reads would count.
    """
    told = waits_of(run)
    at: dict[_Place, list[int]] = defaultdict(list)
    for sync in told.syncs:
        at[_place(sync)].append(sync.at_ns)
    if told.is_traced:
        steps = [Counter(map(_place, syncs)) for syncs in syncs_of_steps(run)]
        most = {place: max(step[place] for step in steps) for place in at if steps}
        return {place: n for place, n in most.items() if any(step[place] < n for step in steps)}
    rare, longest = {*rare_reads(run)}, max(run.step_times_ns)
    found = {}
    for place, times in at.items():
        if place[0] in rare or len(times) % told.steps:
            begins = np.sort(times)
            until = np.searchsorted(begins, begins + longest, "right")
            apart = np.flatnonzero(np.diff(begins) > run.step_ms * 1e6 / 2)
            together = np.diff([0, *(apart + 1), len(begins)])
            found[place] = int(min((until - np.arange(len(begins))).max(), together.max()))
    return found


def _place(sync: SyncPoint) -> _Place:
    return sync.site, sync.via, sync.cause


def _waits_ms(run: Run) -> list[float]:
    """What each step waited, in all."""
    return [sum(sync.wait_ns for sync in syncs) / 1e6 for syncs in syncs_of_steps(run)]
