"""The Python functions of a jax profile: which are the user's, and at which lines."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from functools import cache

__all__ = ["FRAME", "places"]

FRAME = re.compile(r"\$(?P<file>[^ ]+\.py):(?P<line>\d+) (?P<function>.+)")


def places(around: Sequence[str]) -> tuple[str, str]:
    """The user's innermost line, and the library's line in what it called; "" if there is none."""
    frames = [m for name in around if (m := FRAME.match(name))]
    user = [m for m in frames if m["file"] not in _library_files()]
    inner = frames[frames.index(user[-1]) + 1 :] if user else frames
    library = [m for m in inner if m["file"] in _library_files() - {"profiler.py"}]
    site = f"{user[-1]['file']}:{user[-1]['line']}" if user else ""
    via = f"{library[-1]['file']}:{library[-1]['line']}" if library else ""
    return site, via


def _library_files() -> frozenset[str]:
    """File names of jax, numpy and Python: the profiler writes no folders."""
    return _names_below(
        tuple(os.path.dirname(sys.modules[m].__file__ or "") for m in ("jax", "numpy", "os"))
    )


@cache
def _names_below(folders: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    for folder in folders:
        for _, below, files in os.walk(folder):
            below[:] = [b for b in below if b != "site-packages" and b != "test"]
            found.update(f for f in files if f.endswith(".py"))
    return frozenset(found)
