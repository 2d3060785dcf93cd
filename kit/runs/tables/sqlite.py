"""SQLite for what strangers give, a file or a question: it may read, and only so much.

Ctrl-C is raised where SQLite reports what it has done; it catches that and stops, so that whoever
asked it has to find out why.
"""

from __future__ import annotations

import sqlite3

__all__ = ["Budget", "as_text", "may_read"]

EVERY = 1_000_000  # operations between two reports, which is also how soon Ctrl-C is heard
_READING = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)


class Budget:
    """How many operations SQLite may take for one file, or for one question."""

    def __init__(self, operations: int) -> None:
        self._left = operations

    def watch(self, database: sqlite3.Connection) -> None:
        """Count what this connection does from now on; stop it when all is spent."""
        database.set_progress_handler(self.spend, EVERY)

    def spend(self) -> int:
        """Not 0: stop."""
        self._left -= EVERY
        return int(self.is_spent)

    @property
    def is_spent(self) -> bool:
        """Was it stopped because it had taken too much?"""
        return self._left <= 0

    def was_interrupted(self, error: Exception) -> bool:
        """Was it Ctrl-C that stopped SQLite, and not the end of the budget?"""
        code = getattr(error, "sqlite_errorcode", None)
        return code == sqlite3.SQLITE_INTERRUPT and not self.is_spent


def may_read(action: int, what: str | None, more: str | None, *_: str | None) -> int:
    """Reading is allowed, and nothing else: no other file, no setting, no change."""
    is_read = action in _READING and more != "load_extension"
    return sqlite3.SQLITE_OK if is_read else sqlite3.SQLITE_DENY


def as_text(data: bytes) -> str:
    """A text of a database, whatever its bytes are."""
    return data.decode(errors="replace")
