"""What torch's DataLoaders do beside their batches: torch's profiler has no event for that.

They begin and end workers, and read a seed with each new iterator.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from kit.measure.base.loading import BATCH, NEXT
from kit.torch.tensors.private import private
from kit.trace.kinds import WORKERS_BEGIN, WORKERS_END

__all__ = ["loaders_noted"]

_ITERATOR = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"


@contextlib.contextmanager
def loaders_noted() -> Iterator[None]:
    """Until the block ends, what begins a loader's iterator in this thread, or begins or ends its
    workers, is input, as a batch is.
    """
    own, kind = threading.current_thread(), private(_ITERATOR)

    def noted(act: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(act)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not own:
                return act(*args, **kwargs)
            with torch.profiler.record_function(f"{BATCH}{name}"):
                return act(*args, **kwargs)

        return noting

    iterate = DataLoader.__iter__
    noted_iterate = noted(iterate, NEXT)

    @functools.wraps(iterate)
    def iterating(loader: Any) -> Any:
        begins_workers = loader.num_workers and not loader.persistent_workers  # has its own region
        return iterate(loader) if begins_workers else noted_iterate(loader)

    begin, end = kind.__init__, private(f"{_ITERATOR}._shutdown_workers")
    with contextlib.ExitStack() as undo:
        for act, name in ((begin, WORKERS_BEGIN), (end, WORKERS_END)):
            undo.callback(setattr, kind, act.__name__, act)
            setattr(kind, act.__name__, noted(act, name))
        undo.callback(setattr, DataLoader, iterate.__name__, iterate)
        setattr(DataLoader, iterate.__name__, iterating)
        yield
