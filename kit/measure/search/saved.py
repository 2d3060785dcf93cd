"""The folder in which a sweep saves its runs: a file for each cell, and which of them to trust."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from kit.errors import RunFileError, SettingsError, but_of_handlers
from kit.files import as_path
from kit.measure.many.placement import Placement
from kit.measure.search.source import why_another
from kit.runs.run import Run
from kit.runs.settings import Settings

__all__ = ["files_of", "folder_at", "read"]


def folder_at(path: str | os.PathLike[str]) -> Path:
    """The folder that a path names, made if it is not there.

    Raises:
        SettingsError: it cannot be one.
    """
    folder = as_path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except but_of_handlers(OSError) as error:
        raise SettingsError(
            f"path={os.fspath(path)!r} cannot be a folder for runs: {error}"
        ) from None
    return folder


def files_of(folder: Path, placement: Placement, cells: Iterable[Settings]) -> list[Path]:
    """A file for each cell; a cell that the grid holds twice has two."""
    readable = re.sub(r"[^A-Za-z0-9-]+", "_", placement.name)[:40].strip("_") or "workload"
    where = [] if placement.is_alone else [str(placement.devices), placement.processes]
    seen: Counter[Settings] = Counter()
    files = []
    for cell in cells:
        text = json.dumps([placement.name, cell.as_dict(), *where], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:20]
        seen[cell] += 1
        again = f"-{seen[cell]}" if seen[cell] > 1 else ""
        files.append(folder / f"{readable}-{digest}{again}.kitrun")
    return files


def read(
    file: Path, name: str, cell: Settings, source: Mapping[str, str]
) -> tuple[Run | None, str]:
    """The saved run, or why there is none that can be trusted; "" if there is no file."""
    try:
        run = Run.load(file)
    except FileNotFoundError:
        return None, ""
    except but_of_handlers(OSError, RunFileError) as error:
        return None, str(error)
    if run.name != name:
        return None, "it is a run of another workload"
    if run.settings != cell:
        return None, "it was measured under other settings"
    why = why_another(run.environment, source)
    return (None, why) if why else (run, "")
