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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from kit.measure.base.loading import BATCH, NEXT
from kit.runtime.session.interrupts import postponed
from kit.torch.optimizers import FOLLOWED
from kit.torch.tensors.private import private
from kit.trace.kinds import BESIDE_WORKERS, OF_WORKERS, WORKERS_BEGIN, WORKERS_END

if TYPE_CHECKING:
    from kit.runtime.session.tracer import Tracer  # imports jax

__all__ = ["batches_noted", "loaders_noted"]

_ITERATOR = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"
_Act = Callable[..., Any]
_Region = Callable[[str], contextlib.AbstractContextManager[Any]]


def loaders_noted() -> contextlib.AbstractContextManager[None]:
    """Until the block ends, what begins a loader's iterator in this thread, or begins or ends its
    workers, is input for torch's profiler, as a batch is.
    """
    return _LOADERS.noted(_Notes(lambda name: torch.profiler.record_function(f"{BATCH}{name}")))


def batches_noted(tracer: Tracer) -> contextlib.AbstractContextManager[None]:
    """Until the block ends, all that loaders do in this thread is input of a session's trace."""
    return _LOADERS.noted(_Notes(partial(tracer.span, "input"), partial(tracer.note, "input")))


@dataclass(frozen=True, eq=False)
class _Notes:
    """Where one trace notes what this thread does with loaders."""

    region: _Region  # of what is done beside batches
    batch: Callable[[str, int], None] | None = None  # and when it began; none: torch notes it
    thread: threading.Thread = field(default_factory=threading.current_thread)


class _Loaders:
    """Torch's loaders, whose methods tell the traces that are on.

    Of several traces, in one thread or in more, any may end first: the methods are replaced for
    all of them together, and are torch's own again after the last one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._notes: tuple[_Notes, ...] = ()
        self._undo = contextlib.ExitStack()

    @contextlib.contextmanager
    def noted(self, notes: _Notes) -> Iterator[None]:
        """What loaders do in the block is in these notes, too."""
        with postponed(), self._lock:
            if not self._notes:
                self._undo = self._replaced()
            self._notes = (*self._notes, notes)
        try:
            yield
        finally:
            with postponed(), self._lock:
                self._notes = tuple(x for x in self._notes if x is not notes)
                if not self._notes:
                    self._undo.close()

    def _replaced(self) -> contextlib.ExitStack:
        """Replace torch's methods; to close the result puts them back."""
        kind = private(_ITERATOR)
        end = private(f"{_ITERATOR}._shutdown_workers")
        methods = (
            (kind, "__init__", self._in_region(kind.__init__, WORKERS_BEGIN)),
            (kind, "_shutdown_workers", self._in_region(end, WORKERS_END)),
            (DataLoader, "__iter__", self._iterating(DataLoader.__iter__)),
            (FOLLOWED, "bring", self._bringing(FOLLOWED.bring, kind)),
        )
        with contextlib.ExitStack() as undo:
            for owner, name, noting in methods:
                undo.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, noting)
            return undo.pop_all()

    def _here(self) -> list[_Notes]:
        thread = threading.current_thread()
        return [notes for notes in self._notes if notes.thread is thread]

    def _in_region(self, act: _Act, name: str) -> _Act:
        @functools.wraps(act)
        def noting(*args: Any, **kwargs: Any) -> Any:
            with contextlib.ExitStack() as regions:
                for notes in self._here():
                    regions.enter_context(notes.region(name))
                return act(*args, **kwargs)

        return noting

    def _iterating(self, iterate: _Act) -> _Act:
        noted = self._in_region(iterate, NEXT)

        @functools.wraps(iterate)
        def iterating(loader: Any) -> Any:
            begins_workers = loader.num_workers and not loader.persistent_workers  # a region itself
            return iterate(loader) if begins_workers else noted(loader)

        return iterating

    def _bringing(self, bring: _Act, with_workers: type) -> _Act:
        @functools.wraps(bring)
        def bringing(iterator: Any) -> Any:
            told = [notes.batch for notes in self._here() if notes.batch is not None]
            if not told:
                return bring(iterator)
            start, worked = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return bring(iterator)
            finally:
                took, worked = time.perf_counter_ns() - start, time.thread_time_ns() - worked
                name = BESIDE_WORKERS if worked > took / 2 else OF_WORKERS
                for note in told:
                    note(name if isinstance(iterator, with_workers) else NEXT, start)

        return bringing


_LOADERS = _Loaders()
