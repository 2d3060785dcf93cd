"""The ends of a notebook cell and of Python: ops that are recorded and not issued are issued there.

(The end of a bulk scope issues ops by itself, and in a forked child nothing is issued.)
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol
from weakref import finalize, ref

from kit.notebook import notebook_events
from kit.runtime.session.interrupts import INTERRUPTS

__all__ = ["watch_ends"]


class Session(Protocol):
    """What is issued where a program ends."""

    is_open: bool

    def flush(self, reason: str) -> None: ...
    def wait_all(self) -> None: ...


def watch_ends(session: Session) -> contextlib.ExitStack:
    """From now on the session is flushed at those ends; closing the result stops that."""
    known = ref(session)  # the watch keeps no session alive
    owner = os.getpid()

    def at_exit() -> None:
        alive = known()
        if alive is None or not alive.is_open or os.getpid() != owner:
            return
        try:
            alive.wait_all()
        except Exception:  # noqa: BLE001 - no caller is left
            sys.stderr.write("kit: a session was open when Python ended, and failed:\n")
            traceback.print_exc()

    undo = contextlib.ExitStack()
    atexit.register(at_exit)
    undo.callback(atexit.unregister, at_exit)
    events = notebook_events()
    if events is not None:

        def end_of_cell(*_: Any) -> None:
            alive = known()
            if alive is not None and alive.is_open:
                alive.flush("end of cell")
            INTERRUPTS.check()  # the cell was interrupted, and not the next one

        events.register("post_run_cell", end_of_cell)
        undo.callback(_forget, events, "post_run_cell", end_of_cell)
    finalize(session, undo.close).atexit = False  # it may be dropped without being closed
    return undo


def _forget(events: Any, event: str, callback: Callable[..., None]) -> None:
    with contextlib.suppress(ValueError):  # the shell may have been reset
        events.unregister(event, callback)
