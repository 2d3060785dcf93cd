"""What a part writes while it runs: one line of JSON for each result, at once.

The process that reads the lines may find that this one has died, so a line never waits.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from kit.errors import RunFileError, named
from kit.gpu_check.base.checks import NOT_OK, NOT_RUN, Check, Table, Target
from kit.runs.run import Run
from kit.trace.timeline import each_step

__all__ = ["MAX_FILE_BYTES", "Journal"]

MAX_FILE_BYTES = 16 * 2**20  # of one result file
Row = Mapping[str, str | float | None]


class Journal:
    """The results of one part, and the time that it has left.

    Attributes:
        is_tiny: small sizes, for a CPU.
    """

    def __init__(self, lines: Path, folder: Path, *, seconds: float, is_tiny: bool) -> None:
        self.is_tiny = is_tiny
        self._lines, self._folder = lines, folder
        self._ends_at = time.monotonic() + seconds

    @property
    def seconds_left(self) -> float:
        """Until the part's time is over; negative after that."""
        return self._ends_at - time.monotonic()

    def check(self, name: str, number: float, **target: Unpack[Target]) -> None:
        """Write one check, compared with its target."""
        self.add(Check.of(name, number, **target))

    def add(self, check: Check) -> None:
        """Write a check that is already decided."""
        self._write({"check": asdict(check)})

    def not_run(self, name: str, why: str) -> None:
        """Write that something was left out, and why."""
        self.add(Check(name, NOT_RUN, why=why))

    def facts(self, found: Mapping[str, str | float]) -> None:
        """Write what this machine is."""
        self._write({"facts": dict(found)})

    def table(self, title: str, rows: Sequence[Row]) -> None:
        """Write a table; one of the same title that was written before is replaced."""
        self._write({"table": asdict(Table.of(title, rows))})

    def doing(self, text: str) -> None:
        """Write what begins now: what a process was at when it died or was stopped."""
        self._write({"doing": text})

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Go on after the block if it fails; a failure is a check that is not ok.

        If a package is not installed, what needs it was not run.

        `with journal.attempt(name):` does not leave the block out if its time is over: ask
        `journal.has_time(name, seconds)` for that.
        """
        self.doing(name)
        try:
            yield
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] == "kit":
                raise
            self.not_run(name, _reason(error))
        except Exception as error:  # noqa: BLE001 - one thing that fails must not end the others
            self.add(Check(name, NOT_OK, why=_reason(error)))

    def has_time(self, name: str, seconds: float) -> bool:
        """Are so many seconds left? If not, that is written as a check which was not run."""
        if self.seconds_left >= seconds:
            return True
        left = max(self.seconds_left, 0)
        self.not_run(name, f"needs about {seconds:.0f} s, and {left:.0f} s of its time were left")
        return False

    def keep(self, run: Run, name: str) -> None:
        """Save a run as a file; one that is too large keeps its first traced step only."""
        path = self._folder / f"{name}.kitrun"
        problem = ""
        parts = {"whole": run, "the first traced step only": _first_step(run)}
        for what, part in parts.items():
            try:
                part.save(path)
            except RunFileError as error:
                problem = str(error)
                continue
            size = path.stat().st_size
            if size <= MAX_FILE_BYTES:
                self.facts({f"file {path.name}": f"{run.settings.to_string()} ({what})"})
                return
            path.unlink()
            problem = f"{size} bytes, and {MAX_FILE_BYTES} are the most"
        self.not_run(f"file {path.name}", problem)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(line)) + "\n")


def _first_step(run: Run) -> Run:
    steps = each_step(run.timeline)
    return replace(run, timeline=steps[0]) if steps else run


def _reason(error: BaseException) -> str:
    """The error's last words, and the line of the kit or of torch where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{' '.join(named(error, 400).split())}{where}"


def _finite(value: Any) -> Any:
    """JSON has no nan: it becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
