"""How far off a median may be: the statistics behind the rule for "changed".

Pure: arrays of numbers in, a `Side` out; two of these make a `Difference`.
docs/measuring.md says in words what is assumed.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ENOUGH_FREEDOM", "SURE", "TURNS", "LogTimes", "Rerun", "Side", "interval", "known",
    "mean_margin", "middle_of",
]  # fmt: skip

SURE = 1.96  # standard deviations of a 95 % interval
TURNS = 3  # runs alike from which on their own spread alone says what reruns differ by
BLOCKS = 10  # of consecutive steps, whose medians are compared: 100 ms each in a second
_APART = 1.1  # times as much as two blocks of a run differ two runs, which lie further apart
_OF_HALF = 0.37  # the middle half of some values says as much of their spread as so many of them
_MANY = 1000  # steps: exact sums of binomials take long, and the normal is 0.1 % off
_WORST_ECHO = 0.8  # correlation of neighbouring steps; beyond, ten steps would count as none
ENOUGH_FREEDOM = 4.0  # of a spread that is learned of several settings: Student's t is 2.8 there
_ODD = 3.0  # times the variance that is learned of all sides: this one is more erratic
_NORMAL = NormalDist()
_KEPT = 1024  # parts of runs whose numbers are known again: three or four of each run in a report

Values = NDArray[Any]
Found = TypeVar("Found")


def _once(find: Callable[[Values], Found]) -> Callable[[Values], Found]:
    """What depends on a run's numbers alone, found once: a report compares each run with each.

    It is kept by a digest of them: those of a long run take megabytes.
    """
    known: dict[bytes, Found] = {}

    def found(values: Values) -> Found:
        numbers = np.ascontiguousarray(values, float)
        key = blake2b(numbers.data).digest()
        result = known.get(key)
        if result is None:
            if len(known) >= _KEPT:
                known.clear()
            result = known[key] = find(numbers)
        return result

    return found


@dataclass(frozen=True, slots=True)
class Rerun:
    """What the difference of two reruns varies by: its standard deviation.

    Attributes:
        freedom: degrees of freedom, if it was learned from reruns; inf of what is assumed.
        wanders: the speed is taken to differ between two runs as much as between the blocks of one.
    """

    sd: float
    freedom: float = math.inf
    wanders: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """One of two sides: its median, the median's standard error, and on how much that rests."""

    middle: float
    error: float
    freedom: float  # degrees of freedom; inf where the error is known and not estimated
    one_run: float  # standard deviation of a single run's median

    @classmethod
    def of(
        cls, runs: Sequence[Values], reruns: Sequence[Rerun], *, took_turns: bool = True
    ) -> Side:
        """Of several runs, each of which is some numbers.

        Args:
            reruns: for each run what it differs by from its next rerun.
            took_turns: with the other side's runs; else all may be of one phase of the machine, and
                repeats make them no surer than one.
        """
        if not runs:
            return cls(math.nan, math.nan, 1.0, math.nan)
        count = len(runs)
        alike = 1 if took_turns else count
        parts: list[tuple[float, float]] = []
        one_run = 0.0
        for run, rerun in zip(runs, reruns, strict=True):
            median, (again, freedom) = _parts(run, rerun)
            parts += [median, (alike * again, freedom)]
            one_run += (median[0] + again) / count
        whole = sum(variance for variance, _ in parts)
        error, freedom = whole / count**2, _freedom(parts)
        if count >= TURNS or (took_turns and count > 1):
            least = sum(_median_error(run) ** 2 for run in runs)
            least += alike * sum(r.sd**2 for r in reruns) / 2
            seen = float(np.var([_median(run) for run in runs], ddof=1))
            own = seen / count * _median_loss(count), count - 1.0
            is_learned = all(math.isfinite(rerun.freedom) for rerun in reruns)
            if took_turns and count >= TURNS:
                error, freedom = max(own, (least / count**2, freedom))
            elif own[0] > error * (
                _ODD if is_learned else 1
            ):  # what is assumed stays, and only what is beyond rests on few
                freedom = _freedom([(error, freedom), (own[0] - error, own[1])])
                error = own[0]
            one_run = max(seen, one_run)
        return cls(middle_of(runs), math.sqrt(error), freedom, math.sqrt(one_run))


@dataclass(frozen=True, slots=True)
class LogTimes:
    """One side of a ratio: `of` several runs, as `Side.of`."""

    middle: float  # of the times
    side: Side  # of their logarithms

    @classmethod
    def of(
        cls,
        runs: Sequence[Sequence[float] | Values],
        reruns: Sequence[Rerun],
        *,
        took_turns: bool = True,
    ) -> LogTimes:
        pairs = [(_positive([run]), rerun) for run, rerun in zip(runs, reruns, strict=True)]
        found = [run for runs, _ in pairs for run in runs]
        reruns = [rerun for runs, rerun in pairs if runs]
        logs = [np.log(run) for run in found]
        return cls(middle_of(found), Side.of(logs, reruns, took_turns=took_turns))

    def ends(self, *, of_rerun: bool = False) -> tuple[float, float]:
        """The 95 % interval of the times' median; or the one in which a single rerun's lies."""
        side = self.side
        error = math.hypot(side.error, side.one_run) if of_rerun else side.error
        half = _student(side.freedom, SURE) * error
        return math.exp(side.middle - half), math.exp(side.middle + half)


def _parts(run: Values, rerun: Rerun) -> Iterator[tuple[float, float]]:
    """The variances of a run's median that add up, each with its degrees of freedom."""
    yield _median_error(run) ** 2, max(len(run) - 1.0, 1.0)
    known = rerun.sd**2 / 2, rerun.freedom  # a difference has two sides
    yield max(known, _wander(run)) if rerun.wanders else known


def middle_of(runs: Sequence[Values]) -> float:
    """The median of the runs' medians."""
    return float(statistics.median([_median(run) for run in runs])) if runs else math.nan


@_once
def _median(values: Values) -> float:
    ordered, half = np.sort(values), len(values) // 2  # `np.median` takes 5 times as long
    return float(ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2)


def _median_loss(count: int) -> float:
    """How many times the variance of so many numbers' mean their median has: of many, pi / 2.

    Of an even count it is a mean of two; within 1 % of what draws from a normal show.
    """
    return count * math.pi / (2 * count + (1 if count % 2 else 2.6)) if count > 2 else 1.0


def known(runs: Sequence[Sequence[float] | Values]) -> list[Values]:
    """The numbers of each run, without those that are none; no run without any."""
    arrays = [np.asarray(run, float) for run in runs]
    return [kept for array in arrays if len(kept := array[np.isfinite(array)])]


def _positive(runs: Sequence[Sequence[float] | Values]) -> list[Values]:
    """The numbers above 0 of each run; no run without any."""
    return [kept for array in known(runs) if len(kept := array[array > 0])]


def interval(old: Side, new: Side, sure: float = SURE) -> tuple[float, float]:
    """The interval of the difference, in the scale of the sides."""
    whole = old.error**2 + new.error**2
    if not whole:
        return (new.middle - old.middle,) * 2
    freedom = _freedom([(side.error**2, side.freedom) for side in (old, new)])
    half = _student(freedom, sure) * math.sqrt(whole)
    middle = new.middle - old.middle
    return middle - half, middle + half


def mean_margin(*sides: Sequence[float] | Values, sure: float = SURE) -> float:
    """Half the interval of a difference of means; 0 where a side has fewer than two numbers."""
    found = known(sides)
    if len(found) < len(sides) or any(len(side) < 2 for side in found):
        return 0.0
    parts = [_mean_error(side) for side in found]
    return _student(_freedom(parts), sure) * math.sqrt(sum(variance for variance, _ in parts))


@_once
def _mean_error(values: Values) -> tuple[float, float]:
    """The variance of a mean and its freedom: from the steps, or from blocks of them if larger."""
    size, found = len(values) // BLOCKS, []
    blocks = [values[: size * BLOCKS].reshape(BLOCKS, size).mean(axis=1)] if size >= 3 else []
    for each in (values, *blocks):
        echo, variance = _echo(each), float(np.var(each, ddof=1)) / len(each)
        found.append((variance * (1 + echo) / (1 - echo), len(each) - 1.0))
    return max(found)


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variances, of which each has its own.

    Source: Satterthwaite, https://doi.org/10.2307/3002019.
    """
    whole = sum(variance for variance, _ in parts)
    each = sum(variance**2 / freedom for variance, freedom in parts)
    return whole**2 / each if each else math.inf


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


@_once
def _median_error(values: Values) -> float:
    """Standard error of the median, from the steps or from blocks of them; nan of a single value.

    A machine that is slow for some steps and fast for the next ones shows in the blocks.
    """
    blocks = _blocks(values)
    return max(_error_of_median(values), _error_of_median(blocks) if len(blocks) > 1 else 0.0)


@_once
def _wander(values: Values) -> tuple[float, float]:
    """How much one block's median differs from the next one's, as a variance, and its freedom."""
    blocks = _blocks(values)
    if len(blocks) < 2:
        return 0.0, math.inf
    echo = _echo(blocks)
    freedom = _OF_HALF * (len(blocks) - 1) * (1 - echo) / (1 + echo)
    return (_APART * _middle_spread(blocks)) ** 2, max(freedom, 1.0)


def _blocks(values: Values) -> Values:
    """The medians of `BLOCKS` equal parts of the steps, in their order; of few, the steps.

    The median of two would have a step that was hit by something in it.
    """
    size = len(values) // BLOCKS
    if size < 3:
        return values
    return np.median(values[: size * BLOCKS].reshape(BLOCKS, size), axis=1)


def _error_of_median(values: Values) -> float:
    """The larger of two estimates, more where neighbours resemble each other.

    One is from the middle half, which a long tail does not touch, and one from the few values next
    to the median, which see that the steps come in two sorts.

    Source: McGill, Tukey, Larsen, https://doi.org/10.2307/2683468, and Price, Bonett,
    https://doi.org/10.1080/00949650212140.
    """
    n = len(values)
    if n < 2:
        return math.nan
    by_half = 1.2533 * _middle_spread(values) / math.sqrt(n)
    outer = max(1, round((n + 1) / 2 - math.sqrt(n) / 2))
    chance = 2 * _heads(n, outer - 1)
    ordered = np.sort(values)
    reach = float(ordered[n - outer] - ordered[outer - 1])
    by_neighbours = reach / (2 * _NORMAL.inv_cdf(1 - chance / 2)) if chance < 1 else 0.0
    echo = _echo(values)
    return max(by_half, by_neighbours) * math.sqrt((1 + echo) / (1 - echo))


@functools.cache
def _heads(tosses: int, most: int) -> float:
    """The chance that a coin shows heads at most so often: exact, but by the normal of many."""
    if tosses > _MANY:
        return _NORMAL.cdf((most + 0.5 - tosses / 2) / (math.sqrt(tosses) / 2))
    ways: int = sum(math.comb(tosses, i) for i in range(most + 1))
    return float(ways / 2**tosses)


def _middle_spread(values: Values) -> float:
    """The standard deviation that the middle half shows; `np.percentile` takes 5 times as long."""
    ends = np.array([0.25, 0.75]) * (len(values) + 1 / 3) - 2 / 3  # its method "median_unbiased"
    return float(np.ptp(np.interp(ends, np.arange(len(values)), np.sort(values)))) / 1.349


def _echo(values: Values) -> float:
    """How much a step's rank resembles the one before, 0 to `_WORST_ECHO`; 0 of a few steps."""
    if len(values) < 4:
        return 0.0
    ranks = np.argsort(np.argsort(values)).astype(float)
    ranks -= ranks.mean()
    alike = float((ranks[1:] * ranks[:-1]).sum() / (ranks * ranks).sum())
    return min(max(alike, 0.0), _WORST_ECHO)
