"""Where compiled programs are kept on disk, and why not there: it must be this user's alone.

The standard library is enough: `kit doctor` asks the same questions where jax cannot be loaded.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path

from kit.errors import but_of_handlers
from kit.text import safe_terminal

__all__ = ["NOISY_JAXLIB", "chosen_folder", "is_private", "warn_once", "why_not_kept"]

NOISY_JAXLIB = "<0.10.2"  # writes two errors at each program of a CPU that it loads
_NO_FOLDER = "it is no folder"


def chosen_folder() -> str:
    """The folder that the user names, or one below the user's own; "" where there is neither."""
    named = os.environ.get("KIT_CACHE_DIR")
    own = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser(os.path.join("~", ".cache"))
    if named is not None or own.startswith("~"):  # a user id that the system has no name for
        return _from_here(named or "")
    return _from_here(os.path.join(own, "overlap-kit", "xla"))


def _from_here(folder: str) -> str:
    """The whole path: a program may go to another folder while it runs."""
    try:
        return os.path.abspath(folder) if folder else ""
    except but_of_handlers(OSError):  # the folder that it is in is gone
        return folder


def is_private(folder: str) -> bool:
    """Make the folder for this user alone. It holds machine code: false, and a warning, if not."""
    shown = repr(safe_terminal(folder, 200))
    try:
        if _is_other(folder):
            raise NotADirectoryError(0, _NO_FOLDER)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if why := _why_shared(folder):
            why = f", because what is in it would be run: {why}. Or name another folder with "
            why += "KIT_CACHE_DIR"
        elif sys.platform != "win32":
            os.chmod(folder, 0o700)
    except but_of_handlers(OSError) as error:
        # no home, or one that cannot be written to: a container, a full disk
        why = f": {safe_terminal(error.strerror, 300)}. KIT_CACHE_DIR names another folder; if it "
        why += "is empty, nothing is kept or said"
    if why:
        warn_once(f"no compiled program is kept in {shown}{why}")
    return not why


@functools.cache
def warn_once(text: str) -> None:
    """Each session finds it again, and a sweep has many."""
    warnings.warn(text, stacklevel=3)


def why_not_kept(folder: str) -> str:
    """The same without a warning, and nothing is made; "" if programs can be kept there."""
    path = Path(folder)
    there = next((p for p in (path, *path.parents) if os.path.lexists(p)), Path("/"))
    try:
        if not there.is_dir():
            return _NO_FOLDER if there == path else "a file stands in its way"
        if not os.access(there, os.W_OK):
            return "it cannot be written"
        return _why_shared(folder) if there == path else ""
    except but_of_handlers(OSError) as error:
        return error.strerror or str(error)


def _is_other(folder: str) -> bool:
    """Does a file stand there, or a link that leads nowhere?"""
    return os.path.lexists(folder) and not os.path.isdir(folder)


def _why_shared(folder: str) -> str:
    """Why a folder may not be this user's alone, and what to do; "" if it is."""
    if sys.platform == "win32":
        # The bits of a mode say nothing there; what is in a profile inherits the user's own rights.
        home = Path.home().resolve()
        if not Path(folder).resolve().is_relative_to(home):
            return "only a folder below your own is known to be closed to others"
    else:
        found = os.stat(folder)
        if found.st_uid != os.getuid():
            return (
                f"it belongs to another user, of number {found.st_uid}. `chown` it if it is yours"
            )
        if found.st_mode & 0o022:
            return (
                "others may write there. `chmod 700` it if it is yours and nobody else has written "
                "to it"
            )
    return ""
