"""torch's profiler takes one thread of a process at a time; a second one ends the process.

That one is the program's own, started in another thread while the kit's is on. So it has to wait
for the end of the kit's, which comes after five steps; or it is an error where that does not come.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["others_wait"]

PATIENCE_S = 60.0
# What begins a profile, of each class: `start`, `with` and a schedule's step go through these.
_BEGIN = (
    (torch.profiler.profile, "prepare_trace"),
    (torch.autograd.profiler.profile, "__enter__"),
)


@contextlib.contextmanager
def others_wait() -> Iterator[None]:
    """Until the block ends, profilers of torch's begin in no other thread than this one.

    Raises:
        RuntimeError: in the other thread, if the block has not ended after a minute.
    """
    is_over, own = threading.Event(), threading.current_thread()

    def after(begin: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(begin)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not own and not is_over.wait(PATIENCE_S):
                raise RuntimeError(
                    "kit records steps with torch's profiler in another thread, and torch takes "
                    "one thread of a process at a time: begin this profile once they are recorded"
                )
            return begin(*args, **kwargs)

        return waiting

    with contextlib.ExitStack() as undo:
        undo.callback(is_over.set)
        for kind, name in _BEGIN:
            undo.callback(_put_back, kind, name, kind.__dict__.get(name))
            setattr(kind, name, after(getattr(kind, name)))
        yield


def _put_back(kind: type, name: str, before: Any) -> None:
    if before is None:  # it is inherited
        with contextlib.suppress(AttributeError):
            delattr(kind, name)
    else:
        setattr(kind, name, before)
