"""When a watch begins to record a job that runs, and where it writes what it has recorded.

    with kit.watch(when="capture.now", save="step.kitrun"):  # `touch capture.now` begins one
    with kit.watch(when=signal.SIGUSR1, save="step.kitrun"):  # so does `kill -USR1 PID`

A signal costs nothing while none comes. A file is looked for between two steps, and at most once in
`LOOK_S`: a folder of a network takes long to answer.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from kit.errors import KitError, SettingsError, but_of_handlers, suppressed
from kit.files import as_path, check_folder, check_plain
from kit.measure.attached.signals import SignalHandler
from kit.measure.base.ranks import rank_of_job, ranks_of_job
from kit.runs.run import Run
from kit.text import WHOLE, safe_terminal

__all__ = ["LOOK_S", "Capture", "of_rank"]

LOOK_S = 1.0
MAX_SAVED = 1_000  # of one name


class Capture:
    """What begins a recording from outside, and the files of what was recorded.

    Args:
        when: a signal, or the path of a file; None: nothing from outside.
        save: where runs are written; None: nowhere.

    Raises:
        SettingsError: `when` is neither, or no signal can be handled here.
        OSError: `save` names something else than a plain file, or its folder may not be written.
    """

    def __init__(
        self,
        when: str | os.PathLike[str] | int | None = None,
        save: str | os.PathLike[str] | None = None,
    ) -> None:
        self.signal: int | None = None
        self.file: str | None = None
        self._named = ""  # the file, as it was given
        if isinstance(when, int) and not isinstance(when, bool):
            self.signal = when
        elif isinstance(when, str | os.PathLike):
            self.file = os.path.abspath(when)  # the loop may go to another folder
            self._named = os.fspath(when)
        elif when is not None:
            raise SettingsError(f"when is a signal or the path of a file, not {when!r}")
        self._save = None if save is None else Path(os.path.abspath(as_path(save)))
        if self._save is not None:
            with contextlib.suppress(FileNotFoundError):  # its folder is made when it is written
                check_plain(self._save)
            check_folder(next(folder for folder in self._save.parents if folder.exists()))
        self._handler: SignalHandler | None = None  # while it is open
        self._seen = 0  # when the file was last written
        self._next_s = 0.0  # when it is looked for again
        self._due_s = math.inf  # when a recording begins, by the clock of the day

    def __bool__(self) -> bool:
        return self.signal is not None or self.file is not None

    def open(self, start: Callable[[], object]) -> None:
        """Wait for the signal, which calls `start`, or for the file from now on.

        Raises:
            SettingsError: this thread or system cannot handle the signal.
        """
        self._seen, self._due_s = self._written(), math.inf
        if self.signal is not None:
            self._handler = SignalHandler(self.signal, start)  # `close` knows it in any case
            try:
                self._handler.open()
            except SettingsError:
                self._handler = None
                raise

    def close(self) -> None:
        """Give the signal back."""
        if self._handler is not None:
            self._handler.close()
            self._handler = None

    def is_asked(self) -> bool:
        """Was the file written since the last look? Reads one clock; seldom asks for the file."""
        if self.file is None or (now := time.monotonic()) < self._next_s:
            return False
        self._next_s = now + LOOK_S
        written = self._written()
        if written not in (0, self._seen):  # nor later, where the clock was set back
            self._due_s = self._begin_s(written / 1e9)
        self._seen = written
        if is_due := self._due_s <= time.time():
            self._due_s = math.inf
        elif self._due_s < math.inf:
            self._next_s = 0.0  # no step may go by
        return is_due

    def _begin_s(self, written_s: float) -> float:
        """When a recording begins; of several ranks once all have looked, at the same step."""
        now_s = time.time()
        return min(written_s, now_s) + 2 * LOOK_S if ranks_of_job() > 1 else now_s

    def condition(self) -> str:
        """What has to happen before anything is recorded, in words."""
        if self.signal is not None:
            return f"a step has to begin after signal {int(self.signal)}"
        return (
            f"the file {self._named!r} has to be written while the loop runs; it is looked for "
            f"between two steps, at most every {LOOK_S:g} s"
        )

    def _written(self) -> int:
        try:
            return os.stat(self.file).st_mtime_ns if self.file is not None else 0
        except but_of_handlers(OSError):
            return 0

    def keep(self, run: Run) -> str:
        """Write a run to the next free name; what was wrong, in words, as the loop has to go on.

        It is also said on standard error: the job, and with it the run, may end unseen.
        """
        wrong = self._write(run, self._save) if self._save is not None else ""
        if wrong:
            with suppressed(Exception):  # closed, or a full disk
                sys.stderr.write(f"kit: {safe_terminal(wrong, WHOLE)}\n")
        return wrong

    def _write(self, run: Run, path: Path) -> str:
        save = of_rank(path)
        try:
            save.parent.mkdir(parents=True, exist_ok=True)
            for i in range(1, MAX_SAVED + 1):
                name = f"{save.stem}{f'_{i}' * (i > 1)}{save.suffix or '.kitrun'}"
                if not (target := save.with_name(name)).exists():
                    run.save(target)
                    return ""
        except but_of_handlers(KitError, OSError) as error:
            return f"the run was not saved: {error}"
        return f"the run was not saved: there are {MAX_SAVED:,} of this name"


def of_rank(path: Path) -> Path:
    """The file of this rank, `step_rank3.kitrun`; the same where the job is one process."""
    rank = rank_of_job()
    if ranks_of_job() < 2 or rank is None:
        return path
    return path.with_name(f"{path.stem}_rank{rank}{path.suffix}")
