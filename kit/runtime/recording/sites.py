"""Which line of the user's code something comes from."""

from __future__ import annotations

import os
import sys
from typing import Any

from kit.runtime.compiling.lower import format_site
from kit.runtime.recording.bulk import Site

__all__ = ["here", "line_of"]

_KIT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_WORKLOADS = _KIT + "workloads" + os.sep  # shipped steps count as the user's code


def line_of(error: BaseException) -> str:
    """ ", at train.py:41": the last line of the traceback that is neither kit's nor a library's."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if _is_users(trace.tb_frame.f_code.co_filename):
            found = f", at {format_site((trace.tb_frame.f_code.co_filename, trace.tb_lineno))}"
        trace = trace.tb_next
    return found


def here() -> Site:
    """The line of the user's that this is called from."""
    frame: Any = sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _is_users(path: str) -> bool:
    own = path.startswith(_KIT) and not path.startswith(_WORKLOADS)
    return not (own or path.startswith("<frozen") or "site-packages" in path)
