"""A folder of compiled programs, each with a seal: only what this user has put there is run.

What somebody else wrote, what was put in another's place and what is torn is compiled again. The
seal is an HMAC of the entry's name and contents with a key of this user, which lies beside the
entries. Nothing here takes a lock, and a write costs the same whether there are ten entries or a
hundred thousand: entries appear by a rename, and one write in some thousand makes room.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import sys
import time
from functools import partial
from pathlib import Path

from kit.files import open_plain, write_whole

__all__ = ["MAX_BYTES", "SealedFolder"]

MAX_BYTES = 2 << 30  # beyond them the least recently used entries make room
_ROOM = 0.9  # of these bytes are left when room was made
_BETWEEN = 16  # room is made about as often as a part like this of MAX_BYTES was written
_SUFFIX = ".sealed"
_KEY = "key"
_KEY_BYTES = 32
_SEAL_BYTES = 32
_STALE_S = 3600.0  # a file that is still being written is younger


class SealedFolder:
    """Entries by name; `get` and `put` are what jax asks of its persistent cache.

    Raises:
        OSError: the folder cannot be written to, or its key is not this user's alone.
    """

    def __init__(self, folder: str) -> None:
        self._path = Path(folder)  # jax's name for it: jax logs it
        self._key = _key_of(self._path)

    def get(self, key: str) -> bytes | None:
        """What was put under this name, by this user; None if there is nothing that is."""
        file = self._file(key)
        try:
            with open_plain(file) as opened:
                sealed = opened.read()
        except OSError:  # there is none, or no file that may be read
            return None
        seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        is_mine = hmac.compare_digest(seal, self._seal(key, content))
        with contextlib.suppress(OSError):  # another process may have removed it
            if is_mine:
                os.utime(file)  # the least recently used ones make room
            else:
                file.unlink()
        return content if is_mine else None

    def put(self, key: str, value: bytes) -> None:
        """Keep an entry; now and then, make room."""
        write_whole(self._file(key), self._seal(key, value) + value, sync=False)
        if secrets.randbelow(MAX_BYTES) < _BETWEEN * len(value):
            self.make_room()

    def make_room(self) -> None:
        """Remove the least recently used entries beyond `MAX_BYTES`, and what a kill left."""
        entries, now = [], time.time()
        with os.scandir(self._path) as found:
            for entry in found:
                # "-cache": of jax's own cache, which earlier versions kept here
                if not entry.name.endswith((_SUFFIX, ".tmp", "-cache", "-atime")):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    is_left = entry.name.endswith(".tmp") and now - state.st_mtime > _STALE_S
                    entries.append((0.0 if is_left else state.st_mtime, state.st_size, entry.path))
        total = sum(size for _, size, _ in entries)
        target = _ROOM * MAX_BYTES if total > MAX_BYTES else MAX_BYTES
        for used, size, path in sorted(entries):
            if used and total <= target:
                break
            total -= size
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _file(self, key: str) -> Path:
        if not key or os.path.basename(key) != key:
            raise ValueError(f"no name of an entry: {key!r}")
        return self._path / (key + _SUFFIX)

    def _seal(self, key: str, content: bytes) -> bytes:
        made = hmac.new(self._key, key.encode() + b"\0", "sha256")
        made.update(content)
        return made.digest()


def _key_of(folder: Path) -> bytes:
    """The key of a folder; made by the first process that comes."""
    path = folder / _KEY
    for _ in range(2):
        if not path.exists():
            fresh = folder / f"{_KEY}.{secrets.token_hex(4)}.tmp"
            with open(fresh, "xb", opener=partial(os.open, mode=0o600)) as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            os.replace(fresh, path)  # of several processes the last one's counts
        with open(path, "rb", opener=_open_no_link) as file:
            state, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
        if sys.platform != "win32" and (state.st_uid != os.getuid() or state.st_mode & 0o077):
            raise PermissionError(f"{str(path)!r} is not this user's alone: `chmod 600` it")
        if len(key) == _KEY_BYTES:
            return key
        path.unlink()  # torn: what it has sealed is compiled again
    raise OSError(f"{str(path)!r} cannot be kept")


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
