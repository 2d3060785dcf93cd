"""How many steps a run takes: some until they are steady, then enough to measure; and what is said
of steps that differ.

One rule says whether steps still get faster or slower, for the warm-up and for measured steps. One
says how many are measured where nobody does: a machine's speed comes in phases of some 100 ms, so a
few short steps lie within one of them and say nothing of the next. Of long steps there must be
some, too, or their spread is not known.

A validation pass in every tenth step, an update after every fourth: what is said of the mean traced
step is then true of none of them, and another share of such steps gives other numbers. So it is of
a read in some steps only, such as a loss that is logged every fifth step: one of three traced steps
may have it, or none.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kit.text import format_count, format_ms, format_number, format_percent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kit.trace import Timeline
    from kit.trace.metrics import MeasuredRun

__all__ = [
    "ALIKE",
    "ENOUGH_S",
    "LEAST_STEPS",
    "MOST_STEPS",
    "MOST_WARMUP",
    "UNEQUAL",
    "WINDOW",
    "drift",
    "drift_text",
    "enough_steps",
    "range_text",
    "rare_reads",
    "rare_reads_text",
    "sorts_of_steps",
    "sorts_text",
    "unequal_text",
]

ALIKE = 0.05  # of the step: medians that differ by less are taken for equal
SURE = 0.9  # of the pairs of an earlier and a later step must say the same
WINDOW = 6  # warm-up steps that are judged: three against three
MOST_WARMUP = 20
ENOUGH_S = 1.0  # what the measured steps fill together
GOOD_STEPS = 30  # at least, unless they fill more than `LONG_S`
LONG_S = 5.0
LEAST_STEPS = 10  # however long they are
MOST_STEPS = 1000  # however short: each keeps its time and its sync points
UNEQUAL = 0.2  # of the middle step: what the mean may be off before the steps are called unequal
_LEAST_LONG = 3  # longer steps at the same distance: two have one by chance
_MOST_TRIED, _MOST_APART = 12, 100  # of the longest steps; steps from one to the next
_OTHERS = 0.25  # times as many other steps may be as long as these
_RARE = 0.01  # a chance of long steps to lie at a distance: beyond it they are said to be few
_FEW_SORTS = 4  # sorts of steps that are named one by one
_APART = 0.2  # of how often a step reads: by so much more or less often is told
_FEW_READS = 2  # lines that are named


def drift(times: Sequence[float]) -> float:
    """By how much the later half of the steps is slower than the earlier one; 0: no trend.

    Medians must differ by more than `ALIKE`, and in `SURE` of all pairs of an earlier and a later
    step it must be the same one that is slower: single slow steps, and steps of two sorts, are no
    trend.
    """
    import numpy as np  # here: `Settings` needs this file, and must not wait for it

    half = len(times) // 2
    if half < WINDOW // 2:
        return 0.0  # two steps differ by chance
    early, late = np.asarray(times[:half], float), np.asarray(times[-half:], float)
    change = float(np.median(late) / max(float(np.median(early)), 1e-9)) - 1
    early.sort()  # so that no table of all pairs is needed: a run may have millions of steps
    slower = int(np.searchsorted(early, late, "left").sum())
    faster = half * half - int(np.searchsorted(early, late, "right").sum())
    agreed = max(slower, faster) / half**2
    return change if abs(change) > ALIKE and agreed >= SURE else 0.0


def drift_text(times: Sequence[float]) -> str:
    """A sentence for measured steps that were not steady; "" if they were."""
    change = drift(times)
    if not change:
        return ""
    how, more, cure = "faster", "less", "or raise warmup"
    if change > 0:  # no warm-up ends that
        how, more = "slower", "more"
        cure = "and where they do so each time, look for what grows: a list, a graph that is kept"
    return (
        f"the measured steps were still getting {how}: the later half took "
        f"{format_percent(abs(change))} {more} than the earlier one. Measure again, {cure}"
    )


def range_text(times_ns: Sequence[float]) -> str:
    """`steps very unequal: 2.5 ms to 22.5 ms`, or what they took; "" of a single one."""
    import numpy as np

    times = np.asarray(times_ns, float) / 1e6
    if len(times) < 2:
        return ""
    how = "very unequal:" if float(np.ptp(times)) > float(np.median(times)) else "took"
    return f"steps {how} {_span(times)}"


def unequal_text(run: MeasuredRun, *, has_verdict: bool = True) -> str:
    """A sentence for measured steps of several sorts, whose mean the middle one hides; "" else.

    The traced steps are few, and may have any share of the slow ones, or none.

    Args:
        has_verdict: a limit and advice are shown, too, of these traced steps.
    """
    import numpy as np

    times = np.asarray(run.step_times_ns, float) / 1e6
    if len(times) < 2:
        return ""
    middle, mean = float(np.median(times)), float(np.mean(times))
    if abs(mean - middle) <= UNEQUAL * middle:
        return ""
    said = (
        f"the measured steps are unequal, {_span(times)}: the middle one took "
        f"{format_ms(middle)}, but the mean of all is {format_ms(mean)}"
    )
    each, more, chance = _each_nth(times)
    if each and 2 * more / each >= mean - middle > 0:  # most of the difference is by these
        doubt = "" if chance <= _RARE else " (so few that it may be chance)"
        said += f", as every {each} steps one takes {format_ms(more)} more{doubt}"
    ends = run.timeline.intervals(kind="step")
    if not run.measures_untraced or not len(ends):
        return said
    traced = float((ends[:, 1] - ends[:, 0]).mean()) / 1e6
    parts = "the limit, the fractions and the advice" if has_verdict else "the fractions"
    return (
        f"{said}. That of the {len(ends)} traced steps, from which {parts} come, is "
        f"{format_ms(traced)}"
    )


def _each_nth(times: NDArray[Any]) -> tuple[int, float, float]:
    """Every how many steps comes a longer one, and by how much it is; (0, 0, 1): that is not so.

    As where a checkpoint is written. Few other steps may be as long. The third number is the
    chance at most that long steps at random places lie like that, at any distance.
    """
    import numpy as np

    times = times[:MOST_STEPS]  # a file may have millions
    longest = np.argsort(times)[-_MOST_TRIED:].tolist()  # some may be so for another reason
    distances = range(_LEAST_LONG, min(len(times) // _LEAST_LONG, _MOST_APART) + 1)
    for each in distances:
        for first in sorted({i % each for i in longest}):
            long = times[first::each]
            others = int((times >= long.min()).sum()) - len(long)
            if others <= _OTHERS * len(long):
                left = (times.sum() - long.sum()) / (len(times) - len(long))
                held, whole = (math.comb(n, len(long)) for n in (len(long) + others, len(times)))
                return each, float(long.mean() - left), sum(distances) * held / whole
    return 0, 0.0, 1.0


def enough_steps(step_s: float) -> int:
    """How many steps of this length are measured; `LEAST_STEPS` if the length is not known."""
    if not step_s > 0:
        return LEAST_STEPS
    least = min(max(int(LONG_S / step_s), LEAST_STEPS), GOOD_STEPS)
    return min(max(math.ceil(ENOUGH_S / step_s), least), MOST_STEPS)


def sorts_of_steps(timeline: Timeline, sorts: Sequence[int]) -> str:
    """`step 2 did other ops than steps 0 and 1`, or as general as it must be; "" if all did alike.

    Ops of other shapes, or at other lines, are other ops, too.
    """
    groups = _groups(timeline, sorts)
    if len(groups) < 2:
        return ""
    if len(groups) > _FEW_SORTS:
        return f"{len(groups)} sorts, by their ops and shapes"
    first, *others = (_named(group) for group in groups)
    if len(others) == 1:
        return f"{others[0]} did other ops, or of other shapes, than {first}"
    return f"{first}, {', '.join(others[:-1])} and {others[-1]} did different ops, or shapes"


def sorts_text(timeline: Timeline, sorts: Sequence[int]) -> str:
    """A sentence for the card of a run whose traced steps differ; "" elsewhere."""
    groups = _groups(timeline, sorts)
    if not (said := sorts_of_steps(timeline, sorts)):
        return ""
    ends = timeline.intervals(kind="step")
    times = (ends[:, 1] - ends[:, 0]) / 1e6
    if len(groups) > _FEW_SORTS:
        took = _span(times)
    else:
        took = ", ".join(f"{_named(group)} took {_span(times[group])}" for group in groups)
    return (
        f"the traced steps differ: {said} ({took}). All parts of a step are those of their mean, "
        "which is another where such steps come more or less often"
    )


def rare_reads_text(run: MeasuredRun, *, has_verdict: bool = True) -> str:
    """A sentence where traced steps wait at a line more or less often than measured ones; "" else.

    Where nobody looked in the measured steps, nothing is known. `has_verdict`: a limit is shown.
    """
    steps, traced = len(run.step_times_ns), run.timeline.steps
    if not (steps and traced and run.knows_waits and run.sees_waits_untraced):
        return ""
    often, seen = _reads(run)
    apart = [
        site
        for site in sorted(rare_reads(run), key=lambda site: -often[site])
        if abs(seen[site] / traced - often[site] / steps) > _APART * often[site] / steps
    ]
    if not apart:
        return ""
    whole = format_count(traced, "traced step")
    said = "; ".join(
        f"{f'line {site}' if site else 'an unknown line'} waits "
        f"{_times(often[site] / steps)} a measured step, and "
        f"{format_count(seen[site], 'time')} in the {whole}"
        for site in apart[:_FEW_READS]
    )
    parts = "The limit, the fractions" if has_verdict else "The fractions"
    return (
        f"{said}. {parts} and idle times by cause are of the traced steps, as if it came as often "
        "as in these; the table of sync points is not"
    )


def _times(count: float) -> str:
    """`once`, `0.2 times`."""
    shown = format_number(count)
    return "once" if shown == "1" else f"{shown} times"


def rare_reads(run: MeasuredRun) -> list[str]:
    """Lines that wait in some steps only, as a loss that is logged every fifth step; "": unknown.

    Of measured steps nobody knows in which of them a line waited. Ten reads in every tenth step
    come to one a step: then the traced steps have none of them, or ten.
    """
    steps, traced = len(run.step_times_ns), run.timeline.steps
    often, seen = _reads(run)
    return [
        site
        for site in often | seen
        if not (often[site] and often[site] % steps == 0)
        or (traced and not (seen[site] and seen[site] % traced == 0))
    ]


def _reads(run: MeasuredRun) -> tuple[Counter[str], Counter[str]]:
    """How often each line waited in the measured steps, and in the traced ones."""
    return Counter(s.site for s in run.sync_points), Counter(s.site for s in run.timeline.syncs)


def _groups(timeline: Timeline, sorts: Sequence[int]) -> list[list[int]]:
    """The traced steps by what they did, in order; none where a file's numbers do not fit."""
    if len(sorts) != timeline.steps:
        return []
    found: dict[int, list[int]] = defaultdict(list)
    for step, sort in enumerate(sorts):
        found[sort].append(step)
    return list(found.values())


def _named(steps: Sequence[int]) -> str:
    """`step 2`, `steps 0, 1 and 4`, `steps 0, 1, 2 and 17 others`."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    shown = list(map(str, steps[:_FEW_SORTS]))
    last = f"{len(steps) - _FEW_SORTS} others" if len(steps) > _FEW_SORTS else shown.pop()
    return f"steps {', '.join(shown)} and {last}"


def _span(times_ms: NDArray[Any]) -> str:
    """`1.2 ms`, or `1.2 ms to 1.5 ms` of several."""
    low, high = (format_ms(float(x)) for x in (times_ms.min(), times_ms.max()))
    return low if low == high else f"{low} to {high}"
