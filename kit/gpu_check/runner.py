"""Run the parts one after the other, each in a process of its own, within a budget of seconds.

A part that crashes, hangs or is killed for its memory ends alone: what it had written is kept, and
the next part starts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from kit.gpu_check.base.checks import NOT_OK, NOT_RUN, Check
from kit.gpu_check.summary import Summary
from kit.gpu_check.table import Part

__all__ = ["LEAST_S", "LOG", "run_parts"]

LOG = "log.txt"
TINY = "tiny sizes, whose times say nothing"
LEAST_S = 8.0  # a part with less time than this is not started: the imports alone need it
GRACE_S = 5.0  # between the time when a part stops by itself and the time when it is stopped
POLL_S = 0.3
LOG_BYTES = 200_000  # of each part, its end


def run_parts(parts: Iterable[Part], folder: Path, *, budget_s: float, is_tiny: bool) -> Summary:
    """Run these parts; after each result the files in `folder` are up to date.

    A part may use its share of the budget, and what the parts before it have left over.
    """
    chosen = list(parts)
    size = TINY if is_tiny else "full sizes"
    summary = Summary(folder, title=f"overlap-kit on this machine, {size}")
    (folder / LOG).write_text("", encoding="utf-8")
    for part in chosen:
        summary.add(part, Check(f"part {part.letter}", NOT_RUN, why="not begun"))
    summary.write()  # in place of those of an earlier run: this one may be killed
    start, whole, share = time.monotonic(), sum(part.share for part in chosen), 0.0
    with tempfile.TemporaryDirectory(prefix="kit-gpu-check-", ignore_cleanup_errors=True) as name:
        for part in chosen:
            share += part.share
            seconds = start + budget_s * share / whole - time.monotonic()
            if seconds < LEAST_S:
                why = f"{max(seconds, 0):.0f} s of the budget were left for it"
                summary.add(part, Check(f"part {part.letter}", NOT_RUN, why=why))
                summary.write()
                continue
            _Child(part, Path(name), folder, is_tiny).run(summary, seconds)
            blind = [x for x in ("jax", "torch") if summary.facts.get(f"{x} runs on") == "cpu"]
            if blind and not is_tiny:
                is_tiny = True
                summary.title += (
                    f"; no GPU for {' and '.join(blind)}: after part {part.letter} {TINY}"
                )
                summary.write()
    return summary


class _Child:
    """The process of one part, and the files that it writes."""

    def __init__(self, part: Part, scratch: Path, folder: Path, is_tiny: bool) -> None:
        self._part, self._folder, self._is_tiny = part, folder, is_tiny
        self._scratch = scratch
        self._lines = scratch / f"{part.letter}.jsonl"
        self._log = scratch / f"{part.letter}.log"
        self._read = 0  # bytes of the lines that were taken

    def run(self, summary: Summary, seconds: float) -> None:
        """Run it to its end, or until its time is over."""
        summary.begin(self._part)
        summary.write()
        start, problem, state = time.monotonic(), "interrupted", NOT_RUN
        try:
            problem, state = self._wait(summary, start, seconds), NOT_OK
        finally:  # Ctrl-C, too, leaves what the part had found and said
            self._take(summary)
            summary.end(self._part, time.monotonic() - start, problem, state)
            summary.write()
            self._keep_log()

    def _wait(self, summary: Summary, start: float, seconds: float) -> str:
        """How the process ended, if not well."""
        with self._log.open("wb") as log, self._start(log, seconds) as process:
            try:
                while process.poll() is None:
                    if time.monotonic() - start > seconds:
                        _kill(process)
                        return f"stopped after {seconds:.0f} s, its part of the budget"
                    time.sleep(POLL_S)
                    if self._take(summary):
                        summary.write()
            finally:
                _kill(process)
        return _end_of(process.returncode)

    def _start(self, log: IO[bytes], seconds: float) -> subprocess.Popen[bytes]:
        own = max(seconds - GRACE_S, LEAST_S / 2)
        size = "tiny" if self._is_tiny else "full"
        command = [
            sys.executable,
            "-m",
            "kit.gpu_check.child",
            self._part.letter,
            str(self._lines),
            str(self._folder),
            f"{own:.1f}",
            size,
        ]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # it ends with this process, and the part with it
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(self._scratch),
            start_new_session=True,
        )

    def _take(self, summary: Summary) -> bool:
        """Take the whole lines that are new; are there any?"""
        if not self._lines.exists():
            return False
        with self._lines.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.splitlines(keepends=True):
            summary.take(self._part, json.loads(line))
            self._read += len(line)  # after it was taken: Ctrl-C may come between
        return bool(whole)

    def _keep_log(self) -> None:
        """The end of what the process said goes into the one log file."""
        said = self._log.read_bytes()[-LOG_BYTES:]
        with (self._folder / LOG).open("ab") as file:
            file.write(f"--- part {self._part.letter}\n".encode() + said + b"\n")


def _environment(scratch: Path) -> dict[str, str]:
    """What a part's process is given; what the user has set stays.

    jax would take three quarters of the GPU's memory at its start, and torch would find the rest.
    """
    ours = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "KIT_CACHE_DIR": str(scratch / "programs"),  # compile times are those of a first use
        "PYTHONFAULTHANDLER": "1",
    }
    return {**ours, **os.environ}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and those that it has started, such as compilers."""
    if sys.platform != "win32":
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
    elif process.poll() is None:
        process.kill()


def _end_of(status: int) -> str:
    if not status:
        return ""
    if status < 0:
        return f"ended by signal {-status} ({signal.strsignal(-status)})"
    return f"exit status {status}; {LOG} has what it said"
