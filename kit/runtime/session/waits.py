"""Where the host waits for the device: reads, which are sync points, and waits for everything."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from kit.errors import SessionError
from kit.runtime.recording.bulk import Frame, Site, Task, Value
from kit.runtime.recording.sites import format_site
from kit.runtime.recording.stream import unlocked
from kit.trace import SyncPoint

if TYPE_CHECKING:
    from kit.runtime.profiling.host_spans import Recorder
    from kit.runtime.session.executor import Executor
    from kit.runtime.session.redo import Redo
    from kit.runtime.steps.stepper import Stepper

__all__ = ["Waiting"]


class Waiting:
    """The part of a session that waits."""

    _counts: Counter[str]
    _executor: Executor
    _last: Task | None
    _recorder: Recorder
    cut: Callable[..., None]
    flush: Callable[..., None]
    here: Any
    is_open: bool
    lock: Any
    redo: Redo
    stepper: Stepper
    sync_places: dict[Site, None]
    waited_until = 0  # the end of the last wait, in `time.perf_counter_ns`
    syncs: list[SyncPoint]

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While this thread waits for the device, others record; notes when the wait was over."""
        with unlocked(self.lock), self.lent():
            try:
                yield
            finally:
                self.waited_until = time.perf_counter_ns()

    def lent(self) -> contextlib.AbstractContextManager[None]:
        """What else others may do meanwhile."""
        return contextlib.nullcontext()

    def read(self, value: Value, *, cause: str, frame: Frame) -> Any:
        """The numbers of a value, as a numpy array of its own: a sync point.

        Raises:
            ExecutionError, LoweringError: an op that it depends on failed.
        """
        start = time.perf_counter_ns()
        array = self._settle(value, np.array)
        self._counts["transfer_from_device.count"] += 1
        self._counts["transfer_from_device.bytes"] += array.nbytes
        self._note_sync(start, cause, frame)
        return array

    def wait_to_read(self, tensor: Any) -> None:
        """Block until the tensor's numbers are there; raises what its computation raised."""
        value = tensor if isinstance(tensor, Value) else tensor.kit_value()
        start = time.perf_counter_ns()
        self._settle(value, jax.block_until_ready)
        self._note_sync(start, "wait_to_read", (("", 0), "", ""))

    def wait_all(self) -> None:
        """Block until everything that was recorded has run.

        Raises:
            ExecutionError, LoweringError: a segment failed since the last `wait_all`, and nobody
                has read what it poisoned; the first one that did.
        """
        self.flush("sync", everywhere=True)
        self.redo.close()
        last = self._last
        if last is None:
            return
        start = time.perf_counter_ns()
        with self.waiting():
            self._executor.engine.wait_all()
            self._executor.finish(last)
        self._recorder.add("wait_all", "ahead", start, self.waited_until)

    def finish(self, task: Task) -> None:
        """Block until the device has run this segment; others may record meanwhile."""
        with self.waiting():
            self._executor.finish(task)

    def note_check(self, start: int) -> None:
        """A flag that came with an earlier step was looked at, `start` is when that began."""
        self._counts["check.count"] += 1
        stop = max(start, self.waited_until)  # it may have been there
        self._recorder.add("check of an earlier step", "ahead", start, stop)

    def note_redo(self, segments: int) -> None:
        """Such a flag was raised: these many segments were issued once more."""
        self._counts["redo.count"] += 1
        self._counts["redo.segments"] += segments

    def _settle(self, value: Value, take: Callable[[Any], Any]) -> Any:
        """What `take` makes of the array, once that is there."""
        if not self.is_open:
            raise SessionError(_CLOSED)
        with self.lock:
            if (bulk := value.bulk) is not None:  # it hangs on the value, whoever records it
                self.cut(bulk.stream, "sync", keep_views=bulk.stream is not self.here.stream)
            if self.redo.is_on and value.cell is not None and self.redo.concerns(value.cell):
                self.redo.close()
        taken: Any = None
        with self.waiting():
            if value.cell is not None and value.cell.task is not None:
                self._executor.wait(value.cell.task)
            if value.error is None:
                taken = take(None if value.cell is None else value.cell.array)
        if (error := value.error) is not None:
            self._executor.engine.forgive(error)
            raise error.with_traceback(None)
        return taken

    def _note_sync(self, start: int, cause: str, frame: Frame) -> None:
        stop = self.waited_until
        site, via, _ = frame
        where = format_site(site)
        self.sync_places[site] = None
        self.stepper.note_obstacle(
            f"the step waits for the device: {cause} at {where or 'unknown'}"
        )
        self.syncs.append(SyncPoint(start, stop - start, cause, where, via))
        self._counts["sync.count"] += 1
        self._counts["sync.ns"] += stop - start
        self._recorder.add(f"{cause} at {where}" if where else cause, "wait", start, stop)


_CLOSED = (
    "this tensor belongs to a kit session that has been closed. Read it inside the "
    "`with kit.Session(...)` block, or keep a copy with .cpu() before the block ends"
)
