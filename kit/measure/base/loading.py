"""Batches on their way to the device: brought by the step itself, or by a thread ahead of it."""

from __future__ import annotations

import contextlib
import contextvars
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from kit.errors import SettingsError, is_a
from kit.runtime.recording.bulk import NOWHERE, Site
from kit.runtime.recording.sites import format_site, level_of_user, line_of_frame
from kit.threads import read_stacks, start_thread

if TYPE_CHECKING:
    from kit.runtime.session.session import Session

__all__ = ["BATCH", "NEXT", "WAITED", "endless", "fetched", "noted", "prefetched"]

BATCH = "kit batch: "  # how an event of torch's profiler begins in which a native step loads
NEXT, WAITED = "next batch", "waiting for a batch"  # what bringing one is called; a thread does it
PATIENCE_S = 5.0  # for a batch that is being prepared when no more are wanted
SHORT_NS = 20_000  # a batch that is there already is taken in less


def endless(source: Iterable[Any]) -> Iterator[Any]:
    """Its batches, again from the start when it ends.

    Raises:
        SettingsError: it gives none, or cannot start again.
    """
    count = 0
    while True:
        before = count
        for batch in source:
            count += 1
            yield batch
        if count == before:
            raise SettingsError(
                f"the loader ended after {count} batches and gives no more: give a dataset or a "
                "DataLoader, which can start again, or ask for fewer steps"
            )


def noted(
    batches: Iterator[Any], region: Callable[[], contextlib.AbstractContextManager[object]]
) -> Iterator[Any]:
    """The same batches; natively, where no session sees it, a step waits for each in a region."""
    while True:
        with region():
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


def fetched(
    session: Session, batches: Iterator[Any], put: Callable[[Any], Any], depth: int
) -> Iterator[Any]:
    """The batches on the session's device, in such a way that a step can be replayed.

    Args:
        put: copies one batch to the device.
        depth: how many batches a thread prepares and copies ahead; 0: the step does it itself.
    """

    def bring() -> Any:
        with session.span("input", NEXT):
            batch = next(batches)
        return put(batch)

    if depth:
        ready = prefetched(_brought(session, bring), depth)
        session.at_end(ready.close)

        def load() -> Any:
            with session.span("input", WAITED, at_least_ns=SHORT_NS):
                batch, cells = next(ready)
            session.stepper.note_batch(cells)
            return batch
    else:
        load = bring
    while True:
        try:
            batch = session.fetch(load)
        except StopIteration:
            return
        yield batch


def _brought(session: Session, bring: Callable[[], Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Each batch with the cells of its arrays; runs in the loader's thread."""
    while True:
        with session.inputs.loading() as cells:
            try:
                batch = bring()
            except StopIteration:
                return
        yield batch, cells


def _line_of(thread: threading.Thread) -> Site:
    """The user's line that a thread is at: for `read_stacks`."""
    frame = sys._current_frames().get(thread.ident or 0)
    return NOWHERE if frame is None else line_of_frame(frame)


def prefetched(batches: Iterator[Any], depth: int) -> Generator[Any]:
    """The same batches, prepared ahead by a thread that ends with this iterator."""
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def offer(item: tuple[Any, BaseException | None]) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.05)
                return

    def prepare() -> None:
        try:
            while not stopped.is_set():
                offer((next(batches), None))
        except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
            offer((None, error))

    thread: threading.Thread | None = None
    try:
        thread = start_thread(contextvars.copy_context().run, "kit prefetch", args=(prepare,))
        while True:
            batch, error = ready.get()
            if is_a(error, StopIteration):
                return
            if error is not None:
                raise error
            yield batch
    finally:
        stopped.set()
        # None: interrupted as it began. The garbage collector may run this in the thread itself.
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE_S)
            if thread.is_alive():
                where = format_site(read_stacks(partial(_line_of, thread)))
                warnings.warn(
                    f"the next batch is still being prepared{where and f' at {where}'}, after "
                    f"{PATIENCE_S:g} s: the thread 'kit prefetch' is left to end by itself",
                    stacklevel=level_of_user(),
                )
