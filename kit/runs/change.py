"""The one rule for "changed": how much two measurements differ, and how sure that is.

Pure: times in, a `Difference` out. Every comparison of the kit asks here, so that two views never
disagree. docs/measuring.md says the rule in words, `benchmarks/changed.py` checks it by reruns.

The difference is that of the medians. Its 95 % interval is made of two parts: how far the median is
off, from blocks of consecutive steps on both sides, and what a rerun of the same settings differs
by, which no number of steps in one run can tell: it is taken to be what blocks differ by.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kit.runs.conditions import doubt
from kit.runs.labels import TIME, cell_of, samples_of
from kit.runs.spread import (
    SURE,
    TURNS,
    LogTimes,
    Rerun,
    Side,
    by_turns,
    interval,
    known,
    mean_margin,
    middle_of,
)
from kit.runs.steady import range_text, rare_reads_text, sorts_text, unequal_text
from kit.text import format_ms, format_number, format_percent, is_nothing

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = [
    "RERUN",
    "Difference",
    "StepTimes",
    "doubt_of",
    "doubt_of_traced",
    "ends_text",
    "error_of",
    "median_run",
    "middle_ms",
    "part_difference",
    "ratio_of",
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
BLUR = 0.10  # an interval that reaches further to one side could hide a change worth knowing
_WIDEST = 1e4  # times the lower end: an interval whose upper end lies beyond says nothing
_MAY_BE_ANYTHING = "may be off a hundredfold"  # said of such an interval
_APART = 0.2  # of a measured step: what a traced one may differ by before a reader is confused
_SURE_OF_PARTS = 2.58  # of a 99 % interval: of a hundred kernels five would be red, else

Times = Sequence[float] | NDArray[Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """From `old` to `new`, both medians, and the 95 % interval of how much that is.

    Units:
        `low` and `high` are factors (1.1: ten percent more) if `is_ratio`, else differences in the
        unit of `old`; nan where nothing says how far off the medians may be.
    """

    old: float
    new: float
    low: float
    high: float
    is_ratio: bool = True
    blur: float = BLUR  # as RERUN a fraction if `is_ratio`, else in the unit of `old`
    doubt: str = ""  # why the spread does not say all: another program took the cores

    @property
    def kind(self) -> str:
        """One of "more", "less", "same", "unclear" and "unknown".

        "same": no change beyond the spread, and the spread would have shown one of `blur`.
        "unclear": the spread is too wide to say so, or there is a doubt. "unknown": a side was not
        measured.
        """
        if math.isnan(self.old) or math.isnan(self.new):
            return "unknown"
        if self.doubt or math.isnan(self.low) or math.isnan(self.high):
            return "unclear"
        none = 1.0 if self.is_ratio else 0.0
        if self.low > none:
            return "more"
        if self.high < none:
            return "less"
        return "unclear" if self.spread > self.blur else "same"

    @property
    def is_changed(self) -> bool:
        """Does the interval leave out "no change"?"""
        return self.kind in ("more", "less")

    @property
    def amount(self) -> float:
        """`new / old - 1`, or `new - old` where it is no ratio; inf from 0."""
        if not self.is_ratio:
            return self.new - self.old
        return self.new / self.old - 1 if self.old else math.inf if self.new else 0.0

    @property
    def spread(self) -> float:
        """Half of the interval, in the unit of `amount`."""
        return (self.high - self.low) / 2

    def margin(self, form: Callable[[float], str] = format_percent) -> str:
        """`± 4%`; of a ratio that may be off by more than all of it, its ends, `0.7 to 3 times`.

        So where `33% ± 35%` would deny a change, of 1.02 to 1.72 times: a ratio's interval reaches
        further upwards. Ends so far apart that they would say nothing are not told.
        """
        if self.is_ratio and self.low < 1 < self.high and self.high > _WIDEST * self.low:
            return f"({_MAY_BE_ANYTHING})"
        is_sure, seems_sure = self.low > 1 or self.high < 1, self.spread < abs(self.amount)
        if self.is_ratio and (self.spread > 1 or (is_sure != seems_sure and self.kind != "same")):
            figures = 2 if self.spread > 1 else 3
            low, high = (format_number(end, figures=figures) for end in (self.low, self.high))
            return f"({low} to {high} times)"
        said = form(self.spread)
        if is_nothing(said, form) and self.spread > 0:  # no measurement is surer than any number
            said = format_percent(self.spread, figures=1) if self.is_ratio else said
        return f"± {said}"

    def text(
        self,
        more: str = "slower",
        less: str = "faster",
        form: Callable[[float], str] = format_percent,
        *,
        says_doubt: bool = True,
    ) -> str:
        """`12% ± 4% slower`, or why nothing can be said, in words.

        Args:
            form: shows an amount without its sign.
            says_doubt: false where what stands above has said it for all.
        """
        kind = self.kind
        if kind == "unknown":
            return "not measured in both"
        word = more if self.amount > 0 else less
        amount = form(abs(self.amount)) if math.isfinite(self.amount) else "from 0"
        is_none = is_nothing(amount, form)
        if math.isnan(self.spread):
            seen = "no change seen" if is_none else f"maybe {amount} {word}"
            return f"{seen}: too few steps to know the spread"
        spread = self.margin(form)
        if kind == "same":
            sign = "" if is_none else "+" if self.amount > 0 else "−"
            return f"no change beyond the spread ({sign}{amount} {spread})"
        why = f": {self.doubt}" if self.doubt and says_doubt else ""
        if kind == "unclear" and is_none:
            return f"no change seen ({spread.strip('()')}){why}"
        told = f"{word} {spread}" if spread[0] == "(" else f"{spread} {word}"
        return f"{'maybe ' * (kind == 'unclear')}{amount} {told}{why}"

    def times_text(self) -> str:
        """Of a ratio, how many times as much the new is: `1.2x ± 4%`, `maybe 1.05x ± 8%`."""
        if math.isnan(self.old) or math.isnan(self.new) or not self.old:
            return "not measured in both"
        is_sure = not math.isnan(self.spread) and self.kind != "unclear"
        word = "no change, " if self.kind == "same" else "" if is_sure else "maybe "
        margin = "" if math.isnan(self.spread) else f" {self.margin()}"
        return f"{word}{format_number(self.new / self.old)}x{margin}"


def ratio_of(old: Sequence[Times], new: Sequence[Times]) -> Difference:
    """How many times as much `new` is as `old`; each side is a sequence of runs, each of times."""
    sides = [LogTimes.of(runs, [Rerun(RERUN, wanders=True)] * len(runs)) for runs in (old, new)]
    return _ratio(*sides)


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
    old: Sequence[Run], new: Sequence[Run], *, by_sample: bool = False
) -> Difference:
    """The same where each side was measured several times: by turns, repeats make it surer."""
    turns = by_turns(*([run.environment.get(TIME, "") for run in runs] for runs in (old, new)))
    sides = [_log_times(runs, by_sample=by_sample, took_turns=turns) for runs in (old, new)]
    if turns and min(len(old), len(new)) >= TURNS:  # what others took is in the runs' own spread
        return _ratio(*sides)
    return replace(_ratio(*sides), doubt=doubt_of(*old, *new))


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
        learned = _learned(runs)
        self._sides = [_log_times([run], learned).side for run in runs]

    def difference(self, old: int, new: int) -> Difference:
        """As `step_difference` of these two runs; by the sample where their steps hold others."""
        a, b = self._runs[old], self._runs[new]
        low, high = interval(self._sides[old], self._sides[new])
        samples = _samples(a, b)
        return Difference(
            a.step_ms / samples[0],
            b.step_ms / samples[1],
            math.exp(low) * samples[0] / samples[1],
            math.exp(high) * samples[0] / samples[1],
            doubt=doubt_of(a, b),
        )

    def text(self, old: int, new: int) -> str:
        """`10 ms → 8 ms a step: 20% ± 4% faster`; "" if one of them has no steps."""
        found = self.difference(old, new)
        if found.kind == "unknown":
            return ""
        unit = "step" if _samples(self._runs[old], self._runs[new]) == (1, 1) else "sample"
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

    Where that says nothing because the steps are very unequal, what they took.
    """
    low, high = step_interval(*runs)
    if not _is_telling(low, high, runs):
        times = [time for run in runs for time in run.step_times_ns]
        if took := range_text(times):
            return f"steps very unequal: {took}"
    return before + ends_text(low, high)


def _is_telling(low_ms: float, high_ms: float, runs: Sequence[Run]) -> bool:
    """Does an interval reach no further than the step is long? False of nan."""
    return (high_ms - low_ms) / 2 <= middle_ms(runs)


def step_text(run: Run) -> str:
    """`12.1 ms (10.4 ms to 14 ms)`: the median step, and where a rerun's is to be expected."""
    why = doubt_of(run)
    return f"{format_ms(run.step_ms)} ({within_text(run)}{f', {why}' if why else ''})"


def ends_text(low_ms: float, high_ms: float) -> str:
    """`10.4 ms to 14 ms`: an interval; "± unknown" of nan."""
    if math.isnan(low_ms) or math.isnan(high_ms):
        return "± unknown"
    if high_ms > _WIDEST * low_ms:
        return _MAY_BE_ANYTHING
    return f"{format_ms(low_ms)} to {format_ms(high_ms)}"


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
    found = _ratio(_log_times([run]), LogTimes.of([traced], [_rerun(traced)]))
    is_apart = abs(found.amount) >= _APART and not unequal_text(run)  # which says both, too
    doubt, unlike = doubt_of(run), run.measured.unlike_text  # the latter with both times, too
    if unlike or not (is_apart or (found.is_changed and not doubt)):
        return "" if unlike == doubt else unlike
    how_sure = "" if doubt else f"; {found.text('longer', 'shorter')}"
    busy = "" if math.isnan(run.busy_of_measured) else ", but not device busy,"
    return (
        f"a traced step took {format_ms(found.new)}, a measured one {format_ms(found.old)}"
        f"{how_sure}. Timeline, fractions and parts of a step{busy} are of traced steps; what "
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
) -> LogTimes:
    times = [_times(run) for run in runs]
    reruns = [learned or _rerun(t) for t in times]
    parts = [(samples_of(run) or math.nan) if by_sample else 1 for run in runs]
    each = [t / n for t, n in zip(times, parts, strict=True)]
    return LogTimes.of(each, reruns, took_turns=took_turns)


def _ratio(old: LogTimes, new: LogTimes) -> Difference:
    low, high = interval(old.side, new.side)
    return Difference(old.middle, new.middle, math.exp(low), math.exp(high))


def _rerun(times_ms: NDArray[Any]) -> Rerun:
    """What a run of these steps differs by from its next rerun."""
    is_short = float(np.nansum(times_ms)) < SHORT_MS
    return Rerun(RERUN_SHORT if is_short else RERUN, wanders=True)


def _learned(runs: Sequence[Run]) -> Rerun | None:
    """What reruns of one label and the same settings differ by; None where there are too few.

    Runs without a label may be of before and after a change, so they are no reruns.
    """
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for run in runs:
        if run.label and run.step_ms > 0:
            groups[run.label, *cell_of(run)].append(math.log(run.step_ms))
    freedom = sum(len(group) - 1 for group in groups.values())
    if freedom < TURNS - 1:
        return None
    squares = sum(float(np.var(group)) * len(group) for group in groups.values())
    return Rerun(max(math.sqrt(2 * squares / freedom), RERUN), float(freedom))


def _times(run: Run) -> NDArray[Any]:
    """Milliseconds of each measured step."""
    return np.asarray(run.step_times_ns, float) / 1e6


def _samples(old: Run, new: Run) -> tuple[int, int]:
    """By what their step times are divided: 1 where the steps hold as many samples, or unknown."""
    a, b = samples_of(old), samples_of(new)
    return (1, 1) if a == b or 0 in (a, b) else (a, b)
