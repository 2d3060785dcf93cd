"""Where a report goes: a page, or Markdown if the path ends in `.md`."""

from __future__ import annotations

import os

from kit.errors import SettingsError
from kit.files import as_path, check_target

__all__ = ["check_report_target", "is_markdown"]

_PAGE = ("", ".html", ".htm")


def check_report_target(path: str | os.PathLike[str]) -> None:
    """Refuse what no report can be written to, before minutes of measuring.

    Raises:
        SettingsError: the path's suffix names another format.
        OSError: the path is a pipe, a device or a folder, or its folder does not exist.
    """
    is_markdown(path)
    check_target(path)


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
