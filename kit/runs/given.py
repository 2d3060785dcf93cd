"""What a function was given where it needs runs; an error for what is none."""

from __future__ import annotations

from collections.abc import Iterable

from kit.errors import SettingsError
from kit.runs.run import Run

__all__ = ["one_run", "some_runs"]


def one_run(given: object) -> Run:
    """The same run; an error for what is none, such as the path of one, or a list.

    Raises:
        SettingsError: it is something else.
    """
    if isinstance(given, Run):
        return given
    raise SettingsError(
        f"a run is needed here, as kit.run(workload) gives one, not {type(given).__name__}: "
        "kit.Run.load(path) reads a saved run, kit.open_trace(path) a trace"
    )


def some_runs(given: object) -> list[Run]:
    """One run, or several, as a list.

    Raises:
        SettingsError: there is none, or something else is among them.
    """
    several = [given] if isinstance(given, str) or not isinstance(given, Iterable) else given
    runs = [*map(one_run, several)]
    if not runs:
        raise SettingsError("a run is needed here, or several, and the list is empty")
    return runs
