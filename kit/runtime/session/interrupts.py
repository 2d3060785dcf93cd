"""What handlers of signals raise while a session is open: raised where nothing is half done.

Python calls the handler of a signal between any two instructions of the main thread. Ctrl-C's
raises `KeyboardInterrupt`; one of the program's may raise what it likes, as a time limit by
`signal.alarm` does, or `sys.exit` at SIGTERM. Between two lines of the recorder that would lose the
numbers of a tensor. Inside an op of torch it could end the process: torch asks the kit for its
device in C++ code that must not raise, and Python looks for signals there, too. So each handler is
called at once, what it raises is kept, and that is raised by the first of these:

- what has called the handler, if the program's own code is on top, or a wait, and no backward pass
  is under way; it looks again every few milliseconds, by a second signal of the same number (one
  of the program's that comes while that is on its way is one with it, and calls no handler);
- the next op that begins a segment or a phase, the end of a backward pass, of a step or of the
  session, or the next wait for the device, which all call `check`;
- the function that sets another handler for that signal, as at the end of a time limit. One that is
  ended by `signal.alarm(0)` alone may still be raised after its block.

A second one does not wait for the recorder or for a backward pass, if no op is recorded.

For this, Python's table of handlers has callers of the kit's, from the first session on. Those who
ask `signal` for a handler, or set one, see the program's own only.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import os
import signal
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, Protocol
from weakref import ref

from kit.errors import SessionError, call_handler, given_to
from kit.runtime.engine.operations import IN_BETWEEN
from kit.runtime.recording.sites import KIT, callers
from kit.threads import in_forked_children

__all__ = [
    "INTERRUPTS",
    "Interrupts",
    "no_session",
    "postponed",
    "refuse_in_handler",
]

QUIET_S = 0.05  # without an op recorded: then a second signal is raised wherever it comes
RETRY_S = 0.02  # between two looks at what is kept
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
_STARTS = frozenset({threading.__file__, f"{KIT}threads.py"})  # in which a thread is started

Handler = Callable[[int, FrameType | None], object]
_TABLE: Any = importlib.import_module("_signal")  # which `signal` asks, also where it is imported
_set, _get = _TABLE.signal, _TABLE.getsignal


class _Asked(Protocol):
    """A session, as far as it is asked here."""

    streams: Any

    def is_in_backward(self) -> bool: ...


class _Caller(partial[object]):
    """Stands in Python's table for a handler of the program's, and calls it by `arrive`."""

    @property
    def own(self) -> Handler:
        """The program's."""
        found: Handler = self.args[0]
        return found


class Interrupts:
    """Calls the handlers of signals, and keeps what they raise until it can be raised.

    There is one in a process, as there is one table of handlers.

    Attributes:
        kept: what was raised and waits, after the number of its signal.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[int, BaseException]] = []
        self._is_asked: Callable[[], bool] = bool  # by C++ code that must not raise, for the device
        self._sessions: list[ref[_Asked]] = []  # open in the main thread, the innermost last
        self._lock = threading.RLock()  # held while a handler is set, and while a signal is sent
        self._sent = 0  # the next signal of this number is a second look, and calls no handler
        self._is_sending = False  # a thread has the handlers called until nothing is kept
        self._is_looking = False  # and must not be left by another signal
        self._is_postponed = False  # until a block has ended that must not be left in the middle
        self._ops = -1  # recorded at the last look
        self._since = 0.0  # when that number last changed

    # -- the table of handlers -------------------------------------------------------------------

    def hook(self, is_asked: Callable[[], bool] | None = None) -> None:
        """Call the handlers from now on; but Python lets only the main thread set them.

        Args:
            is_asked: true where C++ code that must not raise asks for the device.
        """
        self._is_asked = is_asked or self._is_asked
        if _TABLE.getsignal == self._handler or not _is_main():
            return
        for number in signal.valid_signals():
            if callable(handler := _get(number)):
                _set(number, self._caller(handler))
        _TABLE.signal = self._set_handler
        in_forked_children(self._begin_child)
        _TABLE.getsignal = self._handler

    def _caller(self, handler: Any) -> Any:
        own = _own(handler)
        return _Caller(self.arrive, own) if callable(own) else own

    def _handler(self, number: int, /) -> Any:
        return _own(_get(number))

    def _set_handler(self, number: int, handler: Any, /) -> Any:
        with self._lock:
            before = _own(_set(number, self._caller(handler)))
            self._sent = 0
            if self.kept:
                self._look_later()  # by this handler's caller, if there was none
        # A notebook's kernel sets that of Ctrl-C itself, and ends if an interrupt is raised there;
        # and what was kept must not stop a handler that puts itself away.
        is_kept = number != signal.SIGINT and any(kept == number for kept, _ in self.kept)
        if is_kept and not _is_in_handler(sys._getframe()):
            self.check()  # else a time limit would be raised where its block has been left
        return before

    def _begin_child(self) -> None:
        """In a forked child: sessions and threads are the parent's, one of which had the lock."""
        self.kept.clear()
        self._sessions.clear()
        self._lock = threading.RLock()
        self._sent = 0
        self._is_sending = self._is_looking = self._is_postponed = False

    # -- sessions --------------------------------------------------------------------------------

    def watch(self, session: _Asked) -> contextlib.ExitStack:
        """Look after a session from now on, if this is the main thread; closing the result ends it.

        Args:
            session: asked whether a backward pass is under way, and how many ops were recorded.
        """
        undo = contextlib.ExitStack()
        try:
            if _is_main():
                self.hook()
                known = ref(session)  # this keeps no session alive
                undo.callback(self._forget, known)
                self._sessions.append(known)
            return undo
        except BaseException:  # of the memory
            undo.close()
            raise

    def _forget(self, known: ref[_Asked]) -> None:
        self._sessions[:] = [x for x in self._sessions if x is not known and x() is not None]

    def _session(self) -> _Asked | None:
        found = (known() for known in reversed(self._sessions))
        return next((session for session in found if session is not None), None)

    # -- signals ---------------------------------------------------------------------------------

    def arrive(self, handler: Handler, number: int, frame: FrameType | None) -> None:
        """A signal has come: call its handler, and raise what that raises, or keep it.

        Raises:
            BaseException: nothing is half done.
        """
        if self._sent == number:
            self._sent = 0
        else:
            try:
                call_handler(handler, number, frame)
                return
            except BaseException as error:  # noqa: BLE001 - raised here or later
                self.kept.append((number, error))
            self._ops = -1
        if not self.kept or self._is_looking:
            return  # it has been raised meanwhile; or another one is looked at, and this one later
        self._is_looking = True
        try:
            may_raise = self._may_raise(frame, is_second=len(self.kept) > 1)
            if not may_raise:
                self._look_later()
        finally:
            self._is_looking = False
        if may_raise:
            raise self._next()

    def _may_raise(self, frame: FrameType | None, *, is_second: bool) -> bool:
        if self._is_asked() or _is_swallowed(frame) or (self._is_postponed and not is_second):
            return False
        session = self._session()
        if session is None:
            return True
        is_waiting, is_in_backward = _is_waiting(frame), session.is_in_backward()
        if not is_in_backward and (is_waiting or not _is_recording(frame)):
            return True
        if is_waiting:
            return is_second
        ops, now = session.streams.ops_recorded_here(), time.monotonic()
        if ops != self._ops:
            self._ops, self._since = ops, now
        return is_second and now - self._since >= QUIET_S

    def _next(self) -> BaseException:
        """Take what came first; the same of a second signal is raised with it."""
        number, error = self.kept[0]
        if len(self.kept) > 1:
            self._look_later()
        self.kept[:] = [(n, e) for n, e in self.kept if (n, type(e)) != (number, type(error))]
        return error

    def _look_later(self) -> None:
        """Have a handler's caller look again; not on Windows, nor without one more thread."""
        send = getattr(signal, "pthread_kill", None)
        with self._lock, contextlib.suppress(RuntimeError):  # then `check` raises it
            if send is not None and not self._is_sending:
                _thread.start_new_thread(self._send, (send,))
                self._is_sending = True

    def _send(self, send: Callable[[int, int], None]) -> None:
        main = threading.main_thread().ident
        while main is not None:
            time.sleep(RETRY_S)
            with self._lock:
                # a signal that has no caller may end the process
                called = (n for n, _ in self.kept if isinstance(_get(n), _Caller))
                number = next(called, None)
                if number is None:
                    self._is_sending = False
                    return
                if not self._sent:
                    self._sent = number
                    send(main, number)

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """What a handler raises is raised after the block, and not between two lines of it.

        For a few lines that must not be left in the middle. What a second one raises is raised at
        once. In a session it is raised soon after the block, as the block may be part of an op.
        """
        if not _is_main():
            yield
            return
        self.hook()
        before = self._is_postponed
        try:
            self._is_postponed = True
            yield
        finally:
            self._is_postponed = before
            if not before and self._session() is None:
                self.check()

    def check(self) -> None:
        """Nothing is half done here: raise what was kept.

        Raises:
            BaseException: there is something, and no backward pass is under way.
        """
        if not self.kept or not _is_main():
            return
        session = self._session()
        if session is None or not session.is_in_backward():
            raise self._next()


INTERRUPTS = Interrupts()
postponed = INTERRUPTS.postponed
_ARRIVE = Interrupts.arrive.__code__


def _own(handler: Any) -> Any:
    return handler.own if isinstance(handler, _Caller) else handler


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _is_in_handler(frame: FrameType | None) -> bool:
    return any(f.f_code is _ARRIVE for f in callers(frame))


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
        if code is _ARRIVE:
            raise SessionError(IN_BETWEEN)
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
    # a signal handler is given the frame that it interrupts
    return caller is not None and any(x is caller for x in given_to(frame))


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
    while frame is not None and frame.f_code.co_filename in _STARTS:
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
