"""Sessions in a forked child: refused there, because none of their threads is in the child.

A lock that another thread of the parent held is held for ever in the child, so a session must
refuse before it takes one: at the fork, not at the next use.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import Protocol
from weakref import WeakSet

from kit.runtime.session.interrupts import give_back_all
from kit.threads import forked, in_forked_children

__all__ = ["is_any_open", "watch_forks"]


class Session(Protocol):
    """What a fork leaves behind."""

    @property
    def is_open(self) -> bool: ...

    def leave_behind(self) -> None: ...


class _Entered:
    """The sessions that were entered in this process.

    Attributes:
        is_child: this is a fork of the process that entered them.
    """

    def __init__(self) -> None:
        self.open: WeakSet[Session] = WeakSet()
        self.is_child = False
        in_forked_children(self._refuse)

    def _refuse(self) -> None:
        self.is_child = True
        _collect_without_xla()
        give_back_all()
        for session in self.open:
            session.leave_behind()


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
    entered = _entered()
    if entered.is_child:
        raise forked("kit's and XLA's threads")
    entered.open.add(session)


def is_any_open() -> bool:
    """Is a session open, in whichever thread? Then arrays of jax's may be its own."""
    return any(session.is_open for session in tuple(_entered().open))
