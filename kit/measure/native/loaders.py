"""Workers of torch's DataLoaders, as they begin and end: torch's profiler has no event for that."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kit.measure.base.loading import BATCH
from kit.torch.tensors.private import private
from kit.trace.kinds import WORKERS_BEGIN, WORKERS_END

__all__ = ["workers_noted"]

_ITERATOR = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"


@contextlib.contextmanager
def workers_noted() -> Iterator[None]:
    """Until the block ends, what begins or ends workers in this thread is input, as a batch is."""
    own, kind = threading.current_thread(), private(_ITERATOR)

    def noted(act: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(act)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not own:
                return act(*args, **kwargs)
            with torch.profiler.record_function(f"{BATCH}{name}"):
                return act(*args, **kwargs)

        return noting

    begin, end = kind.__init__, private(f"{_ITERATOR}._shutdown_workers")
    with contextlib.ExitStack() as undo:
        for act, name in ((begin, WORKERS_BEGIN), (end, WORKERS_END)):
            undo.callback(setattr, kind, act.__name__, act)
            setattr(kind, act.__name__, noted(act, name))
        yield
