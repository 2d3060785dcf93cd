"""Sessions in a forked child: refused there, because none of their threads is in the child.

A lock that another thread of the parent held is held for ever in the child, so a session must
refuse before it takes one: at the fork, not at the next use.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import Protocol
from weakref import WeakValueDictionary

from kit.threads import forked, in_forked_children

__all__ = ["entered", "is_any_open", "watch_forks"]


class Session(Protocol):
    """What a fork leaves behind."""

    @property
    def is_open(self) -> bool: ...

    def leave_behind(self) -> None: ...


class _Entered:
    """The sessions that were entered in this process.

    Attributes:
        count: how many, also of those that are gone.
        is_child: this is a fork of the process that entered them.
    """

    def __init__(self) -> None:
        self._sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()  # by their ids
        self.count = 0
        self.is_child = False
        in_forked_children(self._refuse)

    def _refuse(self) -> None:
        self.is_child = True
        _collect_without_xla()
        for session in self.living():
            session.leave_behind()

    def add(self, session: Session) -> None:
        self._sessions[id(session)] = session
        self.count += 1

    def living(self) -> list[Session]:
        """Those that are not freed; another thread may enter one meanwhile."""
        found = [reference() for reference in self._sessions.valuerefs()]
        return [session for session in found if session is not None]


def _collect_without_xla() -> None:
    """Let the garbage collector leave alone what is the parent's: freeing an array asks XLA, whose
    threads are not there; and jax's own hook takes a lock that one of them may have held."""
    gc.freeze()
    owners = [getattr(hook, "__module__", None) or "" for hook in gc.callbacks]
    gc.callbacks[:] = [
        hook for hook, owner in zip(gc.callbacks, owners, strict=True) if owner[:3] != "jax"
    ]


@cache
def _entered() -> _Entered:
    """One for the process: a hook of forks cannot be taken back."""
    return _Entered()


def watch_forks(session: Session) -> None:
    """A session is entered: a forked child will not use it.

    Raises:
        EngineError: this is the forked child of a process in which one was entered.
    """
    all_of_them = _entered()
    if all_of_them.is_child:
        raise forked("kit's and XLA's threads")
    all_of_them.add(session)


def entered() -> int:
    """How many sessions were entered in this process until now."""
    return _entered().count if _is_any_entered() else 0


def is_any_open() -> bool:
    """Is a session open, in whichever thread? Then arrays of jax's may be its own."""
    return _is_any_entered() and any(session.is_open for session in _entered().living())


def _is_any_entered() -> bool:
    """To ask must not hook forks: a child of a process without a session may use the kit."""
    return bool(_entered.cache_info().currsize)
