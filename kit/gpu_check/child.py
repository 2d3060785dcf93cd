"""One part in this process: `python -m kit.gpu_check.child b LINES FOLDER SECONDS tiny`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from kit.gpu_check.base.journal import Journal
from kit.gpu_check.table import part_of

__all__ = ["main"]


def main(letter: str, lines: str, folder: str, seconds: str, size: str) -> None:
    """Run the part; its results are lines of the file LINES, its recordings go to FOLDER."""
    journal = Journal(Path(lines), Path(folder), seconds=float(seconds), is_tiny=size == "tiny")
    import_module(f"kit.gpu_check.parts.{part_of(letter).module}").run(journal)


if __name__ == "__main__":
    main(*sys.argv[1:])
