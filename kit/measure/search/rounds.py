"""`measure_in_turn`: settings of one workload by turns, so that noise falls on all alike."""

from __future__ import annotations

from collections.abc import Sequence

from kit.errors import SettingsError
from kit.measure.base.turns import CancelledFn
from kit.measure.many.placement import Placement
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.runtime.compiling.cache import ExecutableCache
from kit.shown import Progress
from kit.text import check_whole_number

__all__ = ["measure_in_turn"]


def measure_in_turn(
    placement: Placement,
    settings: Sequence[Settings],
    repeats: int,
    *,
    progress: Progress | None,
    cancelled: CancelledFn | None,
) -> list[list[Run]]:
    """For each of the settings its `repeats` runs; `kit.runs.change.median_run` is shown.

    All settings are run once before one is run again: a machine that is slow for a while is slow
    for all of them. The runs share one cache of executables.

    Raises:
        SettingsError: there are no settings, or something else is among them, or `repeats` is not
            a whole number of at least 1; nothing has been run then.
        Cancelled: `cancelled()` became true; nothing is kept.
    """
    cells = _checked(settings, repeats)
    caches: list[ExecutableCache] = []
    total = len(cells) * repeats
    made: list[list[Run]] = [[] for _ in cells]
    for n in range(total):
        inner = None if progress is None else _part(progress, n, total)
        i = n % len(cells)
        made[i].append(placement.run(cells[i], progress=inner, cancelled=cancelled, caches=caches))
    return made


def _checked(settings: Sequence[Settings], repeats: int) -> list[Settings]:
    cells = list(settings)
    if not cells:
        raise SettingsError("there is nothing to compare: give a list of kit.Settings")
    for i, cell in enumerate(cells):
        if not isinstance(cell, Settings):
            raise SettingsError(f"settings[{i}] must be a kit.Settings, not {type(cell).__name__}")
    check_whole_number(SettingsError, "repeats", repeats)
    return cells


def _part(progress: Progress, n: int, total: int) -> Progress:
    def report(text: str, fraction: float) -> None:
        progress(f"run {n + 1} of {total}: {text}", (n + fraction) / total)

    return report
