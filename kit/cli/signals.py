"""SIGTERM, and a terminal that is closed: what was recorded is kept, and no folder or process left.

Elsewhere they end the process at once, as they end Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Told", "as_ctrl_c", "leaving_nothing"]

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Told:
    """Whether such a signal has come.

    Attributes:
        number: the signal's; 0 until then.
    """

    def __init__(self) -> None:
        self.number = 0

    def hear(self, number: int, frame: Any) -> None:
        """A second one ends the process at once, but a closed terminal may send its own twice."""
        self.number = number
        for each in _heard():
            signal.signal(each, signal.SIG_DFL if each == signal.SIGTERM else signal.SIG_IGN)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a job in the background
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def as_ctrl_c() -> Iterator[Told]:
    """Until the block ends, the first of these signals does what Ctrl-C does, and no more harm.

    Whoever ignores a signal (`nohup`), or handles it, is left alone, and so is a forked child.
    """
    told = Told()
    with _handled(told.hear):
        _leave_children_alone()
        yield told


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Until the block ends, these signals leave it as an error does, with the status of a shell.

    Whoever ignores a signal (`nohup`), or handles it, is left alone.
    """
    with _handled(_leave):
        yield


@contextlib.contextmanager
def _handled(by: Callable[[int, Any], None]) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    undo.callback(signal.signal, number, signal.SIG_DFL)
                    signal.signal(number, by)
        yield


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


@functools.cache
def _leave_children_alone() -> None:
    """A handler of Python's would not end a child that is in C code: a loader's worker may be."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_as_before)


def _as_before() -> None:
    for each in _heard():
        signal.signal(each, signal.SIG_DFL)


def _heard() -> list[int]:
    """The signals that a `Told` handles now."""
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    return [n for n, by in handlers.items() if isinstance(getattr(by, "__self__", None), Told)]
