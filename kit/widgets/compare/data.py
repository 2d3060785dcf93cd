"""What a comparison of runs says, as plain data: a label, numbers and texts for each run.

`comparison_rows` gives the numbers. `comparison_cells` gives the same as text, and which of them
are the best of their column; the table in a notebook, in Markdown and in a terminal all show it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kit.errors import SettingsError
from kit.runs.analysis.headline import Headlines
from kit.runs.bulk_sizes import size_text
from kit.runs.change import Difference, doubt_of, middle_ms, steps_difference, within_text
from kit.runs.compiles import COMPILED
from kit.runs.knob import knobs_of
from kit.runs.labels import (
    OF_MACHINE,
    device_of,
    has_other_samples,
    labels_of,
    samples_of,
    told_settings,
)
from kit.runs.run import Run
from kit.text import format_number, format_percent, is_whole_number, safe_label
from kit.trace import union_ns
from kit.widgets.base.tables import amount

__all__ = [
    "COLUMNS",
    "Cell",
    "Column",
    "ComparisonRow",
    "baseline_tag",
    "check_baseline",
    "check_runs",
    "comparison_cells",
    "comparison_rows",
    "disturbed_tag",
    "fastest_text",
    "run_labels",
]

STEP, RATIO, SAMPLE = "step ms", "of the baseline", "ms a sample"
_MAX_LABEL = 160
_NOT_TOLD = "settings not told"
_NO_PREFETCH = "no prefetch"  # goes without saying beside other settings


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One run of a comparison; nan where the run cannot say.

    The times of its steps are those of all its repeats, the rest is that of the run itself.

    Units:
        milliseconds; fractions in [0, 1]
    """

    label: str  # what it is called beside the others: its label, and the settings in words
    step_ms: float  # median untraced step
    step_low_ms: float  # its quartiles
    step_high_ms: float
    ratio: float  # step_ms over the baseline's; sample_ms if `by_sample`
    sample_ms: float  # step_ms over batch_size * accumulate; nan if nobody told these
    device_busy_fraction: float  # of the traced steps, or of measured ones as `Run.headline` has it
    overlap_fraction: float  # of host recording, under a busy device
    syncs_per_step: float
    sync_wait_ms: float  # a step
    device_idle_ms: float  # of the same step
    loss: float  # of the last measured step; nan if none was told
    # Of the step since the baseline, or of a sample if `by_sample`; None: it is the baseline.
    change: Difference | None = None
    doubt: str = ""  # why its numbers may be off: another program took the cores
    compiling: float = 0.0  # part of the measured steps' time
    best: frozenset[str] = frozenset()  # columns of which it has the best value, or one as good
    maybe_best: frozenset[str] = frozenset()  # columns of which it may have the best value
    has_loss: bool = True  # False: nobody told one, as in a loop that was watched
    reruns: str = ""  # where 95% of their medians are, in words
    by_sample: bool = False  # the runs' steps hold different numbers of samples


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: what it is called, and which value is the best."""

    head: str
    value: Callable[[ComparisonRow], float]
    form: Callable[[float], str]
    best: str = ""  # "least", "most", or "" where no value is better than another
    by: str = ""  # the field of `Headline` whose spread says what is better
    is_told: Callable[[ComparisonRow], bool] = lambda row: True  # False: the cell is a "?"


@dataclass(frozen=True, slots=True)
class Cell:
    """One number as text; `note` is a second, smaller line."""

    text: str
    note: str = ""
    is_best: bool = False


def _percent(value: float) -> str:
    return format_percent(value, "?")


def _times(value: float) -> str:
    return (
        f"{value:.2f}×"
        if 0.095 < value < 9.995
        else "?"
        if math.isnan(value)
        else f"{amount(value)}×"
    )


def _loss(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


COLUMNS = (
    Column(STEP, lambda r: r.step_ms, amount, "least", "step_ms"),
    Column(RATIO, lambda r: r.ratio, _times),
    Column(SAMPLE, lambda r: r.sample_ms, amount, "least", "sample_ms"),
    Column("device busy", lambda r: r.device_busy_fraction, _percent, "most",
           "device_busy_fraction"),
    Column("recording hidden", lambda r: r.overlap_fraction, _percent, "most", "overlap_fraction"),
    Column("sync points a step", lambda r: r.syncs_per_step, amount, "least", "syncs_per_step"),
    Column("sync wait ms a step", lambda r: r.sync_wait_ms, amount, "least", "sync_wait_ms"),
    # No best: how sure its milliseconds are is not known where steps have unlike lengths.
    Column("device idle ms a step", lambda r: r.device_idle_ms, amount),
    Column("final loss", lambda r: r.loss, _loss, is_told=lambda r: r.has_loss),
)  # fmt: skip


def comparison_rows(
    runs: Sequence[Run], baseline: int = 0, repeats: Sequence[Sequence[Run]] = ()
) -> tuple[ComparisonRow, ...]:
    """A row for each run, in their order.

    Args:
        repeats: for each run all that were measured under its settings, itself among them: they
            make the changes surer.

    Raises:
        SettingsError: there are no runs, something is not a run, or no run has that number.
    """
    check_runs(runs, baseline)
    every = [*map(tuple, repeats)] or [(run,) for run in runs]
    is_known = all(map(samples_of, runs))
    by_sample = is_known and any(has_other_samples(runs[baseline], run) for run in runs)
    base_ms = middle_ms(every[baseline])
    rows = []
    for i, (run, label) in enumerate(zip(runs, run_labels(runs), strict=True)):
        change = _step_difference(baseline, i, every, by_sample=by_sample)
        row = _row(run, every[i], label, base_ms, None if i == baseline else change)
        rows.append(replace(row, doubt=doubt_of(run, *every[i]), by_sample=by_sample))
    headlines = Headlines(runs)
    found = {c.head: _best(c, rows, headlines, every) for c in COLUMNS if c.best}
    return tuple(
        replace(
            row,
            best=frozenset(head for head, (best, _) in found.items() if i in best),
            maybe_best=frozenset(head for head, (_, maybe) in found.items() if i in maybe),
        )
        for i, row in enumerate(rows)
    )


def _best(
    column: Column, rows: Sequence[ComparisonRow], headlines: Headlines, every: Sequence[Any]
) -> tuple[set[int], set[int]]:
    """The places of the best value and of those as good; else of those that may be the best.

    The spread may not tell the best value from another one. Where all are as good, none is best.
    """
    values = {i: v for i, row in enumerate(rows) if not math.isnan(v := column.value(row))}
    if len({column.form(v) for v in values.values()}) < 2:
        return set(), set()
    first = (min if column.best == "least" else max)(values, key=values.__getitem__)
    kinds = {
        i: "same" if v == values[first] else _difference(column.by, first, i, headlines, every).kind
        for i, v in values.items()
    }
    good = {i for i, kind in kinds.items() if kind == "same"}
    maybe = {i for i, kind in kinds.items() if kind in ("unclear", "unknown")}
    if maybe:
        return set(), maybe | good
    return set() if len(good) == len(values) else good, set()


def _difference(
    field: str, i: int, k: int, headlines: Headlines, every: Sequence[Any]
) -> Difference:
    if field in ("step_ms", "sample_ms"):
        return _step_difference(i, k, every, by_sample=field == "sample_ms")
    return headlines.differences(i, k)[field]


def _step_difference(i: int, k: int, every: Sequence[Any], *, by_sample: bool) -> Difference:
    """From the i-th side to the k-th: what reruns differ by, all sides say together."""
    beside = [runs for j, runs in enumerate(every) if j not in (i, k) and len(runs) > 1]
    return steps_difference(every[i], every[k], by_sample=by_sample, beside=beside)


def check_runs(runs: Sequence[Any], baseline: Any) -> None:
    """Refuse what cannot be compared; see `comparison_rows`."""
    if not runs:
        raise SettingsError("there is nothing to compare: no runs")
    for i, run in enumerate(runs):
        if not isinstance(run, Run):
            raise SettingsError(f"only runs can be compared; number {i} is a {type(run).__name__}")
    check_baseline(baseline, len(runs))


def check_baseline(baseline: Any, count: int) -> None:
    """Refuse what is not the place of one of `count` runs."""
    if not (is_whole_number(baseline, 0) and baseline < count):
        raise SettingsError(
            f"baseline must be the place of one of the runs, 0 to {count - 1}, not {baseline!r}"
        )


def _row(
    run: Run, every: Sequence[Run], label: str, base_ms: float, change: Difference | None
) -> ComparisonRow:
    h, samples, step_ms = run.headline(), samples_of(run), middle_ms(every)
    times = [time for one in every for time in one.step_times_ns]
    low, high = (
        (float(x) / 1e6 for x in np.percentile(times, [25, 75])) if times else (math.nan,) * 2
    )
    return ComparisonRow(
        label=label,
        step_ms=step_ms,
        step_low_ms=low,
        step_high_ms=high,
        ratio=_ratio(step_ms, base_ms) if change is None else _ratio(change.new, change.old),
        sample_ms=step_ms / samples if samples else math.nan,
        device_busy_fraction=h.device_busy_fraction,
        overlap_fraction=h.overlap_fraction,
        syncs_per_step=h.syncs_per_step,
        sync_wait_ms=h.sync_wait_ms,
        device_idle_ms=_idle_ms(run, h.device_busy_fraction),
        loss=run.losses[-1] if run.losses else math.nan,
        has_loss=bool(run.losses),
        compiling=run.measured.compiled_fraction,
        change=change,
        reruns=within_text(*every, before="reruns: "),
    )


def _ratio(new: float, old: float) -> float:
    return new / old if old else math.nan


def _idle_ms(run: Run, busy: float) -> float:
    """What is left of the step that is busy so much when the device's work is taken out."""
    if not math.isnan(run.busy_of_measured):
        return (1 - busy) * run.step_ms
    steps = run.timeline.intervals(kind="step")
    return (1 - busy) * union_ns(steps) / len(steps) / 1e6 if len(steps) else math.nan


def comparison_cells(rows: Sequence[ComparisonRow]) -> list[list[Cell]]:
    """The numbers of `COLUMNS` as text, row by row.

    The best of a column is marked, together with all that are as good within the spread; where all
    are, or one is known, or the spread does not tell the best from another one, none is.
    """
    return [[_cell(column, row) for column in COLUMNS] for row in rows]


def _cell(column: Column, row: ComparisonRow) -> Cell:
    note = _quartiles(row) if column.head == STEP else ""
    if column.head == RATIO and row.change is not None:
        note = _sure(row.change)
    text = column.form(column.value(row)) if column.is_told(row) else "?"
    return Cell(text, note, column.head in row.best)


def _sure(change: Difference) -> str:
    """How sure the ratio is, beside it."""
    if change.kind == "unknown":
        return ""
    if math.isnan(change.spread):
        return "maybe"
    spread = change.margin(_give_or_take).strip("()")
    said = {"same": "no change", "unclear": "maybe"}.get(change.kind, "")
    return f"{said}, {spread}" if said else spread


def _give_or_take(ratio: float) -> str:
    """Half of the interval of a ratio, with no more decimals than that has."""
    return f"{ratio:.2f}" if ratio >= 0.01 else format_number(ratio, figures=2)


def _quartiles(row: ComparisonRow) -> str:
    if math.isnan(row.step_low_ms):
        return ""
    return f"{amount(row.step_low_ms)} – {amount(row.step_high_ms)}"


def baseline_tag(row: ComparisonRow, rows: Sequence[ComparisonRow]) -> str:
    """What stands behind the baseline's label, where there are others."""
    return " (baseline)" if row.change is None and len(rows) > 1 else ""


def disturbed_tag(row: ComparisonRow) -> str:
    """What stands behind the label of a run whose step time is not to be taken as it is: why."""
    compiled = f"{format_percent(row.compiling)} of its time is compiling"
    said = [f"disturbed: {row.doubt}"] * bool(row.doubt) + [compiled] * (row.compiling >= COMPILED)
    if row.change is not None and row.change.means:
        said.append(f"its mean step: {row.change.means.text(says_doubt=False)}")
    return f" ({'; '.join(said)})" if said else ""


def fastest_text(rows: Sequence[ComparisonRow]) -> str:
    """Which run is the fastest, by how much and how sure that is; or that none is.

    Runs whose steps hold different numbers of samples are compared by the sample.
    """
    others = {i: d for i, r in enumerate(rows) if (d := r.change) is not None and d.new > 0}
    if not others or not all(d.old > 0 for d in others.values()):
        return ""
    head, unit = (SAMPLE, "ms a sample") if rows[0].by_sample else (STEP, "ms a step")
    faster = {i: d for i, d in others.items() if d.kind == "less"}
    if not faster:
        best = min(others, key=lambda i: others[i].new)
        found = others[best]
        said = found.text(less="less", more="more")
        times = f"{amount(found.new)} against {amount(found.old)} {unit}"
        return (
            "No run is faster than the baseline beyond the spread; the next is run "
            f"{best + 1} with {times}: {said}."
        )
    baseline = next(i for i, row in enumerate(rows) if row.change is None)
    best = min(faster, key=lambda i: faster[i].new)
    found = faster[best]
    maybe = [i for i, r in enumerate(rows) if i not in (best, baseline) and head in r.maybe_best]
    text = (
        f"Run {best + 1} is {'faster' if maybe else 'the fastest'}: {amount(found.new)} {unit}, "
        f"{found.text(less='less')} than the baseline, run {baseline + 1}."
    )
    if maybe:
        text += f" The spread does not tell whether it is faster than {_names(maybe)}."
    tied = [i for i in range(len(rows)) if i != best and head in rows[i].best]
    return f"{text} Within the spread as fast: {_names(tied)}." if tied else text


def _names(places: Sequence[int]) -> str:
    return ", ".join(f"run {i + 1}" for i in places)


def run_labels(runs: Sequence[Run]) -> list[str]:
    """What each run is called: the label that it was given, and the settings that tell it apart.

    `before · loss scaling none`. A setting that has no effect in a run's mode is not named there.
    Equal ones are told apart as `labels_of` does.
    """
    named = [safe_label(run.label, _MAX_LABEL) for run in runs]
    pairs = zip(named, _settings_labels(runs), strict=True)
    labels = [_joined(pair) or _NOT_TOLD for pair in pairs]
    apart, count = labels_of(runs, labels), Counter(labels)
    return [
        _joined([label, safe_label(more, _MAX_LABEL)]) if count[label] > 1 else label
        for label, more in zip(labels, apart, strict=True)
    ]


def _settings_labels(runs: Sequence[Run]) -> list[str]:
    """The settings in which each run differs from the others, in words, and the machine and its
    versions, where these do; "": none was told."""
    words = [_words(run) for run in runs]
    keys = dict.fromkeys(key for w in words for key in w)  # workloads differ in their own knobs
    words = [dict.fromkeys(keys, "") | w for w in words]
    varied = [key for key in keys if len({w[key] for w in words} - {""}) > 1]
    if not varied:  # one run, or several of the same settings
        varied = ["name", "mode"]
    return [safe_label(_settings([w[key] for key in varied]), _MAX_LABEL) for w in words]


def _settings(words: Sequence[str]) -> str:
    said = [word for word in words if word]
    return _joined([word for word in said if word != _NO_PREFETCH] or said)


def _joined(words: Iterable[str]) -> str:
    return " · ".join(filter(None, words))


def _words(run: Run) -> dict[str, str]:
    """Each setting as a reader says it, "" where the mode leaves it without effect."""
    s, told, env = run.settings, told_settings(run), run.environment
    native = f"{env.get('baseline', 'torch')} (native)"
    others = {
        knob.name: knob.in_words(getattr(s, knob.name)) if knob.has_effect(s.mode) else ""
        for knob in knobs_of(s)
        if knob.name not in ("mode", "bulk_forward", "bulk_backward", "device")
        and knob.name in told
    }
    forward, backward = (size_text(n) for n in (s.bulk_forward, s.bulk_backward))
    bulk = f"bulk size {forward}"
    if forward != backward:
        bulk += f" forward, {backward} backward"
    return {
        "name": safe_label(run.name, 40),
        "mode": native if s.mode == "torch" else s.mode,
        "bulk": bulk if s.mode == "bulked" else "",
        **others,
        "device": safe_label(device_of(run), 40),
        **{name: f"{name} {env[name]}" if name in env else "" for name in OF_MACHINE},
    }
