"""What every verb says, and where: results to standard output, all else to standard error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kit.text import safe_terminal

if TYPE_CHECKING:
    from kit.runs.run import Run
    from kit.trace.ranks.ranks import Ranks

__all__ = ["INTERRUPTED", "callers_of", "complain", "say", "summary_of", "write_report"]

INTERRUPTED = 130  # 128 and the signal's number, as a shell says it


def say(text: str) -> None:
    """To standard output."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """To standard error, with what a terminal would obey taken out."""
    lines = "\n".join(safe_terminal(line, 10_000) for line in text.split("\n"))
    sys.stderr.write(f"kit: {lines}\n")


def summary_of(run: Run) -> str:
    """A run as text for a terminal."""
    from kit.runs.analysis.summary import summary

    return summary(run)


def callers_of(run: Run, by: str) -> str:
    """What launched the kernels of a run, as text for a terminal."""
    from kit.runs.device.callers import callers_text

    return callers_text(run, by)


def write_report(runs: list[Run] | Ranks, path: str | os.PathLike[str]) -> None:
    """One HTML page of runs, or of the ranks of a job."""
    import kit

    say(f"wrote {kit.report(runs, path=Path(path))}")
