"""Several cells of a table measured by turns: each once, then each again while time is left.

A machine that is slow for a while is slow for all of them, and the first round gives every row.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from kit.gpu_check.base.journal import Journal
from kit.measure.base.context import Workload
from kit.measure.experiment import run as run_once
from kit.runs.change import median_run
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.text import format_count, format_percent
from kit.trace.kinds import LIMITS

__all__ = ["Cell", "Measured", "measure_cells"]

NATIVE = "torch"  # the kind of the cells that nothing is compiled for
FIRST_S = 8.0  # what a cell is thought to need before one was measured


@dataclass(frozen=True)
class Cell:
    """One row of a table: a workload under settings.

    Attributes:
        group: cells whose times are compared; the first cell of a group is its baseline.
        keep: the name of the file that its run is saved to, without ending; "": none.
        kind: cells of one kind take about as long; "": those of one mode do.
        more: further columns.
    """

    name: str
    workload: Workload
    settings: Settings
    group: str = ""
    keep: str = ""
    kind: str = ""
    more: Mapping[str, str | float] = field(default_factory=dict)


class Measured:
    """The runs of each cell so far, and the table that they make."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells
        self.runs: dict[str, list[Run]] = {cell.name: [] for cell in cells}

    def rows(self) -> list[dict[str, str | float | None]]:
        """A row for each cell that was measured."""
        return [self._row(cell) for cell in self._cells if self.runs[cell.name]]

    def _row(self, cell: Cell) -> dict[str, str | float | None]:
        runs = self.runs[cell.name]
        middle = median_run(runs)
        head, limit = middle.headline(), middle.limited_by()
        times = [run.step_ms for run in runs]
        return {
            "": cell.name,
            **cell.more,
            "ms a step": median(times),
            "from": min(times),
            "to": max(times),
            "x the first of its group": self._ratio(cell),
            "device busy": head.device_busy_fraction,
            "recording hidden": head.overlap_fraction,
            "syncs a step": head.syncs_per_step,
            "waits (ms a step)": head.sync_wait_ms,
            "bound by": f"{limit.what} ({format_percent(limit.share)} of the {limit.of})"
            if limit.what in LIMITS
            else "unknown",
            "compiles": middle.metrics.get("compile.count"),
            "compiling (s)": _seconds(runs[0].metrics.get("compile.ns")),
            "runs": len(runs),
        }

    def _ratio(self, cell: Cell) -> float | None:
        """Median over the rounds of the time divided by the baseline's in the same round."""
        first = next(c for c in self._cells if c.group == cell.group)
        pairs = zip(self.runs[cell.name], self.runs[first.name], strict=False)
        ratios = [mine.step_ms / base.step_ms for mine, base in pairs]
        return median(ratios) if ratios else None


def measure_cells(journal: Journal, title: str, cells: Sequence[Cell], *, rounds: int) -> Measured:
    """Measure each cell up to `rounds` times; the table is written anew after each run.

    A cell that fails is a check that is not ok, and is not tried again. One for which no time was
    left in the first round is a check that was not run.
    """
    found = Measured(cells)
    cache = ExecutableCache()
    failed: set[str] = set()
    first = FIRST_S if not journal.is_tiny else 1.0
    longest: dict[str, float] = {}  # seconds, so far, by the kind of a cell
    for turn in range(rounds):
        for cell in cells:
            name = f"{title}: {cell.name}"
            kind = cell.kind or cell.settings.mode
            others = () if kind == NATIVE else longest.values()  # what is compiled takes long
            needs = longest.get(kind, max([first, *others]))
            if cell.name in failed or (turn and journal.seconds_left < needs):
                continue
            if not turn and not journal.has_time(name, needs):
                continue
            failed.add(cell.name)
            start = time.monotonic()
            with journal.attempt(name):
                made = run_once(cell.workload, cell.settings, cache=cache)
                found.runs[cell.name].append(made)
                failed.discard(cell.name)
                _note(journal, title, cell, found)
            longest[kind] = max(longest.get(kind, first), time.monotonic() - start)
            _free()
    return found


def _free() -> None:
    """Give back the memory of a cell that torch would keep: jax may need it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _note(journal: Journal, title: str, cell: Cell, found: Measured) -> None:
    """Write what is known after a run of this cell."""
    middle = median_run(found.runs[cell.name])
    journal.check(f"{title}: {cell.name}", middle.step_ms, unit="ms a step", why=_said(middle))
    journal.table(title, found.rows())
    if cell.keep:
        journal.keep(middle, cell.keep)


def _said(run: Run) -> str:
    """What a check of a run is followed by: finite losses, and what had no rule."""
    bad = sum(not math.isfinite(loss) for loss in run.losses)
    texts = [f"{bad} of {len(run.losses)} losses are not finite"] if bad else []
    if late := run.measured.count:
        texts.append(f"{format_count(late, 'compile')} in the measured steps: the time is too long")
    if run.unlowered:
        texts.append(f"ran on the host: {', '.join(sorted(run.unlowered)[:3])}")
    return "; ".join([*texts, *run.timeline.notes])


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
