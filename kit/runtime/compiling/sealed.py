"""A folder of compiled programs, each with a seal: only what this user has put there is run.

What somebody else wrote, what was put in another's place and what is torn is compiled again. The
seal is an HMAC of the entry's name and contents with a key of this user, which lies beside the
entries. Nothing here takes a lock, and a write costs the same whether there are ten entries or a
hundred thousand: entries appear by a rename, and one write in some thousand makes room.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from kit.errors import but_of_handlers, suppressed
from kit.files import open_plain, sweep, write_whole
from kit.text import safe_terminal

__all__ = ["MAX_BYTES", "SealedFolder"]

MAX_BYTES = 2 << 30  # beyond them the least recently used entries make room
_ROOM = 0.9  # of these bytes are left when room was made
_BETWEEN = 16  # room is made about as often as a part like this of MAX_BYTES was written
_SUFFIX = ".sealed"
_KEY = "key"
_KEY_BYTES = 32
_SEAL_BYTES = 32


class SealedFolder:
    """Entries by name; `get` and `put` are what jax asks of its persistent cache.

    Raises:
        OSError: the folder cannot be written to, or its key is not this user's alone.
    """

    def __init__(self, folder: str) -> None:
        self._path = Path(folder)  # jax's name for it: jax logs it
        self._key = _key_of(self._path)
        self._has_failed = False  # at writing an entry
        sweep(folder)

    def get(self, key: str) -> bytes | None:
        """What was put under this name, by this user; None if there is nothing that is."""
        file = self._file(key)
        try:
            with open_plain(file) as opened:
                sealed = opened.read()
        except but_of_handlers(OSError):  # there is none, or no file that may be read
            return None
        seal, content = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        is_mine = hmac.compare_digest(seal, self._seal(key, content))
        with suppressed(OSError):  # another process may have removed it
            if is_mine:
                os.utime(file)  # the least recently used ones make room
            else:
                file.unlink()
        return content if is_mine else None

    def put(self, key: str, value: bytes) -> None:
        """Keep an entry; now and then, make room. Why the first cannot be written is said once."""
        file = self._file(key)
        try:
            write_whole(file, self._seal(key, value) + value, sync=False)
        except but_of_handlers(OSError) as error:  # a full disk, a quota: jax would always warn
            if not self._has_failed:
                self._has_failed = True
                where = repr(safe_terminal(self._path, 200))
                why = safe_terminal(error.strerror, 300)
                warnings.warn(
                    f"not all compiled programs are kept in {where}: {why}. KIT_CACHE_DIR names "
                    "another folder",
                    stacklevel=2,
                )
            return
        if secrets.randbelow(MAX_BYTES) < _BETWEEN * len(value):
            self.make_room()

    def make_room(self) -> None:
        """Remove the least recently used files beyond `MAX_BYTES`."""
        # "-cache": of jax's own cache, which earlier versions kept here
        entries = sorted(self._files(_SUFFIX, ".tmp", "-cache", "-atime"))
        total = sum(size for _, size, _ in entries)
        target = _ROOM * MAX_BYTES if total > MAX_BYTES else MAX_BYTES
        for _, size, path in entries:
            if total <= target:
                break
            total -= size
            with suppressed(OSError):
                os.unlink(path)

    def _files(self, *suffixes: str) -> Iterator[tuple[float, int, str]]:
        """When each file of such a name was last used, its size, and its path."""
        with os.scandir(self._path) as found:
            for entry in found:
                if entry.name.endswith(suffixes):
                    with suppressed(OSError):  # another process has removed it
                        state = entry.stat(follow_symlinks=False)
                        yield state.st_mtime, state.st_size, entry.path

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
            if path.is_symlink():  # it leads nowhere, and the key would be written there
                path.unlink(missing_ok=True)
            # Of several processes the last one's counts.
            write_whole(path, secrets.token_bytes(_KEY_BYTES), sync=False, mode=0o600)
        with open_plain(path, follows_links=False) as file:
            state, key = os.fstat(file.fileno()), file.read(_KEY_BYTES + 1)
        if sys.platform != "win32" and (state.st_uid != os.getuid() or state.st_mode & 0o077):
            raise PermissionError(f"{str(path)!r} is not this user's alone: `chmod 600` it")
        if len(key) == _KEY_BYTES:
            return key
        path.unlink()  # torn: what it has sealed is compiled again
    raise OSError(f"{str(path)!r} cannot be kept")
