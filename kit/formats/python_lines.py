"""The Python functions of a jax profile: which are the user's, and at which lines."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from kit.trace.imported import cut_name

__all__ = ["FRAME", "alike", "places"]

FRAME = re.compile(r"\$(?P<file>[^ ]+\.py):(?P<line>\d+) (?P<function>.+)")
_DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
_MOST_LINES, _MOST_NAMED = 5, 3  # in notes
_DECORATORS = 30  # lines of them at most; a function begins where its first one does


def places(around: Sequence[str], *, is_same_jax: bool) -> tuple[str, str, str]:
    """The user's innermost line, the library's line in what it called, and the user's function.

    "" where there is none.

    Args:
        is_same_jax: whether the profile is of this version; of another one the functions are not
            known, and whatever is named as a file of a library is the library's.
    """
    frames = [m for name in around if (m := FRAME.match(name))]
    owned = [_is_librarys(*m.groups(), is_same_jax) for m in frames]
    user = [m for m, is_owned in zip(frames, owned, strict=True) if not is_owned]
    inner = frames[frames.index(user[-1]) + 1 :] if user else frames
    library = [m for m in inner if m["file"] in _library_files() and m["file"] != "profiler.py"]
    site = f"{user[-1]['file']}:{user[-1]['line']}" if user else ""
    via = f"{library[-1]['file']}:{library[-1]['line']}" if library else ""
    return site, via, user[-1]["function"] if user else ""


def alike(functions: Mapping[str, Collection[str]]) -> list[str]:
    """Notes of lines at which several functions begin: files of one name, since none has two.

    Args:
        functions: of each line those that are called, but for lambdas and their like.
    """
    found = ((site, names) for site, names in functions.items() if len(names) > 1)
    return [
        f"at {cut_name(site)} several functions begin "
        f"({', '.join(cut_name(one)[:40] for one in sorted(names)[:_MOST_NAMED])}), as in files of "
        "one name: the profile has no folders, and they are shown as one line"
        for site, names in islice(found, _MOST_LINES)
    ]


@cache
def _is_librarys(file: str, line: str, function: str, is_same_jax: bool) -> bool:
    """Is it of jax, numpy or Python? The profiler writes no folders, and users have a utils.py."""
    paths = _library_files().get(file, ())
    if not is_same_jax or function.startswith("<"):
        return bool(paths)
    jaxs = _folder("jax")
    return any(
        not path.startswith(jaxs) or 0 <= at - int(line) <= _DECORATORS
        for path in paths
        for at in _defined(path).get(function, ())
    )


def _library_files() -> Mapping[str, Sequence[str]]:
    """The files of jax, numpy and Python by their names."""
    return _paths_below(tuple(map(_folder, ("jax", "numpy", "os"))))


def _folder(module: str) -> str:
    return os.path.dirname(sys.modules[module].__file__ or "")


@cache
def _paths_below(folders: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for at, below, files in os.walk(folder):
            below[:] = [b for b in below if b != "site-packages" and b != "test"]
            for file in files:
                if file.endswith(".py"):
                    found[file].append(os.path.join(at, file))
    return dict(found)


@cache
def _defined(path: str) -> Mapping[str, Sequence[int]]:
    """The functions of a file, with the lines of each name."""
    text = Path(path).read_text("utf-8", "replace")
    found: dict[str, list[int]] = defaultdict(list)
    line, before = 1, 0
    for match in _DEFINED.finditer(text):
        line, before = line + text.count("\n", before, match.start(1)), match.start(1)
        found[match[1]].append(line)
    return dict(found)
