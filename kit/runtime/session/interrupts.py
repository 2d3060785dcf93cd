"""Ctrl-C while a session is open: raised where nothing is half done.

Python raises `KeyboardInterrupt` between any two instructions of the main thread. Between two lines
of the recorder that would lose the numbers of a tensor. Inside an op of torch it would end the
process: torch asks the kit for its device in C++ code that must not raise, and there Python looks
for signals, too. Python code cannot tell whether such C++ code runs: what is on top of the stack is
the user's line in both cases. So an interrupt is kept, and raised by the first of these:

- the next op that begins a segment or a phase, the end of a backward pass, of a step or of the
  session, or the next wait for the device, which all call `check`;
- the handler itself, which is called again every few milliseconds, once no op has been recorded
  for a while: then the user's code does something else, and no op of the kit is under way.

A second Ctrl-C does not wait for the recorder or for a backward pass, if no op is recorded.
A program that handles SIGINT itself keeps its handler, and is not protected.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol
from weakref import ref

from kit.errors import SessionError
from kit.runtime.engine.operations import IN_BETWEEN
from kit.runtime.recording.sites import KIT, callers

__all__ = ["Interrupts", "give_back_all", "no_session", "postponed", "refuse_in_handler"]

QUIET_S = 0.05  # without an op recorded: then no op is under way
RETRY_S = 0.02  # between two looks at an interrupt that is kept
_RECORDERS = tuple(f"{KIT}{folder}{os.sep}" for folder in ("runtime", "torch", "jax"))
_PATHS = sysconfig.get_paths()
_LIBRARIES = (
    *{_PATHS[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    os.path.dirname(os.__file__) + os.sep,
    "<frozen",
    "<string>",  # methods that `dataclass` writes
)
# Functions that Python calls by itself, and whose errors it prints and forgets: jax's is called by
# the garbage collector. So it does with what `weakref.finalize` calls.
_SWALLOW = frozenset({"__del__", "_xla_gc_callback"})
# Functions that hold a session's lock, in which the kit calls torch, and that the kit again.
_HOLD = frozenset({
    *("Dispatcher.dispatch", "ThreadStreams.flush", "Reads._taken", "to_host"),
    *("Session.mark_step", "Session._set_sizes", "Session.wait_to_read"),
    *("Redo.open", "Redo.close", "Bound.record", "Hybrid.__call__", "reset_arrays"),
})  # fmt: skip
# Functions that wait with nothing half done: an interrupt ends the wait, and harms nothing.
_WAITS = frozenset({"Engine.wait", "Pool._finish"})


class _Asked(Protocol):
    """A session, as far as its interrupts ask it."""

    streams: Any

    def is_in_backward(self) -> bool: ...


@dataclass(slots=True)
class _Retry:
    """What is known of the interrupt that is kept; sessions inside of each other share it."""

    lock: Any = field(default_factory=threading.Lock)  # held while a signal is sent
    is_sent: bool = False  # the next signal is a second look, and no second Ctrl-C
    ops: int = -1  # recorded at the last look
    since: float = 0.0  # when that number last changed
    is_postponed: bool = False  # until a block has ended that must not be left in the middle


class Interrupts:
    """Keeps an interrupt of the main thread until the session can stop.

    Attributes:
        kept: an entry for each interrupt that waits to be raised; shared as `_Retry` is.
        before: the handler that this one stands for.
    """

    def __init__(self) -> None:
        self.kept: list[FrameType | None] = []
        self._retry = _Retry()
        self._is_due = False  # the session closes, and an interrupt must be raised after that
        self.before: Any = None
        self._session: Callable[[], _Asked | None] = no_session

    @property
    def is_dropped(self) -> bool:
        """True once the session has been freed without having been closed."""
        return self._session() is None

    def watch(self, session: _Asked) -> contextlib.ExitStack:
        """Look after interrupts from now on; closing the result gives the handler of before back.

        Args:
            session: asked whether a backward pass is under way, and how many ops were recorded.
        """
        self._session = ref(session)  # a handler keeps no session alive
        undo = contextlib.ExitStack()
        try:
            if threading.current_thread() is threading.main_thread():
                undo.callback(self._give_back)
                self.install()
            return undo
        except BaseException:  # of the memory
            undo.close()
            raise

    def install(self) -> None:
        """Take the place of Python's own handler, or of that of a session around this one.

        A notebook's kernel sets its own handler before each cell, so this is called there, too.
        """
        before = signal.getsignal(signal.SIGINT)
        outer = getattr(before, "__self__", None)
        while isinstance(outer, Interrupts) and outer is not self and outer.is_dropped:
            before, outer = outer.before, getattr(outer.before, "__self__", None)
        if isinstance(outer, Interrupts):
            self.kept, self._retry = outer.kept, outer._retry
        elif before is not signal.default_int_handler:
            return
        if outer is not self:
            self.before = before
            signal.signal(signal.SIGINT, self.arrive)

    def _give_back(self) -> None:
        above = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        if above is not self:  # a session that was opened later is still open, as with asyncio
            while isinstance(above, Interrupts):
                after, above = above, getattr(above.before, "__self__", None)
                if above is self:
                    after.before = self.before
                    return
            return
        with self._retry.lock:  # no second look is sent from here on
            self._is_due = bool(self.kept)
            self.kept.clear()
        signal.signal(signal.SIGINT, self.before)

    def arrive(self, number: int, frame: FrameType | None) -> None:
        """The handler: raises the interrupt now, or keeps it.

        Raises:
            KeyboardInterrupt: nothing is half done.
        """
        retry = self._retry
        is_again, retry.is_sent = retry.is_sent, False
        if is_again and not self.kept:
            return  # it has been raised meanwhile
        session = self._session()
        is_second = len(self.kept) > is_again
        may_raise = session is None or self._may_raise(session, frame, is_second=is_second)
        if may_raise and not _is_swallowed(frame):
            self.kept.clear()
            raise KeyboardInterrupt
        if not is_again:
            self.kept.append(None)
            if len(self.kept) == 1:
                # not on Windows, nor if there are no more threads: then `check` raises it
                with contextlib.suppress(RuntimeError, AttributeError):
                    send = signal.pthread_kill  # type: ignore[attr-defined, unused-ignore]
                    _thread.start_new_thread(self._look_again, (send,))

    def _may_raise(self, session: _Asked, frame: FrameType | None, *, is_second: bool) -> bool:
        is_in_backward, retry = session.is_in_backward(), self._retry
        if retry.is_postponed and not is_second:
            return False
        if _is_waiting(frame):
            return is_second or not is_in_backward
        ops, now = session.streams.ops_recorded_here(), time.monotonic()
        if ops != retry.ops or not self.kept:
            retry.ops, retry.since = ops, now
            return False
        if now - retry.since < QUIET_S:
            return False
        return is_second or not (is_in_backward or _is_recording(frame))

    def _look_again(self, send: Callable[[int, int], None]) -> None:
        """Have the handler called until the interrupt has been raised; a thread of its own."""
        main = threading.main_thread().ident
        while self.kept and main is not None:
            time.sleep(RETRY_S)
            with self._retry.lock:
                if self.kept:
                    self._retry.is_sent = True
                    send(main, signal.SIGINT)

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """An interrupt is raised soon after the block; a second one as it is elsewhere."""
        before = self._retry.is_postponed
        try:
            self._retry.is_postponed = True
            yield
        finally:
            self._retry.is_postponed = before

    def check(self) -> None:
        """Nothing is half done here: raise the interrupt that was kept.

        Raises:
            KeyboardInterrupt: there was one, and no backward pass is under way.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        session = self._session()
        is_in_backward = session is not None and session.is_in_backward()
        if self._is_due or (self.kept and not is_in_backward):
            self._is_due = False
            with self._retry.lock:
                self.kept.clear()
            raise KeyboardInterrupt


def give_back_all() -> None:
    """In a forked child: the handler of before all sessions, without the lock of a lost thread."""
    before = handler = signal.getsignal(signal.SIGINT)
    while isinstance(interrupts := getattr(handler, "__self__", None), Interrupts):
        interrupts.kept.clear()
        handler = interrupts.before
    if handler is not before and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """An interrupt is raised after the block, and not between two lines of it.

    For a few lines that must not be left in the middle. A second interrupt is raised at once; so is
    the first where the program handles SIGINT itself.
    """
    before = signal.getsignal(signal.SIGINT)
    owner = getattr(before, "__self__", None)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if isinstance(owner, Interrupts):
        with owner.postponed():
            yield
        return
    if before is not signal.default_int_handler:
        yield
        return
    kept: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        if kept:
            raise KeyboardInterrupt
        kept.append(number)

    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if kept:
            raise KeyboardInterrupt


def refuse_in_handler(frame: FrameType | None) -> None:
    """Called where this thread holds a session's lock already: who wants it again?

    Args:
        frame: of the function that is about to take it.

    Raises:
        SessionError: a signal handler or a `__del__`, which came between two lines that belong
            together.
    """
    while frame is not None and (frame := frame.f_back) is not None:
        code = frame.f_code
        if code.co_filename.startswith(KIT):
            if code.co_qualname in _HOLD:
                return  # nothing came between
        elif _is_called_in_between(frame):
            raise SessionError(IN_BETWEEN)


def _is_called_in_between(frame: FrameType) -> bool:
    """Has Python itself called this function, between two instructions of its caller?"""
    code, caller = frame.f_code, frame.f_back
    if code.co_name == "__del__" or code.co_filename == weakref.__file__:
        return True
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 1]  # and `*rest`
    known = frame.f_locals
    given = (known.get(name) for name in arguments)
    # a signal handler is given the frame that it interrupts
    found = (y for x in given for y in (x if isinstance(x, tuple) else (x,)))
    return caller is not None and any(x is caller for x in found)


def no_session() -> None:
    """Stands for a reference to a session where none has been entered."""


def _is_swallowed(frame: FrameType | None) -> bool:
    """True where an interrupt would be lost if it were raised."""
    codes = (f.f_code for f in callers(frame))
    return any(x.co_name in _SWALLOW or x.co_filename == weakref.__file__ for x in codes)


def _is_waiting(frame: FrameType | None) -> bool:
    """Does the thread wait for another one, with nothing half done?"""
    if frame is None:
        return False
    if frame.f_code.co_filename != threading.__file__:
        return frame.f_code.co_qualname in _WAITS and frame.f_code.co_filename.startswith(KIT)
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        if frame.f_code.co_name == "start":
            return False  # a thread that has started must be known to whoever starts it
        frame = frame.f_back
    return True


def _is_recording(frame: FrameType | None) -> bool:
    """Is the recorder at work? Libraries work for whoever has called them."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_RECORDERS):
            return True
        if not name.startswith(_LIBRARIES):
            return False
        frame = frame.f_back
    return False
