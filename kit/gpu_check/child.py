"""One part in this process: `python -m kit.gpu_check.child b LINES FOLDER SECONDS tiny`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path

from kit.gpu_check.base.journal import Journal
from kit.gpu_check.table import part_of

__all__ = ["main"]


def main(letter: str, lines: str, folder: str, seconds: str, size: str) -> None:
    """Run the part; its results are lines of the file LINES, its recordings go to FOLDER."""
    journal = Journal(Path(lines), Path(folder), seconds=float(seconds), is_tiny=size == "tiny")
    import_module(f"kit.gpu_check.parts.{part_of(letter).module}").run(journal)


def _end_with_the_runner() -> None:
    """Wait for the other end of the pipe to close, then end this process and those it has started.

    Nobody else would: a runner that is killed says nothing, and the GPU's memory stays taken.
    """
    while os.read(sys.stdin.fileno(), 1):
        pass
    if sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)  # this process leads a group of its own
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_runner, name="runner", daemon=True).start()
    main(*sys.argv[1:])
