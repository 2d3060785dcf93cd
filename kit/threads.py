"""Start a thread, or say clearly that there are too many; what a forked child is told.

A thread that could not start must not be remembered as one that runs: whoever waits for its work
would wait for ever. So threads are started here, and kept by their owner afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kit.errors import EngineError

__all__ = ["forked", "start_thread"]


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
