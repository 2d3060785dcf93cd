"""The runs of an explorer, and what can be written about them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kit.errors import SessionError
from kit.runs.run import Run
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

    @property
    def newest(self) -> Run | None:
        """The run that was added last."""
        return self.runs[-1] if self.runs else None

    @property
    def before(self) -> Run | None:
        """The run before the newest."""
        return self.runs[-2] if len(self.runs) > 1 else None

    def add(self, run: Run) -> None:
        """Keep a run as the newest; the oldest goes if there are too many."""
        self.runs = (*self.runs, run)[-MAX_RUNS:]

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write all runs as one HTML file; gives a sentence that says so.

        Raises:
            SessionError: there is no run, or nothing that writes reports.
            OSError: the file cannot be written.
        """
        if self._write_report is None:
            raise SessionError("this explorer was made without a report writer: use kit.Explorer")
        runs = self.runs
        newest = _newest(runs)
        self._write_report(list(runs), path, title=self.title, current=newest)
        return f"saved {format_count(len(runs), 'run')} to {os.path.abspath(path)}"

    def to_markdown(self) -> str:
        """The newest run as Markdown tables, and all runs side by side if there are several.

        Raises:
            SessionError: there is no run.
        """
        runs = self.runs
        text = _newest(runs).to_markdown()
        return text + (f"\n{comparison_markdown(runs)}\n" if len(runs) > 1 else "")


def _newest(runs: tuple[Run, ...]) -> Run:
    if not runs:
        raise SessionError("there is no run to report yet: wait for the first one")
    return runs[-1]
