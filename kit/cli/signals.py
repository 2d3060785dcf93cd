"""SIGTERM, and a terminal that is closed, for commands that have folders or processes of their own.

Elsewhere they end the process at once, as they end Python: of a script, too.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["leaving_nothing"]

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def leaving_nothing() -> Iterator[None]:
    """Until the block ends, these signals leave it as an error does, with the status of a shell.

    Whoever ignores a signal (`nohup`), or handles it, is left alone.
    """
    with contextlib.ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            for number in _ENDING:
                if signal.getsignal(number) is signal.SIG_DFL:
                    undo.callback(signal.signal, number, signal.SIG_DFL)
                    signal.signal(number, _leave)
        yield


def _leave(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)
