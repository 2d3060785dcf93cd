"""Hear a signal for a while, and then put back what was there, a handler of Python's or not."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Callable
from typing import Any

from kit.errors import SettingsError, but_of_handlers

__all__ = ["SignalHandler"]

# Bytes. A `struct sigaction` has 16 to 152, by the system; the function's address comes first.
_ROOM = 512
_ADDRESS = ctypes.sizeof(ctypes.c_void_p)


class SignalHandler:
    """Calls `heard` at each signal, and after that the handler of Python's that was there before.

    A handler that is none of Python's, such as that of `faulthandler`, is silent meanwhile.
    """

    def __init__(self, number: int, heard: Callable[[], object]) -> None:
        self.number = number
        self._heard: Callable[[], object] | None = heard
        self._before: Any = None  # Python's handler; None where it is not
        self._system_before = b""
        self._address: bytes | None = None  # of the function that the system calls for this one

    def open(self) -> None:
        """Hear the signal from now on.

        Raises:
            SettingsError: this thread or system cannot handle the signal.
        """
        self._system_before = _action(self.number)
        try:
            self._before = signal.getsignal(self.number)
            signal.signal(self.number, self._handle)
        except but_of_handlers(ValueError, OSError) as error:
            # not the main thread; no such signal, or SIGKILL
            raise SettingsError(
                f"signal {self.number} cannot begin a recording ({error}): open the watch in the "
                "main thread, with a signal such as SIGUSR1, or give when= the path of a file"
            ) from None
        self._address = _action(self.number)[:_ADDRESS]

    def close(self) -> None:
        """Hear no more; what was there before is put back, if nothing else has come since.

        Also after an `open` that an interrupt has ended.

        In another thread than the main one nothing can be put back: the handler stays, and only
        calls the one before.
        """
        self._heard = None
        is_last = signal.getsignal(self.number) == self._handle
        address = self._address  # None: an interrupt came before it was asked for
        if not is_last or address not in (None, _action(self.number)[:_ADDRESS]):
            return
        before, system = self._before, self._system_before
        while isinstance(own := getattr(before, "__self__", None), SignalHandler) and own.is_closed:
            before, system = own._before, own._system_before
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(self.number, signal.SIG_DFL if before is None else before)
            _act(self.number, system)

    @property
    def is_closed(self) -> bool:
        """True once it hears no more."""
        return self._heard is None

    def _handle(self, number: int, frame: Any) -> None:
        if self._heard is not None:
            self._heard()
        if callable(self._before):
            self._before(number, frame)


def _action(number: int) -> bytes:
    """What the system does at a signal, as it keeps that; empty where Python alone knows."""
    if sys.platform == "win32":
        return b""
    room = ctypes.create_string_buffer(_ROOM)
    return room.raw if ctypes.CDLL(None).sigaction(number, None, room) == 0 else b""


def _act(number: int, action: bytes) -> None:
    """Have the system do that at a signal; Python knows of no handler but its own."""
    if action:
        ctypes.CDLL(None).sigaction(number, ctypes.create_string_buffer(action, _ROOM), None)
