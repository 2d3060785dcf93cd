"""What a comparison of runs says, as plain data: a label, numbers and texts for each run.

`comparison_rows` gives the numbers. `comparison_cells` gives the same as text, and which of them
are the best of their column; the table in a notebook, in Markdown and in a terminal all show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kit.errors import SettingsError
from kit.runs.bulk_sizes import UNLIMITED
from kit.runs.knob import knobs_of
from kit.runs.run import Run
from kit.text import format_number, format_percent, safe_label
from kit.trace import union_ns

__all__ = [
    "COLUMNS",
    "Cell",
    "Column",
    "ComparisonRow",
    "amount",
    "baseline_tag",
    "check_baseline",
    "check_runs",
    "comparison_cells",
    "comparison_rows",
    "run_labels",
    "verdict",
]

_MAX_LABEL = 160
_NO_PREFETCH = "no prefetch"  # goes without saying beside other settings


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One run of a comparison; nan where the run cannot say.

    Units:
        milliseconds; fractions in [0, 1]
    """

    label: str  # the settings in which it differs from the others, in words
    step_ms: float  # median untraced step
    step_low_ms: float  # its quartiles
    step_high_ms: float
    ratio: float  # step_ms over the baseline's
    sample_ms: float  # step_ms over batch_size * accumulate
    device_busy_fraction: float  # of the traced steps
    overlap_fraction: float  # of host recording, under a busy device
    syncs_per_step: float
    sync_wait_ms: float  # a step
    device_idle_ms: float  # a traced step
    loss: float  # of the last measured step


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: what it is called, and which value is the best."""

    head: str
    value: Callable[[ComparisonRow], float]
    form: Callable[[float], str]
    best: str = ""  # "least", "most", or "" where no value is better than another


@dataclass(frozen=True, slots=True)
class Cell:
    """One number as text; `note` is a second, smaller line."""

    text: str
    note: str = ""
    is_best: bool = False


def amount(value: float) -> str:
    """A number of the table; "?" where the run cannot say."""
    return format_number(value, "?")


def _percent(value: float) -> str:
    return format_percent(value, "?")


def _times(value: float) -> str:
    return f"{value:.2f}×" if value < 9.995 else "?" if math.isnan(value) else f"{amount(value)}×"


def _loss(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


COLUMNS = (
    Column("step ms", lambda r: r.step_ms, amount, "least"),
    Column("of the baseline", lambda r: r.ratio, _times),
    Column("ms a sample", lambda r: r.sample_ms, amount, "least"),
    Column("device busy", lambda r: r.device_busy_fraction, _percent, "most"),
    Column("recording hidden", lambda r: r.overlap_fraction, _percent, "most"),
    Column("sync points a step", lambda r: r.syncs_per_step, amount, "least"),
    Column("sync wait ms a step", lambda r: r.sync_wait_ms, amount, "least"),
    Column("device idle ms a step", lambda r: r.device_idle_ms, amount, "least"),
    Column("final loss", lambda r: r.loss, _loss),
)


def comparison_rows(runs: Sequence[Run], baseline: int = 0) -> tuple[ComparisonRow, ...]:
    """A row for each run, in their order.

    Raises:
        SettingsError: there are no runs, something is not a run, or no run has that number.
    """
    check_runs(runs, baseline)
    base = runs[baseline].step_ms
    labels = run_labels(runs)
    return tuple(_row(run, label, base) for run, label in zip(runs, labels, strict=True))


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
    is_number = isinstance(baseline, int) and not isinstance(baseline, bool)
    if not is_number or not 0 <= baseline < count:
        raise SettingsError(
            f"baseline must be the place of one of the runs, 0 to {count - 1}, not {baseline!r}"
        )


def _row(run: Run, label: str, base_ms: float) -> ComparisonRow:
    h, s = run.headline(), run.settings
    times = run.step_times_ns
    low, high = (
        (float(x) / 1e6 for x in np.percentile(times, [25, 75])) if times else (math.nan,) * 2
    )
    return ComparisonRow(
        label=label,
        step_ms=run.step_ms,
        step_low_ms=low,
        step_high_ms=high,
        ratio=run.step_ms / base_ms if base_ms else math.nan,
        sample_ms=run.step_ms / (s.batch_size * s.accumulate),
        device_busy_fraction=h.device_busy_fraction,
        overlap_fraction=h.overlap_fraction,
        syncs_per_step=h.syncs_per_step,
        sync_wait_ms=h.sync_wait_ms,
        device_idle_ms=_idle_ms(run, h.device_busy_fraction),
        loss=run.losses[-1] if run.losses else math.nan,
    )


def _idle_ms(run: Run, busy: float) -> float:
    """What is left of the mean traced step when the device's work is taken out."""
    steps = run.timeline.intervals(kind="step")
    return (1 - busy) * union_ns(steps) / len(steps) / 1e6 if len(steps) else math.nan


def comparison_cells(rows: Sequence[ComparisonRow]) -> list[list[Cell]]:
    """The numbers of `COLUMNS` as text, row by row.

    The best of a column is marked, together with all that read the same; where every row reads the
    same, or only one is known, none is.
    """
    by_column = [_cells(column, rows) for column in COLUMNS]
    return [[cells[i] for cells in by_column] for i in range(len(rows))]


def _cells(column: Column, rows: Sequence[ComparisonRow]) -> list[Cell]:
    values = [column.value(row) for row in rows]
    texts = [column.form(v) for v in values]
    known = [(v, t) for v, t in zip(values, texts, strict=True) if not math.isnan(v)]
    best = ""
    if column.best and len({t for _, t in known}) > 1:
        best = (min if column.best == "least" else max)(known)[1]
    notes = [_quartiles(r) if column is COLUMNS[0] else "" for r in rows]
    return [Cell(t, note, t == best) for t, note in zip(texts, notes, strict=True)]


def _quartiles(row: ComparisonRow) -> str:
    if math.isnan(row.step_low_ms):
        return ""
    return f"{amount(row.step_low_ms)} – {amount(row.step_high_ms)}"


def baseline_tag(i: int, baseline: int, count: int) -> str:
    """What stands behind the baseline's label, where there are others."""
    return " (baseline)" if i == baseline and count > 1 else ""


def verdict(rows: Sequence[ComparisonRow], baseline: int = 0) -> str:
    """Which run is the fastest, by how much, and whether the noise is larger than that.

    Runs whose steps hold different numbers of samples are compared by the sample.
    """
    known = [i for i, r in enumerate(rows) if not math.isnan(r.step_ms) and r.step_ms > 0]
    if len(known) < 2 or baseline not in known:
        return ""
    sizes = {i: rows[i].step_ms / rows[i].sample_ms for i in known}
    by_sample = len({round(n) for n in sizes.values()}) > 1
    times = {i: rows[i].sample_ms if by_sample else rows[i].step_ms for i in known}
    best = min(known, key=times.__getitem__)
    unit = "ms a sample" if by_sample else "ms a step"
    other = best
    if best == baseline:
        other = min((i for i in known if i != best), key=times.__getitem__)
        text = f"No run is faster than the baseline; the next is run {other + 1} with "
        text += f"{amount(times[other])} against {amount(times[best])} {unit}."
    else:
        text = f"Run {best + 1} is the fastest: {amount(times[best])} {unit}, "
        text += (
            f"{1 - times[best] / times[baseline]:.0%} less than the baseline, run {baseline + 1}."
        )
    (low, high), (base_low, base_high) = (
        [x / (sizes[i] if by_sample else 1) for x in (rows[i].step_low_ms, rows[i].step_high_ms)]
        for i in (other, baseline)
    )
    if low <= base_high and base_low <= high:
        text += " Their quartiles overlap, so the difference may be noise: measure more steps."
    return text


def run_labels(runs: Sequence[Run]) -> list[str]:
    """What tells each run from the others, in words: `loss scaling none · batch size 8`.

    A setting that has no effect in a run's mode is not named there. Equal labels are numbered.
    """
    words = [_words(run) for run in runs]
    varied = [key for key in words[0] if len({w[key] for w in words} - {""}) > 1]
    if not varied:  # one run, or several of the same settings
        varied = ["name", "mode"]
    labels = [_joined([w[key] for key in varied]) for w in words]
    seen: dict[str, int] = {}
    numbered = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        again = f" (again, {seen[label]})" if seen[label] > 1 else ""
        numbered.append(safe_label(label, _MAX_LABEL) + again)
    return numbered


def _joined(words: Sequence[str]) -> str:
    said = [word for word in words if word]
    return " · ".join([word for word in said if word != _NO_PREFETCH] or said)


def _words(run: Run) -> dict[str, str]:
    """Each setting as a reader says it, "" where the mode leaves it without effect."""
    s = run.settings
    native = f"{run.environment.get('baseline', 'torch')} (native)"
    others = {
        knob.name: knob.in_words(getattr(s, knob.name)) if knob.has_effect(s.mode) else ""
        for knob in knobs_of(s)
        if knob.name not in ("mode", "bulk_forward", "bulk_backward", "device")
    }
    forward, backward = (_size(n) for n in (s.bulk_forward, s.bulk_backward))
    bulk = f"bulk size {forward}"
    if forward != backward:
        bulk += f" forward, {backward} backward"
    return {
        "name": safe_label(run.name, 40),
        "mode": native if s.mode == "torch" else s.mode,
        "bulk": bulk if s.mode == "bulked" else "",
        **others,
        "device": safe_label(run.environment.get("device", s.device), 40),
    }


def _size(n: int) -> str:
    return "unlimited" if n >= UNLIMITED else f"{n:,}"
