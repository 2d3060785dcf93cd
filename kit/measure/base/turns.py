"""One measurement at a time in a process: who comes first measures first, and the others wait.

    with TURNS.measure("cell [9]"):     a run: waits for its turn, and has it until the block ends
    with TURNS.record():                work for idle time that a run soon stops, and then waits for
    with TURNS.compile():               work that nothing can stop: no clock starts before its end

A turn is taken for a whole run, not for its timed steps only: torch's random state, the profiler
and the cores belong to the process.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from kit.errors import Cancelled
from kit.measure.base.openmp import let_go
from kit.notebook import notebook_shell
from kit.shown import Progress
from kit.threads import read_stacks

__all__ = [
    "HELD", "TURNS", "CancelledFn", "Turns", "asker", "in_turn", "waiting",
]  # fmt: skip

CancelledFn = Callable[[], bool]
Tell = Callable[[str], object]
P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_S = 5.0  # for a recorded step whose Python does not come back to kit; then both go on
_CONTEXTLIB = contextlib.contextmanager.__code__.co_filename
_LOOK_S = 0.005  # how soon one that waits sees that its turn has come, or that it is cancelled


class _Ticket:
    """The place of a block in one of the lists below.

    An interrupt may come while the block gives its place back, or an error of the memory, and then
    it stands there still. So the others ask whether the function of the block still runs.
    """

    def __init__(self, who: str = "") -> None:
        self.who = who
        self._thread = threading.get_ident()
        frame: FrameType | None = sys._getframe(2)  # behind this one and the context manager's
        while frame is not None and frame.f_code.co_filename == _CONTEXTLIB:
            frame = frame.f_back
        self._function = frame

    @property
    def is_over(self) -> bool:
        """The function that has the block is left."""
        return not read_stacks(self._is_called)

    def _is_called(self) -> bool:
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame is not self._function:
            frame = frame.f_back
        return frame is not None


class Turns:
    """The queue of those who measure; the first in it measures now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[_Ticket] = []
        self._recordings: list[_Ticket] = []
        self._compiles: list[_Ticket] = []

    @property
    def is_taken(self) -> bool:
        """True while a run measures or waits to."""
        return bool(self._of(self._queue))

    def is_held(self) -> bool:
        """True if kit itself runs what runs here, to measure it or to record it ahead."""
        is_so = self._holds_one_of([*self._queue[:1], *self._recordings])
        if not is_so:
            HELD.set(None)  # the next one who asks sees it by that alone
        return is_so

    @contextlib.contextmanager
    def measure(
        self, who: str = "", *, cancelled: CancelledFn | None = None, tell: Tell | None = None
    ) -> Iterator[None]:
        """Have the turn for the block; a block inside it, of the same context, has it already.

        Args:
            who: what others are told that they wait for; `asker()` if not given.
            tell: called with "waits for cell [9]" if there is something to wait for.

        Raises:
            Cancelled: `cancelled()` became true before the turn came; the queue is as if it had
                never been asked.
        """
        if self._holds_one_of(self._queue[:1]):
            yield
            return
        ticket = _Ticket(who or asker())
        with self._place(self._queue, ticket):
            self._await(ticket, cancelled, tell)
            with _holding(ticket):
                yield

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """For a step that is only recorded; it is to stop once `is_taken`.

        Raises:
            Cancelled: a run measures or waits to.
        """
        ticket = _Ticket()
        with self._place(self._recordings, ticket):  # a run that comes now sees it
            if self.is_taken:
                raise Cancelled("another run goes first")
            with _holding(ticket):
                yield

    @contextlib.contextmanager
    def compile(self) -> Iterator[None]:
        """For a thread that compiles ahead; a run may begin meanwhile, but not its clock."""
        ticket = _Ticket()
        with self._place(self._compiles, ticket):
            yield

    def wait_quiet(self, cancelled: CancelledFn | None = None) -> None:
        """Block until nothing is compiled ahead: what follows is to be measured.

        Raises:
            Cancelled: `cancelled()` became true.
        """
        while self._of(self._compiles):
            time.sleep(_LOOK_S)
            if cancelled is not None and cancelled():
                raise Cancelled("cancelled while a program was compiled ahead")

    @contextlib.contextmanager
    def _place(self, places: list[_Ticket], ticket: _Ticket) -> Iterator[None]:
        """Have the last place of a list for the block."""
        try:
            with self._lock:
                places.append(ticket)
            yield
        finally:
            with self._lock:
                if ticket in places:
                    places.remove(ticket)

    def _holds_one_of(self, places: list[_Ticket]) -> bool:
        held = HELD.get()
        return held is not None and held in places and not held.is_over

    def _of(self, places: list[_Ticket]) -> list[_Ticket]:
        """Who has a place in this list, by a function that still runs."""
        with self._lock:
            places[:] = [ticket for ticket in places if not ticket.is_over]
            return [*places]

    def _await(self, ticket: _Ticket, cancelled: CancelledFn | None, tell: Tell | None) -> None:
        told: _Ticket | None = None
        patient_until = time.monotonic() + PATIENCE_S
        while True:
            first = self._of(self._queue)[0]
            is_free = not self._of(self._recordings) or time.monotonic() >= patient_until
            if first is ticket and is_free:
                return
            if cancelled is not None and cancelled():
                raise Cancelled(f"cancelled while it waited for {first.who}")
            if tell is not None and first is not ticket and first is not told:
                told = first
                tell(f"waits for {first.who}")
            time.sleep(_LOOK_S)


def asker() -> str:
    """Who asks for a turn here: the notebook's cell that runs, or else the thread."""
    thread = threading.current_thread()
    shell = notebook_shell()
    if thread is not threading.main_thread():
        return f"thread {thread.name!r}"
    if shell is None:
        return "the main thread"
    cells = shell.history_manager.input_hist_parsed  # from 0, which is none; this one is the last
    return f"cell [{len(cells) - 1}]"  # IPython 9 counts up before a cell runs, IPython 8 after


def waiting(progress: Progress | None) -> Tell | None:
    """What tells a run's progress that the run waits."""
    return None if progress is None else lambda text: progress(text, 0.0)


def in_turn(measure: Callable[P, R]) -> Callable[P, R]:
    """Have a function wait for its turn; it is told by its own `progress` and `cancelled`."""

    @functools.wraps(measure)
    def wait_and_measure(*args: P.args, **options: P.kwargs) -> R:
        cancelled: Any = options.get("cancelled")
        progress: Any = options.get("progress")
        with TURNS.measure(cancelled=cancelled, tell=waiting(progress)):
            return measure(*args, **options)

    return wait_and_measure


@contextlib.contextmanager
def _holding(ticket: _Ticket) -> Iterator[None]:
    before = HELD.get()
    try:
        HELD.set(ticket)
        yield
    finally:
        HELD.set(before)
        let_go()


TURNS = Turns()
# Of the block that runs here. Of one that is over, too: an interrupt may cut its end short, and a
# context that was copied inside of it, as for a task, outlives it. None: there is none.
HELD: ContextVar[_Ticket | None] = ContextVar("kit_turn", default=None)
