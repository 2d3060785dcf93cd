"""SIGTERM, and a terminal that is closed: what was recorded is kept, and no folder or process left.

Elsewhere they end the process at once, as they end Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

__all__ = ["Terminated", "leaving_nothing"]

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Terminated(SystemExit):
    """Such a signal came; its code is the status that a shell gives."""


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Until the block ends, these signals leave it as an error does, by `Terminated`.

    A second one ends the process at once, and so does one that a forked child gets. Whoever ignores
    a signal (`nohup`), or handles it, is left alone.
    """
    with contextlib.ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    undo.callback(signal.signal, number, signal.SIG_DFL)
                    signal.signal(number, partial(_leave, os.getpid()))
        yield


def _leave(process: int, number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_DFL)
    if os.getpid() != process:
        os.kill(os.getpid(), number)
    raise Terminated(128 + number)
