"""The one rule for "changed": how much two measurements differ, and how sure that is.

Pure: times in, a `Difference` out. Every comparison of the kit asks here, so that two views never
disagree. docs/measuring.md says the rule in words, `benchmarks/changed.py` checks it by reruns.

The difference is that of the medians. Its 95 % interval is made of three parts: the spread of the
steps on both sides, how much neighbouring steps resemble each other (then n steps say less than n),
and what a rerun of the same settings differs by, which no number of steps in one run can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kit.runs.conditions import doubt
from kit.text import format_ms, format_percent

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = [
    "RERUN",
    "Difference",
    "StepTimes",
    "doubt_of",
    "error_of",
    "part_difference",
    "ratio_of",
    "shift_of",
    "step_difference",
    "step_interval",
    "steps_difference",
]

RERUN = 0.02  # standard deviation of ln(median / median) between two runs of the same settings
RERUN_PART = 0.10  # the same of a part of the step: a kernel, a wait, a cause of idle time
RERUN_OF_STEP = 0.005  # and of no part less than so much of the step
TURNS = 3  # runs of each side, by turns, from which on their own spread has what others took
BLUR = 0.10  # an interval that reaches further to one side could hide a change worth knowing
_SURE = 1.96  # standard deviations of a 95 % interval
_SURE_OF_PARTS = 2.58  # of a 99 % interval: of a hundred kernels five would be red, else
_WORST_ECHO = 0.8  # correlation of neighbouring steps; beyond, ten steps would count as none
_NORMAL = NormalDist()

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

    def text(
        self,
        more: str = "slower",
        less: str = "faster",
        form: Callable[[float], str] = format_percent,
    ) -> str:
        """`12% ± 4% slower`, or why nothing can be said, in words.

        Args:
            form: shows an amount without its sign.
        """
        kind = self.kind
        if kind == "unknown":
            return "not measured in both"
        word = more if self.amount > 0 else less
        amount = form(abs(self.amount)) if math.isfinite(self.amount) else "from 0"
        if math.isnan(self.spread):
            return f"maybe {amount} {word}: too few steps to know the spread"
        spread = f"± {form(self.spread)}"
        if self.is_ratio and self.spread > 1:
            spread = "± more than all of it"
        if kind == "same":
            sign = "+" if self.amount >= 0 else "−"
            return f"no change beyond the spread ({sign}{amount} {spread})"
        why = f": {self.doubt}" if self.doubt else ""
        return f"{'maybe ' * (kind == 'unclear')}{amount} {spread} {word}{why}"


def ratio_of(old: Sequence[Times], new: Sequence[Times], *, rerun: float = RERUN) -> Difference:
    """How many times as much `new` is as `old`; each side is a sequence of runs, each of times.

    Args:
        rerun: what the logarithm of the ratio of two reruns varies by (standard deviation).
    """
    a, b = _positive(old), _positive(new)
    sides = [_Side.of([np.log(run) for run in runs], rerun) for runs in (a, b)]
    low, high = _interval(sides[0], sides[1])
    return Difference(_middle(a), _middle(b), math.exp(low), math.exp(high))


def shift_of(
    old: Sequence[Times],
    new: Sequence[Times],
    *,
    rerun: float,
    blur: float = math.inf,
    sure: float = _SURE,
) -> Difference:
    """How much more `new` is than `old`: for what may be 0, and for fractions of one.

    Args:
        rerun: what two reruns differ by (standard deviation).
        blur: an interval that reaches further to one side is called unclear.
        sure: standard deviations that the interval reaches to each side.
    """
    a, b = _known(old), _known(new)
    low, high = _interval(_Side.of(a, rerun), _Side.of(b, rerun), sure)
    return Difference(_middle(a), _middle(b), low, high, is_ratio=False, blur=blur)


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
    half = shift_of([steps[0]], [steps[1]], rerun=rerun, sure=_SURE_OF_PARTS).spread
    middle = new - old
    blur = max(BLUR * step_ms, 0.0)
    return Difference(old, new, middle - half, middle + half, is_ratio=False, blur=blur)


def step_difference(old: Run, new: Run, *, by_sample: bool = False) -> Difference:
    """How many times as long a step of `new` takes, or a sample; in milliseconds."""
    return steps_difference([old], [new], by_sample=by_sample)


def steps_difference(
    old: Sequence[Run], new: Sequence[Run], *, by_sample: bool = False
) -> Difference:
    """The same where each side was measured several times, best by turns: repeats make it surer."""
    found = ratio_of(*([_times(run, by_sample) for run in runs] for runs in (old, new)))
    has_turns = min(len(old), len(new)) >= TURNS  # then what others took is in the runs' own spread
    return found if has_turns else replace(found, doubt=doubt_of(*old, *new))


def doubt_of(*runs: Run) -> str:
    """Why a change between these runs may be another program's; "" if it is not."""
    return next((said for run in runs if (said := doubt(run.conditions))), "")


class StepTimes:
    """The steps of many runs, worked out once, to be compared pair by pair."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        known = [_positive([_times(run, False)]) for run in runs]
        self._sides = [_Side.of([np.log(x) for x in times], RERUN) for times in known]

    def difference(self, old: int, new: int) -> Difference:
        """As `step_difference` of these two runs; by the sample where their steps hold others."""
        a, b = self._runs[old], self._runs[new]
        low, high = _interval(self._sides[old], self._sides[new])
        fewer = _samples(a) / _samples(b)
        return Difference(
            a.step_ms / _samples(a) if fewer != 1 else a.step_ms,
            b.step_ms / _samples(b) if fewer != 1 else b.step_ms,
            math.exp(low) * fewer,
            math.exp(high) * fewer,
            doubt=doubt_of(a, b),
        )

    def text(self, old: int, new: int) -> str:
        """`10 ms → 8 ms a step: 20% ± 4% faster`; "" if one of them has no steps."""
        found = self.difference(old, new)
        if found.kind == "unknown":
            return ""
        unit = "step" if _samples(self._runs[old]) == _samples(self._runs[new]) else "sample"
        return f"{format_ms(found.old)} → {format_ms(found.new)} a {unit}: {found.text()}"


def step_interval(*runs: Run) -> tuple[float, float]:
    """In which the median step of a rerun is to be expected, of runs alike; milliseconds.

    nan where fewer than two steps were measured.
    """
    side = _Side.of([np.log(times) for times in _positive([_times(r, False) for r in runs])], RERUN)
    half = side.error * _student(side.freedom, _SURE)
    return math.exp(side.middle - half), math.exp(side.middle + half)


def error_of(predicted_ms: float, measured: Sequence[Run]) -> Difference:
    """From the measured step to what a model had said of it: how wrong that was.

    The spread is that of the measured runs, a rerun's included: the model has none of its own here.
    """
    times = [_times(run, False) for run in measured]
    middle = _middle(_known(times))
    low, high = step_interval(*measured)
    return Difference(
        middle, predicted_ms, predicted_ms / high, predicted_ms / low, doubt=doubt_of(*measured)
    )


def _times(run: Run, by_sample: bool) -> NDArray[Any]:
    return np.asarray(run.step_times_ns, float) / 1e6 / (_samples(run) if by_sample else 1)


def _samples(run: Run) -> int:
    return run.settings.batch_size * run.settings.accumulate


def _known(runs: Sequence[Times]) -> list[NDArray[Any]]:
    arrays = [np.asarray(run, float) for run in runs]
    return [kept for array in arrays if len(kept := array[np.isfinite(array)])]


def _positive(runs: Sequence[Times]) -> list[NDArray[Any]]:
    return [kept for array in _known(runs) if len(kept := array[array > 0])]


def _middle(runs: Sequence[NDArray[Any]]) -> float:
    """The median of the runs' medians."""
    return float(np.median([np.median(run) for run in runs])) if runs else math.nan


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two sides: its median, the median's standard error, and on how much that rests."""

    middle: float
    error: float
    freedom: float  # degrees of freedom; inf where the error is known and not estimated

    @classmethod
    def of(cls, runs: Sequence[NDArray[Any]], rerun: float) -> _Side:
        if not runs:
            return cls(math.nan, math.nan, 1.0)
        count = len(runs)
        within = float(np.mean([_median_error(run) ** 2 for run in runs])) / count
        known = rerun**2 / 2 / count  # a difference has two sides
        steps = sum(map(len, runs)) - count
        error, freedom = within + known, _freedom(within, within + known, steps)
        medians = [float(np.median(run)) for run in runs]
        if count > 2 and (seen := float(np.var(medians, ddof=1)) / count) > error:
            error, freedom = seen, count - 1.0
        return cls(_middle(runs), math.sqrt(error), freedom)


def _freedom(estimated: float, whole: float, steps: int) -> float:
    """Degrees of freedom of a variance of which only a part is an estimate.

    Source: Satterthwaite, https://doi.org/10.2307/3002019.
    """
    return math.inf if not estimated else max(steps, 1) * (whole / estimated) ** 2


def _interval(old: _Side, new: _Side, sure: float = _SURE) -> tuple[float, float]:
    """The interval of the difference, in the scale of the sides."""
    whole = old.error**2 + new.error**2
    if not whole:
        return (new.middle - old.middle,) * 2
    parts = sum(side.error**4 / side.freedom for side in (old, new))
    freedom = whole**2 / parts if parts else math.inf
    half = _student(freedom, sure) * math.sqrt(whole)
    middle = new.middle - old.middle
    return middle - half, middle + half


def _student(freedom: float, z: float) -> float:
    """Student's t where the normal distribution has `z`, by the expansion of Cornish and Fisher.

    Source: Abramowitz and Stegun, 26.7.5; for 95 % it is 3 % off at 2 degrees of freedom.
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def _median_error(values: NDArray[Any]) -> float:
    """Standard error of the median; nan of a single value.

    The larger of two estimates: from the middle half, which a long tail does not touch, and from
    the few values next to the median, which see that the steps come in two sorts. It grows where
    neighbours resemble each other.

    Source: McGill, Tukey, Larsen, https://doi.org/10.2307/2683468, and Price, Bonett,
    https://doi.org/10.1080/00949650212140.
    """
    n = len(values)
    if n < 2:
        return math.nan
    low, high = np.percentile(values, [25, 75], method="median_unbiased")
    by_half = 1.2533 * float(high - low) / 1.349 / math.sqrt(n)
    outer = max(1, round((n + 1) / 2 - math.sqrt(n) / 2))
    chance = sum(math.comb(n, i) for i in range(outer)) * 0.5 ** (n - 1)
    ordered = np.sort(values)
    reach = float(ordered[n - outer] - ordered[outer - 1])
    by_neighbours = reach / (2 * _NORMAL.inv_cdf(1 - chance / 2)) if chance < 1 else 0.0
    echo = _echo(values)
    return max(by_half, by_neighbours) * math.sqrt((1 + echo) / (1 - echo))


def _echo(values: NDArray[Any]) -> float:
    """How much a step's rank resembles the one before, 0 to `_WORST_ECHO`; 0 of a few steps."""
    if len(values) < 4:
        return 0.0
    ranks = np.argsort(np.argsort(values)).astype(float)
    ranks -= ranks.mean()
    alike = float((ranks[1:] * ranks[:-1]).sum() / (ranks * ranks).sum())
    return min(max(alike, 0.0), _WORST_ECHO)
