"""Windows' rules for files, on Linux.

Some names cannot be, case tells no two files of a folder apart, and a file that this process has
open or mapped can be neither replaced nor removed.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from pathlib import Path
from typing import Any

__all__ = ["with_windows_rules"]

_FORBIDDEN = set('<>:"|?*\\')
_DEVICES = {
    "CON",
    "PRN",
    "AUX",
    "NUL",
    *(f"{name}{n}" for name in ("COM", "LPT") for n in range(10)),
}
_list, _read_link, _open = os.listdir, os.readlink, open


def with_windows_rules(folder: Path) -> None:
    """From now on, and in all of this process; names are looked at below `folder` only."""
    below = os.path.realpath(folder) + os.sep
    for owner, name in ((builtins, "open"), (io, "open"), (os, "open"), (os, "mkdir")):
        setattr(owner, name, _named(getattr(owner, name), below))
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, _closed(_named(getattr(os, name), below, at=-1)))


def _named(real: Any, below: str, at: int = 0) -> Any:
    """The function, for files that Windows could have; the name is its argument number `at`."""

    def act(*args: Any, **options: Any) -> Any:
        file = args[at] if args else options.get("file", 0)
        if isinstance(file, str | os.PathLike) and os.path.realpath(file).startswith(below):
            _check_name(Path(file))
        return real(*args, **options)

    return act


def _check_name(path: Path) -> None:
    name = path.name
    if (
        set(name) & _FORBIDDEN
        or name.endswith((".", " "))
        or name.split(".")[0].upper() in _DEVICES
    ):
        raise OSError(22, "Windows has no such name", str(path))
    with contextlib.suppress(FileNotFoundError):
        others = {other.lower(): other for other in _list(path.parent)}
        other = others.get(name.lower(), name)
        if other != name:
            raise OSError(22, f"on Windows it is {other!r}", str(path))


def _closed(real: Any) -> Any:
    """The function, which refuses what is open."""

    def act(*args: Any, **options: Any) -> Any:
        base = os.getcwd()
        if options.get("dir_fd") is not None:
            base = _read_link(f"/proc/self/fd/{options['dir_fd']}")
        used = _used()
        for file in args:
            if os.path.realpath(os.path.join(base, os.fspath(file))) in used:
                raise PermissionError(13, "the file is open", os.fspath(file))
        return real(*args, **options)

    return act


def _used() -> set[str]:
    """The files that this process has open, or mapped into its memory."""
    found = set()
    for number in _list("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(_read_link(f"/proc/self/fd/{number}"))
    with _open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found |= {line[line.index("/") :].rstrip("\n") for line in maps if "/" in line}
    return found
