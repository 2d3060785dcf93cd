"""The one rule for "changed": how much two measurements differ, and how sure that is.

Pure: times in, a `Difference` out. Every comparison of the kit asks here, so that two views never
disagree. docs/measuring.md says the rule in words, `benchmarks/changed.py` checks it by reruns.

The difference is that of the medians; where the means do not bear it out (each fifth step takes ten
times as long), both are told, and neither is sure. The 95 % interval is made of two parts: how far
the median is off, from blocks of consecutive steps on both sides, and what a rerun of the same
settings differs by, which no number of steps in one run can tell: it is taken to be what blocks
differ by.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kit.runs.conditions import doubt
from kit.runs.difference import BLUR, Difference, ends_text
from kit.runs.labels import TIME, cell_of, has_other_samples, samples_of
from kit.runs.spread import (
    ENOUGH_FREEDOM,
    SURE,
    TURNS,
    LogTimes,
    Rerun,
    Side,
    interval,
    known,
    mean_margin,
    middle_of,
)
from kit.runs.steady import UNEQUAL, range_text, rare_reads_text, sorts_text, unequal_text
from kit.text import format_ms

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = [
    "RERUN",
    "Difference",
    "StepTimes",
    "by_turns",
    "doubt_of",
    "doubt_of_traced",
    "ends_text",
    "error_of",
    "median_run",
    "middle_ms",
    "part_difference",
    "ratio",
    "shift_of",
    "step_difference",
    "step_interval",
    "step_text",
    "steps_difference",
    "time_notes",
    "told_interval",
    "traced_text",
    "within_text",
]

RERUN = 0.02  # standard deviation of ln(median / median) between two runs of the same settings
RERUN_SHORT = 0.18  # the same of runs that are shorter than a phase of the machine's speed
SHORT_MS = 250.0  # such runs: all of their steps together
RERUN_PART = 0.10  # the same of a part of the step: a kernel, a wait, a cause of idle time
RERUN_OF_STEP = 0.005  # and of no part less than so much of the step
_APART = 0.2  # of a measured step: what a traced one may differ by before a reader is confused
_SURE_OF_PARTS = 2.58  # of a 99 % interval: of a hundred kernels five would be red, else

Times = Sequence[float] | NDArray[Any]


def ratio(old: LogTimes, new: LogTimes) -> Difference:
    """How many times as much `new` is as `old`."""
    low, high = interval(old.side, new.side)
    return Difference(old.middle, new.middle, math.exp(low), math.exp(high))


def shift_of(
    old: Sequence[Times], new: Sequence[Times], *, rerun: float, sure: float = SURE
) -> Difference:
    """How much more `new` is than `old`: for what may be 0, and for fractions of one.

    Args:
        rerun: what two reruns differ by (standard deviation).
        sure: standard deviations that the interval reaches to each side.
    """
    a, b = known(old), known(new)
    sides = [Side.of(runs, [Rerun(rerun)] * len(runs)) for runs in (a, b)]
    low, high = interval(sides[0], sides[1], sure)
    return Difference(middle_of(a), middle_of(b), low, high, is_ratio=False, blur=math.inf)


def part_difference(
    means: tuple[float, float], steps: tuple[Times, Times], step_ms: float
) -> Difference:
    """How much more a part of the step takes: a kernel, a wait, a cause of idle time.

    What is not there in a step takes 0. A part that is small against the step counts as changed
    only if that changes the step by more than one percent. The interval is one of 99 %.

    Args:
        means: of the old and the new run, milliseconds a step.
        steps: what it took in each step of the old and of the new run.
        step_ms: the whole step.
    """
    old, new = means
    least = RERUN_OF_STEP * step_ms if step_ms > 0 else 0.0
    rerun = math.hypot(RERUN_PART * max(abs(old), abs(new)), least)
    of_medians = shift_of([steps[0]], [steps[1]], rerun=rerun, sure=_SURE_OF_PARTS).spread
    half = max(of_medians, mean_margin(*steps, sure=_SURE_OF_PARTS))  # few slow steps move it
    ends = new - old - half, new - old + half
    return Difference(old, new, *ends, is_ratio=False, blur=max(BLUR * step_ms, 0.0))


def step_difference(old: Run, new: Run, *, by_sample: bool = False) -> Difference:
    """How many times as long a step of `new` takes, or a sample; in milliseconds."""
    return steps_difference([old], [new], by_sample=by_sample)


def steps_difference(
    old: Sequence[Run],
    new: Sequence[Run],
    *,
    by_sample: bool = False,
    beside: Sequence[Sequence[Run]] = (),
) -> Difference:
    """The same where each side was measured several times: by turns, repeats make it surer.

    Args:
        beside: the runs of others, all of one under the same settings. Where they took turns with
            both sides, what theirs differ by says what reruns do, until there are enough of each.
    """
    turns = _took_turns(old, new)
    are_many = turns and min(len(known(_each(runs, by_sample))) for runs in (old, new)) >= TURNS
    alike = [s for s in beside if turns and _took_turns(old, s) and _took_turns(new, s)]
    learned = _learned([[run.step_ms for run in runs] for runs in (old, new, *alike)])
    if learned is not None and (are_many or not turns or learned.freedom < ENOUGH_FREEDOM):
        learned = None
    learned = _divided(learned, len(old) + len(new))
    sides = [
        _log_times(runs, learned, by_sample=by_sample, took_turns=turns, are_many=are_many)
        for runs in (old, new)
    ]
    each = (_each(runs, by_sample) for runs in (old, new))
    found = _with_means(ratio(*sides), *each, are_many=are_many)
    if are_many:  # what others took is in the runs' own spread
        return found
    return replace(found, doubt=doubt_of(*old, *new))


def _took_turns(old: Sequence[Run], new: Sequence[Run]) -> bool:
    return by_turns(*([run.environment.get(TIME, "") for run in runs] for runs in (old, new)))


def by_turns(old: Sequence[str], new: Sequence[str]) -> bool:
    """Did the runs of two sides take turns? False where one of them does not say when it ended.

    They do where sides change as often as the smaller one has runs; one run against several has
    some before it and some after. Those that ended at the same time may have ended in any order.

    Args:
        old, new: when each run ended, as a text that sorts by it; "" where that is not known.
    """
    ended: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for side, times in enumerate((old, new)):
        for time in times:
            ended[time][side] += 1
    changes, last = -1, -1
    for _, left in sorted(ended.items()):
        while any(left):
            side = 1 - last if last >= 0 else 0
            side = side if left[side] else 1 - side
            changes, last = changes + (side != last), side
            left[side] -= 1
    fewer, more = sorted((len(old), len(new)))
    return "" not in ended and changes >= max(fewer, min(more, 2))


def median_run(runs: Sequence[Run]) -> Run:
    """The run with the median step time, to be shown; of an even number, the faster of the two."""
    return sorted(runs, key=lambda run: run.step_ms)[(len(runs) - 1) // 2]


def middle_ms(runs: Sequence[Run]) -> float:
    """The median step of several runs alike, as each `Difference` has it; nan if none has steps."""
    return middle_of(known([_times(run) for run in runs]))


def doubt_of(*runs: Run) -> str:
    """Why a change between these runs may be another program's; "" if it is not.

    Of several reasons the last run's: that is the new one, above whose numbers it stands, too.
    """
    return next((said for run in reversed(runs) if (said := doubt(run.conditions))), "")


def doubt_of_traced(*runs: Run) -> str:
    """The same of a change in a part of the traced steps: the profiler may have lost some, too."""
    return next((run.doubt for run in reversed(runs) if run.doubt), "")


class StepTimes:
    """The steps of many runs, worked out once, to be compared pair by pair.

    Where runs of one label and the same settings are among them, what these differ by takes the
    place of what reruns are assumed to differ by.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        learned = _divided(_learned_of_labels(runs), 2)
        self._sides = [_log_times([run], learned).side for run in runs]

    def difference(self, old: int, new: int) -> Difference:
        """As `step_difference` of these two runs; by the sample where their steps hold others."""
        a, b = self._runs[old], self._runs[new]
        low, high = interval(self._sides[old], self._sides[new])
        samples = (samples_of(a), samples_of(b)) if has_other_samples(a, b) else (1, 1)
        found = Difference(
            a.step_ms / samples[0],
            b.step_ms / samples[1],
            math.exp(low) * samples[0] / samples[1],
            math.exp(high) * samples[0] / samples[1],
        )
        each = ([_times(run) / n] for run, n in zip((a, b), samples, strict=True))
        return replace(_with_means(found, *each), doubt=doubt_of(a, b))

    def text(self, old: int, new: int, found: Difference) -> str:
        """`10 ms → 8 ms a step: 20% ± 4% faster`; "" if one of them has no steps.

        Args:
            found: what `difference` gives of them.
        """
        if found.kind == "unknown":
            return ""
        unit = "sample" if has_other_samples(self._runs[old], self._runs[new]) else "step"
        return f"{format_ms(found.old)} → {format_ms(found.new)} a {unit}: {found.text()}"


def step_interval(*runs: Run, of_rerun: bool = True) -> tuple[float, float]:
    """Where a rerun's median step is expected, in ms, or else how far off the median of these is.

    nan where fewer than two steps were measured.
    """
    return _log_times(runs).ends(of_rerun=of_rerun)


def told_interval(*runs: Run, of_rerun: bool = True) -> tuple[float, float]:
    """The same; nan also where it reaches further than the step is long: it says nothing.

    So it is of steps that are few, or very unequal.
    """
    low, high = step_interval(*runs, of_rerun=of_rerun)
    return (low, high) if _is_telling(low, high, runs) else (math.nan, math.nan)


def within_text(*runs: Run, before: str = "") -> str:
    """`10.4 ms to 14 ms`, where a rerun's step is to be expected, after the words `before`.

    Where that says nothing because the steps are few, or very unequal, what they took.
    """
    low, high = step_interval(*runs)
    if not _is_telling(low, high, runs):
        times = [time for run in runs for time in run.step_times_ns]
        if took := range_text(times):
            return took
    return before + ends_text(low, high)


def _is_telling(low_ms: float, high_ms: float, runs: Sequence[Run]) -> bool:
    """Does an interval reach no further than the step is long? False of nan."""
    return (high_ms - low_ms) / 2 <= middle_ms(runs)


def step_text(run: Run) -> str:
    """`12.1 ms (10.4 ms to 14 ms)`: the median step, and where a rerun's is to be expected."""
    why = doubt_of(run)
    return f"{format_ms(run.step_ms)} ({within_text(run)}{f', {why}' if why else ''})"


def time_notes(run: Run) -> tuple[str, ...]:
    """What to know of the step's time before it is believed, in sentences without a full stop."""
    is_told = not run.withheld
    seldom = sorts_text(run.timeline, run.sorts) or rare_reads_text(run, has_verdict=is_told)
    unequal = unequal_text(run, has_verdict=is_told)
    notes = run.measured.compiled_text, run.drift, unequal, traced_text(run), seldom
    return tuple(filter(None, notes))


def traced_text(run: Run) -> str:
    """A sentence where traced steps surely took another time than the measured ones; "" elsewhere.

    Also where a reader would see that parts do not fit the step; if disturbed, not how sure.
    """
    if not run.measures_untraced:
        return ""
    ends = run.timeline.intervals(kind="step")
    traced = (ends[:, 1] - ends[:, 0]) / 1e6
    found = ratio(_log_times([run]), LogTimes.of([traced], [_rerun(traced)]))
    mean = float(np.mean(traced)) if len(traced) else math.nan  # the parts of a step are of it
    is_mixed = abs(mean / found.new - 1) > UNEQUAL and not sorts_text(run.timeline, run.sorts)
    is_apart = (is_mixed or abs(found.amount) >= _APART) and not unequal_text(run)  # says both
    doubt, unlike = doubt_of(run), run.measured.unlike_text  # the latter with both times, too
    if unlike or not (is_apart or (found.is_changed and not doubt)):
        return "" if unlike == doubt else unlike
    measured = f"a measured one {format_ms(found.old)}"
    both = f"a traced step took {format_ms(found.new)}, {measured}"
    if is_mixed:
        ends_ms = f"{format_ms(traced.min())} to {format_ms(traced.max())}"
        both = f"the traced steps took {ends_ms}, {format_ms(mean)} in the mean, {measured}"
    elif not doubt:
        both += f"; {found.text('longer', 'shorter')}"
    busy = "" if math.isnan(run.busy_of_measured) else ", but not device busy,"
    return (
        f"{both}. Timeline, fractions and parts of a step{busy} are of traced steps; what "
        "advice could save is not"
    )


def error_of(predicted_ms: float, measured: Sequence[Run]) -> Difference:
    """From the measured step to what a model had said of it: how wrong that was.

    The spread is that of the measured median: the model has none of its own here.
    """
    low, high = step_interval(*measured, of_rerun=False)
    old, new = middle_ms(measured), predicted_ms
    return Difference(old, new, new / high, new / low, doubt=doubt_of(*measured))


def _log_times(
    runs: Sequence[Run],
    learned: Rerun | None = None,
    *,
    by_sample: bool = False,
    took_turns: bool = True,
    are_many: bool = False,
) -> LogTimes:
    reruns = [learned or _rerun(_times(run), are_many=are_many) for run in runs]
    return LogTimes.of(_each(runs, by_sample), reruns, took_turns=took_turns)


def _each(runs: Sequence[Run], by_sample: bool) -> list[NDArray[Any]]:
    """What each step of each run took, or a sample of it."""
    return [_times(r) / ((samples_of(r) or math.nan) if by_sample else 1) for r in runs]


def _with_means(found: Difference, *sides: Sequence[Times], are_many: bool = False) -> Difference:
    """With the means of the steps, where these are far off and do not show the same change.

    A tail, or a second sort of step, which no median sees.
    """
    if math.isnan(found.spread) or not found.old:
        return found
    runs = [known(side) for side in sides]
    old, new = (float(np.median([run.mean() for run in side])) for side in runs)
    factor = new / old
    is_near = abs(factor / (found.new / found.old) - 1) <= UNEQUAL
    if is_near or (found.is_changed and (factor > 1) == (found.amount > 0)):
        return found
    steps = [np.concatenate(side) for side in runs]
    again = SURE * max(_rerun(run, are_many=are_many).sd for side in runs for run in side)
    half = math.exp(math.hypot(mean_margin(*(s / s.mean() for s in steps)), again))
    means = Difference(old, new, factor / half, factor * half)
    if found.is_changed and means.low <= found.new / found.old <= means.high:
        return found  # the means are too erratic to deny it
    return replace(found, means=means)


def _rerun(times_ms: NDArray[Any], *, are_many: bool = False) -> Rerun:
    """What a run of these steps differs by from its next rerun.

    Args:
        are_many: enough runs took turns to show what reruns differ by, however short each is.
    """
    is_short = float(np.nansum(times_ms)) < SHORT_MS and not are_many
    return Rerun(RERUN_SHORT if is_short else RERUN, wanders=True)


def _divided(learned: Rerun | None, count: int) -> Rerun | None:
    """One estimate for so many runs of one comparison: its freedom counts once, in all of them."""
    return learned and replace(learned, freedom=learned.freedom / count)


def _learned_of_labels(runs: Sequence[Run]) -> Rerun | None:
    """What reruns of one label and the same settings differ by; None where there are too few.

    Runs without a label may be of before and after a change, so they are no reruns.
    """
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for run in runs:
        if run.label:
            groups[run.label, *cell_of(run)].append(run.step_ms)
    return _learned([*groups.values()])


def _learned(groups: Sequence[Sequence[float]]) -> Rerun | None:
    """What the reruns of each group differ by, in milliseconds; None where there are too few."""
    logs = [np.log([time for time in group if time > 0]) for group in groups]
    freedom = sum(len(group) - 1 for group in logs if len(group))
    if freedom < TURNS - 1:
        return None
    squares = sum(float(np.var(group)) * len(group) for group in logs if len(group))
    return Rerun(max(math.sqrt(2 * squares / freedom), RERUN), float(freedom))


def _times(run: Run) -> NDArray[Any]:
    """Milliseconds of each measured step."""
    return np.asarray(run.step_times_ns, float) / 1e6
