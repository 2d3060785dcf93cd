"""Write a file so that no reader ever meets half of it."""

from __future__ import annotations

import contextlib
import os
import secrets

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file: all of it or nothing.

    Raises:
        OSError: it cannot be written; an older file of this name is then untouched.
    """
    temporary = f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):  # who could not read the older file cannot now
            os.chmod(temporary, os.stat(temporary).st_mode & os.stat(path).st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
