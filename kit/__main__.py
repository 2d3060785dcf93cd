"""`kit` and `python -m kit`: the command line, see `kit.cli.main`."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from typing import TextIO

__all__ = ["main"]


def main() -> int:
    """Do what the command line says; gives the exit status.

    An interrupt is told in one line also while modules are loaded. Once all is done and printed it
    ends the process at once, without a word: threads of a program may be waited for here.
    """
    try:
        from kit.files import keep_places

        keep_places()
        _hear_lost_interrupts()
        from kit.cli.main import main as act

        status = act()
    except KeyboardInterrupt:
        sys.stderr.write("kit: interrupted\n")
        status = 130  # 128 and the signal's number, as a shell says it
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    signal.signal(signal.SIGINT, lambda *_: os._exit(status or 130))
    return status


def _flush(stream: TextIO) -> None:
    """Write what is left; where it cannot be written, forget it, or Python's exit status is 120."""
    with contextlib.suppress(OSError, ValueError):  # it is closed
        try:
            stream.flush()
        except OSError:  # nobody reads it any more, or the disk is full
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            stream.flush()


def _hear_lost_interrupts() -> None:
    """An interrupt that Python drops (in a callback of `weakref`, a `__del__`) comes again soon."""
    before = sys.unraisablehook

    def hear(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            with contextlib.suppress(RuntimeError):  # Python ends already, or has no more threads
                _thread.start_new_thread(_interrupt_soon, ())
        else:
            before(dropped)

    sys.unraisablehook = hear


def _interrupt_soon() -> None:
    time.sleep(0.02)  # until the main thread is elsewhere
    if sys.platform == "win32":
        _thread.interrupt_main()
    elif (main := threading.main_thread().ident) is not None:
        signal.pthread_kill(main, signal.SIGINT)  # this ends a wait, too


if __name__ == "__main__":
    sys.exit(main())
