"""What torch's DataLoaders do in the traced steps.

Torch's profiler has an event for each batch, and none for what they do beside: they begin and end
workers, and read a seed with each new iterator. On device kit nothing but this tells of them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from kit.measure.base.loading import BATCH, NEXT
from kit.torch.tensors.private import private
from kit.trace.kinds import BESIDE_WORKERS, OF_WORKERS, WORKERS_BEGIN, WORKERS_END

if TYPE_CHECKING:
    from kit.runtime.session.tracer import Tracer  # imports jax

__all__ = ["batches_noted", "loaders_noted"]

_ITERATOR = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"
_Act = Callable[..., Any]


@contextlib.contextmanager
def loaders_noted() -> Iterator[None]:
    """Until the block ends, what begins a loader's iterator in this thread, or begins or ends its
    workers, is input for torch's profiler, as a batch is.
    """
    with _noted(lambda name: torch.profiler.record_function(f"{BATCH}{name}")):
        yield


@contextlib.contextmanager
def batches_noted(tracer: Tracer) -> Iterator[None]:
    """Until the block ends, all that loaders do in this thread is input of a session's trace."""
    own = threading.current_thread()
    kind = private("torch.utils.data.dataloader._BaseDataLoaderIter")
    bring = kind.__next__

    @functools.wraps(bring)
    def bringing(iterator: Any) -> Any:
        if threading.current_thread() is not own:
            return bring(iterator)
        start, worked = time.perf_counter_ns(), time.thread_time_ns()
        try:
            return bring(iterator)
        finally:
            took, worked = time.perf_counter_ns() - start, time.thread_time_ns() - worked
            name = BESIDE_WORKERS if worked > took / 2 else OF_WORKERS
            tracer.note("input", name if isinstance(iterator, private(_ITERATOR)) else NEXT, start)

    with _noted(lambda name: tracer.span("input", name)):
        kind.__next__ = bringing
        try:
            yield
        finally:
            kind.__next__ = bring


@contextlib.contextmanager
def _noted(region: Callable[[str], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """What this thread begins and ends of a loader, each in a region of its name."""
    own, kind = threading.current_thread(), private(_ITERATOR)

    def noted(act: _Act, name: str) -> _Act:
        @functools.wraps(act)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not own:
                return act(*args, **kwargs)
            with region(name):
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
