"""Where the run of a script goes: its summary to standard output, the run to a file, a page."""

from __future__ import annotations

import argparse
import contextlib
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kit.cli.scripts.script import near
from kit.cli.terminal import kept_aside, say_and_keep, summary_of, written
from kit.errors import SettingsError
from kit.files import check_target
from kit.reports.target import check_report_target
from kit.text import WHOLE, safe_terminal

if TYPE_CHECKING:
    from kit.runs.run import Run

__all__ = ["Outputs"]


class Outputs:
    """What `kit run` makes of a run, as `--label`, `--save` and `--report` say.

    Attributes:
        folder: in which the command was given; the script may go to another one.
        are_saved: there is a file for the run.

    Raises:
        SettingsError: the file for the run is one of another kind, or the page's has a suffix that
            no report has, or they are one.
        OSError: such a file cannot be written.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder = os.getcwd()
        self._label: str = options.label
        self._save = self._target(options.save, _check_save)
        self._report = self._target(options.report, check_report_target)
        self.are_saved = self._save is not None
        if self._save and self._report and _is_same(self._save, self._report):
            raise SettingsError(
                f"--save and --report name one file, {str(options.report)!r:.200}: the page would "
                "take the place of the run"
            )

    def _target(self, given: Path | None, check: Callable[[Path], None]) -> Path | None:
        if given is None:
            return None
        target = Path(self.folder, given)
        check(_of_rank(target))
        return target

    @cached_property
    def _files(self) -> tuple[Path | None, Path | None]:
        """For the run, and for its page. Each rank of a job writes its own.

        Named when the first is written: the script itself may have said which rank this is.
        """
        save, report = (path and _of_rank(path) for path in (self._save, self._report))
        return save, report

    def save(self, made: Run) -> None:
        """Write the run to its file, if there is one."""
        save, _ = self._files
        if save:
            self._named(made).save(save)

    def keep(self, made: Run) -> None:
        """Print, save and draw a run."""
        named = self._named(made)

        def keep() -> list[str]:
            told = []
            save, report = self._files
            if save:
                with kept_aside([named]):
                    named.save(save)
                told.append(f"\nsaved {safe_terminal(near(str(save), self.folder), WHOLE)}")
            if report:
                with kept_aside([] if save else [named]):
                    told.append(written([named], report, near(str(report), self.folder)))
            return told

        say_and_keep(lambda: summary_of(named), keep)

    def _named(self, made: Run) -> Run:
        return replace(made, label=self._label or made.label)


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _of_rank(path: Path) -> Path:
    from kit.measure.attached.capture import of_rank

    return of_rank(path)


def _check_save(path: Path) -> None:
    """Refuse to write a run over a file of another kind, as where the script has a --save, too."""
    check_target(path)
    is_there, suffix = path.is_file(), path.suffix.lower()
    is_ours = _is_saved(path) if is_there else suffix[1:].isdigit() or not suffix  # "lr0.01"
    if suffix != ".kitrun" and not is_ours:
        why = "is a file of another kind" if is_there else "has another suffix"
        raise SettingsError(
            f"--save keeps kit's run, in a file *.kitrun, and {str(path)!r:.200} {why}. The "
            "script's own --save stands after --"
        )


def _is_saved(path: Path) -> bool:
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return "run.json" in archive.namelist()
    return False
