"""The runs of an explorer, and what can be written about them."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain, count
from typing import Any

from kit.errors import SessionError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import format_count
from kit.widgets.compare.data import comparison_rows
from kit.widgets.compare.view import comparison_markdown

__all__ = ["MAX_RUNS", "RunLog"]

MAX_RUNS = 200  # kept for the report; a run is some hundred kilobytes


class RunLog:
    """The newest `MAX_RUNS` runs in order.

    Args:
        title: of what is written.
        write_report: `write_report(runs, path, *, title, current)` writes a file.
    """

    def __init__(self, title: str, write_report: Callable[..., Any] | None) -> None:
        self.title = title
        self.runs: tuple[Run, ...] = ()  # replaced as a whole: any thread can read it
        self._write_report = write_report
        self._written: dict[str, tuple[int, int] | None] = {}  # path -> the file that was written

    def newest_of(self, settings: Settings) -> Run | None:
        """The last run of these settings, if there is one."""
        return next((run for run in reversed(self.runs) if run.settings == settings), None)

    def add(self, run: Run) -> None:
        """Keep a run as the newest; the oldest goes if there are too many."""
        self.runs = (*self.runs, run)[-MAX_RUNS:]

    def replace(self, old: Run, new: Run) -> None:
        """Keep a run in the place of another one."""
        self.runs = tuple(new if run is old else run for run in self.runs)

    def save(self, path: str | os.PathLike[str], shown: Run | None) -> str:
        """Write all runs as one HTML file; gives a sentence that says so.

        Args:
            shown: the run that the page shows first.

        Raises:
            SessionError: there is no run, or nothing that writes reports.
            OSError: the file cannot be written.
        """
        if self._write_report is None:
            raise SessionError("this explorer was made without a report writer: use kit.Explorer")
        runs = self.runs
        self._write_report(list(runs), path, title=self.title, current=_known(shown))
        where = os.path.abspath(path)
        self._written[where] = _stamp(where)
        return f"saved {format_count(len(runs), 'run')} to {where}"

    def save_beside(self, shown: Run | None) -> str:
        """`save` to report.html; where that was written by another, to report_2.html and so on."""
        names = chain(["report.html"], (f"report_{n}.html" for n in count(2)))
        return self.save(next(filter(self._may_replace, names)), shown)

    def _may_replace(self, name: str) -> bool:
        where = os.path.abspath(name)
        return not os.path.lexists(where) or self._written.get(where) == _stamp(where)

    def to_markdown(self, shown: Run | None) -> str:
        """The shown run as Markdown tables, and all runs side by side if there are several.

        Raises:
            SessionError: there is no run.
        """
        runs = self.runs
        text = _known(shown).to_markdown()
        return text + (f"\n{comparison_markdown(comparison_rows(runs))}\n" if len(runs) > 1 else "")


def _stamp(path: str) -> tuple[int, int] | None:
    """Which file this is; None if there is none. A newer one in its place has another stamp."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _known(shown: Run | None) -> Run:
    if shown is None:
        raise SessionError("there is no run to report yet: wait for the first one")
    return shown
