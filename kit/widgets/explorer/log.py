"""The runs of an explorer, and what can be written about them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kit.errors import SessionError
from kit.runs.run import Run
from kit.runs.settings import Settings
from kit.text import format_count
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
        return f"saved {format_count(len(runs), 'run')} to {os.path.abspath(path)}"

    def to_markdown(self, shown: Run | None) -> str:
        """The shown run as Markdown tables, and all runs side by side if there are several.

        Raises:
            SessionError: there is no run.
        """
        runs = self.runs
        text = _known(shown).to_markdown()
        return text + (f"\n{comparison_markdown(runs)}\n" if len(runs) > 1 else "")


def _known(shown: Run | None) -> Run:
    if shown is None:
        raise SessionError("there is no run to report yet: wait for the first one")
    return shown
