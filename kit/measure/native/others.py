"""torch's profiler takes one thread of a process at a time, and one profile of a thread.

A second one is the program's own, started while the kit's is on. In another thread it would end the
process. So it has to wait for the end of the kit's, which comes after five steps; or it is an error
where that does not come. In the same thread it would fail or be empty. There the kit's gives way.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kit.threads import living
from kit.torch.tensors.private import private

__all__ = ["is_profiling", "others_wait"]

PATIENCE_S = 60.0
# What begins a profile: `start`, `with` and a schedule's step go through it, also of a profile that
# was made before, whose schedule knows its own methods as they were.
_BEGIN = "torch.autograd.profiler.profile._prepare_trace"


@contextlib.contextmanager
def others_wait(give_way: Callable[[Any], object]) -> Iterator[None]:
    """Until the block ends, profilers of torch's begin in no other thread than this one.

    Args:
        give_way: called before one begins in this thread, with it.

    Raises:
        RuntimeError: in the other thread, if the block has not ended after a minute.
    """
    is_over, own = threading.Event(), threading.current_thread()

    begin = private(_BEGIN)

    @functools.wraps(begin)
    def waiting(profile: Any) -> None:
        if threading.current_thread() is own:
            give_way(profile)
        elif not is_over.wait(PATIENCE_S):
            raise RuntimeError(
                "kit records steps with torch's profiler in another thread, and torch takes "
                "one thread of a process at a time: begin this profile once they are recorded"
            )
        begin(profile)

    kind, name = torch.autograd.profiler.profile, begin.__name__
    with contextlib.ExitStack() as undo:
        undo.callback(is_over.set)
        undo.callback(setattr, kind, name, begin)
        setattr(kind, name, waiting)
        yield


def is_profiling() -> bool:
    """Does the program profile itself, in this thread or in another, or is it about to?"""
    is_on = private("torch.autograd._profiler_enabled")()  # in this thread
    return is_on or private("torch.autograd.profiler._is_profiler_enabled") or _is_prepared()


def _is_prepared() -> bool:
    """Is there a profile whose schedule has it begin with the next step? It would see nothing."""
    kind, warmup = torch.profiler.profile, torch.profiler.ProfilerAction.WARMUP
    profiles = living(kind) if isinstance(kind, type) else []  # else a program has replaced it
    return any(profile.current_action is warmup for profile in profiles)
