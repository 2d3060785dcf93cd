"""Where a report goes: a page, or Markdown if the path ends in `.md`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kit.errors import SettingsError, SweepInterrupted, note
from kit.files import as_path, check_target

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = ["check_report_target", "is_markdown", "keeping"]

_PAGE = ("", ".html", ".htm")


def check_report_target(path: str | os.PathLike[str]) -> None:
    """Refuse what no report can be written to, before minutes of measuring.

    Raises:
        SettingsError: the path's suffix names another format.
        OSError: the path is a pipe, a device or a folder, or its folder does not exist.
    """
    is_markdown(path)
    check_target(path)


@contextlib.contextmanager
def keeping(runs: list[Run]) -> Iterator[list[Run]]:
    """What is measured for a report, put into this list, is not lost where no page is written."""
    try:
        yield runs
    except SweepInterrupted as error:
        note(
            error,
            "`path` of kit.report is the page: kit.report(error.runs, path=...) makes it of what "
            "is done, as of what kit.sweep(..., path=FOLDER) gives, which can go on",
        )
        raise
    except BaseException as error:
        if runs:
            with contextlib.suppress(AttributeError):
                error.runs = runs  # type: ignore[attr-defined]
            made = "run is" if len(runs) == 1 else f"{len(runs):,} runs are"
            note(error, f"its {made} in this error's .runs: kit.report(error.runs, path=...)")
        raise


def is_markdown(path: str | os.PathLike[str]) -> bool:
    """Does the path ask for Markdown, and not for a page?

    Raises:
        SettingsError: it asks for another format.
    """
    suffix = as_path(path).suffix.lower()
    if suffix not in (*_PAGE, ".md"):
        raise SettingsError(
            f"a report is a page (.html) or Markdown (.md), and {os.fspath(path)!r:.200} ends in "
            f"{suffix!r}: a browser prints a page as PDF, and kit.export_trace writes other formats"
        )
    return suffix == ".md"
