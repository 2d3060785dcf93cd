"""Start a thread, or say clearly that there are too many; read another one's stack.

A thread that could not start must not be remembered as one that runs: whoever waits for its work
would wait for ever. So threads are started here, and kept by their owner afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kit.errors import EngineError

__all__ = ["forked", "reading_stacks", "start_thread"]


def start_thread(
    work: Callable[..., object], name: str, *, args: Sequence[Any] = (), is_daemon: bool = True
) -> threading.Thread:
    """A thread that does this, and runs.

    Args:
        is_daemon: Python does not wait for it where the program ends.

    Raises:
        EngineError: the system gives no more threads.
    """
    thread = threading.Thread(target=work, name=name, args=args, daemon=is_daemon)
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise EngineError(
            f"no thread for {name!r} could be started ({error}): end other threads or raise the "
            "limit (ulimit -u), and try again"
        ) from error
    return thread


def forked(owner: str) -> EngineError:
    """What a forked child is told that uses what belongs to its parent.

    Args:
        owner: "the engine", "this kit session".
    """
    return EngineError(
        f"this process was forked from the one that owns {owner}, and threads do not survive a "
        "fork: read what the child needs before forking, or start the child with the 'spawn' method"
    )


@contextlib.contextmanager
def reading_stacks() -> Iterator[None]:
    """A block that goes through the frames of other threads.

    Python 3.11 makes the object of a frame when somebody asks for it, and may collect garbage while
    it does. What that calls lets other threads run, and one that leaves the frame meanwhile makes
    the process crash, now or later. So nothing is collected here. Later Pythons collect elsewhere.
    """
    rests = sys.version_info < (3, 12) and gc.isenabled()
    try:
        if rests:
            gc.disable()
        yield
    finally:
        if rests:
            gc.enable()
