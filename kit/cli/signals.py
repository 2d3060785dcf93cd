"""What ends a script before its end: SIGTERM, a terminal that is closed, `--stop`.

What was recorded is kept, and no folder or process left. Elsewhere these signals end the process at
once, as they end Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kit.cli.terminal import complain
from kit.threads import in_forked_children

__all__ = ["Enough", "Told", "as_ctrl_c", "ending_timers", "leave", "leaving_nothing"]

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_TIMERS = [
    getattr(signal, f"ITIMER_{name}")
    for name in ("REAL", "VIRTUAL", "PROF")
    if hasattr(signal, "setitimer")  # not on Windows
]
AGAIN_S = 1.0  # between two signals that are not one


class Enough(BaseException):
    """`--stop`: the steps are recorded. No `except Exception` of the script may hold it up."""


def leave(exits: contextlib.ExitStack, script: str) -> None:
    """End the script here, in its main thread; say so where it catches that and goes on.

    Args:
        exits: left when the script has ended.
    """
    from kit.torch.optimizers import FOLLOWED, OptimizerWatch

    main = threading.main_thread()

    class GoesOn(OptimizerWatch):
        def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
            if threading.current_thread() is main:
                FOLLOWED.leave(self)
                complain(
                    f"{script} has caught what ends it after --stop, as `except:` does, and goes "
                    "on; its steps are recorded"
                )

    if threading.current_thread() is main:
        goes_on = GoesOn()
        exits.callback(FOLLOWED.leave, goes_on)
        FOLLOWED.follow(goes_on)
        raise Enough


class Told:
    """Whether such a signal has come.

    A second SIGTERM ends the process at once: more than `AGAIN_S` later, as `timeout` sends its own
    to the process and to its group; and not while a call of C's holds the main thread.

    Attributes:
        number: the signal's; 0 until then.
    """

    def __init__(self) -> None:
        self.number = 0
        self._process, self._at_s = os.getpid(), 0.0
        self._is_over = False

    def hear(self, number: int, frame: Any) -> None:
        """The handler: the first signal is an interrupt while the script runs."""
        if os.getpid() != self._process:  # a child, whose own handler has called this one
            _end_by(number)
        elif not self.number:
            self.number, self._at_s = number, time.monotonic()
            if not self._is_over:
                self._interrupt()
        elif number == signal.SIGTERM and time.monotonic() - self._at_s > AGAIN_S:
            _end_by(number)

    def script_is_over(self) -> None:
        """From here on a signal is noted, and what the script has left is kept whole."""
        self._is_over = True

    def _interrupt(self) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a job in the background
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def ending_timers() -> Iterator[None]:
    """The timers that the block sets end with it, as those of a script with its process."""
    free = [number for number in _TIMERS if signal.getitimer(number) == (0, 0)]
    try:
        yield
    finally:
        for number in free:
            signal.setitimer(number, 0)


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
                    undo.callback(_undo, number, by)
                    signal.signal(number, by)
        yield


def _undo(number: int, by: Callable[[int, Any], None]) -> None:
    if signal.getsignal(number) == by:  # no handler of the program's has come since
        signal.signal(number, signal.SIG_DFL)


def _end_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


@functools.cache
def _leave_children_alone() -> None:
    """A handler of Python's would not end a child that is in C code: a loader's worker may be."""
    in_forked_children(_as_before)


def _as_before() -> None:
    for number in _ENDING:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), Told):
            signal.signal(number, signal.SIG_DFL)
