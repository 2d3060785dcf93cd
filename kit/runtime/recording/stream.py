"""One thread's op stream, which decides when a bulk ends. A `Cutter` decides what happens then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kit.runs.bulk_sizes import BulkSizes
from kit.runtime.recording.bulk import Bulk, Cell, Frame, Op, Value

__all__ = ["CutPolicy", "Cutter", "Stream", "ThreadState"]

MAX_PENDING_OPS = 20_000  # XLA's compile time grows faster than the ops
MAX_PENDING_BYTES = 8 << 30  # of results that a growing bulk holds; then it is cut
LOOK_EVERY = 500  # ops between two looks at what is pending


@dataclass(slots=True)
class CutPolicy:
    """How the bulks of one session are recorded and cut, in whichever thread."""

    is_lazy: bool  # one program a step: a phase ends no bulk
    donates: bool  # the memory of dead leaves is given to the results
    max_pending_bytes: int = MAX_PENDING_BYTES
    is_planning: bool = False  # a step is only recorded, and each call may end a segment
    is_tracing: bool = False  # each op is recorded with its time
    is_inference: Callable[[], bool] = bool  # whether the forward pass now keeps no gradients


class Cutter(Protocol):
    """What a stream gives its bulks to."""

    def cut(self, stream: Stream, reason: str, *, keep_views: bool = False) -> None: ...
    def throttle(self) -> None: ...
    def note_phase(self, phase: str) -> None: ...


class Stream:
    """The bulk that grows in one thread, and the sizes that are in force there."""

    __slots__ = ("_cutter", "_policy", "bulk", "first_values", "is_main", "makes_state", "ops_cut",
                 "phase", "place", "sizes", "thread")  # fmt: skip

    def __init__(
        self, cutter: Cutter, policy: CutPolicy, sizes: BulkSizes, *, is_main: bool
    ) -> None:
        self._cutter = cutter
        self._policy = policy
        self.sizes = sizes
        self.is_main = is_main  # of the thread that opened the session
        self.thread = threading.current_thread()
        self.bulk: Bulk | None = None
        self.ops_cut = 0  # how many have gone on from here in segments
        # Says whether the optimizer's step still goes on that was to make state; None: none was.
        self.makes_state: Callable[[], bool] | None = None
        self.first_values: Bulk | None = None  # of that state, issued before the bulk
        self.phase = "forward"
        self.place: Any = None  # the front end's: where in the program this thread is

    @property
    def is_pending(self) -> bool:
        """True while something is recorded that has not been issued."""
        return self.bulk is not None or self.first_values is not None

    def begin(self, phase: str) -> None:
        """A call of the program begins: cut now if the bulk is full or the phase has changed.

        Now, not when the bulk became full, because by now its temporaries have died; and not in
        the middle of a call, because the views that it has read would be lost.
        """
        bulk = self.bulk
        if bulk is not None:
            if self._policy.is_planning:
                bulk.calls.append(len(bulk.ops))
            if self.phase and phase != self.phase and not self._spans_phases:
                self._cutter.cut(self, "phase")
                self._cutter.throttle()
            elif bulk.size >= bulk.limit and (why := self._why_full(bulk)):
                self._cutter.cut(self, why)
                self._cutter.throttle()
            elif phase != self.phase:
                bulk.phases.append((len(bulk.ops), phase))
        self.phase = phase
        if self.is_main:
            self._cutter.note_phase(phase)

    def record(
        self, op: Op, inputs: Sequence[Value], scalars: Sequence[float], frame: Frame
    ) -> list[Value]:
        """Append one op; its outputs are returned as pending values."""
        bulk = self.bulk
        if bulk is None:
            bulk = self.new_bulk()
        try:
            return bulk.add(op, inputs, scalars, frame)
        except BaseException:
            bulk.mend()
            raise

    def record_fill(self, op: Op, scalars: Sequence[float], frame: Frame) -> Value:
        """Append an op that fills memory with one number, and so reads nothing.

        If it is what an optimizer's state begins with, it goes into a small segment of its own.
        The whole step is the same program then as the steps that find that state.
        """
        if self.makes_state is not None and not self.makes_state():  # an error has ended it
            self.makes_state = None
        if self.makes_state is None or not self._spans_phases:
            return self.record(op, (), scalars, frame)[0]
        bulk = self.first_values
        if bulk is None:
            phase = self.phase or "update"
            bulk = self.first_values = Bulk(self.flush_first_values, phase, phase, 0)
            bulk.times = [] if self._policy.is_tracing else None
            if self.bulk is not None:
                self.bulk.earlier = bulk
        return bulk.add(op, (), scalars, frame)[0]

    def flush_first_values(self, _reason: str = "state") -> None:
        """Issue what an optimizer's state begins with, if there is any; the bulk goes on growing.

        Whoever needs these values, the segment ends because they are an optimizer's state.
        """
        growing, first = self.bulk, self.first_values
        if first is None:
            return
        self.bulk, self.first_values = first, None
        try:
            self._cutter.cut(self, "state")
        except BaseException:
            self.first_values = self.bulk  # none is left if it was issued before the error
            raise
        finally:
            self.bulk = growing
            if growing is not None:
                growing.earlier = self.first_values

    def new_bulk(self) -> Bulk:
        """The bulk that grows from now on."""
        phase = self.phase or "forward"
        bulk = self.bulk = Bulk(self.flush, phase, self._kind(phase), 0)
        bulk.limit = self._next_look(bulk)
        bulk.earlier = self.first_values
        if self._policy.is_tracing:
            bulk.times = []
        return bulk

    def flush(self, reason: str) -> None:
        """End the bulk now: a value of it is needed, perhaps by another thread."""
        is_own = self.thread is threading.current_thread()
        self._cutter.cut(self, reason, keep_views=not is_own)

    def look(self) -> None:
        """A network's forward pass begins or ends: its size is another one without gradients."""
        bulk = self.bulk
        if bulk is not None and (kind := self._kind(bulk.phase)) != bulk.kind:
            bulk.kind = kind
            bulk.limit = self._next_look(bulk)

    def _kind(self, phase: str) -> str:
        return "inference" if phase == "forward" and self._policy.is_inference() else phase

    def set_sizes(self, sizes: BulkSizes) -> BulkSizes:
        """Put other sizes in force; gives those of before. What is too large for them is cut."""
        before, self.sizes = self.sizes, sizes
        bulk = self.bulk
        if bulk is not None:
            if bulk.size >= sizes.of(bulk.kind):
                self._cutter.cut(self, "scope")
            else:
                bulk.limit = self._next_look(bulk)
        return before

    @property
    def _spans_phases(self) -> bool:
        """One program a step, as pytorch/xla does; a scope asks for segments all the same."""
        return self._policy.is_lazy and self.sizes.origin != "scope"

    def _why_full(self, bulk: Bulk) -> str:
        """Why the bulk must end; empty if it may go on to the next look at its size."""
        if bulk.size >= self.sizes.of(bulk.kind):
            return "size"
        too_much = self._policy.max_pending_bytes
        if bulk.size >= MAX_PENDING_OPS or bulk.pending_bytes() > too_much:
            return "bytes"
        bulk.limit = self._next_look(bulk)
        return ""

    def _next_look(self, bulk: Bulk) -> int:
        """The size at which `_why_full` is asked again."""
        if self._policy.is_planning:
            return 0  # at each call
        return min(bulk.size + LOOK_EVERY, self.sizes.of(bulk.kind))


class ThreadState(threading.local):
    """What belongs to the thread that asks."""

    stream: Stream | None = None
    lane = "host/main"  # where the timeline draws this thread
    cells: list[Cell] | None = None  # in a loader's thread: the batch that is being copied
