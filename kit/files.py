"""Open a file that a path names, and nothing else; write one so that no reader meets half of it;
say whose a file is by its path, and how its text is encoded by its first bytes."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import re
import secrets
import stat
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import IO

from kit.errors import SettingsError, is_of_handler, suppressed

__all__ = [
    "as_path",
    "check_folder",
    "check_plain",
    "check_target",
    "encoding_of",
    "in_packages",
    "is_no_users",
    "keep_places",
    "open_plain",
    "sweep",
    "write_whole",
]

# Debian's Python has the latter; torch cuts off what is on Python's path.
_PACKAGES = re.compile(r"(?:.*[/\\])?(?:site|dist)-packages[/\\]")
# Python's own library: on Unix, as torch cuts it off there, and on Windows as the installers of
# python.org, GitHub's runners, uv and conda lay it out.
_PYTHONS = re.compile(
    r"<frozen |python3\.\d+t?[/\\]|(?:.*[/\\])?(?:lib(?:64)?[/\\]python3\.\d+t?|"
    r"(?:(?:Python|cpython-)[^/\\]*(?:[/\\]3\.[^/\\]+[/\\]\w+)?|"
    r"(?i:(?:mini|ana|mamba)(?:conda|forge))\d*|envs[/\\][^/\\]+)[/\\]Lib)[/\\]"
)
# What torch.compile has written: a hash, in a folder that has two of its letters.
_COMPILED = re.compile(r"(?:.*[/\\])?torchinductor(?:_[^/\\]*)?[/\\](\w\w)[/\\]c\1\w*\.py$")
# A file that is being written; then it is renamed.
_UNFINISHED = re.compile(r"\.kit-[0-9a-f]{16}\.tmp")
_STALE_S = 3600.0  # one that still is being written is younger
_OTHERS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def as_path(given: object) -> Path:
    """What a user gave as a path; an empty text would be the working folder.

    Raises:
        SettingsError: it names nothing.
    """
    if isinstance(given, str | os.PathLike):
        name = os.fspath(given)
        if isinstance(name, str) and name and "\0" not in name:
            return Path(name)
    raise SettingsError(
        f"a path is the name of a file or a folder, as text or as a pathlib.Path, not {given!r:.80}"
    )


def check_plain(path: str | os.PathLike[str]) -> None:
    """Refuse a pipe, a socket, a device or a folder: reading may never end, writing may destroy.

    Raises:
        OSError: there is no such file, or it is none of those that hold bytes on a disk.
    """
    _check(os.stat(path).st_mode, os.fspath(path))


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse to write where something else than a plain file stands: the new one would replace it.

    So it would a file that is read-only; `open` and `cp` refuse that, too.

    Raises:
        OSError: as `check_plain`; but a file may be missing, though not its folder. Or the file or
            the folder may not be written to.
    """
    check_folder(os.path.dirname(_behind_links(path)) or os.curdir)
    with contextlib.suppress(FileNotFoundError):
        check_plain(path)
        if not _is_allowed(path, os.W_OK):
            raise PermissionError(errno.EACCES, "the file that is there is read-only", path)


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Refuse to write into what is no folder, or one where no file may be made.

    Raises:
        OSError: it is one of these.
    """
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to write to", folder)
    if not _is_allowed(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "no file may be made in this folder", folder)


def _is_allowed(path: str | os.PathLike[str], mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _behind_links(path: str | os.PathLike[str]) -> str:
    """The file that a link names, there or not; of any other path, the path."""
    return os.path.realpath(path) if os.path.islink(path) else os.fspath(path)


def open_plain(path: str | os.PathLike[str], *, follows_links: bool = True) -> IO[bytes]:
    """Open a file to read its bytes; this does not wait, whatever the path names.

    Raises:
        OSError: as `check_plain`, or the file may not be read, or is a link that is not followed.
    """
    check_plain(path)  # before it is opened: to open a device can have effects
    return open(path, "rb", opener=_open_plain if follows_links else _open_no_link)


def _open_no_link(path: str, flags: int) -> int:
    return _open_plain(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _open_plain(path: str, flags: int) -> int:
    """The descriptor of a file, or an error at once, should something else stand there by now."""
    file = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has no such pipes
    try:
        _check(os.fstat(file).st_mode, path)
    except OSError:
        os.close(file)
        raise
    return file


def _check(mode: int, path: str) -> None:
    if stat.S_ISREG(mode):
        return
    what = next((name for holds, name in _OTHERS if holds(mode)), "no plain file")
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(number, f"it is {what}; here a plain file is needed", path)


def encoding_of(first: bytes) -> str:
    """Of a text in JSON: UTF-16 has a mark, or a zero beside the first bracket."""
    if first in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if first in (b"{\0", b"[\0"):
        return "utf-16-le"
    return "utf-16-be" if first in (b"\0{", b"\0[") else "utf-8-sig"


def write_whole(
    path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = 0o666
) -> None:
    """Write a file, a link's where the path is one: all of it or nothing.

    Args:
        sync: wait until the disk has it; without, a machine that loses its power may leave a part.
        mode: what `umask` is taken from.

    Raises:
        OSError: it cannot be written, or is no plain file; what was there is then untouched.
    """
    check_target(path)
    # Not the file's name and more: that may be longer than a name can be.
    name = f".kit-{secrets.token_hex(8)}.tmp"
    target = _behind_links(path)  # the new file would replace the link
    temporary = os.path.join(os.path.dirname(target), name)
    try:
        if sync:  # else it is one of thousands of a folder that is swept by its owner
            _sweep_once(os.path.dirname(os.path.abspath(target)))
        with open(temporary, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # who could not read the older file cannot now
            os.chmod(temporary, os.stat(temporary).st_mode & os.stat(target).st_mode & 0o777)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        # Of a file whose name nobody has given; one without a number is none of the system's.
        if isinstance(error, OSError) and error.errno and not is_of_handler(error):
            said = f"{error.strerror}; it was not written, and what was there is as before"
            raise OSError(error.errno, said, os.fspath(path)) from error
        raise


def sweep(folder: str) -> None:
    """Remove what processes had not written to its end when they were killed."""
    with suppressed(OSError), os.scandir(folder) as found:
        for entry in found:
            if _UNFINISHED.fullmatch(entry.name):
                with suppressed(OSError):  # another process has removed it, or may not
                    age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if age_s > _STALE_S:
                        os.unlink(entry.path)


_sweep_once = lru_cache(256)(sweep)  # a folder may hold thousands of files


def keep_places() -> list[int]:
    """Put the null device where a stream is closed (`2>&-`), for us and the processes we start.

    Else the next file that is opened, such as a saved run, takes its number, and what libraries
    write to the stream of that number.

    Returns:
        The numbers of those streams.
    """
    kept: list[int] = []
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
        kept.append(opened)
    os.close(opened)
    return kept


@lru_cache(4096)  # it is asked for each frame of each look at a thread
def in_packages(path: str) -> str:
    """`/.../site-packages/flax/core.py` -> `flax/core.py`; "" for what is no installed package."""
    found = _PACKAGES.match(path)
    return path[found.end() :].replace("\\", "/") if found else ""


def is_no_users(path: str) -> bool:
    """Is a file none of the user's: of a package, of Python itself, or written by torch.compile?

    `/usr/lib/python3.11/copy.py`, `/tmp/torchinductor_me/ab/cab7.py`. The path may be of another
    machine.
    """
    return any(of.match(path) for of in (_PACKAGES, _PYTHONS, _COMPILED))
