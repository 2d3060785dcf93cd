"""One thread's op stream: it says when a bulk ends. What becomes of the bulk is the session's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kit.runs.bulk_sizes import BulkSizes
from kit.runtime.recording.bulk import Bulk, Cell, Frame, Op, Value

if TYPE_CHECKING:
    from kit.runtime.session.session import Session

__all__ = ["Here", "Stream", "unlocked"]

MAX_PENDING_OPS = 20_000  # XLA's compile time grows faster than the ops
LOOK_EVERY = 500  # ops between two looks at what is pending


class Stream:
    """The bulk that grows in one thread, and the sizes that are in force there."""

    __slots__ = ("bulk", "is_main", "phase", "places", "session", "sizes", "thread")

    def __init__(self, session: Session, sizes: BulkSizes, *, is_main: bool) -> None:
        self.session = session
        self.sizes = sizes
        self.is_main = is_main  # of the thread that opened the session
        self.thread = threading.current_thread()
        self.bulk: Bulk | None = None
        self.phase = "forward"
        self.places: Any = None  # the front end's: where in the program this thread is

    def begin(self, phase: str) -> None:
        """A call of the program begins: cut now if the bulk is full or the phase has changed.

        Now, not when the bulk became full, because by now its temporaries have died; and not in
        the middle of a call, because the views that it has read would be lost.
        """
        bulk = self.bulk
        if bulk is not None:
            if self.session.is_planning:
                bulk.calls.append(len(bulk.ops))
            if self.phase and phase != self.phase and not self._spans_phases:
                self.session.cut(self, "phase")
                self.session.throttle()
            elif bulk.size >= bulk.limit and (why := self._is_full(bulk)):
                self.session.cut(self, why)
                self.session.throttle()
            elif phase != self.phase:
                bulk.phases.append((len(bulk.ops), phase))
        self.phase = phase
        if self.is_main:
            self.session.note_phase(phase)

    def record(
        self, op: Op, inputs: Sequence[Value], scalars: Sequence[float], frame: Frame
    ) -> list[Value]:
        """Append one op; its outputs are returned as pending values."""
        bulk = self.bulk
        if bulk is None:
            bulk = self.new_bulk()
        return bulk.add(op, inputs, scalars, frame)

    def new_bulk(self) -> Bulk:
        """The bulk that grows from now on."""
        phase = self.phase or "forward"
        bulk = self.bulk = Bulk(self, phase, self._kind(phase), 0)
        bulk.limit = self._next_look(bulk)
        if self.session.is_tracing:
            bulk.times = []
        return bulk

    def look(self) -> None:
        """A network's forward pass begins or ends: its size is another one without gradients."""
        bulk = self.bulk
        if bulk is not None and (kind := self._kind(bulk.phase)) != bulk.kind:
            bulk.kind = kind
            bulk.limit = self._next_look(bulk)

    def _kind(self, phase: str) -> str:
        return "inference" if phase == "forward" and self.session.is_inference() else phase

    def set_sizes(self, sizes: BulkSizes) -> BulkSizes:
        """Put other sizes in force; gives those of before. What is too large for them is cut."""
        before, self.sizes = self.sizes, sizes
        bulk = self.bulk
        if bulk is not None:
            if bulk.size >= sizes.of(bulk.kind):
                self.session.cut(self, "scope")
            else:
                bulk.limit = self._next_look(bulk)
        return before

    @property
    def _spans_phases(self) -> bool:
        """One program a step, as pytorch/xla does; a scope asks for segments all the same."""
        return self.session.is_lazy and self.sizes.origin != "scope"

    def _is_full(self, bulk: Bulk) -> str:
        """Why the bulk must end; empty if it may go on to the next look at its size."""
        if bulk.size >= self.sizes.of(bulk.kind):
            return "size"
        too_much = self.session.max_pending_bytes
        if bulk.size >= MAX_PENDING_OPS or bulk.pending_bytes() > too_much:
            return "bytes"
        bulk.limit = self._next_look(bulk)
        return ""

    def _next_look(self, bulk: Bulk) -> int:
        """The size at which `_is_full` is asked again."""
        if self.session.is_planning:
            return 0  # at each call
        return min(bulk.size + LOOK_EVERY, self.sizes.of(bulk.kind))


class Here(threading.local):
    """What belongs to the thread that asks."""

    stream: Stream | None = None
    lane = "host/main"  # where the timeline draws what it does
    cells: list[Cell] | None = None  # in a loader's thread: of the batch that it copies


@contextlib.contextmanager
def unlocked(lock: Any) -> Iterator[None]:
    """While this thread waits the others record, however deep in a call of its own it is."""
    depth = 0
    with contextlib.suppress(RuntimeError):  # released as often as it was taken
        while True:
            lock.release()
            depth += 1
    try:
        yield
    finally:
        for _ in range(depth):
            lock.acquire()
