"""Where a program may end with ops that nobody has issued: they are issued there, or it is said.

The end of a notebook cell, and of the interpreter. (The end of a scope is the scope's own, and in
a forked child the engine refuses to run anything.)
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from kit.runtime.session.session import Session

__all__ = ["watch_ends"]


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
        except Exception:  # noqa: BLE001 - nobody is left to catch it
            sys.stderr.write("kit: a session was open when Python ended, and failed:\n")
            traceback.print_exc()

    undo = contextlib.ExitStack()
    atexit.register(at_exit)
    undo.callback(atexit.unregister, at_exit)
    events = _notebook_events()
    if events is not None:

        def end_of_cell(*_: Any) -> None:
            alive = known()
            if alive is not None and alive.is_open:
                alive.flush("end of cell")

        events.register("post_run_cell", end_of_cell)
        undo.callback(_forget, events, end_of_cell)
    return undo


def _notebook_events() -> Any:
    """IPython's event manager, if we run in IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "events", None)


def _forget(events: Any, callback: Callable[..., None]) -> None:
    with contextlib.suppress(ValueError):  # the shell may have been reset
        events.unregister("post_run_cell", callback)
