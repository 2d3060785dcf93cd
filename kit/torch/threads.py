"""Threads that a program starts, while device kit stands in for other devices.

A new thread has an empty context, without a session, and none of torch's function modes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any

from kit.errors import SessionError
from kit.runtime.recording.sites import is_kits

__all__ = ["threads_follow"]


@contextlib.contextmanager
def threads_follow(around: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Inside the block, each thread that is started runs in a copy of its starter's context.

    Args:
        around: makes what is around the thread's work. Threads of kit's own are left as they are.
    """
    original, in_block = threading.Thread.start, True

    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        if not is_kits(sys._getframe(1).f_code.co_filename):
            work, context = self.run, copy_context()

            def run() -> None:
                vars(self).pop("run", None)
                try:
                    with around():
                        work()
                except SessionError:
                    if in_block or not self.daemon:
                        raise  # else the program is over: Python would have ended this thread

            self.run = functools.partial(context.run, run)  # type: ignore[method-assign]
        try:
            original(self)
        except BaseException:  # it cannot be started, or was before
            vars(self).pop("run", None)
            raise

    threading.Thread.start = start  # type: ignore[method-assign]
    try:
        yield
    finally:
        in_block = False
        threading.Thread.start = original  # type: ignore[method-assign]
